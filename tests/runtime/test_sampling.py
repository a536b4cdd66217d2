import numpy as np
import pytest
import torch

from moeinspect.runtime.sampling import SamplingParams, derive_seed, gumbel, sample, sample_seed

LOGITS = torch.tensor([0.3, 2.0, -1.0, 2.0, 0.9, -4.0])


def draw(params, count=4000, seed=11):
    return sample(LOGITS.repeat(count, 1), [seed] * count, list(range(count)), params)


def shares(tokens):
    return np.bincount(tokens.numpy(), minlength=len(LOGITS)) / len(tokens)


def test_greedy_takes_the_best_and_the_lowest_id_on_ties():
    assert sample(LOGITS[None], [0], [0], SamplingParams()).tolist() == [1]


def test_shares_follow_the_softmax_at_this_temperature():
    expected = torch.softmax(LOGITS / 1.5, -1).numpy()
    assert np.abs(shares(draw(SamplingParams(temperature=1.5))) - expected).max() < 0.03


def test_top_k_keeps_the_k_best_and_renormalises():
    expected = torch.softmax(LOGITS, -1).numpy().copy()
    expected[[2, 5, 0]] = 0
    seen = shares(draw(SamplingParams(temperature=1.0, top_k=3)))
    assert np.abs(seen - expected / expected.sum()).max() < 0.03
    assert seen[[2, 5, 0]].sum() == 0


@pytest.mark.parametrize("top_p", [0.1, 0.5, 0.9, 0.99])
def test_top_p_keeps_the_smallest_set_that_reaches_it(top_p):
    p = torch.softmax(LOGITS.double(), -1).numpy()
    order = np.argsort(-p, kind="stable")
    kept, mass = [], 0.0
    for token in order:
        kept.append(int(token))
        mass += p[token]
        if mass >= top_p:
            break
    seen = set(draw(SamplingParams(temperature=1.0, top_p=top_p)).tolist())
    assert seen <= set(kept)
    assert {t for t in kept if p[t] > 0.01} <= seen


def test_a_token_depends_on_seed_position_and_its_own_logits_only():
    params = SamplingParams(temperature=1.0, top_p=0.95)
    g = torch.Generator().manual_seed(0)
    logits = torch.randn(40, 50, generator=g)
    seeds, positions = [5, 6] * 20, list(range(40))
    together = sample(logits, seeds, positions, params)
    alone = [
        sample(logits[i : i + 1], seeds[i : i + 1], positions[i : i + 1], params).item() for i in range(40)
    ]
    assert together.tolist() == alone


def test_noise_is_gumbel_and_independent_of_neighbours():
    noise = np.array([[gumbel(seed, position, 40) for position in range(30)] for seed in range(20)])
    values = np.exp(-np.exp(-noise))  # uniform, if the noise is standard Gumbel
    assert np.abs(np.histogram(values, bins=10, range=(0, 1))[0] / values.size - 0.1).max() < 0.01
    for axis in range(3):
        a, b = np.moveaxis(values, axis, 0)[:-1], np.moveaxis(values, axis, 0)[1:]
        assert abs(np.corrcoef(a.ravel(), b.ravel())[0, 1]) < 0.03


def test_close_distributions_agree_often():
    params = SamplingParams(temperature=1.0)
    g = torch.Generator().manual_seed(1)
    target = torch.randn(2000, 50, generator=g) * 3
    draft = target + torch.randn(2000, 50, generator=g) * 0.3
    seeds, positions = [4] * 2000, list(range(2000))
    agreed = sample(target, seeds, positions, params) == sample(draft, seeds, positions, params)
    assert agreed.double().mean() > 0.85


def test_derived_seeds_differ_by_run_and_by_request():
    seeds = {derive_seed(run, request) for run in range(5) for request in ("a", "b", "1", "11")}
    assert len(seeds) == 20
    assert derive_seed(1, "a") == derive_seed(1, "a")


def test_the_first_sample_has_the_seed_of_its_request_and_the_others_have_seeds_of_their_own():
    assert sample_seed(7, 0) == 7
    assert len({sample_seed(seed, i) for seed in range(4) for i in range(5)}) == 20
    assert sample_seed(0, 1) != derive_seed(0, "sample 1")
