"""From one ended request to the blocks that are appended to the columns; shapes and ranges checked here.

What is refused here is a producer's mistake, not a user's: `ValueError`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from moeinspect.trace import ids
from moeinspect.trace.columns import (
    CELL_COLUMNS,
    EVENT_COLUMNS,
    IDS_PATH,
    MARGIN_PATH,
    REQUEST_COLUMNS,
    ROW_COLUMNS,
    TOKENS,
    WEIGHTS_PATH,
    Column,
)
from moeinspect.trace.schema import Events, ModelFacts, RequestRecord

Blocks = dict[str, NDArray[Any]]
"""One array per dataset path, all to be appended."""


def row_blocks(record: RequestRecord, model: ModelFacts, weights: bool, margins: bool) -> Blocks:
    """The rows of `record` for `/rows` and its subgroup, `row` of invalid cells counted from its first row.

    A record without weights or margins in a trace that has them gets NaN.
    """
    shape = (model.num_captured_layers, model.top_k)
    expert_ids = np.asarray(record.expert_ids)
    if expert_ids.dtype.kind not in "iu":
        raise ValueError(f"{record.id!r}: expert ids have dtype {expert_ids.dtype}, not an integer one")
    if expert_ids.ndim != 3 or expert_ids.shape[1:] != shape:
        raise ValueError(f"{record.id!r}: expert ids have shape {expert_ids.shape}, not (rows, *{shape})")
    n = len(expert_ids)
    columns: dict[str, NDArray[Any]] = {
        "validity": record.validity,
        "origin": record.origin,
        "worker": record.worker,
        "step": record.step,
        "slot": record.slot,
        "weight_version": record.row_weight_version,
    }
    blocks = {column.path: fit(columns[column.name], column, record.id, n) for column in ROW_COLUMNS}
    held = ids.store(expert_ids, blocks["/rows/validity"], model)
    blocks[IDS_PATH] = held.ids
    blocks["/rows/validity"] = held.validity
    blocks |= {column.path: getattr(held.cells, column.name) for column in CELL_COLUMNS}
    if weights:
        blocks[WEIGHTS_PATH] = _floats(record.weights, (n, *shape), "weights", record.id)
    if margins:
        blocks[MARGIN_PATH] = _floats(record.margin, (n, shape[0]), "margin", record.id)
    return blocks


def token_block(record: RequestRecord) -> NDArray[np.int32]:
    """Prompt then output ids [T] int32."""
    both = np.concatenate([np.asarray(record.prompt_ids), np.asarray(record.output_ids)])
    # An empty list is float64 to numpy; there is nothing in it that could be cut.
    return fit(both if len(both) else both.astype(np.int32), TOKENS, record.id, len(both))


def request_blocks(record: RequestRecord, token_start: int, row_start: int) -> Blocks:
    """The entry of `record` in every column of `/requests` but the id."""
    known = {
        "prompt_len": len(record.prompt_ids),
        "output_len": len(record.output_ids),
        "token_start": token_start,
        "row_start": row_start,
        "num_rows": len(record.expert_ids),
    }
    values = {
        column: known[column.name] if column.name in known else int(getattr(record, column.name))
        for column in REQUEST_COLUMNS
    }
    return {column.path: fit(np.asarray([value]), column, record.id, 1) for column, value in values.items()}


def event_blocks(events: Events) -> Blocks:
    """The columns of `/events`."""
    blocks: Blocks = {}
    for column in EVENT_COLUMNS:
        values = getattr(events, column.name)
        if column.dtype.kind == "S":
            blocks[column.path] = encode([str(value) for value in values], column)
        else:
            blocks[column.path] = fit(values, column, "events", len(events))
    return blocks


def encode(texts: list[str], column: Column) -> NDArray[np.bytes_]:
    """Fixed-length UTF-8; text that would be cut is refused."""
    encoded = [text.encode("utf-8") for text in texts]
    longest = max((len(text) for text in encoded), default=0)
    if longest > column.dtype.itemsize:
        raise ValueError(f"{column.path} holds {column.dtype.itemsize} bytes, not {longest}")
    return np.asarray(encoded, dtype=column.dtype)


def fit(values: NDArray[Any], column: Column, owner: str, length: int) -> NDArray[Any]:
    """`values` [length] in the column's dtype; a value that would change is refused, never wrapped."""
    array = np.asarray(values)
    if array.shape != (length,):
        raise ValueError(f"{owner!r}: {column.name} has shape {array.shape}, not ({length},)")
    if array.dtype == column.dtype or column.dtype.kind == "f":
        fitted = array.astype(column.dtype, copy=False)
    elif array.dtype.kind not in "iub":
        raise ValueError(f"{owner!r}: {column.name} has dtype {array.dtype}, not an integer one")
    else:
        _check_range(array, np.iinfo(column.dtype).min, np.iinfo(column.dtype).max, column, owner)
        fitted = array.astype(column.dtype)
    if column.dtype.kind != "f":
        _check_range(fitted, column.minimum, _largest(column), column, owner)
    return fitted


def _largest(column: Column) -> int:
    if column.enum is not None:
        return int(max(column.enum))
    if column.name == "validity":
        return 3
    return int(np.iinfo(column.dtype).max)


def _check_range(array: NDArray[Any], smallest: int, largest: int, column: Column, owner: str) -> None:
    if array.size and (int(array.min()) < smallest or int(array.max()) > largest):
        found = f"from {array.min()} to {array.max()}"
        raise ValueError(f"{owner!r}: {column.name} is {found}, outside [{smallest}, {largest}]")


def _floats(
    values: NDArray[np.float32] | None, shape: tuple[int, ...], name: str, owner: str
) -> NDArray[np.float32]:
    if values is None:
        return np.full(shape, np.nan, dtype=np.float32)
    array = np.asarray(values, dtype=np.float32)
    if array.shape != shape:
        raise ValueError(f"{owner!r}: {name} has shape {array.shape}, not {shape}")
    return array
