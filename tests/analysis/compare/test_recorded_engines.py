"""Answers that SGLang 0.5.17 gave on a GPU: what is right is clean, what is wrong is found, to the cell."""

from dataclasses import replace

import numpy as np
import pytest
from analysis.realtraces import sglang_trace

from moeinspect.analysis.compare import compare, diff_report

SAMPLED = {"edge-n2.0", "edge-n2.1", "edge-sampled_t1"}
"""Requests at temperature 1: their tokens are not the baseline's."""


def test_deterministic_mode_with_and_without_batching_is_clean_in_every_cell():
    a, b = sglang_trace("b_det"), sglang_trace("a_det")
    report = diff_report(a, b)
    assert report.verdict == "clean"
    assert report.counts["set_mismatch_cells"] == 0
    assert report.counts["rows_compared"] == len(a.rows) == len(b.rows) == 5765
    assert all(one.order_mismatch is None for one in report.layers)


def test_tree_drafts_leave_prompts_right_and_29_6_percent_of_generated_cells_wrong():
    comparison = compare(sglang_trace("c_tree_det"), sglang_trace("a_det"))
    alignment, cells = comparison.alignment, comparison.cells
    greedy = np.isin(alignment.a.requests.id[alignment.a_request], list(SAMPLED), invert=True)
    generated = ~alignment.is_prompt & greedy
    assert cells.set_mismatch[alignment.is_prompt].sum() == 0
    assert cells.set_mismatch[generated].size == 3924
    assert round(100 * cells.set_mismatch[generated].mean(), 1) == 29.6
    assert (cells.overlap[generated] == 0).sum() == 469


def test_tree_drafts_are_diagnosed_from_the_output_rows():
    a, b = sglang_trace("c_tree_det"), sglang_trace("a_det")
    report = diff_report(a, b)
    assert report.verdict == "findings"
    assert [d.cause for d in report.diagnoses] == ["tree-rows", "tokens-diverged"]
    told = replace(
        a, run=replace(a.run, run_config={"speculative_eagle_topk": 4, "speculative_algorithm": "X"})
    )
    assert diff_report(told, b).diagnoses[0].confidence > report.diagnoses[0].confidence


def test_ngram_drafts_with_overlap_leave_every_row_zero():
    report = diff_report(sglang_trace("d_ngram"), sglang_trace("a_det"))
    assert report.verdict == "findings"
    assert all(one.set_mismatch == 1.0 for one in report.layers)
    assert "verify-dropped" in report.diagnoses[0].cause.split("|")


TREE_ARGUMENTS = {"speculative_algorithm": "STANDALONE", "speculative_eagle_topk": 4}
NGRAM_ARGUMENTS = {"enable_return_routed_experts": True, "speculative_algorithm": "NGRAM"}


@pytest.mark.parametrize(
    ("name", "arguments", "cause"),
    [
        ("c_tree_det", {}, "tree-rows"),
        ("c_tree_det", TREE_ARGUMENTS, "tree-rows"),
        ("d_ngram", {}, "init-order|kernel-uncaptured|verify-dropped"),
        ("d_ngram", NGRAM_ARGUMENTS, "verify-dropped"),
    ],
)
def test_few_requests_tell_the_cause_as_well_with_the_servers_arguments_or_without(name, arguments, cause):
    a, b = sglang_trace(name), sglang_trace("a_det")
    first = a.requests.token_start[12]
    part = replace(
        a,
        run=replace(a.run, run_config=arguments),
        requests=replace(a.requests, **{n: getattr(a.requests, n)[:12] for n in a.requests.__slots__}),
        tokens=a.tokens[:first],
    )
    assert diff_report(part, b).diagnoses[0].cause == cause
