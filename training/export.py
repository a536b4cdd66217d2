"""Writes target and draft as Hugging Face folders: `config.json`, `model.safetensors` in bfloat16, tokenizer.

With `--check`, the folders are loaded again by transformers (if installed), whose logits must be those of the
training code.
"""

from __future__ import annotations

import importlib
import json
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from safetensors.torch import save_file

from training.distill import DRAFT_FILE
from training.loop import read_model
from training.model import Attention, Layer, Model, MoE
from training.options import PAIR, parser
from training.shapes import ModelShape
from training.tokenizer import END_OF_TEXT, TOKENIZER_FILE
from training.train import TARGET_FILE

MODELS = {"target": TARGET_FILE, "draft": DRAFT_FILE}


def hub_tensors(model: Model) -> Iterator[tuple[str, torch.Tensor]]:
    """The weights under their Hugging Face names, in their dtype."""
    yield "model.embed_tokens.weight", model.embedding.weight
    yield "model.norm.weight", model.norm.weight
    yield "lm_head.weight", model.head.weight
    for index, layer in enumerate(model.decoder_layers()):
        for name, tensor in _layer_tensors(layer):
            yield f"model.layers.{index}.{name}", tensor


def _layer_tensors(layer: Layer) -> Iterator[tuple[str, torch.Tensor]]:
    yield "input_layernorm.weight", layer.input_norm.weight
    yield "post_attention_layernorm.weight", layer.post_norm.weight
    for name, tensor in _attention_tensors(layer.attention):
        yield f"self_attn.{name}.weight", tensor
    if isinstance(layer.mlp, MoE):
        yield "mlp.gate.weight", layer.mlp.router.weight
        for name, tensor in _expert_tensors(layer.mlp):
            yield f"mlp.experts.{name}.weight", tensor
        return
    gate, up = layer.mlp.gate_up.weight.chunk(2)
    yield from (("mlp.gate_proj.weight", gate), ("mlp.up_proj.weight", up))
    yield "mlp.down_proj.weight", layer.mlp.down.weight


def _attention_tensors(attention: Attention) -> Iterator[tuple[str, torch.Tensor]]:
    shape = attention.shape
    heads = torch.tensor([shape.num_heads, shape.num_kv_heads, shape.num_kv_heads]) * shape.head_dim
    parts = torch.split(attention.qkv.weight, heads.tolist())
    yield from zip(("q_proj", "k_proj", "v_proj"), parts, strict=True)
    yield "o_proj", attention.output.weight
    yield "q_norm", attention.q_norm.weight
    yield "k_norm", attention.k_norm.weight


def _expert_tensors(moe: MoE) -> Iterator[tuple[str, torch.Tensor]]:
    E, width = moe.shape.num_experts, moe.shape.expert_width
    gate, up = moe.gate_up.weight.chunk(2)
    for expert in range(E):
        rows = slice(expert * width, (expert + 1) * width)
        yield f"{expert}.gate_proj", gate[rows]
        yield f"{expert}.up_proj", up[rows]
        yield f"{expert}.down_proj", moe.down.weight[:, rows]


@torch.no_grad()
def round_weights(model: Model) -> Model:
    """Rounds the weights to bfloat16 values in place: what is exported, still computed with in float32."""
    for weight in model.parameters():
        weight.copy_(weight.to(torch.bfloat16))
    return model


def export_model(model: Model, folder: Path, tokenizer: Path) -> None:
    """Writes one model's folder; files that stand there are replaced."""
    folder.mkdir(parents=True, exist_ok=True)
    config = json.dumps(model.shape.hub_config(), indent=2)
    (folder / "config.json").write_text(config + "\n", encoding="utf-8")
    special = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": END_OF_TEXT,
        "pad_token": END_OF_TEXT,
    }
    text = json.dumps(special | {"model_max_length": model.shape.max_positions}, indent=2)
    (folder / "tokenizer_config.json").write_text(text + "\n", encoding="utf-8")
    shutil.copyfile(tokenizer, folder / TOKENIZER_FILE)
    tensors = {name: t.detach().cpu().to(torch.bfloat16).contiguous() for name, t in hub_tensors(model)}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)


@torch.no_grad()
def largest_difference(model: Model, folder: Path, seed: int = 0) -> float:
    """Largest difference of any logit between the training code and transformers, both in float32."""
    transformers = importlib.import_module("transformers")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    shape: ModelShape = model.shape
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(shape.vocabulary, (2, min(96, shape.max_positions)), generator=generator)
    ours = round_weights(model.cpu().float())(ids)[0]
    return float((ours - theirs(ids).logits).abs().max())


def main(arguments: Sequence[str] | None = None) -> None:
    """Exports both models of a data folder."""
    options = parser(__doc__)
    options.add_argument("--pair", type=Path, default=PAIR, help="where to write (the package)")
    options.add_argument("--check", action="store_true", help="compare with transformers")
    chosen = options.parse_args(arguments)
    for name, file in MODELS.items():
        model, _ = read_model(chosen.data / file, "cpu")
        export_model(model, chosen.pair / name, chosen.data / TOKENIZER_FILE)
        size = sum(path.stat().st_size for path in (chosen.pair / name).iterdir())
        parameters = sum(weight.numel() for weight in model.parameters())
        sys.stdout.write(f"Wrote {chosen.pair / name}: {parameters} parameters, {size} bytes\n")
        if chosen.check:
            difference = largest_difference(model, chosen.pair / name)
            sys.stdout.write(f"Largest difference to transformers' logits: {difference:.2g}\n")
            if not difference < 1e-3:
                raise SystemExit(f"{name}: transformers computes something else")


if __name__ == "__main__":
    main()
