"""The attributes of a trace file and the small datasets beside them: what the trace is of, and by whom."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from moeinspect.trace.columns import EVENT_WORKER_PATH, WEIGHT_VERSIONS_PATH, WORKER_PATH
from moeinspect.trace.hdf5_input import TraceFile
from moeinspect.trace.schema import FORMAT, FORMAT_VERSION, ModelFacts, RunInfo

_MOST_EXPERTS = 65536
_MOST_LAYERS = 1_000_000
_CHOICES = {"id_space": ("logical", "physical"), "slot_order": ("router", "sorted", "unknown")}


def check_format(file: TraceFile) -> None:
    """Checks that the file is a trace of a version that is understood here.

    Raises:
        InputError: another format, or a version that may mean its columns differently.
    """
    if file.attribute("/", "format") != FORMAT:
        raise file.invalid(
            f'not a trace: its attribute "format" is not {FORMAT}',
            "name a file that `moeinspect capture` wrote",
        )
    version = file.attribute("/", "format_version")
    if version == FORMAT_VERSION:
        return
    what = f"trace of format version {version}; this moeinspect reads {FORMAT_VERSION}"
    if _is_newer(version):
        raise file.invalid(what, "upgrade moeinspect")
    raise file.invalid(what, "record the trace again")


def _is_newer(version: str | int | float | None) -> bool:
    """Whether both parts of the version are numbers and it stands behind the one known here."""
    match = re.fullmatch(r"(\d+)\.(\d+)", str(version), re.ASCII)
    ours = tuple(int(part) for part in FORMAT_VERSION.split("."))
    return match is not None and (int(match[1]), int(match[2])) > ours


def read_run(file: TraceFile) -> RunInfo:
    """The attributes of `/`. What only tells where a trace comes from may be missing.

    `complete` counts only once the writer has closed the file, and not if it does not say so.
    """
    return RunInfo(
        producer=_text(file, "/", "producer"),
        producer_version=_text(file, "/", "producer_version"),
        created=_text(file, "/", "created"),
        complete=bool(_number(file, "/", "complete", 0)) and not file.unfinished,
        engine=_text(file, "/", "engine", "unknown"),
        engine_version=_text(file, "/", "engine_version"),
        machine_key=_text(file, "/", "machine_key"),
        deterministic=bool(_number(file, "/", "deterministic", 0)),
        run_config=_run_config(file),
        injected_faults=_names(file, "/", "injected_faults") or (),
        baseline_of=_text(file, "/", "baseline_of"),
        id_space=_choice(file, "id_space", "logical"),
        slot_order=_choice(file, "slot_order", "unknown"),
    )


def read_model(file: TraceFile) -> ModelFacts:
    """The group `/model`, checked for consistency in itself."""
    moe_layers = _layers(file, "/model/moe_layers")
    exempt = "/model/capture_exempt_layers"
    facts = ModelFacts(
        name=_text(file, "/model", "name"),
        architecture=_text(file, "/model", "architecture"),
        fingerprint=_text(file, "/model", "fingerprint"),
        num_hidden_layers=_required(file, "num_hidden_layers", _MOST_LAYERS),
        num_experts=_required(file, "num_experts", _MOST_EXPERTS),
        top_k=_required(file, "top_k", _MOST_EXPERTS),
        layer_axis=_text(file, "/model", "layer_axis"),
        moe_layers=moe_layers,
        capture_exempt_layers=_layers(file, exempt) if file.has(exempt) else (),
    )
    if facts.layer_axis not in ("all", "moe"):
        raise file.invalid(f'attribute layer_axis of /model is "{facts.layer_axis}", not all or moe')
    if facts.top_k > facts.num_experts:
        raise file.invalid(f"top_k {facts.top_k} of /model is above num_experts {facts.num_experts}")
    for path, layers in (("/model/moe_layers", moe_layers), (exempt, facts.capture_exempt_layers)):
        if any(not 0 <= layer < facts.num_hidden_layers for layer in layers):
            raise file.invalid(f"{path} names layers outside [0, {facts.num_hidden_layers})")
    if not moe_layers or any(a >= b for a, b in pairwise(moe_layers)):
        raise file.invalid("/model/moe_layers is not a list of ascending layer indices")
    return facts


def read_weight_versions(file: TraceFile) -> tuple[str, ...]:
    """`/weight_versions`; one named `default` where the file has none."""
    if not file.has(WEIGHT_VERSIONS_PATH):
        return ("default",)
    return tuple(str(name) for name in texts(file, WEIGHT_VERSIONS_PATH))


def read_worker_names(file: TraceFile, workers: int) -> tuple[str, ...]:
    """Names of `workers` workers or more; made up where the file has no list of names."""
    for path in (WORKER_PATH, EVENT_WORKER_PATH):
        names = _names(file, path, "names") if file.has(path) else None
        if names is None:
            continue
        if len(names) < workers:
            raise file.invalid(f"{path} counts {workers} workers, its attribute names has {len(names)}")
        return names
    return tuple(f"worker-{number}" for number in range(workers))


def texts(file: TraceFile, path: str, rows: int | None = None) -> NDArray[np.str_]:
    """A column of strings, of fixed or variable length [rows]."""
    stored = file.read(path, rows)
    if stored.ndim != 1 or (stored.dtype.kind != "S" and h5py.check_string_dtype(stored.dtype) is None):
        raise file.invalid(f"{path} is no column of strings")
    decoded = [_decoded(file, path, text) for text in stored.tolist()]
    return np.asarray(decoded, dtype=np.str_)


def _decoded(file: TraceFile, path: str, text: bytes | str) -> str:
    try:
        return text.decode("utf-8") if isinstance(text, bytes) else text
    except UnicodeDecodeError:
        raise file.invalid(f"{path} holds text that is not UTF-8") from None


def _layers(file: TraceFile, path: str) -> tuple[int, ...]:
    layers = file.read(path)
    if layers.ndim != 1 or (layers.size and layers.dtype.kind not in "iu"):
        raise file.invalid(f"{path} is no list of layer indices")
    return tuple(int(layer) for layer in layers)


def _text(file: TraceFile, owner: str, name: str, default: str = "") -> str:
    value = file.attribute(owner, name)
    if value is None:
        return default
    if not isinstance(value, str):
        raise file.invalid(f"attribute {name} of {owner} is not text")
    return value


def _number(file: TraceFile, owner: str, name: str, default: int) -> int:
    value = file.attribute(owner, name)
    if value is None:
        return default
    if not isinstance(value, int):
        raise file.invalid(f"attribute {name} of {owner} is not a whole number")
    return int(value)


def _required(file: TraceFile, name: str, largest: int) -> int:
    value = _number(file, "/model", name, default=-1)
    if value == -1:
        raise file.invalid(f"there is no attribute {name} of /model")
    if not 1 <= value <= largest:
        raise file.invalid(f"attribute {name} of /model is {value}, not from 1 to {largest}")
    return value


def _choice(file: TraceFile, name: str, default: str) -> str:
    value = _text(file, "/", name, default)
    if value not in _CHOICES[name]:
        raise file.invalid(f'attribute {name} of / is "{value}", not one of {", ".join(_CHOICES[name])}')
    return value


def _json(file: TraceFile, owner: str, name: str) -> Any:  # noqa: ANN401
    text = _text(file, owner, name)
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise file.invalid(f"attribute {name} of {owner} is not JSON") from None


def _run_config(file: TraceFile) -> dict[str, Any]:
    if file.attribute("/", "run_config") is None:
        return {}
    config = _json(file, "/", "run_config")
    if not isinstance(config, dict):
        raise file.invalid("attribute run_config of / is not a JSON object")
    return config


def _names(file: TraceFile, owner: str, name: str) -> tuple[str, ...] | None:
    if file.attribute(owner, name) is None:
        return None
    names = _json(file, owner, name)
    if not isinstance(names, list) or not all(isinstance(entry, str) for entry in names):
        raise file.invalid(f"attribute {name} of {owner} is not a JSON list of names")
    return tuple(names)
