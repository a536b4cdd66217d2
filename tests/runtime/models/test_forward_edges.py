"""Odd but legal forwards."""

import torch
from model_harness import RoutingProbe, load, make_batch, make_kv

from moeinspect.runtime.forward_batch import ForwardMode


def test_logits_are_computed_for_the_wanted_rows_only_and_in_their_order():
    model = load()
    batch = make_batch([([5, 6, 7], 0, [1, 2, 3]), ([9], 0, [4])])
    everything = model.forward(batch, make_kv(model))
    batch.logit_rows = torch.tensor([3, 1])
    wanted = model.forward(batch, make_kv(model))
    assert wanted.dtype == torch.float32 and wanted.shape == (2, 320)
    assert torch.equal(wanted, everything[[3, 1]])


def test_a_chunk_that_wants_no_logits_still_fills_its_kv_slots():
    model = load()
    batch = make_batch([([5, 6, 7], 0, [1, 2, 3])])
    batch.logit_rows = torch.tensor([], dtype=torch.int64)
    kv = make_kv(model)
    assert model.forward(batch, kv).shape == (0, 320)
    assert (kv.data[:, :, 1:4] != 0).flatten(2).any(-1).all()
    assert (kv.data[:, :, [0, 4]] == 0).all()


def test_weights_that_are_nan_give_nan_logits_and_legal_ids():
    model = load()
    layer = model.layers_with_topk()[1]
    layer._router._weight.fill_(float("nan"))
    probe = RoutingProbe(model)
    kv = make_kv(model)
    for mode, tokens, start in ((ForwardMode.PREFILL, list(range(30)), 0), (ForwardMode.DECODE, [1], 30)):
        logits = model.forward(make_batch([(tokens, start, list(range(1, 32)))], mode), kv)
        assert logits.isnan().all()
        ids = probe.rows()[0]
        assert (ids[:, 1] == torch.arange(4)).all()  # every logit ties at NaN: the lowest ids win
        assert ids.min() >= 0 and ids.max() < 32


def test_positions_beyond_the_first_rotary_block_are_served():
    model = load()
    kv = make_kv(model, num_slots=700)
    tokens = [i % 251 for i in range(530)]
    slots = list(range(1, 531))
    whole = model.forward(make_batch([(tokens, 0, slots)]), kv)
    assert whole.isfinite().all()
    # The last token alone, on a fresh model whose tables have not grown yet.
    again = load().forward(make_batch([(tokens[-1:], 529, slots)], ForwardMode.DECODE), kv)
    assert torch.equal(again[0], whole[-1])
