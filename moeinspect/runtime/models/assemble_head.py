"""Builds a draft head from its tensors."""

from __future__ import annotations

import torch

from moeinspect.runtime.faults import NO_FAULTS
from moeinspect.runtime.layers.linear import Linear
from moeinspect.runtime.layers.norm import RMSNorm
from moeinspect.runtime.models.assemble import Assembler
from moeinspect.runtime.models.config import ModelConfig
from moeinspect.runtime.models.draft_heads import EAGLE3, DraftHead, Eagle3Head, NextNHead
from moeinspect.runtime.models.expected import LM_HEAD
from moeinspect.runtime.models.qwen3_moe import DecoderLayer
from moeinspect.runtime.models.weights import WeightSource


def assemble_head(
    config: ModelConfig,
    source: WeightSource,
    *,
    dtype: torch.dtype,
    deterministic: bool,
) -> DraftHead:
    """Reads all weights; the source must hold them in their expected shapes."""
    return _HeadAssembler(config, source, dtype, deterministic, NO_FAULTS).head()


class _HeadAssembler(Assembler):
    def head(self) -> DraftHead:
        """The layer's attention has KV layer 0; its MoE has the id that the configuration gives it."""
        config = self._config
        prefix = "model.layers.0"
        parts = {
            "embedding": self._read("model.embed_tokens.weight"),
            "layer": DecoderLayer(
                input_norm=self._norm(f"{prefix}.input_layernorm"),
                attention=self._attention(0, f"{prefix}.self_attn"),
                post_attention_norm=self._norm(f"{prefix}.post_attention_layernorm"),
                mlp=self._moe(config.moe_layers[0], f"{prefix}.mlp"),
            ),
            "token_norm": self._norm("model.enorm"),
            "hidden_norm": self._norm("model.hnorm"),
            "norm": RMSNorm(self._read("model.norm.weight"), config.rms_norm_eps, self._head_tile),
            "lm_head": Linear(self._read(LM_HEAD), None, self._head_tile),
            "tile": self._tile,
            "head_tile": self._head_tile,
        }
        if config.architecture == EAGLE3:
            return Eagle3Head(config, reduction=self._linear(["model.fc"], False), **parts)
        return NextNHead(config, projection=self._linear(["model.eh_proj"], False), **parts)
