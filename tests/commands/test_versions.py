"""Which run of the baseline computes which row again, where the weights changed on the way."""

from types import SimpleNamespace

import numpy as np
import pytest

from moeinspect.commands._versions import Span, Weights, part_of, served_weights, spans_of
from moeinspect.errors import InputError
from moeinspect.runtime.records import PromptRequest

P = 4
TOKENS = list(range(10, 17))
"""Four prompt tokens and three outputs; the last one was never fed, so there are six rows."""


def spans(versions, prompt_len=P, output_len=3, start_pos=0):
    requests = SimpleNamespace(
        prompt_len=[prompt_len], output_len=[output_len], start_pos=[start_pos], weight_version=[1]
    )
    rows = SimpleNamespace(weight_version=np.asarray(versions, np.uint16))
    trace = SimpleNamespace(requests=requests, rows=rows, row_range=lambda _: slice(0, len(versions)))
    return spans_of(trace, 0)


@pytest.mark.parametrize(
    ("versions", "expected"),
    [
        ([0] * 6, [(0, 0, 6)]),
        ([2] * 6, [(2, 0, 6)]),
        ([0, 0, 1, 1, 1, 1], [(0, 0, 2), (1, 2, 6)]),
        ([0, 0, 0, 0, 0, 3], [(0, 0, 5), (3, 5, 6)]),
        ([0, 1, 1, 2, 2, 2], [(0, 0, 1), (1, 1, 3), (2, 3, 6)]),
        ([0, 1, 0, 1, 1, 1], [(0, 0, 1), (1, 1, 6)]),
        ([0, 1], [(0, 0, 1), (1, 1, 6)]),
        ([], [(1, 0, 6)]),
        ([0] * 9, [(0, 0, 6)]),
    ],
)
def test_rows_of_one_version_after_another(versions, expected):
    assert [(span.version, span.start, span.stop) for span in spans(versions)] == expected


def test_without_an_output_every_prompt_token_has_a_row():
    assert spans([0, 0, 1, 1], output_len=0) == [Span(0, 0, 2), Span(1, 2, 4)]


def test_rows_before_the_first_recorded_one_count_to_it():
    assert spans([0, 0, 1], start_pos=3) == [Span(0, 0, 5), Span(1, 5, 6)]


@pytest.mark.parametrize(
    ("span", "known", "new", "output_start"),
    [
        (Span(0, 0, 6), 4, 3, 0),  # everything
        (Span(0, 0, 2), 2, 0, 0),  # a part of the prompt
        (Span(0, 0, 4), 4, 1, 0),  # the prompt, and what it made
        (Span(1, 2, 6), 4, 3, 0),  # from the middle of the prompt to the end
        (Span(1, 3, 5), 4, 2, 0),
        (Span(1, 4, 6), 5, 2, 1),  # outputs alone
        (Span(1, 5, 6), 6, 1, 2),  # the last row
    ],
)
def test_a_part_gets_what_was_there_before_and_samples_what_its_weights_sampled(
    span, known, new, output_start
):
    request = PromptRequest("a", tuple(TOKENS[:P]), 3, seed=8, sample=1)
    part = part_of(request, TOKENS, span)
    assert (part.prompt_ids, part.max_new_tokens) == (tuple(TOKENS[:known]), new)
    assert (part.output_start, part.key, part.seed) == (output_start, ("a", 1), 8)


def test_the_parts_of_a_request_sample_every_token_once():
    request = PromptRequest("a", tuple(TOKENS[:P]), 3)
    for a in range(1, 6):
        for b in range(a, 6):
            parts = [
                part_of(request, TOKENS, s)
                for s in (Span(0, 0, a), Span(1, a, b), Span(2, b, 6))
                if s.start < s.stop
            ]
            assert sum(part.max_new_tokens for part in parts) == 3


def trace_with(**config):
    return SimpleNamespace(
        path="t.h5",
        run=SimpleNamespace(run_config={"model": "m", **config}),
        model=SimpleNamespace(fingerprint="f"),
    )


def test_weights_are_those_of_the_run_in_their_order():
    assert served_weights(trace_with()) == [Weights(0, "m", "f")]
    updated = trace_with(weight_updates=[[3, "n"], [5, "m"]], weight_fingerprints=["f", "g", "f"])
    assert served_weights(updated) == [Weights(0, "m", "f"), Weights(1, "n", "g"), Weights(2, "m", "f")]


@pytest.mark.parametrize(
    "config",
    [
        {"weight_updates": [[3, "n"]]},
        {"weight_updates": [[3]], "weight_fingerprints": ["f", "g"]},
        {"weight_updates": [["3", "n"]], "weight_fingerprints": ["f", "g"]},
        {"weight_updates": 3},
        {"weight_updates": [[3, "n"]], "weight_fingerprints": ["f", 3]},
    ],
)
def test_weights_that_are_told_badly_are_refused(config):
    with pytest.raises(InputError, match="weight_updates and weight_fingerprints"):
        served_weights(trace_with(**config))
