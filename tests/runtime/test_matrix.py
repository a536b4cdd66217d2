"""A few configurations of the healthy matrix; `python tests/healthy_matrix.py` runs many."""

import pytest
from healthy_matrix import differences, sample_of
from switches import SWITCHES, pairwise

QUICK = [c for c in sample_of(2026, 90) if c.num_processes <= 2][:16]


@pytest.mark.quick(6)
@pytest.mark.parametrize("choice", QUICK, ids=str)
def test_a_random_configuration_gives_the_bits_of_target_only(choice):
    rows, found = differences(choice, seed=1)
    assert rows > 20 and not found, found


def test_the_covering_set_covers_every_value_of_every_switch():
    seen = {pair for choice in pairwise(0) for pair in zip(SWITCHES, choice.values, strict=True)}
    assert seen == {(name, value) for name, values in SWITCHES.items() for value in values}
