"""An exported embedded model is an ordinary checkpoint and the same model."""

import pytest
import torch
from model_harness import RoutingProbe, bits, load, run_alone

from moeinspect.errors import InputError, OutputError
from moeinspect.runtime.models.export import export_checkpoint
from moeinspect.runtime.models.tokenizer import load_tokenizer


@pytest.mark.parametrize("name", ["builtin:random", "builtin:random-draft", "builtin:random-hash"])
def test_the_folder_loads_as_the_same_model(tmp_path, name):
    export_checkpoint(name, tmp_path / "new" / "folder")
    exported, builtin = load(tmp_path / "new" / "folder"), load(name)
    assert exported.config.fingerprint == builtin.config.fingerprint
    assert exported.config.eos_token_ids == builtin.config.eos_token_ids
    assert exported.config.max_position_embeddings == builtin.config.max_position_embeddings
    tokens = list(range(40))
    seen = [run_alone(model, RoutingProbe(model), tokens) for model in (exported, builtin)]
    assert all(torch.equal(bits(a), bits(b)) for a, b in zip(*seen, strict=True))
    assert load_tokenizer(str(tmp_path / "new" / "folder")).encode("é") == (195, 169)


def test_nothing_is_overwritten(tmp_path):
    (tmp_path / "config.json").write_text("mine")
    with pytest.raises(OutputError, match=r"config\.json"):
        export_checkpoint("builtin:random", tmp_path)
    assert (tmp_path / "config.json").read_text() == "mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json"]


def test_an_unknown_name_writes_nothing(tmp_path):
    with pytest.raises(InputError, match="builtin:nope"):
        export_checkpoint("builtin:nope", tmp_path / "folder")
    assert not (tmp_path / "folder").exists()


def test_what_a_qwen3_moe_has_no_place_for_is_refused(tmp_path):
    with pytest.raises(InputError, match="builtin:random-shared has shared experts"):
        export_checkpoint("builtin:random-shared", tmp_path / "folder")
    assert not (tmp_path / "folder").exists()


def test_a_file_in_the_way_is_named(tmp_path):
    (tmp_path / "folder").write_text("")
    with pytest.raises(OutputError, match="folder"):
        export_checkpoint("builtin:random", tmp_path / "folder")
