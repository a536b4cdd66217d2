"""Tokenizers and the built-in prompts."""

import json

import pytest
from model_harness import ORACLE

from moeinspect.errors import InputError
from moeinspect.runtime.models.builtin import open_builtin
from moeinspect.runtime.models.default_prompts import default_prompts
from moeinspect.runtime.models.folder import read_folder_config
from moeinspect.runtime.models.random_pair import EOS_ID
from moeinspect.runtime.models.tokenizer import byte_tokenizer, load_tokenizer


@pytest.mark.parametrize("text", ["", "Hello", "Zwölf 日本 🙂", "a\n\t b  c", "\x00\x7f", "'s don't  "])
def test_bytes_are_the_token_ids_and_come_back_as_the_text(text):
    tokenizer = byte_tokenizer()
    assert tokenizer.encode(text) == tuple(text.encode())
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_special_tokens_and_broken_utf8_do_not_stop_decoding():
    tokenizer = byte_tokenizer()
    assert tokenizer.decode([72, EOS_ID, 105, 319]) == "Hi"
    assert tokenizer.decode([255, 72]) == "\ufffdH"
    assert tokenizer.encode("<|end|>") == (EOS_ID,)


def test_a_folder_without_tokenizer_has_none():
    assert load_tokenizer(str(ORACLE / "checkpoints" / "qwen3_moe")) is None


def test_a_folder_with_tokenizer_json_is_read(tmp_path):
    (tmp_path / "tokenizer.json").write_text(byte_tokenizer().to_json())
    assert load_tokenizer(str(tmp_path)).encode("Hi") == (72, 105)


@pytest.mark.parametrize("content", ["", "{}", "{", json.dumps({"model": {"type": "?"}})])
def test_a_broken_tokenizer_is_named(tmp_path, content):
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(InputError, match=r"tokenizer\.json"):
        load_tokenizer(str(tmp_path))


def prompt_sets():
    builtin, _ = open_builtin("builtin:random")
    folder = read_folder_config(ORACLE / "checkpoints" / "qwen3_moe")
    return [(builtin, byte_tokenizer()), (folder, None)]


@pytest.mark.parametrize(("config", "tokenizer"), prompt_sets(), ids=["text", "tokens"])
def test_the_built_in_prompts_are_varied_and_long_enough(config, tokenizer):
    prompts = default_prompts(config, tokenizer)
    lengths = [len(tokens) for _, tokens in prompts]
    assert len(prompts) >= 8 and len({name for name, _ in prompts}) == len(prompts)
    assert min(lengths) <= 8 and max(lengths) >= 57 and len(set(lengths)) >= 6
    assert sum(length + 31 for length in lengths) > 400
    assert all(0 <= token < config.vocab_size for _, tokens in prompts for token in tokens)
    assert default_prompts(config, tokenizer) == prompts
