import pytest
import torch

from moeinspect.runtime.capture.capturer import (
    CaptureShape,
    RoutedExpertsCapturer,
    logit_margin,
    set_global_experts_capturer,
)
from moeinspect.runtime.capture.gate import (
    bound_config,
    capture_routed_experts_if_allowed,
    captured_ids_view,
    disable_routed_experts_capture_for_draft,
)
from moeinspect.runtime.topk.config import TopKConfig

SHAPE = CaptureShape(
    (1, 3), top_k=2, num_experts=8, max_tokens=6, num_slots=10, with_weights=True, with_margins=True
)


@pytest.fixture
def capturer():
    capturer = RoutedExpertsCapturer(SHAPE)
    set_global_experts_capturer(capturer)
    yield capturer
    set_global_experts_capturer(None)


def capture(config, layer_id, ids, logits=None):
    n = ids.shape[0]
    logits = torch.arange(n * 8.0).reshape(n, 8) if logits is None else logits
    capture_routed_experts_if_allowed(
        config, layer_id, ids, weights=torch.full((n, 2), 0.5), router_logits=logits
    )


def test_ids_weights_and_margins_land_in_the_layers_column(capturer):
    ids = torch.tensor([[3, 1], [7, 0], [2, 5]], dtype=torch.int32)
    capture(TopKConfig(2), 3, ids)
    buffer = capturer.device_buffer
    assert buffer.ids[:3, 1].tolist() == ids.tolist()
    assert buffer.ids[:, 0].abs().sum() == 0 and buffer.ids[3:].sum() == 0
    assert buffer.weights[:3, 1].eq(0.5).all() and buffer.margins[:3, 1].eq(1.0).all()


def test_a_layer_that_opted_out_leaves_no_mark(capturer):
    config = TopKConfig(2, allow_routed_experts_capture=False)
    capture(config, 3, torch.ones(2, 2, dtype=torch.int32))
    assert captured_ids_view(config, 3, 2) is None
    assert all(tensor.sum() == 0 for tensor in capturer.device_buffer.tensors())


def test_a_layer_that_the_target_lacks_is_not_captured(capturer):
    capture(TopKConfig(2), 2, torch.ones(2, 2, dtype=torch.int32))
    assert all(tensor.sum() == 0 for tensor in capturer.device_buffer.tensors())


def test_without_a_capturer_the_gate_does_nothing():
    set_global_experts_capturer(None)
    capture(TopKConfig(2), 1, torch.ones(2, 2, dtype=torch.int32))
    assert captured_ids_view(TopKConfig(2), 1, 2) is None


def test_a_backend_binds_to_whether_there_is_a_capturer(capturer):
    opted_out = TopKConfig(2, renormalize=False, allow_routed_experts_capture=False)
    allowed = TopKConfig(2, renormalize=False)
    assert bound_config(allowed) == allowed and bound_config(opted_out) == opted_out
    set_global_experts_capturer(None)
    assert bound_config(allowed) == bound_config(opted_out) == opted_out


def test_the_opt_out_reaches_every_layer_and_nothing_else():
    class Layer:
        def __init__(self):
            self.topk_config = TopKConfig(2, renormalize=False)

    class Model:
        def __init__(self):
            self.layers = [Layer(), Layer()]

        def layers_with_topk(self):
            return self.layers

    model = Model()
    disable_routed_experts_capture_for_draft(model)
    assert [layer.topk_config for layer in model.layers] == [TopKConfig(2, False, False)] * 2


def test_rows_are_cloned_before_the_next_forward_overwrites_the_buffer(capturer):
    capturer.device_buffer.ids[:] = 4
    healthy = capturer.on_forward_end(torch.tensor([2, 3]))
    faulty = capturer.on_forward_end(torch.tensor([5, 6]), clone=False)
    capturer.device_buffer.ids[:] = 7
    for output in (healthy, faulty):
        output.copy_to_host()
        output.finalize()
    host = capturer.host_buffer.ids
    assert host[[2, 3]].eq(4).all() and host[[5, 6]].eq(7).all()
    assert host[[0, 1, 4, 7, 8, 9]].sum() == 0


def test_a_row_that_was_never_finalized_is_zero(capturer):
    capturer.device_buffer.ids[:] = 4
    output = capturer.on_forward_end(torch.tensor([2, 3]))
    output.copy_to_host()
    assert capturer.rows_of(torch.tensor([2, 3]))[0].sum() == 0


def test_margin_is_the_gap_at_the_kth_place():
    logits = torch.tensor([[1.0, 4.0, 3.0, -1.0], [0.5, 0.5, 0.5, 0.0]])
    assert logit_margin(logits, 2).tolist() == [2.0, 0.0]
    assert logit_margin(logits, 4).isinf().all()


def test_ids_above_255_survive_the_buffers():
    shape = CaptureShape((0,), top_k=1, num_experts=65536, max_tokens=2, num_slots=2)
    capturer = RoutedExpertsCapturer(shape)
    capturer.ids_view(0, 2).copy_(torch.tensor([[65535], [300]], dtype=torch.int32))
    ids = capturer.device_buffer.ids.numpy().view("uint16")
    assert ids.ravel().tolist() == [65535, 300]
