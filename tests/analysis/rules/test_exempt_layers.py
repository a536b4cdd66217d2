"""What stands in a layer that is exempt from capture makes no finding, and hides none."""

import numpy as np
import pytest
from analysis.rules.shorthand import findings
from analysis.tracefactory import make_facts, make_records, make_trace

LAYERS, EXEMPT = 5, 2
FACTS = make_facts(layers=LAYERS, experts=32, top_k=4, exempt=[EXEMPT])
STRICT = make_facts(layers=LAYERS, experts=32, top_k=4)
OTHERS = (0, 1, 3, 4)


def records(facts=FACTS):
    return make_records(facts, 4, prompt_len=40, output_len=20)


def holds(made, cells):
    for record in made:
        record.expert_ids[:, EXEMPT] = cells(record)
    return made


CONTENTS = {
    "zeros": lambda record: 0,
    "no id": lambda record: -1,
    "duplicates": lambda record: record.expert_ids[:, EXEMPT, :1],
    "arange": lambda record: np.arange(4),
    "one cell": lambda record: [9, 3, 30, 1],
    "running ids": lambda record: (np.arange(4 * len(record.expert_ids)) % 32).reshape(-1, 4),
    "zeros in the prompt": lambda record: np.where(
        np.arange(len(record.expert_ids))[:, None] < 40, 0, record.expert_ids[:, EXEMPT]
    ),
}


@pytest.mark.parametrize("content", CONTENTS)
def test_nothing_that_stands_there_is_a_finding(content):
    assert not findings(make_trace(holds(records(), CONTENTS[content]), FACTS))


@pytest.mark.parametrize("content", ["zeros", "no id", "duplicates", "zeros in the prompt", "one cell"])
def test_the_same_in_another_layer_is_one(content):
    assert findings(make_trace(holds(records(STRICT), CONTENTS[content]), STRICT))


def whole_rows(change):
    """A change of the other layers of rows [4, 44) of r1; what it is given are these layers of all rows."""

    def spoil(made):
        cells = made[1].expert_ids[:, list(OTHERS)]
        change(cells, made[0].expert_ids[:, list(OTHERS)])
        made[1].expert_ids[:, list(OTHERS)] = cells

    return spoil


def zero(cells, _):
    cells[4:44] = 0


def duplicate(cells, _):
    cells[4:44, :, 1] = cells[4:44, :, 0]


def count_up(cells, _):
    cells[4:44] = np.arange(4)


def repeat(cells, _):
    cells[4:44] = cells[4]


def copy(cells, others):
    cells[4:44] = others[7:47]


def fix_a_column(cells, _):
    cells[4:44, :, 3] = 31
    cells[4:44, :, :3] %= 31


SPOILS = {
    "zero-rows": zero,
    "duplicate-experts": duplicate,
    "filler-rows": count_up,
    "repeated-rows": repeat,
    "stale-rows": copy,
    "constant-column": fix_a_column,
}


@pytest.mark.parametrize("rule", SPOILS)
def test_findings_in_other_layers_are_the_same_whatever_stands_there(rule):
    def found(cells):
        made = holds(records(), cells)
        whole_rows(SPOILS[rule])(made)
        return findings(make_trace(made, FACTS))

    as_routed = found(lambda record: record.expert_ids[:, EXEMPT])
    assert rule in {f.rule for f in as_routed}
    assert all(EXEMPT not in f.layers for f in as_routed)
    for content in CONTENTS.values():
        assert found(content) == as_routed
