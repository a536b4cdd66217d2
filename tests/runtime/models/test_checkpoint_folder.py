"""Damaged checkpoint folders end in one line that names the file and the tensor; sound ones load."""

import json
import os
import shutil

import pytest
import torch
from model_harness import ORACLE, load, run_alone
from safetensors.torch import load_file, save_file

from moeinspect.errors import InputError
from moeinspect.runtime.models.expected import HASH_TABLE
from moeinspect.runtime.models.export import export_checkpoint
from moeinspect.runtime.models.loader import load_model

SHARD_1, SHARD_2 = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
INDEX = "model.safetensors.index.json"
ROUTER = "model.layers.2.mlp.gate.weight"


@pytest.fixture
def single(tmp_path):
    return shutil.copytree(ORACLE / "checkpoints" / "qwen3_moe", tmp_path / "single")


@pytest.fixture
def sharded(tmp_path):
    return shutil.copytree(ORACLE / "checkpoints" / "qwen3_moe-hubstyle", tmp_path / "sharded")


def rewrite(folder, change, name="model.safetensors"):
    tensors = load_file(folder / name)
    change(tensors)
    save_file(tensors, folder / name)


def refusal(folder):
    with pytest.raises(InputError) as caught:
        load_model(str(folder), dtype=torch.float32, deterministic=True)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_shards_and_one_file_with_the_same_tensors_have_one_fingerprint(single, sharded):
    assert load(single).config.fingerprint == load(sharded).config.fingerprint


@pytest.mark.parametrize(
    "name", [ROUTER, "lm_head.weight", "model.layers.3.mlp.experts.31.up_proj.weight", "model.norm.weight"]
)
def test_a_missing_tensor_is_named(single, name):
    rewrite(single, lambda tensors: tensors.pop(name))
    assert name in refusal(single) and "missing" in refusal(single)


def test_a_tensor_of_another_shape_is_named_with_both_shapes(single):
    rewrite(single, lambda tensors: tensors.update({ROUTER: torch.zeros(32, 63)}))
    message = refusal(single)
    assert ROUTER in message and "[32, 63]" in message and "[32, 64]" in message
    assert "model.safetensors" in message


def test_a_tensor_that_the_model_has_no_place_for_is_named(single):
    extra = "model.layers.4.mlp.gate.weight"
    rewrite(single, lambda tensors: tensors.update({extra: torch.zeros(1)}))
    assert extra in refusal(single)


def test_an_integer_tensor_is_refused(single):
    rewrite(single, lambda tensors: tensors.update({ROUTER: torch.zeros(32, 64, dtype=torch.int32)}))
    message = refusal(single)
    assert ROUTER in message and "I32" in message


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda table: table.double(), "dtype F64"),
        (lambda table: table + 29, "names experts outside the 32 of the model"),
        (lambda table: table - 1, "names experts outside the 32 of the model"),
        (lambda table: table[:, :3].contiguous(), "has shape [320, 3]"),
    ],
)
def test_a_damaged_hash_table_is_named(tmp_path, change, message):
    export_checkpoint("builtin:random-hash", tmp_path)
    name = f"model.layers.2.mlp.{HASH_TABLE}"
    rewrite(tmp_path, lambda tensors: tensors.update({name: change(tensors[name])}))
    assert name in refusal(tmp_path) and message in refusal(tmp_path)


def test_saved_rotary_buffers_are_ignored(single):
    before = load(single).config.fingerprint
    name = "model.layers.0.self_attn.rotary_emb.inv_freq"
    rewrite(single, lambda tensors: tensors.update({name: torch.zeros(8)}))
    assert load(single).config.fingerprint == before


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_any_float_dtype_on_disk_loads(single, dtype):
    from model_harness import RoutingProbe, bits

    model = load(single)
    expected = run_alone(model, RoutingProbe(model), range(20))
    rewrite(single, lambda t: t.update({k: v.to(torch.float32).to(dtype) for k, v in t.items()}))
    model = load(single)
    seen = run_alone(model, RoutingProbe(model), range(20))
    if dtype is torch.float16:  # narrower exponent than the bfloat16 weights: close, not equal
        torch.testing.assert_close(seen[0], expected[0], atol=0.05, rtol=0)
    else:
        assert all(torch.equal(bits(a), bits(b)) for a, b in zip(seen, expected, strict=True))


@pytest.mark.parametrize("size", [0, 4, 5000, -1])
def test_a_truncated_file_is_named(single, size):
    path = single / "model.safetensors"
    os.truncate(path, size if size >= 0 else path.stat().st_size - 1)
    assert "model.safetensors" in refusal(single) and "not a readable" in refusal(single)


def test_a_file_that_is_no_safetensors_is_named(single):
    (single / "model.safetensors").write_bytes(b"\x80\x02}q\x00." * 1000)
    assert "not a readable" in refusal(single)


def test_a_missing_shard_is_named(sharded):
    (sharded / SHARD_2).unlink()
    assert SHARD_2 in refusal(sharded) and "missing" in refusal(sharded)


def test_a_corrupt_shard_is_named(sharded):
    (sharded / SHARD_1).write_bytes(b"garbage")
    assert SHARD_1 in refusal(sharded)


def test_a_shard_without_a_tensor_that_the_index_promises_is_named(sharded):
    held = load_file(sharded / SHARD_2)
    victim = next(iter(held))
    rewrite(sharded, lambda tensors: tensors.pop(victim), SHARD_2)
    message = refusal(sharded)
    assert SHARD_2 in message and victim in message


@pytest.mark.parametrize("shard", ["../outside.safetensors", "/etc/passwd", "..", "", "a/../../b", 5, None])
def test_a_shard_outside_the_folder_is_refused_unopened(sharded, shard):
    index = json.loads((sharded / INDEX).read_text())
    index["weight_map"][ROUTER] = shard
    (sharded / INDEX).write_text(json.dumps(index))
    message = refusal(sharded)
    assert ROUTER in message and "not a file of this folder" in message


@pytest.mark.parametrize("content", ["{", "{}", '{"weight_map": {}}', '{"weight_map": [1]}', "[]"])
def test_a_broken_index_is_named(sharded, content):
    (sharded / INDEX).write_text(content)
    assert INDEX in refusal(sharded)


def test_a_folder_without_safetensors_is_told_what_is_read(single):
    (single / "model.safetensors").unlink()
    (single / "pytorch_model.bin").write_bytes(b"x")
    assert "only safetensors" in refusal(single)


def test_links_into_a_shared_blob_store_are_followed(single, tmp_path):
    blob = tmp_path / "blob"
    (single / "model.safetensors").rename(blob)
    (single / "model.safetensors").symlink_to(blob)
    assert load(single).config.num_experts == 32


@pytest.mark.parametrize("name", ["no/such/folder", "builtin:giant", "builtin:", ""])
def test_an_unknown_model_is_named(name):
    message = refusal(name)
    assert name in message


def test_weights_are_own_aligned_copies_of_the_file(single):
    model = load(single, dtype=torch.bfloat16)
    path = single / "model.safetensors"
    weight = model.layers_with_topk()[0]._router._weight
    assert weight.data_ptr() % 64 == 0
    before = weight.clone()
    data = bytearray(path.read_bytes())
    data[-200000:] = bytes(200000)
    with path.open("r+b") as file:
        file.write(data)
    assert torch.equal(weight, before)


def tie(folder):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"tie_word_embeddings": True}))


def test_a_tied_head_in_the_file_has_to_be_the_embedding(single):
    tie(single)
    assert "lm_head.weight differs from model.embed_tokens.weight" in refusal(single)
    rewrite(single, lambda t: t.update({"lm_head.weight": t["model.embed_tokens.weight"].clone()}))
    load(single)


def test_a_config_without_a_model_type_is_refused(single):
    path = single / "config.json"
    config = json.loads(path.read_text())
    del config["model_type"]
    path.write_text(json.dumps(config))
    assert "model_type" in refusal(single)


def test_fused_experts_are_refused_by_name(single):
    rewrite(single, lambda t: t.update({"model.layers.0.mlp.experts.gate_up_proj": torch.zeros(32, 64, 64)}))
    message = refusal(single)
    assert "model.layers.0.mlp.experts.gate_up_proj" in message and "not supported" in message
