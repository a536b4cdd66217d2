"""A checkpoint that cannot be right: one line that names what is wrong, exit 2, no file."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

GOOD = Path(__file__).parents[1] / "data" / "oracle" / "checkpoints" / "qwen3_moe"


@pytest.fixture
def checkpoint(tmp_path):
    """A copy of a small checkpoint that may be broken."""
    shutil.copytree(GOOD, tmp_path / "model")
    return tmp_path / "model"


def edit_tensors(folder, edit):
    tensors = load_file(folder / "model.safetensors")
    edit(tensors)
    save_file(tensors, folder / "model.safetensors")


def edit_config(folder, **changes):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))


def refused(run, checkpoint, tmp_path, *words):
    before = sorted(tmp_path.iterdir())
    done = run("capture", "model", "-o", "t.h5", "--max-new-tokens", 1)
    assert (done.status, done.stdout) == (2, "")
    for word in (str(checkpoint), *words):
        assert word in done.error
    assert sorted(tmp_path.iterdir()) == before


def some_expert(tensors):
    return next(name for name in tensors if ".experts." in name and name.endswith("down_proj.weight"))


def test_the_copy_itself_runs(run, checkpoint):
    done = run("capture", "model", "--max-new-tokens", 1)
    assert done.status == 0
    assert done.stdout.startswith("Wrote model.h5: ")


def test_a_missing_tensor(run, checkpoint, tmp_path):
    name = some_expert(load_file(checkpoint / "model.safetensors"))
    edit_tensors(checkpoint, lambda tensors: tensors.pop(name))
    refused(run, checkpoint, tmp_path, name)


def test_a_tensor_of_the_wrong_shape(run, checkpoint, tmp_path):
    name = some_expert(load_file(checkpoint / "model.safetensors"))

    def cut(tensors):
        tensors[name] = tensors[name][:, :-1].contiguous()

    edit_tensors(checkpoint, cut)
    refused(run, checkpoint, tmp_path, name)


def test_a_tensor_of_the_wrong_type(run, checkpoint, tmp_path):
    name = some_expert(load_file(checkpoint / "model.safetensors"))

    def retype(tensors):
        tensors[name] = tensors[name].to(torch.int32)

    edit_tensors(checkpoint, retype)
    refused(run, checkpoint, tmp_path, name)


def test_a_cut_weights_file(run, checkpoint, tmp_path):
    weights = checkpoint / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    refused(run, checkpoint, tmp_path, "model.safetensors")


def test_no_weights_file(run, checkpoint, tmp_path):
    (checkpoint / "model.safetensors").unlink()
    refused(run, checkpoint, tmp_path, "safetensors")


def test_no_config(run, checkpoint, tmp_path):
    (checkpoint / "config.json").unlink()
    refused(run, checkpoint, tmp_path, "config.json")


def test_a_broken_config(run, checkpoint, tmp_path):
    (checkpoint / "config.json").write_text("{")
    refused(run, checkpoint, tmp_path, "config.json")


def test_another_architecture(run, checkpoint, tmp_path):
    edit_config(checkpoint, architectures=["LlamaForCausalLM"], model_type="llama")
    refused(run, checkpoint, tmp_path, "llama")


def test_more_experts_per_token_than_experts(run, checkpoint, tmp_path):
    edit_config(checkpoint, num_experts_per_tok=1000)
    refused(run, checkpoint, tmp_path, "num_experts_per_tok")


def test_a_file_that_is_no_folder(run, tmp_path):
    (tmp_path / "model").write_text("x")
    refused(run, tmp_path / "model", tmp_path)


def test_a_draft_that_is_not_there(run, tmp_path):
    done = run("capture", "--draft", "nowhere", "-o", "t.h5")
    assert done.status == 2
    assert str(tmp_path / "nowhere") in done.error
    assert list(tmp_path.iterdir()) == []
