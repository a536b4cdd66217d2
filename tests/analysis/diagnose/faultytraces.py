"""A healthy run of several requests at once, with workers and steps, and ways to spoil its rows."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
from analysis.tracefactory import make_facts, make_records, make_trace

from moeinspect.trace.schema import Origin, RequestRecord, Trace

FACTS = make_facts(4, 32, 4)
PREFILL, DECODE = 0, 1
PROMPT, OUTPUT = 24, 16


@cache
def _requests(count: int) -> tuple[RequestRecord, ...]:
    made = make_records(FACTS, count, prompt_len=PROMPT, output_len=OUTPUT)
    for record in made:
        record.expert_ids.flags.writeable = False  # shared by all tests
    return tuple(made)


def records(count: int = 4, *, disagg: bool = True) -> list[RequestRecord]:
    """Requests that prefill one after another in chunks of 8 and then decode all together."""
    made = []
    for number, record in enumerate(_requests(count)):
        position = np.arange(len(record.expert_ids))
        decoded = position >= PROMPT
        chunks = PROMPT // 8
        step = np.where(decoded, position - PROMPT, number * chunks + position // 8)
        if not disagg:
            step = np.where(decoded, count * chunks + position - PROMPT, step)
        made.append(
            replace(
                record,
                worker=np.where(decoded & disagg, DECODE, PREFILL).astype(np.uint16),
                step=step.astype(np.int32),
                origin=np.where(decoded, Origin.DECODE, Origin.PREFILL).astype(np.uint8),
            )
        )
    return made


def trace(made: list[RequestRecord], *, disagg: bool = True, path: str = "a.h5", **config: Any) -> Trace:
    """The trace of a run with these switches."""
    names = ("prefill-0", "decode-0") if disagg else ("unified",)
    switches = {"model": "builtin:tiny", "disagg": disagg, "overlap": True, "draft": None, "dtype": "float32"}
    return make_trace(made, FACTS, run={"run_config": switches | config}, worker_names=names, path=path)


def baseline() -> Trace:
    """What a target-only run of the same requests gives."""
    return trace(records(disagg=False), disagg=False, overlap=False, path="b.h5")


def spoiled(change: Any, *, disagg: bool = True, **config: Any) -> Trace:
    """The healthy run with `change(record, number)` giving each record's replacement fields."""
    made = records(disagg=disagg)
    return trace([replace(r, **change(r, n)) for n, r in enumerate(made)], disagg=disagg, **config)


def zeroed(rows: slice, layers: Any = slice(None)) -> Any:
    """A change that zeroes rows of each record."""

    def change(record: RequestRecord, number: int) -> dict[str, Any]:
        ids = record.expert_ids.copy()
        ids[rows, layers] = 0
        return {"expert_ids": ids}

    return change


def first_rows(record: RequestRecord, count: int, *, outputs: int) -> RequestRecord:
    """The record with its first rows and output tokens only."""
    names = ("expert_ids", "validity", "origin", "worker", "step", "slot", "row_weight_version")
    cut = {name: getattr(record, name)[:count] for name in names}
    return replace(record, output_ids=record.output_ids[:outputs], **cut)


def foreign(record: RequestRecord) -> dict[str, Any]:
    """Fields of a record whose provenance an importer could not know."""
    n = len(record.expert_ids)
    return {
        "origin": np.full(n, Origin.IMPORTED, np.uint8),
        "worker": np.zeros(n, np.uint16),
        "step": np.zeros(n, np.int32),
    }


def overwritten_by_next_step(made: list[RequestRecord]) -> list[RequestRecord]:
    """What a device buffer that is read one forward late gives: rows of step s hold those of step s + 1."""
    by_step: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for number, record in enumerate(made):
        for row, (worker, step) in enumerate(zip(record.worker.tolist(), record.step.tolist(), strict=True)):
            by_step.setdefault((worker, step), []).append((number, row))
    changed = [record.expert_ids.copy() for record in made]
    for (worker, step), places in by_step.items():
        for (number, row), (source, source_row) in zip(
            places, by_step.get((worker, step + 1), []), strict=False
        ):
            changed[number][row] = made[source].expert_ids[source_row]
    return [replace(record, expert_ids=ids) for record, ids in zip(made, changed, strict=True)]
