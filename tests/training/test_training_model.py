"""The model for training is the model that the package runs."""

import pytest
import torch

from training.export import export_model, round_weights
from training.imported import import_model, shape_of
from training.measure.same import differences, runtime_results, training_results
from training.model import Model, MoE, Routing, balance_loss, largest
from training.sampling import Batch, continue_rows
from training.shapes import DRAFTS, TARGETS, ModelShape

torch.set_num_threads(1)
TOY = TARGETS["toy"]


def sharp_model(seed=0, shape=TOY):
    """Weights far from their start, so that every part of the model matters."""
    model = Model(shape, seed).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            generator = torch.Generator().manual_seed(len(name))
            weight.add_(torch.randn(weight.shape, generator=generator) * 0.3 * weight.std().nan_to_num(1.0))
            if weight.dim() == 1:
                weight.add_(torch.randn(weight.shape, generator=generator) * 0.2)
    return model


def rows(count=3, length=40, vocabulary=TOY.vocabulary):
    generator = torch.Generator().manual_seed(5)
    return torch.randint(vocabulary, (count, length), generator=generator).tolist()


def test_the_runtime_computes_the_same_from_the_exported_weights(data, tmp_path):
    model = sharp_model()
    export_model(model, tmp_path, data / "tokenizer.json")
    seen = differences(runtime_results(tmp_path, rows()), training_results(round_weights(model), rows()))
    assert seen["cells"] == 3 * 40 * 2
    assert seen["other_sets"] == 0
    assert seen["largest_logit_difference"] < 2e-5


def test_a_changed_weight_is_seen_as_a_difference(data, tmp_path):
    model = sharp_model()
    export_model(model, tmp_path, data / "tokenizer.json")
    with torch.no_grad():
        model.layers[1].mlp.router.weight[0] += 1.0
    seen = differences(runtime_results(tmp_path, rows()), training_results(model, rows()))
    assert seen["other_sets"] > 0


def test_an_exported_model_is_read_back_as_it_was(data, tmp_path):
    model = round_weights(sharp_model())
    export_model(model, tmp_path, data / "tokenizer.json")
    read = import_model(tmp_path)
    for name, weight in model.named_parameters():
        assert torch.equal(read.get_parameter(name), weight), name


@pytest.mark.parametrize("shape", [*TARGETS.values(), *DRAFTS.values()])
def test_config_json_describes_the_shape(shape):
    fields = shape.as_dict() | {"dropout": 0.0}
    assert shape_of(shape.hub_config()) == ModelShape(**fields)


def test_the_draft_fits_the_target():
    for size, target in TARGETS.items():
        draft = DRAFTS[size]
        assert draft.top_k == target.top_k
        assert draft.num_experts == target.num_experts
        assert draft.vocabulary == target.vocabulary
        assert set(draft.moe_layers) < set(target.moe_layers)


def test_the_wide_experts_sum_what_the_chosen_experts_give():
    moe = MoE(TOY)
    x = torch.randn(1, 6, TOY.hidden, generator=torch.Generator().manual_seed(1))
    out, routing = moe(x)
    gates, ups = moe.gate_up.weight.chunk(2)
    width = TOY.expert_width
    for n in range(6):
        values, ids = routing.logits[n].softmax(-1).topk(TOY.top_k)
        total = torch.zeros(TOY.hidden)
        for value, e in zip(values / values.sum(), ids.tolist(), strict=True):
            part = slice(e * width, (e + 1) * width)
            hidden = torch.nn.functional.silu(gates[part] @ x[0, n]) * (ups[part] @ x[0, n])
            total += value * (moe.down.weight[:, part] @ hidden)
        torch.testing.assert_close(out[0, n], total, rtol=1e-4, atol=1e-6)


def test_largest_marks_the_top_k():
    logits = torch.randn(50, 8, generator=torch.Generator().manual_seed(2))
    chosen = largest(logits, 3)
    assert torch.equal(chosen.nonzero()[:, 1].view(50, 3), logits.topk(3).indices.sort().values)


def test_the_balance_loss_is_k_when_even_and_e_when_all_choose_alike():
    even = torch.eye(8, dtype=torch.bool)
    assert float(balance_loss([Routing(torch.zeros(8, 8), even | even.roll(1, 0))], 8)) == pytest.approx(2)
    alike = torch.zeros(8, 8)
    alike[:, 0] = 50.0
    assert float(balance_loss([Routing(alike, alike > 0)], 8)) == pytest.approx(8)


def test_leaving_a_layer_out_changes_the_logits():
    ids = torch.tensor(rows(1))
    model = sharp_model()
    for layer in range(TOY.num_layers):
        logits, routings = model(ids, skip=layer)
        assert not torch.allclose(logits, model(ids)[0], atol=1e-3)
        assert len(routings) == (2 if layer == 0 else 1)


def test_rows_are_continued_as_a_full_forward_would():
    model = sharp_model()
    given = torch.tensor([3, 9, 1])
    batch = Batch(torch.tensor(rows(3, 20)), given, torch.zeros(3))
    written = continue_rows(model, batch, torch.Generator())
    following = model(written)[0].argmax(-1)
    for row in range(3):
        kept = int(given[row])
        assert written[row, :kept].tolist() == batch.ids[row, :kept].tolist()
        assert written[row, kept:].tolist() == following[row, kept - 1 : -1].tolist()


def test_temperature_draws_from_the_softmax():
    model = sharp_model()
    count = 4000
    ids = torch.tensor(rows(1, 3)).repeat(count, 1)
    batch = Batch(ids, torch.full((count,), 2), torch.full((count,), 0.7))
    drawn = continue_rows(model, batch, torch.Generator().manual_seed(0))[:, 2]
    expected = (model(ids[:1])[0][0, 1].detach() / 0.7).softmax(-1)
    seen = torch.bincount(drawn, minlength=TOY.vocabulary) / count
    assert float((seen - expected).abs().max()) < 0.03
