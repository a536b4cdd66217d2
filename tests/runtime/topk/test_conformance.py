"""The conformance check fails for a backend that lacks one property, and names that property."""

from dataclasses import replace

import pytest
import torch

from moeinspect.kernels.router_topk.reference import router_topk
from moeinspect.runtime.capture import capturer as capturer_module
from moeinspect.runtime.capture.capturer import get_global_experts_capturer
from moeinspect.runtime.capture.gate import (
    capture_routed_experts_if_allowed,
    captured_ids_view,
)
from moeinspect.runtime.faults import (
    BYPASS_DROPS_FLAG,
    KERNEL_UNCAPTURED,
    UNGATED_BACKEND,
    ActiveFaults,
)
from moeinspect.runtime.topk.backend import MoEBackend, TopKBackend, TopKOutput
from moeinspect.runtime.topk.bypass_backend import BypassMoE
from moeinspect.runtime.topk.config import TopKConfig
from moeinspect.runtime.topk.conformance import (
    PROPERTIES,
    ConformanceError,
    check_backend,
    violations,
)
from moeinspect.runtime.topk.torch_backend import TorchTopK


class Right(TopKBackend):
    """Right in everything; the wrong ones below change one thing."""

    name = "right"

    def select(self, router_logits):
        chosen = self.choose(router_logits, self.config)
        self.capture(chosen, router_logits)
        return chosen

    def choose(self, router_logits, config):
        return TopKOutput(*router_topk(router_logits, config.top_k, renormalize=config.renormalize))

    def capture(self, chosen, router_logits):
        capture_routed_experts_if_allowed(
            self.config, self.layer_id, chosen.ids, weights=chosen.weights, router_logits=router_logits
        )


class NeverCaptures(Right):
    def capture(self, chosen, router_logits):
        pass


class ForgetsTheValues(Right):
    def capture(self, chosen, router_logits):
        view = captured_ids_view(self.config, self.layer_id, chosen.ids.shape[0])
        if view is not None:
            view.copy_(chosen.ids)


class PastTheGate(Right):
    """Looks at the flag itself, so that only the way in is wrong."""

    def capture(self, chosen, router_logits):
        capturer = capturer_module.get_global_experts_capturer()
        if self.config.allow_routed_experts_capture and capturer and capturer.has_layer(self.layer_id):
            capturer.ids_view(self.layer_id, chosen.ids.shape[0]).copy_(chosen.ids)
            capturer.capture_values(self.layer_id, chosen.weights, router_logits)


class IntoTheBuffer(Right):
    def capture(self, chosen, router_logits):
        super().capture(chosen, router_logits)
        capturer = get_global_experts_capturer()
        if capturer is not None:
            capturer.device_buffer.ids.add_(0)


class IgnoresTheOptOut(Right):
    def capture(self, chosen, router_logits):
        config = replace(self.config, allow_routed_experts_capture=True)
        capture_routed_experts_if_allowed(
            config, self.layer_id, chosen.ids, weights=chosen.weights, router_logits=router_logits
        )


class RebuildsTheConfig(Right):
    def __init__(self, config, layer_id):
        super().__init__(TopKConfig(config.top_k, config.renormalize), layer_id)


class RemembersTheLayer(Right):
    """Keeps one configuration a layer, so that a later opt-out does not reach it."""

    configs = {}  # noqa: RUF012

    def __init__(self, config, layer_id):
        key = (config.top_k, config.renormalize, layer_id)
        super().__init__(config, layer_id)
        if config.allow_routed_experts_capture:
            self.configs[key] = config
        self.config = self.configs.get(key, config)


class CapturesWholeBlocks(Right):
    """Captures what its padded kernel computed, as a kernel without a mask does."""

    def select(self, router_logits):
        n = router_logits.shape[0]
        padded = torch.cat([router_logits, router_logits.new_zeros(-n % 8, router_logits.shape[1])])
        chosen = super().select(padded)
        return TopKOutput(chosen.ids[:n], chosen.weights[:n])


class CapturesTooLittle(Right):
    def capture(self, chosen, router_logits):
        some = TopKOutput(chosen.ids[:8], chosen.weights[:8])
        super().capture(some, router_logits[:8])


class HighestIdWins(Right):
    def choose(self, router_logits, config):
        E = router_logits.shape[1]
        flipped = router_topk(router_logits.flip(-1), config.top_k, renormalize=config.renormalize)
        return TopKOutput((E - 1 - flipped[0]).int(), flipped[1])


class LosesNaN(Right):
    def choose(self, router_logits, config):
        return super().choose(router_logits.nan_to_num(-1e9), config)


class AscendingIds(Right):
    def choose(self, router_logits, config):
        chosen = super().choose(router_logits, config)
        ids, order = chosen.ids.sort(dim=-1)
        return TopKOutput(ids, chosen.weights.gather(1, order))


class AlwaysRenormalises(Right):
    def choose(self, router_logits, config):
        return super().choose(router_logits, replace(config, renormalize=True))


class RefusesAllExperts(Right):
    def choose(self, router_logits, config):
        torch.topk(router_logits, config.top_k + 1)
        return super().choose(router_logits, config)


class WrapsIds(Right):
    def capture(self, chosen, router_logits):
        super().capture(TopKOutput(chosen.ids & 0xFF, chosen.weights), router_logits)


class CapturesAnotherOrder(Right):
    def capture(self, chosen, router_logits):
        super().capture(TopKOutput(chosen.ids.sort(dim=-1).values, chosen.weights), router_logits)


class NeedsACapturer(Right):
    def select(self, router_logits):
        assert get_global_experts_capturer() is not None
        return super().select(router_logits)


class ScribblesOnItsInputs(Right):
    def select(self, router_logits):
        chosen = super().select(router_logits)
        router_logits.zero_()
        return chosen


class RoundsWeights(Right):
    def choose(self, router_logits, config):
        chosen = super().choose(router_logits, config)
        return TopKOutput(chosen.ids, chosen.weights.half().float())


class DropsAnExpert(MoEBackend):
    """Fused, and its output lacks the last choice."""

    name = "drops"

    def run(self, hidden_states, router_logits, experts):
        chosen = TorchTopK(self.config, self.layer_id).select(router_logits)
        return experts(hidden_states, TopKOutput(chosen.ids[:, :1], chosen.weights[:, :1]))


def faulty_bypass(fault):
    class Faulty(BypassMoE):
        def __init__(self, config, layer_id):
            super().__init__(config, layer_id, ActiveFaults.of([fault]))

    return Faulty


def test_a_right_backend_passes():
    check_backend(Right)


@pytest.mark.parametrize(
    ("backend", "lacks"),
    [
        (NeverCaptures, {"captures-what-it-chose"}),
        (ForgetsTheValues, {"captures-what-it-chose"}),
        (PastTheGate, {"captures-through-the-gate"}),
        (IntoTheBuffer, {"captures-through-the-gate"}),
        (IgnoresTheOptOut, {"honours-the-opt-out"}),
        (RebuildsTheConfig, {"honours-the-opt-out"}),
        (RemembersTheLayer, {"honours-the-opt-out"}),
        (CapturesWholeBlocks, {"captures-what-it-chose", "keeps-padding-out"}),
        (CapturesTooLittle, {"captures-what-it-chose"}),
        (HighestIdWins, {"selects-as-the-reference", "captures-what-it-chose", "computes-the-layer"}),
        (LosesNaN, {"selects-as-the-reference", "captures-what-it-chose", "computes-the-layer"}),
        (AscendingIds, {"selects-as-the-reference", "captures-what-it-chose"}),
        (AlwaysRenormalises, {"selects-as-the-reference", "captures-what-it-chose", "computes-the-layer"}),
        (WrapsIds, {"captures-what-it-chose"}),
        (CapturesAnotherOrder, {"captures-what-it-chose"}),
        (
            NeedsACapturer,
            {
                "computes-the-layer",
                "selects-as-the-reference",
                "runs-uncaptured",
                "leaves-its-inputs-alone",
            },
        ),
        (ScribblesOnItsInputs, {"leaves-its-inputs-alone"}),
        (DropsAnExpert, {"computes-the-layer"}),
        (faulty_bypass(BYPASS_DROPS_FLAG), {"honours-the-opt-out"}),
        (faulty_bypass(UNGATED_BACKEND), {"captures-through-the-gate", "honours-the-opt-out"}),
        (faulty_bypass(KERNEL_UNCAPTURED), {"captures-what-it-chose"}),
    ],
)
def test_a_backend_that_lacks_a_property_fails_by_its_name(backend, lacks):
    RemembersTheLayer.configs.clear()
    assert violations(backend).keys() == lacks
    with pytest.raises(ConformanceError, match=next(iter(lacks))):
        check_backend(backend)


@pytest.mark.parametrize("backend", [RefusesAllExperts, RoundsWeights])
def test_k_of_all_experts_and_exact_weights_are_asked_for(backend):
    assert "selects-as-the-reference" in violations(backend)


def test_the_message_names_backend_property_case_and_values():
    with pytest.raises(ConformanceError) as caught:
        check_backend(AscendingIds)
    message = str(caught.value)
    assert message.startswith(f"top-k backend AscendingIds: 2 of {len(PROPERTIES)} fail")
    assert "- selects-as-the-reference: random logits: row 0: chosen experts [" in message


def test_the_check_leaves_the_process_capturer_alone():
    before = get_global_experts_capturer()
    violations(NeverCaptures)
    assert get_global_experts_capturer() is before
