"""The configuration of a Hugging Face checkpoint folder."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from moeinspect.runtime.models.config import ModelConfig, eos_token_ids, parse_config
from moeinspect.runtime.models.fields import Fields, read_json_object


def read_folder_config(folder: Path) -> ModelConfig:
    """The configuration of a checkpoint folder; end-of-text ids of `generation_config.json` win."""
    path = folder / "config.json"
    config = parse_config(read_json_object(path), name=folder.resolve().name, source=str(path))
    generation = folder / "generation_config.json"
    if generation.exists():
        ids = eos_token_ids(Fields(read_json_object(generation), str(generation)))
        config = replace(config, eos_token_ids=ids or config.eos_token_ids)
    return config
