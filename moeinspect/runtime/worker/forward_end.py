"""The end of a captured forward."""

from __future__ import annotations

import torch

from moeinspect.runtime.capture.capturer import RoutedExpertsCapturer, TopkCaptureOutput


def end_of_forward(
    capturer: RoutedExpertsCapturer,
    slots: torch.Tensor,
    captures: list[TopkCaptureOutput],
    *,
    delayed: bool,
    clone: bool = True,
) -> TopkCaptureOutput:
    """What every captured forward does last: takes its rows out of the shared device buffer.

    With `delayed` they join `captures` and are stored by the step's result handler, else at once.
    """
    output = capturer.on_forward_end(slots, clone=clone)
    if delayed:
        captures.append(output)
    else:
        output.copy_to_host()
        output.finalize()
    return output
