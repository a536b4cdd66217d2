"""Loads a model from a checkpoint folder or from the embedded ones."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from moeinspect.errors import InputError
from moeinspect.runtime.builtin_names import BUILTIN_PREFIX
from moeinspect.runtime.faults import NO_FAULTS, ActiveFaults
from moeinspect.runtime.layers.placement import PLAIN_EXPERTS, ExpertOptions
from moeinspect.runtime.models.assemble import assemble
from moeinspect.runtime.models.assemble_head import assemble_head
from moeinspect.runtime.models.assemble_rank import assemble_rank
from moeinspect.runtime.models.builtin import open_builtin
from moeinspect.runtime.models.checkpoint import CheckpointFolder
from moeinspect.runtime.models.config import ModelConfig
from moeinspect.runtime.models.draft_heads import HEAD_ARCHITECTURES
from moeinspect.runtime.models.expected import check_tensors
from moeinspect.runtime.models.fingerprint import fingerprint
from moeinspect.runtime.models.folder import read_folder_config
from moeinspect.runtime.models.qwen3_moe import Qwen3MoeForCausalLM
from moeinspect.runtime.models.weights import WeightSource
from moeinspect.runtime.parallel.communicator import Communicator


def load_model(
    name_or_path: str,
    *,
    dtype: torch.dtype,
    deterministic: bool,
    faults: ActiveFaults = NO_FAULTS,
    experts: ExpertOptions = PLAIN_EXPERTS,
    ranks: Communicator | None = None,
) -> Qwen3MoeForCausalLM:
    """Loads `builtin:NAME` or a Hugging Face folder of a Qwen3-MoE.

    With `deterministic`, what the model computes for a token depends, bit for bit, on the tokens before it
    alone; without, it runs the ordinary faster way. Of several `ranks` each has a part of a target; draft
    heads are never spread.

    Raises:
        InputError: no such model, another architecture, or a damaged checkpoint.
        UsageError: the model cannot be spread over so many ranks.
    """
    config, source = _open(name_or_path)
    if config.architecture in HEAD_ARCHITECTURES:
        config = replace(config, fingerprint=fingerprint(config, source, source.infos))
        return assemble_head(config, source, dtype=dtype, deterministic=deterministic)
    names = check_tensors(config, source)
    config = replace(config, fingerprint=fingerprint(config, source, names))
    if ranks is not None and ranks.layout.size > 1:
        return assemble_rank(
            config,
            source,
            ranks,
            dtype=dtype,
            deterministic=deterministic,
            faults=faults,
            experts=experts,
        )
    return assemble(config, source, dtype=dtype, deterministic=deterministic, faults=faults, experts=experts)


def _open(name_or_path: str) -> tuple[ModelConfig, WeightSource]:
    if name_or_path.startswith(BUILTIN_PREFIX):
        return open_builtin(name_or_path)
    folder = Path(name_or_path)
    if not folder.is_dir():
        raise InputError(
            f"{name_or_path}: no such checkpoint folder",
            "give a folder with config.json and safetensors, or builtin:tiny",
        )
    return read_folder_config(folder), CheckpointFolder(folder)
