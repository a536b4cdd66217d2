"""How far two right runs may differ: nothing on one machine that claims bit-exactness, else by dtype."""

from __future__ import annotations

from dataclasses import dataclass

from moeinspect.trace.schema import Trace

LOCAL_ENGINE = "local"


@dataclass(frozen=True, slots=True)
class Tolerance:
    """What is put down to rounding between the two runs."""

    exact: bool
    """Both traces claim bit-exactness on one machine key: any difference counts."""
    bitwise_weights: bool
    """Routing weights have to be equal bit for bit: both local, on top of `exact`."""
    weight: float
    """Largest difference of a routing weight."""
    margin: float
    """Largest gap at the k-th place that rounding can turn over, in the units of `/rows/margin`."""
    dtype: str
    """The coarser dtype of the two runs, as far as they tell."""


@dataclass(frozen=True, slots=True)
class _DtypeBounds:
    weight: float
    margin: float


_BOUNDS = {
    # Right implementations agree within 1e-5 per logit in fp32; a margin is a difference of two logits.
    "float32": _DtypeBounds(weight=1e-5, margin=2e-5),
    "float16": _DtypeBounds(weight=2.0**-7, margin=2.0**-5),
    # bf16 against fp32 on Qwen3-MoE, 20,716 cells: 151 first flips with margins up to 0.086, and weights
    # of equal sets up to 0.028 apart.
    "bfloat16": _DtypeBounds(weight=2.0**-5, margin=2.0**-3),
}
_COARSEST_LAST = tuple(_BOUNDS)


def tolerance_between(a: Trace, b: Trace) -> Tolerance:
    """The bounds that hold between these two runs; a dtype that a run does not tell counts as bfloat16."""
    dtype = max((_dtype_of(a), _dtype_of(b)), key=_COARSEST_LAST.index)
    bounds = _BOUNDS[dtype]
    exact = (
        a.run.deterministic
        and b.run.deterministic
        and bool(a.run.machine_key)
        and a.run.machine_key == b.run.machine_key
    )
    both_local = a.run.engine == LOCAL_ENGINE and b.run.engine == LOCAL_ENGINE
    return Tolerance(exact, exact and both_local, bounds.weight, bounds.margin, dtype)


def _dtype_of(trace: Trace) -> str:
    told = str(trace.run.run_config.get("dtype", "")).removeprefix("torch.")
    name = {"fp32": "float32", "float": "float32", "fp16": "float16", "half": "float16"}.get(told, told)
    return name if name in _BOUNDS else "bfloat16"
