"""What a table is drawn from; known without torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from moeinspect.runtime.builtin_names import RANDOM_HASH, RANDOM_SHARED

HEALTHY, FAULTY = "h", "f"
RUNS = {HEALTHY: 20, FAULTY: 8}
"""Runs of a scene, by kind."""

ORACLE = Path(__file__).parents[2] / "tests" / "data" / "oracle" / "checkpoints"
DRAWN = "drawn"
"""A checkpoint folder of sizes drawn for the scene."""

MODELS = {
    "builtin:tiny": 3.0,
    "builtin:random": 3.0,
    RANDOM_SHARED: 1.5,
    RANDOM_HASH: 1.5,
    **{str(ORACLE / name): 0.7 for name in ("qwen3_moe", "qwen3_moe-hubstyle", "qwen3_moe-variants")},
    DRAWN: 6.0,
}
"""How often each is drawn."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is drawn: a seed, and the faults and models that are drawn from."""

    seed: int
    faults: tuple[str, ...]
    models: tuple[str, ...]
