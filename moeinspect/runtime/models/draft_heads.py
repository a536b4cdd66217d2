"""One-layer MoE heads that draft from the target's hidden states: NextN and EAGLE3.

A row at position q reads the token at q and the target's hidden states of q - 1, or in a draft step what the
head itself made of q - 1.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable

import torch

from moeinspect.runtime.layers.context import ForwardContext
from moeinspect.runtime.layers.linear import Linear
from moeinspect.runtime.layers.norm import RMSNorm
from moeinspect.runtime.layers.tiles import pad_rows
from moeinspect.runtime.models.config import ModelConfig
from moeinspect.runtime.models.qwen3_moe import DecoderLayer, Qwen3MoeForCausalLM

NEXTN = "Qwen3MoeForCausalLMNextN"
EAGLE3 = "Qwen3MoeForCausalLMEagle3"
HEAD_ARCHITECTURES = (NEXTN, EAGLE3)


class DraftHead(Qwen3MoeForCausalLM):
    """A model of one decoder layer whose input is a token's embedding and a hidden state [H].

    The hidden state after its own layer feeds its next draft step.
    """

    def __init__(
        self,
        config: ModelConfig,
        *,
        embedding: torch.Tensor,
        layer: DecoderLayer,
        token_norm: RMSNorm,
        hidden_norm: RMSNorm,
        norm: RMSNorm,
        lm_head: Callable[[torch.Tensor], torch.Tensor],
        tile: int | None,
        head_tile: int | None,
    ) -> None:
        super().__init__(
            config,
            embedding=embedding,
            layers=[layer],
            norm=norm,
            lm_head=lm_head,
            tile=tile,
            head_tile=head_tile,
        )
        self.input_hidden_size = config.hidden_size
        self.keep_hidden((1,))
        self._layer = layer
        self._token_norm = token_norm
        self._hidden_norm = hidden_norm

    def target_layers(self, num_layers: int) -> tuple[int, ...]:
        """After how many of the target's `num_layers` layers it reads hidden states: all of them."""
        return (num_layers,)

    def reduce(self, target_hidden: torch.Tensor) -> torch.Tensor:
        """The target's hidden states [n, len(target_layers) * H], side by side, as one input [n, H]."""
        return target_hidden

    def run_layers(self, input_ids: torch.Tensor, context: ForwardContext) -> torch.Tensor:
        """`input_ids` [padded N] and `context.input_hidden` [padded N, H] to hidden states [padded N, H]."""
        hidden = context.input_hidden
        if hidden is None:
            raise RuntimeError("a draft head reads hidden states")
        embedded = context.launch("embedded", self._embedding.index_select, 0, input_ids)
        paired = context.launch("paired", self._pair, embedded, hidden)
        x = self._run_layer(paired, hidden, context)
        self._keep(1, x, context)
        return x

    def _pair(self, embedded: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        return torch.cat([self._token_norm(embedded), self._hidden_norm(hidden)], dim=1)

    @abstractmethod
    def _run_layer(self, paired: torch.Tensor, hidden: torch.Tensor, context: ForwardContext) -> torch.Tensor:
        """The head's layer over normed token and hidden state [padded N, 2 H]."""


class NextNHead(DraftHead):
    """Multi-token prediction as in DeepSeek-V3: one projection of token and hidden state, then a layer.

    Mirrors `sglang/srt/models/deepseek_nextn.py` (0.5.23).
    """

    def __init__(self, config: ModelConfig, *, projection: Linear, **parts: object) -> None:
        super().__init__(config, **parts)  # type: ignore[arg-type]
        self._projection = projection

    def _run_layer(self, paired: torch.Tensor, hidden: torch.Tensor, context: ForwardContext) -> torch.Tensor:
        return self._layer(context.launch("residual", self._projection, paired), context)


class Eagle3Head(DraftHead):
    """EAGLE3 (Li et al. 2025): low, middle and high hidden states reduced to one, which is the residual.

    The attention reads token and hidden state side by side. Mirrors `sglang/srt/models/llama_eagle3.py`
    (0.5.23), with a MoE layer in place of the dense MLP.
    """

    def __init__(self, config: ModelConfig, *, reduction: Linear, **parts: object) -> None:
        super().__init__(config, **parts)  # type: ignore[arg-type]
        self._reduction = reduction

    def target_layers(self, num_layers: int) -> tuple[int, ...]:
        """After how many of the target's `num_layers` layers it reads hidden states: low, middle, high."""
        return (1, num_layers // 2, num_layers - 1)

    def reduce(self, target_hidden: torch.Tensor) -> torch.Tensor:
        """The target's hidden states [n, len(target_layers) * H], side by side, as one input [n, H]."""
        n = target_hidden.shape[0]
        if n == 0:
            return target_hidden[:, : self.input_hidden_size]
        padded = target_hidden if self.tile is None else pad_rows(target_hidden, self.tile)
        return self._reduction(padded)[:n]

    def _run_layer(self, paired: torch.Tensor, hidden: torch.Tensor, context: ForwardContext) -> torch.Tensor:
        attended = self._layer.attention(paired, context)
        return self._layer.after_attention(hidden, attended, context)
