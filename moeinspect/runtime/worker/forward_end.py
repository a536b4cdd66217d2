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
) -> None:
    """What every captured forward does last: takes its rows out of the shared device buffer."""
    output = capturer.on_forward_end(slots, clone=clone)
    if delayed:
        captures.append(output)
    else:
        output.copy_to_host()
        output.finalize()
