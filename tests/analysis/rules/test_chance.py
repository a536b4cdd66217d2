import itertools
import math

import numpy as np
import pytest

from moeinspect.analysis.rules.chance import agreement_tail, label_log10, log10, order_log10, tail_log10


def test_label_chance_is_one_in_the_number_of_ordered_choices():
    for experts, distinct in ((4, 1), (4, 2), (6, 3), (5, 5)):
        ways = len(list(itertools.permutations(range(experts), distinct)))
        assert label_log10(experts, distinct) == pytest.approx(-math.log10(ways))


def test_orders_of_sets_are_counted_cell_by_cell():
    assert order_log10(3, 3) == pytest.approx(math.log10(6))
    assert order_log10(3, 8) == pytest.approx(math.log10(6 * 6 * 2))


def test_the_logarithm_of_nothing_is_finite():
    assert log10(0.0) == -400
    assert log10(100.0) == 2


def test_no_pairs_leave_everything_possible():
    assert agreement_tail(np.zeros(9, dtype=np.int64)) == 1.0


def test_unrelated_rows_give_a_tiny_tail_and_one_nearly_equal_pair_a_large_one():
    rng = np.random.default_rng(0)
    agreement = rng.binomial(16, 1 / 32, 20_000)
    histogram = np.bincount(agreement, minlength=17)
    assert agreement_tail(histogram) < 1e-7
    histogram[15] += 1
    assert agreement_tail(histogram) > 1e-5


def test_few_pairs_give_a_flat_slope():
    few, many = np.zeros(17, dtype=np.int64), np.zeros(17, dtype=np.int64)
    few[:3], many[:3] = (3, 2, 1), (3000, 2000, 1000)
    assert agreement_tail(few) > agreement_tail(many)


def test_the_tail_of_a_mixture_is_not_below_its_nearly_equal_share():
    """1 pair in 1000 agrees in each entry with probability 0.95, so that 44 % of these are wholly equal."""
    rng = np.random.default_rng(1)
    like = rng.random(200_000) < 1e-3
    agreement = np.where(like, rng.binomial(16, 0.95, len(like)), rng.binomial(16, 1 / 32, len(like)))
    unequal = np.bincount(agreement[agreement < 16], minlength=17)
    equal = (agreement == 16).mean()
    assert equal / 3 < agreement_tail(unequal) < 30 * equal


def test_a_tail_is_bounded_from_above_and_close():
    trials, share = 40, 0.1
    exact = [math.comb(trials, k) * share**k * (1 - share) ** (trials - k) for k in range(trials + 1)]
    for hits in range(trials + 1):
        true = math.log10(sum(exact[hits:]))
        assert true - 1e-9 <= tail_log10(hits, trials, share) <= min(0.0, true + 1.5) + 1e-9
