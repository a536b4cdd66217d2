"""Reading `config.json`: both spellings, and one clear line for everything else."""

import json

import pytest
from model_harness import ORACLE

from moeinspect.errors import InputError
from moeinspect.runtime.models.config import parse_config
from moeinspect.runtime.models.folder import read_folder_config

NEW = json.loads((ORACLE / "checkpoints" / "qwen3_moe" / "config.json").read_text())
OLD = json.loads((ORACLE / "checkpoints" / "qwen3_moe-hubstyle" / "config.json").read_text())


def parse(data, **changes):
    changed = {**data, **changes}
    return parse_config({k: v for k, v in changed.items() if v != "absent"}, name="m", source="config.json")


def test_old_and_new_keys_say_the_same():
    assert "num_local_experts" in NEW and "num_experts" in OLD
    assert "rope_parameters" in NEW and "rope_theta" in OLD
    assert parse(NEW) == parse(OLD)
    assert parse(NEW).rope_theta == 1e6


def test_dense_layers_follow_from_the_step_and_the_list():
    config = parse(OLD, num_hidden_layers=8, decoder_sparse_step=2, mlp_only_layers=[3, 4])
    assert config.moe_layers == (1, 5, 7)


def test_absent_keys_have_the_defaults_of_transformers():
    config = parse(
        OLD, head_dim="absent", norm_topk_prob="absent", num_key_value_heads=None, rms_norm_eps="absent"
    )
    assert config.head_dim == 16 and config.num_key_value_heads == 4
    assert config.norm_topk_prob is False and config.rms_norm_eps == 1e-6


@pytest.mark.parametrize(
    ("value", "expected"), [(None, ()), (7, (7,)), ([7, 9], (7, 9)), ("absent", ())], ids=str
)
def test_end_of_text_is_none_one_or_several_ids(value, expected):
    assert parse(OLD, eos_token_id=value).eos_token_ids == expected


def test_generation_config_overrules_the_end_of_text(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({**OLD, "eos_token_id": 1}))
    assert read_folder_config(tmp_path).eos_token_ids == (1,)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [2, 3]}')
    assert read_folder_config(tmp_path).eos_token_ids == (2, 3)


def test_an_unused_window_is_ignored():
    assert parse(OLD, sliding_window=4096, use_sliding_window=False) == parse(OLD)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model_type": "mixtral", "architectures": ["MixtralForCausalLM"]}, "mixtral"),
        ({"architectures": ["Qwen3MoeForSequenceClassification"]}, "SequenceClassification"),
        ({"architectures": 5}, "architectures"),
        ({"layer_types": 5}, "layer_types"),
        ({"num_hidden_layers": 2**30}, "num_hidden_layers"),
        ({"model_type": "absent", "architectures": "absent"}, "model_type"),
        ({"use_sliding_window": True, "sliding_window": 128}, "sliding-window"),
        ({"layer_types": ["sliding_attention"] * 4}, "layer_types"),
        ({"rope_scaling": {"type": "yarn", "factor": 4.0}}, "yarn"),
        ({"rope_parameters": {"rope_type": "linear", "rope_theta": 1e6}}, "linear"),
        ({"rope_parameters": {"rope_theta": 1e6, "partial_rotary_factor": 0.5}}, "partial_rotary_factor"),
        ({"rope_parameters": [1]}, "rope_parameters"),
        ({"rope_theta": 0}, "rope_theta"),
        ({"hidden_act": "gelu"}, "gelu"),
        ({"quantization_config": {"quant_method": "fp8"}}, "quantised"),
        ({"num_experts_per_tok": 33}, "33"),
        ({"num_experts_per_tok": 0}, "num_experts_per_tok"),
        ({"num_experts": 70000}, "70000"),
        ({"num_experts": "absent"}, "num_experts"),
        ({"num_local_experts": 16}, "contradicts"),
        ({"num_experts": True}, "num_experts"),
        ({"hidden_size": 64.5}, "hidden_size"),
        ({"hidden_size": -64}, "hidden_size"),
        ({"vocab_size": "512"}, "vocab_size"),
        ({"vocab_size": 10**12}, "vocab_size"),
        ({"num_key_value_heads": 3}, "num_key_value_heads"),
        ({"head_dim": 15}, "head_dim"),
        ({"hidden_size": 66, "head_dim": "absent"}, "divisible"),
        ({"mlp_only_layers": [0, 1, 2, 3]}, "no layer with experts"),
        ({"mlp_only_layers": [9]}, "layer 9"),
        ({"mlp_only_layers": "0"}, "mlp_only_layers"),
        ({"decoder_sparse_step": 0}, "decoder_sparse_step"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps"),
        ({"eos_token_id": "<end>"}, "eos_token_id"),
        ({"eos_token_id": [True]}, "eos_token_id"),
    ],
    ids=lambda value: str(value)[:50],
)
def test_what_cannot_be_loaded_is_refused_by_name(changes, words):
    with pytest.raises(InputError) as refusal:
        parse(OLD, **changes)
    message = str(refusal.value)
    assert words in message and message.startswith("config.json: ") and "\n" not in message


@pytest.mark.parametrize("text", ["{", "", "[1]", "null", "\x00", "[" * 100000, '{"a": 1'])
def test_a_broken_config_file_is_named(tmp_path, text):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(InputError, match=r"config\.json"):
        read_folder_config(tmp_path)


def test_a_config_file_that_is_not_text_is_named(tmp_path):
    (tmp_path / "config.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match=r"config\.json"):
        read_folder_config(tmp_path)


def test_a_missing_config_file_is_named(tmp_path):
    with pytest.raises(InputError, match=r"config\.json"):
        read_folder_config(tmp_path)


def test_layers_that_deepseek_calls_hash_moe_are_hash_routed():
    kinds = ["dense", "hash_moe", "moe", "hash_moe"]
    config = parse(OLD, num_hidden_layers=4, mlp_only_layers=[0], mlp_layer_types=kinds)
    assert config.hash_layers == (1, 3)
    assert parse(OLD).hash_layers == ()


def test_a_hash_routed_layer_without_experts_is_refused():
    with pytest.raises(InputError, match="mlp_layer_types calls layer 0 hash_moe, but it has no experts"):
        parse(
            OLD, num_hidden_layers=4, mlp_only_layers=[0], mlp_layer_types=["hash_moe", "moe", "moe", "moe"]
        )
