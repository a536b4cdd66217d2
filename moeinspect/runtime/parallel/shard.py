"""Which part of a model a rank holds."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

import torch

from moeinspect.errors import UsageError
from moeinspect.runtime.layers.attention_plan import HeadLayout
from moeinspect.runtime.memory.kv_cache import KVShape
from moeinspect.runtime.models.config import ModelConfig
from moeinspect.runtime.parallel.layout import FIRST, RankLayout, RankPlace


@dataclass(frozen=True, slots=True)
class ModelShard:
    """The part of the rank at `place`: layers by stage, KV heads by tensor-parallel rank, experts by both.

    Ranges are contiguous and in the order of the ranks; where a number does not divide, the first ranks have
    one more. Without arguments it is the whole model.
    """

    layout: RankLayout = field(default_factory=RankLayout)
    place: RankPlace = FIRST

    @property
    def is_whole(self) -> bool:
        """Whether one rank has everything."""
        return self.layout.size == 1

    @property
    def is_first_stage(self) -> bool:
        """Whether it turns tokens into hidden states."""
        return self.place.pp == 0

    @property
    def is_last_stage(self) -> bool:
        """Whether its hidden states are the last ones."""
        return self.place.pp == self.layout.pp - 1

    @property
    def has_head(self) -> bool:
        """Whether it computes logits."""
        return self.is_last_stage and self.place.tp == 0

    @property
    def ep_index(self) -> int:
        """Its number among the ranks over which the experts are spread."""
        return self.place.dp * self.layout.tp + self.place.tp

    def layers(self, num_layers: int) -> range:
        """Absolute indices of its layers."""
        return split(num_layers, self.layout.pp)[self.place.pp]

    def experts(self, num_experts: int) -> range:
        """Its experts of each of its layers."""
        return split(num_experts, self.layout.ep)[self.ep_index]

    def moe_layers(self, config: ModelConfig) -> tuple[int, ...]:
        """Absolute indices of its MoE layers."""
        own = self.layers(config.num_hidden_layers)
        return tuple(layer for layer in config.moe_layers if layer in own)

    def heads(self, config: ModelConfig) -> HeadLayout:
        """The query and KV heads that it attends with."""
        tp = self.layout.tp
        return HeadLayout(config.num_attention_heads // tp, config.num_key_value_heads // tp, config.head_dim)

    def kv_shape(self, config: ModelConfig, num_slots: int, dtype: torch.dtype) -> KVShape:
        """Sizes of its KV cache."""
        layers = self.layers(config.num_hidden_layers)
        return KVShape(
            num_layers=len(layers),
            num_slots=num_slots,
            num_kv_heads=self.heads(config).num_kv_heads,
            head_dim=config.head_dim,
            dtype=dtype,
            first_layer=layers.start,
        )

    def check(self, config: ModelConfig) -> None:
        """Looks whether the model can be spread so.

        Raises:
            UsageError: its KV heads cannot be shared evenly, or there are more stages than layers.
        """
        if config.num_key_value_heads % self.layout.tp:
            raise UsageError(
                f"--tp-size {self.layout.tp}: {config.name} has {config.num_key_value_heads} KV heads "
                "(num_key_value_heads), which so many ranks cannot share evenly",
                "give a number that divides them",
            )
        if config.num_hidden_layers < self.layout.pp:
            raise UsageError(
                f"--pp-size {self.layout.pp}: {config.name} has {config.num_hidden_layers} layers, too few "
                "for so many stages",
                f"give at most {config.num_hidden_layers}",
            )


WHOLE = ModelShard()
"""The whole model in one rank."""


def split(count: int, parts: int) -> list[range]:
    """`range(count)` in contiguous parts of nearly equal length, the longer ones first (`array_split`)."""
    size, longer = divmod(count, parts)
    starts = [i * size + min(i, longer) for i in range(parts + 1)]
    return [range(a, b) for a, b in pairwise(starts)]
