"""Rows and layers that a draft spoiled: its own routing, rows of rejected tokens, lost verify results."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from moeinspect.analysis.diagnose.mismatch import Mismatch
from moeinspect.analysis.diagnose.nextstep import MOST_NAMES, diagnosis
from moeinspect.analysis.diagnose.sources import Sources
from moeinspect.analysis.diagnose.words import counted, percent
from moeinspect.analysis.findings import Diagnosis
from moeinspect.analysis.requests import is_imported
from moeinspect.analysis.rules.grouping import layers_text

_MOVED_WHOLE = 0.25
"""Smallest share of rows that another layout took from other tokens; the rest are rejected tokens'."""

_UNTOUCHED = 0.02
"""Largest share of mismatches, against the worst layer's, in a layer that a fault leaves alone."""

_WHOLE = 0.75
"""Share of wrong layers from which on a row is wrong as a whole."""

_FEWEST = 0.02
"""Share of the wrong rows that have to be right in other layers: a few are so by chance."""

_ROUNDED = 0.25
"""Largest share of mismatches, against the worst layer's, that rounding may add in other layers."""

_MOVED = 0.9
"""Share of the wrong rows up to which those that are wrong in all layers need no evidence of their own."""

_FROM_STEP, _CONTROL = 0.1, 0.2
"""Smallest share of these that hold the target's choices of their step; how much of that steps beside may."""

_FOUND, _NEARLY_ALL = 0.5, 0.9
_DROPPED = 0.9
"""Share of output rows that a lost verify result spoils; some come out right by chance."""


def diagnose_draft_layers(mismatch: Mismatch, sources: Sources) -> Diagnosis | None:
    """The family of `draft-capture`: certain layers near chance, the others right.

    Rows that the draft's forward stored in the layout of a tree are wrong in all layers.
    """
    places = layers_of_draft(mismatch)
    moved = rows_of_another_layout(mismatch, places)
    chance = mismatch.layers[0].extra["chance_overlap"]
    overlap = mismatch.overlap_at(places)
    elsewhere = np.setdiff1d(mismatch.places_in_question, places)
    if not len(places) or overlap > _like_strangers(mismatch):
        return None
    if moved.sum() > _MOVED * mismatch.rows.sum() and not _joins_other_rows(mismatch, sources, places):
        return None
    others = mismatch.cells[:, elsewhere] & ~moved[:, None]
    most_elsewhere = float(others[mismatch.rows_in_question & ~moved].mean(axis=0).max(initial=0))
    strange = others.sum(axis=1) >= _WHOLE * max(1, len(elsewhere))
    if (
        most_elsewhere > _ROUNDED * mismatch.by_layer.max()
        or strange.sum() > _UNTOUCHED * mismatch.rows.sum()
    ):
        return None
    decoded_only = _only_replayed_steps(mismatch)
    among = mismatch.rows_in_question & (mismatch.is_decoded | (not decoded_only))
    fewest = float(mismatch.cells[among][:, places].mean(axis=0).min())
    if fewest < 0.05 or mismatch.facts.draft_layers is False:
        return None
    wrong = layers_text(tuple(int(mismatch.alignment.layers[i]) for i in places))
    because = [
        f"{wrong}: {'all' if fewest == 1 else f'at least {percent(fewest)} of the'} cells differ"
        f"{' in rows of decode and verify steps' if decoded_only else ''}, with "
        f"{overlap:.2f} of the experts in common where chance gives {chance:.2f}; "
        + (
            f"in the other {counted(len(elsewhere), 'MoE layer')} "
            f"{f'at most {percent(most_elsewhere)}' if most_elsewhere else 'none'} differ"
            f"{' in other rows than those of a tree' if moved.any() else ''}"
            if len(elsewhere)
            else "what is wrong in the other MoE layers has another cause"
        ),
        f"there {percent(mismatch.share_of('prompt'))} of the prompt rows and "
        f"{percent(mismatch.share_of('output'))} of the output rows are wrong",
    ]
    if mismatch.facts.draft:
        because.append("a draft model was configured: its MoE layers carry these layer ids, too")
    if moved.any():
        because.append(
            f"{counted(int(moved.sum()), 'row')} of verify steps are wrong in all MoE layers: over a tree, "
            "the draft's forward stores its rows in a layout of its own"
        )
    cause, reasons = _which_guard(mismatch, decoded_only)
    return diagnosis(cause, 0.95 if mismatch.facts.draft else 0.6, because + reasons, mismatch.a)


def layers_of_draft(mismatch: Mismatch) -> NDArray[np.int64]:
    """Places [l] of the layers that alone are wrong, or that are in rows of which other layers are right."""
    shares = mismatch.by_layer
    places = np.flatnonzero(shares > _UNTOUCHED * shares.max(initial=0)).astype(np.int64)
    elsewhere = np.setdiff1d(mismatch.places_in_question, places)
    if not len(places) or len(elsewhere):
        return places
    if len(places) < len(shares) and shares[places].min() >= _NEARLY_ALL:
        return places  # all layers that are left: by itself that tells something only of whole layers
    return unlike_layers(mismatch)


def unlike_layers(mismatch: Mismatch) -> NDArray[np.int64]:
    """Places [l] of layers near chance in rows of which other layers are right, but for rounding."""
    partly = mismatch.rows & ~_is_whole(mismatch)
    wrong = (mismatch.cells & partly[:, None]).sum(axis=0)
    shares, limit = wrong / max(1, wrong.max(initial=0)), _like_strangers(mismatch)
    unlike = [p for p in np.flatnonzero(shares > _FOUND) if mismatch.overlap_at(np.asarray([p])) < limit]
    others = np.setdiff1d(np.arange(len(shares)), unlike)
    is_clear = partly.sum() >= _FEWEST * mismatch.rows.sum() and (shares[others] < _ROUNDED).all()
    return np.asarray(unlike if is_clear else [], dtype=np.int64)


def rows_of_another_layout(mismatch: Mismatch, places: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Rows [R] of verify steps that are wrong beyond a draft's layers: its forward, over a tree, stored them.

    None where all rows that a verify step fed first are right there, which is a tree's own fault, and none
    where verify results were lost.
    """
    nothing = np.zeros(len(mismatch.alignment), dtype=bool)
    whole = _is_whole(mismatch) & mismatch.regions["accepted_draft"]
    if not mismatch.facts.draft_tree or not whole.any() or not len(places):
        return nothing
    roots, several = _roots(mismatch)
    if several and whole[roots].mean() <= _UNTOUCHED:
        return nothing
    rest = _beyond(mismatch, places)
    return nothing if _is_dropped(rest, Sources(rest)) else whole


def _joins_other_rows(mismatch: Mismatch, sources: Sources, places: NDArray[np.int64]) -> bool:
    """Rows hold the target's choices for other tokens of their step in all layers but a draft's.

    And none is a token's as a whole: a forward that stored what the target left puts whole rows there.
    """
    beyond = Sources(_beyond(mismatch, places))
    same = float(beyond.at_step(0).mean()) if len(beyond) else 0.0
    beside = max(float(beyond.at_step(step).mean()) for step in (-1, 1)) if same else 1.0
    return same >= _FROM_STEP and beside <= _CONTROL * same and sources.anywhere.mean() < _FEWEST


def _beyond(mismatch: Mismatch, places: NDArray[np.int64]) -> Mismatch:
    """What is wrong in other layers than these."""
    layers = np.isin(np.arange(len(mismatch.layers)), places)
    return mismatch.without(np.broadcast_to(layers, mismatch.cells.shape))


def _is_whole(mismatch: Mismatch) -> NDArray[np.bool_]:
    """Wrong rows [R] that are wrong in nearly all layers in question."""
    asked = mismatch.in_question.sum(axis=1)
    return np.asarray(mismatch.rows & (mismatch.cells.sum(axis=1) >= _WHOLE * asked))


def _like_strangers(mismatch: Mismatch) -> float:
    """Largest share of common experts that is still near chance."""
    chance = float(mismatch.layers[0].extra["chance_overlap"])
    return max(2 * chance, chance + 0.15)


def _only_replayed_steps(mismatch: Mismatch) -> bool:
    """Only rows of decode and verify steps are wrong, which are those that replay graphs."""
    decoded, prefilled = mismatch.is_decoded, ~mismatch.is_decoded
    graph = mismatch.facts.graph
    may_replay = graph or (graph is None and is_imported(mismatch.a))
    return bool(
        may_replay
        and prefilled.any()
        and mismatch.share_among(prefilled) < _UNTOUCHED
        and mismatch.share_among(decoded) > _FOUND
    )


def _which_guard(mismatch: Mismatch, decoded_only: bool) -> tuple[str, list[str]]:
    """The guards that may be missing, from the run's switches and the kind of the wrong steps."""
    if decoded_only:
        reason = "only steps that replay a graph are wrong: it was captured before the draft opted out"
        return "draft-optout-late", [reason]
    causes, reasons = ["draft-capture"], []
    backend = mismatch.facts.backend
    if backend == "bypass":
        causes += ["bypass-drops-flag", "ungated-backend"]
        reasons.append("the MoE backend computes top-k inside: it may pass the gate by, or lose the opt-out")
    elif backend is None and is_imported(mismatch.a):
        causes += ["bypass-drops-flag", "ungated-backend"]
        reasons.append(
            "the trace does not tell the MoE backend, which may pass the gate by or lose the opt-out"
        )
    elif backend not in (None, "torch"):
        causes.append("ungated-backend")
        reasons.append(f"the MoE backend was {backend}, which may call the capturer beside the gate")
    if mismatch.facts.graph:
        causes.append("draft-optout-late")
        reasons.append("graphs were on: if all steps replay one, the draft may have opted out too late")
    return "|".join(sorted(causes)), reasons


def diagnose_accepted(mismatch: Mismatch, sources: Sources) -> Diagnosis | None:
    """`verify-dropped`, `tree-rows`, `draft-forward-end`: with a draft, only output rows are wrong."""
    if mismatch.share_in("output") < 1.0 or mismatch.facts.draft is False:
        return None
    because = [
        f"{percent(mismatch.share_of('output'))} of the output rows are wrong and no prompt row is",
        f"{percent(mismatch.overlap_at(np.arange(len(mismatch.layers))))} of the experts in common there",
    ]
    if _is_dropped(mismatch, sources):
        return diagnosis("verify-dropped", 0.85 if mismatch.facts.draft else 0.4, because, mismatch.a)
    if mismatch.facts.draft_tree:
        return _of_a_tree(mismatch, sources, because)
    if mismatch.facts.draft is None and not mismatch.may_be_rounding:
        because.append("the trace does not tell whether a draft was configured")
        return diagnosis("tree-rows", 0.5, because, mismatch.a)
    return None


def _is_dropped(mismatch: Mismatch, sources: Sources) -> bool:
    """Nearly all rows of verify steps were never stored: zeros, or what their slots had before.

    Where no row is known to be of a verify step, output rows are looked at instead.
    """
    verified = mismatch.regions["accepted_draft"]
    rows: NDArray[np.bool_] = verified if verified.any() else mismatch.regions["output"]
    unwritten = mismatch.rows | mismatch.unrouted
    if not rows.any() or unwritten[rows].mean() <= _DROPPED:
        return False
    is_left_over = mismatch.unrouted[rows].any() or sources.in_slot.mean() > _FOUND
    return bool(is_left_over or not mismatch.facts.draft_tree)


def _of_a_tree(mismatch: Mismatch, sources: Sources, because: list[str]) -> Diagnosis:
    """The first row of a verify step stands in place in every tree; a wrong layout loses that one, too."""
    roots, several = _roots(mismatch)
    if not roots.any():
        because.append("the draft was a tree: the accepted path was compacted in KV, not in the rows")
        return diagnosis("tree-rows", 0.9, because, mismatch.a)
    wrong = mismatch.share_among(roots)
    may_store_late = bool(mismatch.facts.draft_layers and mismatch.facts.overlap is not False)
    if wrong > _UNTOUCHED:
        because.append(
            f"{percent(wrong)} of the tokens that a verify step fed first are wrong, too: those need no "
            "compaction"
        )
        if may_store_late:
            because.append("the draft's forward stored what the target had left, in a layout of its own")
            if sources.anywhere.mean() >= _MOVED_WHOLE:
                return diagnosis("draft-forward-end", 0.9, because, mismatch.a)
            because.append(
                f"{percent(float(sources.anywhere.mean()))} of the wrong rows are a token's of the trace, so "
                "the draft may have written its own choices, too"
            )
            return diagnosis(_layout_or_choices(mismatch), 0.7, because, mismatch.a)
        return diagnosis("tree-rows", 0.5, because, mismatch.a)
    because.append(
        "the draft was a tree, and every token that a verify step fed first is right: the accepted path was "
        "compacted in KV, not in the rows"
    )
    if may_store_late and not several:
        because.append("no verify step had two requests, which would tell another layout of the rows apart")
        return diagnosis("draft-forward-end|tree-rows", 0.8, because, mismatch.a)
    return diagnosis("tree-rows", 0.95, because, mismatch.a)


def _layout_or_choices(mismatch: Mismatch) -> str:
    """`draft-forward-end`, and what else lets a draft's forward store, with its own choices beside."""
    guards = _which_guard(mismatch, _only_replayed_steps(mismatch))[0].split("|")
    choices = ("draft-capture", "bypass-drops-flag", "ungated-backend", "draft-optout-late")
    names = [name for name in choices if name in guards][-(MOST_NAMES - 1) :]
    return "|".join(sorted(["draft-forward-end", *names]))


def _roots(mismatch: Mismatch) -> tuple[NDArray[np.bool_], bool]:
    """Rows [R] of the token that each verify step fed first, and whether a step had several requests."""
    verify = np.flatnonzero(mismatch.regions["accepted_draft"])
    roots = np.zeros(len(mismatch.alignment), dtype=bool)
    if not len(verify):
        return roots, False
    pair, step = mismatch.alignment.pair[verify].astype(np.int64), mismatch.of_a("step")[verify]
    first = np.ones(len(verify), dtype=bool)
    first[1:] = (np.diff(pair) != 0) | (np.diff(step) != 0)
    roots[verify[first]] = True
    worker = mismatch.of_a("worker")[verify]
    _, requests = np.unique(np.stack([worker, step], axis=1)[first], axis=0, return_counts=True)
    return roots, bool((requests > 1).any())
