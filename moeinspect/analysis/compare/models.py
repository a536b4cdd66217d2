"""Whether two traces are about the same model, and about comparable runs of it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from moeinspect.analysis.align import Alignment
from moeinspect.analysis.compare.tolerance import Tolerance
from moeinspect.analysis.findings import Finding, Severity
from moeinspect.trace.schema import ModelFacts, Trace

_RULE = "model-mismatch"


def model_findings(alignment: Alignment) -> Iterator[Finding]:
    """Facts of the model in which the traces differ.

    What changes the meaning of an id (number of experts, top-k, MoE layers, id space, checkpoint) is an
    error; cells are compared all the same, as far as they have a counterpart. Names are notes.
    """
    a, b = alignment.a, alignment.b
    for name, severity, value_a, value_b in _facts(a, b):
        if value_a != value_b and "" not in (value_a, value_b):
            yield _mismatch(severity, f"{name} differs: {value_a} in A, {value_b} in B", {"fact": name})
    yield from _one_sided_layers(a, b, alignment)


def machine_note(alignment: Alignment, tolerance: Tolerance) -> Iterator[Finding]:
    """Says so where two known machine keys differ: then bit-exactness is not to be expected."""
    key_a, key_b = alignment.a.run.machine_key, alignment.b.run.machine_key
    if key_a and key_b and key_a != key_b:
        yield Finding(
            rule="other-machine",
            severity="note",
            message=(
                f"the traces come from different machine keys ({key_a} and {key_b}): differences are judged "
                f"by margins, within {tolerance.margin:g} for {tolerance.dtype}"
            ),
            count=0,
            evidence={"machine_key": [key_a, key_b], "dtype": tolerance.dtype, "margin": tolerance.margin},
        )


def _facts(a: Trace, b: Trace) -> Iterator[tuple[str, Severity, object, object]]:
    model_a, model_b = a.model, b.model
    yield "num_experts", "error", model_a.num_experts, model_b.num_experts
    yield "top_k", "error", model_a.top_k, model_b.top_k
    yield "id_space", "error", a.run.id_space, b.run.id_space
    yield "fingerprint", "error", model_a.fingerprint, model_b.fingerprint
    yield "num_hidden_layers", "note", model_a.num_hidden_layers, model_b.num_hidden_layers
    yield "architecture", "note", model_a.architecture, model_b.architecture


def _one_sided_layers(a: Trace, b: Trace, alignment: Alignment) -> Iterator[Finding]:
    for own, other, model in (("A", "B", a.model), ("B", "A", b.model)):
        alone = np.setdiff1d(model.moe_layers, (b if own == "A" else a).model.moe_layers)
        exempt = np.isin(alone, model.capture_exempt_layers)
        kinds: tuple[tuple[NDArray[np.int64], Severity, str], ...] = (
            (alone[~exempt], "error", ""),
            (alone[exempt], "note", " (exempt from capture)"),
        )
        for some, severity, why in kinds:
            if len(some):
                layers = tuple(int(layer) for layer in some)
                named = ", ".join(map(str, layers))
                yield _mismatch(
                    severity,
                    f"MoE layers only in {own}: {named} ({other} holds none of them){why}",
                    {"fact": "moe_layers", "only_in": own.lower()},
                    layers,
                    count=_layer_cells(alignment, model, own, len(layers)),
                )


def _layer_cells(alignment: Alignment, model: ModelFacts, own: str, num_layers: int) -> int:
    trace = alignment.a if own == "A" else alignment.b
    return len(trace.rows) * num_layers


def _mismatch(
    severity: Severity,
    message: str,
    evidence: dict[str, object],
    layers: tuple[int, ...] = (),
    count: int = 0,
) -> Finding:
    return Finding(_RULE, severity, message, count, layers=layers, evidence=evidence)
