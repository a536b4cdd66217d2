"""The models that come with the package, by name: a trained pair and a random one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from moeinspect.errors import InputError
from moeinspect.runtime.builtin_names import BUILTIN_PREFIX
from moeinspect.runtime.models.checkpoint import CheckpointFolder
from moeinspect.runtime.models.config import ModelConfig
from moeinspect.runtime.models.folder import read_folder_config
from moeinspect.runtime.models.random_heads import RANDOM_HEADS, random_head
from moeinspect.runtime.models.random_pair import RANDOM_NAMES, random_model
from moeinspect.runtime.models.updated import SUFFIX, UpdatedWeights
from moeinspect.runtime.models.weights import WeightSource

PAIR = Path(__file__).parent / "pair"
"""The trained pair in Hugging Face layout, its model cards and its prompts."""

_TRAINED = {"tiny": PAIR / "target", "tiny-draft": PAIR / "draft"}


def open_builtin(name: str) -> tuple[ModelConfig, WeightSource]:
    """Configuration and weights (bfloat16) of `builtin:NAME`, also of `builtin:NAME-updated`.

    Raises:
        InputError: no such embedded model.
    """
    if name.endswith(SUFFIX):
        config, source = open_builtin(name.removesuffix(SUFFIX))
        return replace(config, name=name), UpdatedWeights(source, name)
    folder = trained_folder(name)
    if folder is not None:
        return replace(read_folder_config(folder), name=name), CheckpointFolder(folder)
    short = name.removeprefix(BUILTIN_PREFIX)
    return random_head(short) if short in RANDOM_HEADS else random_model(short)


def trained_folder(name: str) -> Path | None:
    """The checkpoint folder of `builtin:NAME`; None if its weights are drawn.

    Raises:
        InputError: no such embedded model.
    """
    short = name.removeprefix(BUILTIN_PREFIX).removesuffix(SUFFIX)
    names = (*_TRAINED, *RANDOM_NAMES, *RANDOM_HEADS)
    if short not in names:
        known = ", ".join(BUILTIN_PREFIX + known for known in names)
        raise InputError(f"{name}: no such embedded model", f"there are {known}")
    return _TRAINED.get(short)
