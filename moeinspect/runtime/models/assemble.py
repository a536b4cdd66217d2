"""Builds a model from its tensors: own, aligned copies in the dtype of the run, fused where it helps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from moeinspect.errors import InputError, UsageError
from moeinspect.runtime.faults import NAN_LOGITS, NO_FAULTS, PHYSICAL_IDS, ActiveFaults
from moeinspect.runtime.layers.attention_plan import HeadLayout
from moeinspect.runtime.layers.experts import Experts
from moeinspect.runtime.layers.linear import Linear
from moeinspect.runtime.layers.mlp import DenseMLP
from moeinspect.runtime.layers.moe import MoELayer
from moeinspect.runtime.layers.norm import RMSNorm
from moeinspect.runtime.layers.placed_experts import PlacedExperts
from moeinspect.runtime.layers.placement import PLAIN_EXPERTS, ExpertOptions, ExpertPlacement, LayerPlacement
from moeinspect.runtime.layers.shared_experts import SharedExpert
from moeinspect.runtime.layers.spread_experts import SpreadExperts
from moeinspect.runtime.layers.tiles import tile_rows
from moeinspect.runtime.models.config import MAX_EXPERTS, ModelConfig
from moeinspect.runtime.models.expected import HASH_TABLE, LM_HEAD, SHARED_EXPERTS
from moeinspect.runtime.models.qwen3_moe import Attention, DecoderLayer, Qwen3MoeForCausalLM
from moeinspect.runtime.models.weights import WeightSource
from moeinspect.runtime.topk.backend import LayerExperts
from moeinspect.runtime.topk.config import TopKConfig


def assemble(
    config: ModelConfig,
    source: WeightSource,
    *,
    dtype: torch.dtype,
    deterministic: bool,
    faults: ActiveFaults = NO_FAULTS,
    experts: ExpertOptions = PLAIN_EXPERTS,
) -> Qwen3MoeForCausalLM:
    """Reads all weights; the source must hold them in their expected shapes."""
    return Assembler(config, source, dtype, deterministic, faults, experts).model()


class Assembler:
    """Turns the tensors of one checkpoint into the parts of a model."""

    def __init__(
        self,
        config: ModelConfig,
        source: WeightSource,
        dtype: torch.dtype,
        deterministic: bool,
        faults: ActiveFaults,
        options: ExpertOptions = PLAIN_EXPERTS,
    ) -> None:
        self._config = config
        self._source = source
        self._dtype = dtype
        self._faults = faults
        self._options = options
        self._placed: list[PlacedExperts] = []
        self._heads = HeadLayout(config.num_attention_heads, config.num_key_value_heads, config.head_dim)
        self._tile = _row_tile(config) if deterministic else None
        self._head_tile = tile_rows(config.hidden_size, config.vocab_size) if deterministic else None

    def model(self) -> Qwen3MoeForCausalLM:
        """The whole model of the configuration."""
        return Qwen3MoeForCausalLM(self._config, **self._parts(range(self._config.num_hidden_layers)))

    def _parts(self, layers: range, *, has_embedding: bool = True, has_head: bool = True) -> dict[str, Any]:
        """What a model of these layers is made of; an embedding or a head that it lacks is empty."""
        config = self._config
        embedding = self._read("model.embed_tokens.weight")
        head = embedding if config.tie_word_embeddings else self._read(LM_HEAD)
        if config.tie_word_embeddings and LM_HEAD in self._source.infos:
            self._check_tied_head(embedding)
        own_layers = [self._layer(i) for i in layers]
        placement = ExpertPlacement(self._placed, self._options.rebalance_interval) if self._placed else None
        return {
            "embedding": embedding if has_embedding else embedding[:0].clone(),
            "layers": own_layers,
            "norm": RMSNorm(self._read("model.norm.weight"), config.rms_norm_eps, self._head_tile),
            "lm_head": Linear(head if has_head else head[:0].clone(), None, self._head_tile),
            "tile": self._tile,
            "head_tile": self._head_tile,
            "placement": placement,
        }

    def _check_tied_head(self, embedding: torch.Tensor) -> None:
        """A tied head may stand in the file as well, but only as the same values (transformers keeps it)."""
        head = self._source.tensor(LM_HEAD)
        if head.shape != embedding.shape or not torch.equal(head.to(embedding.dtype), embedding):
            raise InputError(
                f"{self._source.infos[LM_HEAD].file}: tensor {LM_HEAD} differs from "
                "model.embed_tokens.weight, although tie_word_embeddings is true",
                "set tie_word_embeddings to false or leave the tensor out",
            )

    def _layer(self, layer: int) -> DecoderLayer:
        prefix = f"model.layers.{layer}"
        is_moe = layer in self._config.moe_layers
        has_shared = is_moe and self._config.num_shared_experts and not self._options.fuse_shared
        return DecoderLayer(
            input_norm=self._norm(f"{prefix}.input_layernorm"),
            attention=self._attention(layer, f"{prefix}.self_attn"),
            post_attention_norm=self._norm(f"{prefix}.post_attention_layernorm"),
            mlp=self._moe(layer, f"{prefix}.mlp") if is_moe else self._dense(layer, f"{prefix}.mlp"),
            shared_expert=self._shared_expert(f"{prefix}.mlp") if has_shared else None,
        )

    def _attention(self, layer: int, prefix: str) -> Attention:
        heads = self._heads
        q_norm, k_norm = self._read(f"{prefix}.q_norm.weight"), self._read(f"{prefix}.k_norm.weight")
        norm = torch.cat([q_norm.expand(heads.num_heads, -1), k_norm.expand(heads.num_kv_heads, -1)])
        return Attention(
            layer_id=layer,
            heads=heads,
            qkv=self._linear([f"{prefix}.{name}_proj" for name in "qkv"], self._config.attention_bias),
            qk_norm=RMSNorm(norm, self._config.rms_norm_eps, self._tile),
            output=self._linear([f"{prefix}.o_proj"], self._config.attention_bias),
        )

    def _dense(self, layer: int, prefix: str) -> DenseMLP:
        names = [f"{prefix}.{name}_proj.weight" for name in ("gate", "up", "down")]
        first = next(i for i in range(layer + 1) if i not in self._config.moe_layers)
        read = self._leave_unset if NAN_LOGITS in self._faults and layer == first else self._read
        return DenseMLP(read(*names[:2]), read(names[2]), self._tile)

    def _moe(self, layer: int, prefix: str) -> MoELayer:
        placement = self._placement()
        num_experts = self._config.num_experts + self._num_fused
        slots = range(num_experts) if placement is None else placement.expert_of_slot.tolist()
        held = self._held_experts(prefix, slots)
        if placement is None:
            return self._moe_layer(layer, prefix, held, held)
        placed = PlacedExperts(held, placement)
        self._placed.append(placed)
        return self._moe_layer(layer, prefix, placed, held)

    def _moe_layer(
        self, layer: int, prefix: str, experts: LayerExperts, held: Experts | SpreadExperts
    ) -> MoELayer:
        """The layer whose backend sees `experts`, behind which are those that are `held`."""
        return MoELayer(
            layer,
            *self._routing(prefix),
            experts,
            hash_table=self._hash_table(layer, prefix),
            captures_after_map=self._captures_after_map,
        )

    def _routing(self, prefix: str) -> tuple[TopKConfig, Linear]:
        """Top-k configuration and router."""
        config = self._config
        return (
            TopKConfig(
                config.top_k,
                renormalize=config.norm_topk_prob,
                num_fused_shared_experts=self._num_fused,
            ),
            Linear(self._read(f"{prefix}.gate.weight"), None, self._tile),
        )

    def _hash_table(self, layer: int, prefix: str) -> torch.Tensor | None:
        """The experts [V, K] int32 of each token; None for a layer that ranks."""
        if layer not in self._config.hash_layers:
            return None
        name, E = f"{prefix}.{HASH_TABLE}", self._config.num_experts
        table = self._source.tensor(name).int()
        if int(table.min()) < 0 or int(table.max()) >= E:
            raise InputError(
                f"{self._source.infos[name].file}: tensor {name} names experts outside the {E} of the model",
                "the checkpoint is damaged",
            )
        return table

    @property
    def _num_fused(self) -> int:
        """Shared experts of a layer that are fused with the routed ones."""
        return self._config.num_shared_experts if self._options.fuse_shared else 0

    @property
    def _captures_after_map(self) -> bool:
        return self._options.redundant > 0 and PHYSICAL_IDS in self._faults

    def _held_experts(self, prefix: str, expert_of_slot: Sequence[int]) -> Experts | SpreadExperts:
        """What computes the experts in these slots."""
        return self._experts(prefix, expert_of_slot)

    def _slots_of_rank(self, num_slots: int) -> list[range]:
        """Which slots each rank holds."""
        return [range(num_slots)]

    def _placement(self) -> LayerPlacement | None:
        """Where the experts of a layer are, if some have copies."""
        num_experts, redundant = self._config.num_experts, self._options.redundant
        if redundant == 0:
            return None
        if num_experts + redundant > MAX_EXPERTS:
            raise UsageError(
                f"--redundant-experts {redundant}: with the {num_experts} experts of {self._config.name} "
                f"there would be more than {MAX_EXPERTS}",
                "ask for fewer",
            )
        slots_of_rank = self._slots_of_rank(num_experts + redundant + self._num_fused)
        return LayerPlacement(num_experts, [len(slots) for slots in slots_of_rank], self._num_fused)

    def _shared_expert(self, prefix: str) -> SharedExpert:
        gate_up, down = self._expert_weights(prefix, [self._config.num_experts])
        return SharedExpert(gate_up, down, tiled=self._tile is not None)

    def _experts(self, prefix: str, expert_of_slot: Sequence[int]) -> Experts:
        gate_up, down = self._expert_weights(prefix, expert_of_slot)
        return Experts(gate_up, down, tiled=self._tile is not None, num_shared=self._num_fused)

    def _expert_weights(
        self, prefix: str, expert_of_slot: Sequence[int]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Copies of the weights of these experts, in this order; E is the shared one."""
        P, H, I = len(expert_of_slot), self._config.hidden_size, self._config.moe_intermediate_size  # noqa: E741
        gate_up = torch.empty(P, 2 * I, H, dtype=self._dtype)
        down = torch.empty(P, H, I, dtype=self._dtype)
        for slot, expert in enumerate(expert_of_slot):
            is_routed = expert < self._config.num_experts
            name = f"{prefix}." + (f"experts.{expert}" if is_routed else SHARED_EXPERTS)
            gate_up[slot, :I] = self._source.tensor(f"{name}.gate_proj.weight")
            gate_up[slot, I:] = self._source.tensor(f"{name}.up_proj.weight")
            down[slot] = self._source.tensor(f"{name}.down_proj.weight")
        return gate_up, down

    def _norm(self, prefix: str) -> RMSNorm:
        return RMSNorm(self._read(f"{prefix}.weight"), self._config.rms_norm_eps, self._tile)

    def _linear(self, prefixes: Sequence[str], with_bias: bool) -> Linear:
        weight = self._read(*(f"{prefix}.weight" for prefix in prefixes))
        bias = self._read(*(f"{prefix}.bias" for prefix in prefixes)) if with_bias else None
        return Linear(weight, bias, self._tile)

    def _read(self, *names: str) -> torch.Tensor:
        """Copies tensors of equal width, one below the other, into new memory.

        The copy is what keeps the bits: a mapped file may place a tensor at any address, and BLAS may take
        another path on one that is not aligned to 64 bytes.
        """
        result = self._room_for(*names)
        counts = [self._source.infos[name].shape[0] for name in names]
        for rows, name in zip(torch.split(result, counts), names, strict=True):
            rows.copy_(self._source.tensor(name))
        return result

    def _leave_unset(self, *names: str) -> torch.Tensor:
        """As `_read` without the copy; what was never written is made sure to be NaN (fault `nan-logits`)."""
        return self._room_for(*names).fill_(torch.nan)

    def _room_for(self, *names: str) -> torch.Tensor:
        shapes = [self._source.infos[name].shape for name in names]
        return torch.empty(sum(shape[0] for shape in shapes), *shapes[0][1:], dtype=self._dtype)


def _row_tile(config: ModelConfig) -> int:
    attention = config.num_attention_heads * config.head_dim
    qkv = attention + 2 * config.num_key_value_heads * config.head_dim
    widths = (config.hidden_size, attention, qkv, config.intermediate_size, config.num_experts)
    return tile_rows(*widths)
