"""How large the models are."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from training.tokenizer import END_OF_TEXT_ID, VOCABULARY


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A Qwen3-MoE whose first layer is dense; every other layer has experts."""

    num_layers: int
    hidden: int = 128
    dense_width: int = 384
    expert_width: int = 40
    num_heads: int = 4
    num_kv_heads: int = 2
    head_dim: int = 32
    num_experts: int = 32
    top_k: int = 4
    vocabulary: int = VOCABULARY
    max_positions: int = 2048
    rope_theta: float = 10000.0
    norm_eps: float = 1e-6
    balance: float = 0.001
    """Weight of the load-balancing loss while training."""
    dropout: float = 0.0
    """While training, of the embedding and of what each layer adds."""

    @property
    def moe_layers(self) -> tuple[int, ...]:
        """Indices of the layers with experts."""
        return tuple(range(1, self.num_layers))

    def hub_config(self) -> dict[str, Any]:
        """What `config.json` holds, in the keys of transformers' `Qwen3MoeConfig`."""
        return {
            "architectures": ["Qwen3MoeForCausalLM"],
            "model_type": "qwen3_moe",
            "num_hidden_layers": self.num_layers,
            "hidden_size": self.hidden,
            "intermediate_size": self.dense_width,
            "moe_intermediate_size": self.expert_width,
            "num_attention_heads": self.num_heads,
            "num_key_value_heads": self.num_kv_heads,
            "head_dim": self.head_dim,
            "num_experts": self.num_experts,
            "num_experts_per_tok": self.top_k,
            "norm_topk_prob": True,
            "decoder_sparse_step": 1,
            "mlp_only_layers": [0],
            "router_aux_loss_coef": self.balance,
            "vocab_size": self.vocabulary,
            "max_position_embeddings": self.max_positions,
            "rms_norm_eps": self.norm_eps,
            "rope_theta": self.rope_theta,
            "rope_scaling": None,
            "attention_bias": False,
            "tie_word_embeddings": False,
            "use_sliding_window": False,
            "hidden_act": "silu",
            "eos_token_id": END_OF_TEXT_ID,
            "torch_dtype": "bfloat16",
        }

    def as_dict(self) -> dict[str, Any]:
        """The fields, to be stored beside weights."""
        return asdict(self)


_TOY = {
    "hidden": 32,
    "dense_width": 48,
    "expert_width": 8,
    "head_dim": 8,
    "num_experts": 8,
    "top_k": 2,
    "max_positions": 256,
}

TARGETS = {
    "full": ModelShape(num_layers=6, expert_width=48, dropout=0.1),
    "toy": ModelShape(num_layers=3, dropout=0.1, **_TOY),
}
DRAFTS = {
    "full": ModelShape(num_layers=3, dense_width=512, num_heads=8, num_kv_heads=4),
    "toy": ModelShape(num_layers=2, **_TOY),
}
