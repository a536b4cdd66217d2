from dataclasses import replace

import pytest
import torch

from moeinspect.runtime.capture.capturer import CaptureBuffer, CaptureShape
from moeinspect.runtime.capture.foreign_shape import as_shape

TARGET = CaptureShape((1, 2, 3), 2, 16, 8, 8, with_weights=True, with_margins=True)


def filled(shape, n=4):
    buffer = CaptureBuffer(shape, n)
    for i, tensor in enumerate(buffer.tensors()):
        tensor.copy_(torch.arange(tensor.numel()).view(tensor.shape) + i)
    return buffer.tensors()


def test_layers_are_placed_by_their_ids_and_absent_ones_are_missing():
    rows = filled(replace(TARGET, layer_ids=(2, 7)))
    ids, weights, margins = as_shape(rows, replace(TARGET, layer_ids=(2, 7)), TARGET)
    assert ids[:, 1].tolist() == rows[0][:, 0].tolist()
    assert weights[:, 1].tolist() == rows[1][:, 0].tolist()
    assert margins[:, 1].tolist() == rows[2][:, 0].tolist()
    assert (ids[:, [0, 2]] == 255).all() and not weights[:, [0, 2]].any() and not margins[:, [0, 2]].any()


@pytest.mark.parametrize("num_experts, missing", [(16, 255), (512, -1)])
def test_with_another_top_k_every_layer_is_missing(num_experts, missing):
    have = replace(TARGET, top_k=3)
    ids, *_ = as_shape(filled(have), have, replace(TARGET, num_experts=num_experts))
    assert ids.shape == (4, 3, 2) and (ids == missing).all()
