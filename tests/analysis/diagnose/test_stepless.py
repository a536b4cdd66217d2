"""Causes of foreign answers, which name no step, worker, slot or kind of row: from where wrong rows stand."""

from dataclasses import replace

import numpy as np
import pytest
from analysis.diagnose.faultytraces import (
    FACTS,
    OUTPUT,
    PROMPT,
    foreign,
    overwritten_by_next_step,
    records,
)
from analysis.tracefactory import make_records, make_trace, routed

from moeinspect.analysis.check import check_report
from moeinspect.analysis.compare import diff_report

COUNT = 8
GOOD = records(COUNT, disagg=False)
OWN = slice(PROMPT, None)

TREE = {"speculative_algorithm": "EAGLE", "speculative_eagle_topk": 4}
ARGUMENTS = {"enable_return_routed_experts": True}


def spoil(change, good=GOOD):
    """Foreign answers; `change(ids, number, rng)` spoils the rows [n, L, K] of a request in place."""
    rng = np.random.default_rng(0)
    made = []
    for number, record in enumerate(good):
        ids = record.expert_ids.copy()
        change(ids, number, rng)
        made.append(replace(record, expert_ids=ids, **foreign(record)))
    return made


def report(made, good=GOOD, **arguments):
    answers = make_trace(made, FACTS, run={"engine": "sglang", "run_config": arguments}, path="a.h5")
    return diff_report(answers, make_trace(good, FACTS, path="b.h5"))


def first_cause(made, good=GOOD, **arguments):
    return report(made, good, **arguments).diagnoses[0].cause


def nobodys(rng, n):
    """Rows [n, L, K] that no token of the trace has, as rejected drafts leave them."""
    return routed(rng.integers(0, 500, n), FACTS, seed=99)


def others(number, rows, shift=3):
    """Rows of another request."""
    return GOOD[(number + shift) % COUNT].expert_ids[rows]


def siblings(ids, number, rng):
    """Of each three output rows the last: the first is the root of a verify step."""
    ids[PROMPT + 2 :: 3] = nobodys(rng, len(ids[PROMPT + 2 :: 3]))


def late_store(ids, number, rng):
    """Output rows of other requests and of rejected tokens, the first one included."""
    ids[OWN] = np.where(
        (np.arange(OUTPUT - 1) % 2)[:, None, None], others(number, OWN), nobodys(rng, OUTPUT - 1)
    )
    ids[PROMPT + 5] = GOOD[number].expert_ids[PROMPT + 5]


def neighbours(ids, number, rng):
    """The requests of every second rank hold rows of the first rank's, or of rejected tokens."""
    if number % 2:
        late_store(ids, number, rng)


def never_stored(ids, number, rng):
    ids[OWN] = others(number, OWN)


def last_row(ids, number, rng):
    ids[-1] = others(number, 7)


def unmerged(ids, number, rng):
    ids[:PROMPT] = 0 if number < 3 else others(number, slice(0, PROMPT))


CASES = {
    "tree-rows": (siblings, TREE, {"speculative_algorithm": None}),
    "draft-forward-end": (late_store, TREE, {**TREE, "disable_overlap_schedule": True}),
    "dp-slice": (neighbours, TREE | {"dp_size": 2}, TREE | {"dp_size": 1}),
    "verify-dropped": (never_stored, {"speculative_algorithm": "EAGLE"}, {"speculative_algorithm": None}),
    "read-early": (last_row, {"disable_overlap_schedule": False}, {"disable_overlap_schedule": True}),
    "no-merge|skip-finalize-prefill": (
        unmerged,
        {"disaggregation_mode": "decode"},
        {"disaggregation_mode": "null"},
    ),
}
"""How each cause spoils rows, with arguments of a server that may have it, and that cannot."""


@pytest.mark.parametrize("cause", CASES)
def test_a_cause_is_named_with_the_servers_arguments_without_them_and_in_any_order(cause):
    change, telling, contrary = CASES[cause]
    made = spoil(change)
    told, bare = report(made, **telling).diagnoses[0], report(made).diagnoses[0]
    assert (told.cause, bare.cause) == (cause, cause)
    assert told.confidence > bare.confidence
    order = np.random.default_rng(1).permutation(COUNT)
    assert first_cause([made[i] for i in order], **telling) == cause
    assert first_cause(made, **contrary) != cause


def test_zeros_and_stale_rows_of_prompts_are_one_cause_in_one_trace_too():
    made = make_trace(spoil(unmerged), FACTS, run={"engine": "sglang"})
    assert check_report([made]).diagnoses[0].cause == "no-merge|skip-finalize-prefill"


def test_rows_of_the_next_step_are_buffer_reuse_without_steps():
    late = [replace(one, **foreign(one)) for one in overwritten_by_next_step(GOOD)]
    assert first_cause(late, **ARGUMENTS) == first_cause(late) == "buffer-reuse"
    assert first_cause(late, disable_overlap_schedule=True) != "buffer-reuse"


def test_one_lag_for_prompts_and_outputs_is_a_shift():
    def one_on(ids, number, rng):
        ids[:-1] = ids[1:].copy()

    assert "buffer-reuse" not in first_cause(spoil(one_on))


PREFIXED = make_records(FACTS, COUNT, prompt_len=PROMPT, output_len=OUTPUT, prefix=list(range(12)))


def stale_prefix(ids, number, rng):
    if number > 2:
        ids[:12] = PREFIXED[number - 1].expert_ids[12:24]


def test_wrong_rows_of_shared_prefixes_are_stale_slots_where_nobody_tells_of_cached_tokens():
    made = spoil(stale_prefix, PREFIXED)
    assert first_cause(made, PREFIXED) == "stale-slot"
    assert first_cause(made, PREFIXED, enable_hierarchical_cache=True) == "stale-slot"
    assert first_cause(made, PREFIXED, disable_radix_cache=True) != "stale-slot"
    alone = [replace(one, prompt_ids=one.prompt_ids + 100 * n) for n, one in enumerate(made)]
    good = [replace(one, prompt_ids=one.prompt_ids + 100 * n) for n, one in enumerate(PREFIXED)]
    assert first_cause(alone, good) != "stale-slot"


def test_right_and_zero_rows_that_take_turns_are_shards_of_steps():
    def second_rank(ids, number, rng):
        for start in range(4, PROMPT, 8):
            ids[start : start + 4] = 0

    made = spoil(second_rank)
    assert first_cause(made) == first_cause(made, tp_size=2) == "tp-shard"
    assert first_cause(made, tp_size=1) != "tp-shard"


def test_single_zero_rows_between_right_ones_are_no_shards():
    def gaps(ids, number, rng):
        ids[6::6] = 0

    assert first_cause(spoil(gaps), tp_size=2) != "tp-shard"


def test_every_row_of_an_ngram_server_with_overlap_is_dropped():
    def nothing(ids, number, rng):
        ids[:] = 0

    made = spoil(nothing)
    assert first_cause(made, **ARGUMENTS, speculative_algorithm="NGRAM") == "verify-dropped"
    off = {"speculative_algorithm": "NGRAM", "disable_overlap_schedule": True}
    assert "verify-dropped" not in first_cause(made, **ARGUMENTS, **off)
    vllm = make_trace(made, FACTS, run={"engine": "vllm", "run_config": ARGUMENTS})
    assert check_report([vllm]).diagnoses[0].cause == "init-order|kernel-uncaptured"


def test_a_draft_of_an_untold_backend_may_have_passed_any_gate():
    def two_layers(ids, number, rng):
        ids[:, 1:3] = nobodys(rng, len(ids))[:, 1:3]

    cause = first_cause(spoil(two_layers))
    assert cause == "bypass-drops-flag|draft-capture|ungated-backend"

    def decoded(ids, number, rng):
        ids[OWN, 1:3] = nobodys(rng, OUTPUT - 1)[:, 1:3]

    assert first_cause(spoil(decoded)) == "draft-optout-late"
    assert "draft-optout-late" not in first_cause(spoil(decoded), disable_cuda_graph=True)


def test_healthy_foreign_answers_are_clean():
    made = [replace(one, **foreign(one)) for one in GOOD]
    for arguments in ({}, ARGUMENTS, TREE):
        assert report(made, **arguments).diagnoses == ()


def test_zeros_from_the_first_output_row_on_are_a_dropped_result_and_those_at_the_end_are_not():
    def zeros_first(ids, number, rng):
        ids[PROMPT : len(ids) - number % 2] = 0  # a last row is right by chance

    def zeros_last(ids, number, rng):
        ids[-2:] = 0

    causes = [
        check_report([make_trace(spoil(change), FACTS, run={"engine": "sglang"})]).diagnoses[0].cause
        for change in (zeros_first, zeros_last)
    ]
    assert causes[0] == "verify-dropped"
    assert "read-early" in causes[1].split("|")
    assert "verify-dropped" not in causes[1]


def test_outputs_that_lack_one_expert_here_and_there_are_no_tree():
    def one_expert(ids, number, rng):
        for row in ids[PROMPT::3]:
            row[1, 2] = np.setdiff1d(np.arange(FACTS.num_experts), row[1])[0]

    assert first_cause(spoil(one_expert)) == "unknown"
