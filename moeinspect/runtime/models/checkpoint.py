"""Reads a Hugging Face folder: `model.safetensors`, or shards named by `model.safetensors.index.json`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from moeinspect.errors import InputError
from moeinspect.runtime.models.fields import read_json_object
from moeinspect.runtime.models.weights import TensorInfo

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"


class CheckpointFolder:
    """The safetensors of a folder, mapped into memory.

    Raises:
        InputError: no safetensors, a missing or damaged shard, a shard outside the folder, an index that
            names tensors its shards lack.
    """

    def __init__(self, folder: Path) -> None:
        self.name = str(folder)
        self._handle_of: dict[str, Any] = {}
        self.infos: dict[str, TensorInfo] = {}
        if (folder / SINGLE_FILE).exists():
            self._open(folder / SINGLE_FILE, None)
        elif (folder / INDEX_FILE).exists():
            self._open_shards(folder)
        else:
            raise InputError(
                f"{folder}: holds neither {SINGLE_FILE} nor {INDEX_FILE}",
                "only safetensors checkpoints are read",
            )

    def tensor(self, name: str) -> torch.Tensor:
        """The values of one tensor, in memory shared with the file."""
        try:
            tensor: torch.Tensor = self._handle_of[name].get_tensor(name)
        except (SafetensorError, OSError, RuntimeError) as error:
            raise InputError(f"{self.infos[name].file}: tensor {name} cannot be read: {error}") from error
        return tensor

    def _open_shards(self, folder: Path) -> None:
        index = folder / INDEX_FILE
        for shard, tensors in _tensors_of_shards(index).items():
            path = folder / shard
            if not path.exists():
                raise InputError(f"{path}: the shard is missing", f"{index} names it for {tensors[0]}")
            self._open(path, frozenset(tensors))
            absent = [name for name in tensors if name not in self.infos]
            if absent:
                raise InputError(f"{path}: tensor {absent[0]} is missing", f"{index} says that it is there")

    def _open(self, path: Path, wanted: frozenset[str] | None) -> None:
        try:
            handle: Any = safe_open(path, framework="pt")
            names = [name for name in handle.keys() if wanted is None or name in wanted]  # noqa: SIM118
            for name in names:
                view = handle.get_slice(name)
                info = TensorInfo(tuple(view.get_shape()), str(view.get_dtype()), str(path))
                self.infos[name] = info
                self._handle_of[name] = handle
        except (SafetensorError, OSError) as error:
            raise InputError(f"{path}: not a readable safetensors file: {error}") from error


def _tensors_of_shards(index: Path) -> Mapping[str, list[str]]:
    """Tensor names by shard, in the index's order."""
    weight_map = read_json_object(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise InputError(f"{index}: weight_map is missing or empty")
    shards: dict[str, list[str]] = {}
    for name, shard in weight_map.items():
        if not isinstance(shard, str) or not _stays_inside(shard):
            raise InputError(f"{index}: tensor {name} lies in {shard!r}, which is not a file of this folder")
        shards.setdefault(shard, []).append(name)
    return shards


def _stays_inside(shard: str) -> bool:
    path = PurePosixPath(shard)
    return bool(path.name) and not path.is_absolute() and ".." not in path.parts and "\0" not in shard
