"""Differences that no fault of the capture explains: other tokens, and rounding."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from moeinspect.analysis.diagnose.mismatch import Mismatch
from moeinspect.analysis.diagnose.nextstep import diagnosis
from moeinspect.analysis.diagnose.words import counted, of_all, percent
from moeinspect.analysis.findings import Diagnosis
from moeinspect.trace.schema import Trace

_ENOUGH_TOKENS = 8
"""Output tokens that have to be 0 before that tells something."""

_NEARLY_ALL, _SPREAD, _RARE = 0.9, 0.5, 0.25
"""Rounding: share of cells off by one expert, of layers with some, and of a layer's cells."""


def diagnose_tokens(mismatch: Mismatch) -> Iterator[Diagnosis]:
    """`tokens-diverged`: certain if everything before the first difference agrees."""
    differing = mismatch.found("token-mismatch")
    if not differing:
        return
    pairs = len(mismatch.alignment.pairing.pairs)
    first = min(int(f.evidence["position"]) for f in differing)
    because = [
        f"the tokens of {of_all(len(differing), pairs, 'paired request')} differ, first at position {first}; "
        "rows from there on belong to other texts",
    ]
    before = f"the {counted(len(mismatch.alignment), 'row')} before"
    wrong = mismatch.comparison.cells.set_mismatch
    explained = not (wrong & ~mismatch.comparison.explained_sets).any()
    if (zeros := _only_zeros(mismatch)) is not None:
        yield zeros
        explained = False
    if not wrong.any():
        because.append(f"{before} hold the same experts")
    elif explained:
        because.append(f"{before} differ at near-ties only: rounding may have turned a token over, too")
    else:
        because.append(f"{before} do not all agree, so the tokens may be a consequence")
    yield diagnosis("tokens-diverged", 0.9 if explained else 0.5, because, mismatch.a)


def _only_zeros(mismatch: Mismatch) -> Diagnosis | None:
    """`nan-logits` by the outputs: all tokens are 0, which a sampler makes of logits that are no numbers."""
    ours, theirs = (_outputs(trace) for trace in (mismatch.a, mismatch.comparison.b))
    if len(ours) < _ENOUGH_TOKENS or ours.any() or not len(theirs) or (theirs == 0).mean() > _RARE:
        return None
    because = [
        f"all {len(ours):,} output tokens are 0, where the baseline has others: the logits were no numbers, "
        "from a layer on whose routing the rows before the first such token do not show",
    ]
    return diagnosis("nan-logits", 0.8, because, mismatch.a)


def _outputs(trace: Trace) -> NDArray[np.int32]:
    """All output tokens of a trace, request after request."""
    prompts = trace.requests.prompt_len.tolist()
    return np.concatenate(
        [np.zeros(0, np.int32), *(trace.tokens_of(i)[prompt:] for i, prompt in enumerate(prompts))]
    )


def diagnose_rounded(rest: Mismatch) -> Diagnosis | None:
    """`numerics` for what faults leave, where no margin could say so: single experts, all over the layers."""
    comparison, layers = rest.comparison, rest.places_in_question
    if comparison.tolerance.exact or comparison.ties.has_margins or comparison.floor is not None:
        return None
    top_k = max(rest.a.model.top_k, comparison.b.model.top_k)
    one_off = float((comparison.cells.overlap[rest.cells] == top_k - 1).mean())
    touched = int(rest.cells.any(axis=0).sum())
    if top_k < 2 or one_off < _NEARLY_ALL or touched < _SPREAD * len(layers) or rest.by_layer.max() > _RARE:
        return None
    because = [
        f"{percent(one_off)} of the {counted(int(rest.cells.sum()), 'cell')} that are left differ by one "
        f"expert, in {of_all(touched, len(layers), 'MoE layer')}: so does rounding",
        "neither trace holds margins, which would tell",
    ]
    return diagnosis("numerics", 0.4, because, rest.a)


def diagnose_numerics(mismatch: Mismatch) -> Diagnosis:
    """All mismatches are rounding, or below the share that the user tolerates."""
    cells, ties = mismatch.comparison.cells, mismatch.comparison.ties
    total, near = int(cells.set_mismatch.sum()), int(ties.near_tie.sum())
    after = int(ties.cascade.sum())
    because = []
    if total:
        share = percent(total / cells.compared.sum())
        because.append(f"{counted(total, 'cell')} of {int(cells.compared.sum()):,} differ ({share})")
    if near:
        because.append(
            f"{near:,} of them at a near-tie: one expert differs and the gap at the k-th place is within "
            f"{mismatch.comparison.tolerance.margin:g} or less"
        )
    if after:
        because.append(f"{after:,} follow such a flip in a lower layer of the same or an earlier token")
    floor = mismatch.comparison.floor
    within = int((mismatch.comparison.explained_sets & ~ties.explained_sets).sum())
    if within:
        because.append(
            f"{within:,} are within the noise floor that {floor.floor.path if floor else ''} tells"
        )
    if near + after + within < total:
        because.append(f"{total - near - after - within:,} are merely below the tolerated share")
    if mismatch.comparison.token_ties:
        parted = len(mismatch.comparison.token_ties)
        because.append(f"the outputs of {counted(parted, 'request')} part, as rounding makes likely")
    if ties.order_tie.any():
        because.append(f"{counted(int(ties.order_tie.sum()), 'cell')} swap experts of nearly equal weight")
    explained = near + after + within == total
    return diagnosis("numerics", 0.9 if explained else 0.4, because, mismatch.a)
