"""What every top-k backend must do, as a check that an outside backend's own tests can call.

Example:
    from moeinspect.runtime.topk.conformance import check_backend

    def test_my_backend_conforms():
        check_backend("mine")  # the entry point's name, or the class
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from moeinspect.runtime.capture.capturer import logit_margin, set_global_experts_capturer
from moeinspect.runtime.topk.backend import MoEBackend, TopKBackend, TopKOutput
from moeinspect.runtime.topk.conformance_setup import (
    LAYER,
    LAYER_WITHOUT_COLUMN,
    BrokenPropertyError,
    Case,
    cases,
    draw,
    experts_of,
    require,
    watching,
)
from moeinspect.runtime.topk.registry import BackendFactory, backend_factory


class ConformanceError(AssertionError):
    """A backend lacks a property that the runtime relies on; the message names each and what was seen."""


def check_backend(backend: str | type[MoEBackend]) -> None:
    """Raises ConformanceError unless `backend`, a name or a class, has every property of `PROPERTIES`."""
    who = backend if isinstance(backend, str) else backend.__qualname__
    found = violations(backend)
    if found:
        broken = "\n".join(f"- {name}: {seen}" for name, seen in found.items())
        raise ConformanceError(f"top-k backend {who}: {len(found)} of {len(PROPERTIES)} fail\n{broken}")


def violations(backend: str | type[MoEBackend]) -> dict[str, str]:
    """Names of the properties that `backend` lacks, each with what was seen."""
    make = backend_factory(backend) if isinstance(backend, str) else backend
    found: dict[str, str] = {}
    for name, check in PROPERTIES.items():
        try:
            check(make)
        except Exception as error:
            known = isinstance(error, BrokenPropertyError)
            found[name] = str(error) if known else f"{type(error).__name__}: {error}"
    return found


def _run(backend: MoEBackend, case: Case) -> torch.Tensor:
    return backend.run(case.hidden(), case.logits.clone(), experts_of(case))


def _computes_the_layer(make: BackendFactory) -> None:
    for case in cases():
        output = _run(make(case.config(), LAYER), case)
        expected = experts_of(case)(case.hidden(), case.expected())
        require(_close(case, output, expected), f"{case.name}: the layer's output is another")


def _selects(make: BackendFactory) -> None:
    for case in cases():
        backend = make(case.config(), LAYER)
        if isinstance(backend, TopKBackend):
            chosen = backend.select(case.logits.clone())
            width = chosen.ids.shape[1] - (chosen.ids.shape[1] > case.top_k) * case.num_shared
            _compare(case, TopKOutput(chosen.ids[:, :width], chosen.weights[:, :width]), "chosen")


def _captures_what_it_chose(make: BackendFactory) -> None:
    for case in cases():
        with watching(case) as watched:
            _run(make(case.config(), LAYER), case)
            require(not watched.untouched(), f"{case.name}: nothing was captured")
            chosen, margins = watched.captured(case.logits.shape[0])
            _compare(case, chosen, "captured")
            expected = logit_margin(case.logits, case.top_k)
            require(_close(case, margins, expected), f"{case.name}: captured margins are others")


def _keeps_padding_out(make: BackendFactory) -> None:
    for rows in (1, 2, 3, 5, 8, 9, 17, 31):
        case = Case(f"{rows} rows", draw(rows, 16), 4)
        with watching(case) as watched:
            _run(make(case.config(), LAYER), case)
            watched.captured(rows)


def _captures_through_the_gate(make: BackendFactory) -> None:
    for case in cases():
        with watching(case) as watched:
            _run(make(case.config(), LAYER), case)
            require(not watched.reached_past_gate, f"{case.name}: the capturer was reached past the gate")


def _honours_the_opt_out(make: BackendFactory) -> None:
    for case in cases():
        with watching(case) as watched:
            silent = _run(make(case.config(allowed=False), LAYER), case)
            require(watched.untouched(), f"{case.name}: captured although the layer opted out")
            captured = _run(make(case.config(), LAYER), case)
            require(_close(case, silent, captured), f"{case.name}: the opt-out changes the layer's output")
            watched.wipe()
            _run(make(case.config(allowed=False), LAYER), case)
            require(watched.untouched(), f"{case.name}: an opt-out does not reach a layer that was captured")


def _runs_uncaptured(make: BackendFactory) -> None:
    case = cases()[0]
    with watching(case) as watched:
        expected = _run(make(case.config(), LAYER), case)
        watched.wipe()
        output = _run(make(case.config(), LAYER_WITHOUT_COLUMN), case)
        require(
            _close(case, output, expected), "a layer without a column in the capturer computes another output"
        )
        require(watched.untouched(), "a layer without a column in the capturer was captured")
        set_global_experts_capturer(None)
        require(
            _close(case, _run(make(case.config(), LAYER), case), expected),
            "another output without a capturer",
        )


def _leaves_its_inputs_alone(make: BackendFactory) -> None:
    case = cases()[0]
    hidden, logits = case.hidden(), case.logits.clone()
    make(case.config(), LAYER).run(hidden, logits, experts_of(case))
    require(torch.equal(hidden, case.hidden()), "hidden_states were changed in place")
    require(torch.equal(logits, case.logits), "router_logits were changed in place")


def _compare(case: Case, seen: TopKOutput, what: str) -> None:
    expected = case.expected()
    require(seen.ids.shape == expected.ids.shape, f"{case.name}: {what} ids are {list(seen.ids.shape)}")
    rows = (seen.ids != expected.ids).any(-1).nonzero().flatten().tolist()
    if rows:
        got, want = seen.ids[rows[0]].tolist(), expected.ids[rows[0]].tolist()
        raise BrokenPropertyError(f"{case.name}: row {rows[0]}: {what} experts {got}, not {want}")
    require(_close(case, seen.weights, expected.weights), f"{case.name}: {what} weights are others")


def _close(case: Case, seen: torch.Tensor, expected: torch.Tensor) -> bool:
    if seen.shape != expected.shape or seen.dtype != expected.dtype:
        return False
    return torch.allclose(seen, expected, rtol=0, atol=case.tolerance, equal_nan=True)


PROPERTIES: dict[str, Callable[[BackendFactory], None]] = {
    "computes-the-layer": _computes_the_layer,
    "selects-as-the-reference": _selects,
    "captures-what-it-chose": _captures_what_it_chose,
    "captures-through-the-gate": _captures_through_the_gate,
    "honours-the-opt-out": _honours_the_opt_out,
    "keeps-padding-out": _keeps_padding_out,
    "runs-uncaptured": _runs_uncaptured,
    "leaves-its-inputs-alone": _leaves_its_inputs_alone,
}
"""What is checked, by name: of equal logits the lowest id wins, NaN ranks first, ids come best first."""
