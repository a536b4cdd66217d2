"""Rows of a capturer that was made for another model, in the shape that a trace of the target has."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from moeinspect.runtime.capture.capturer import CaptureBuffer, CaptureShape


def as_shape(rows: Sequence[torch.Tensor], have: CaptureShape, want: CaptureShape) -> list[torch.Tensor]:
    """`rows` [n, L', K'] of a capturer of shape `have`, laid out by layer id as [n, L, K] of `want`.

    What was not returned is missing: the ids dtype's maximum, and zeros for weights and margins. With another
    top-k nothing of it can be told apart, and all is missing.
    """
    result = CaptureBuffer(want, rows[0].shape[0])
    result.ids.fill_(torch.iinfo(result.ids.dtype).max if result.ids.dtype == torch.uint8 else -1)
    if have.top_k == want.top_k:
        for column, layer in enumerate(want.layer_ids):
            if layer in have.layer_ids:
                for to_rows, from_rows in zip(result.tensors(), rows, strict=True):
                    to_rows[:, column] = from_rows[:, have.layer_ids.index(layer)]
    return result.tensors()
