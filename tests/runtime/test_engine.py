import pytest
from runtime_harness import requests

from moeinspect.errors import EngineError, InputError, UsageError
from moeinspect.runtime.config import RunConfig
from moeinspect.runtime.engine import LocalRuntime
from moeinspect.runtime.models.export import export_checkpoint
from moeinspect.runtime.records import PromptRequest


def test_the_number_of_kv_slots_is_filled_in_and_enough_for_the_same_run():
    prompts = requests()
    with LocalRuntime(RunConfig()) as runtime:
        runtime.check(prompts)
        chosen = runtime.config.num_kv_slots
    assert chosen is not None
    with LocalRuntime(RunConfig(num_kv_slots=chosen)) as runtime:
        assert len(list(runtime.generate(prompts))) == len(prompts)
        assert runtime.config.num_kv_slots == chosen


def test_requests_that_cannot_run_are_refused_before_anything_starts():
    with LocalRuntime(RunConfig(disagg=True)) as runtime, pytest.raises(InputError, match="token id 1024"):
        next(runtime.generate([PromptRequest("r", (1024,), 3)]))


def test_a_draft_with_another_vocabulary_is_refused(tmp_path):
    from pathlib import Path

    other = Path(__file__).parents[1] / "data/oracle/checkpoints/qwen3_moe"
    with pytest.raises(UsageError, match="vocabulary of 512"):
        LocalRuntime(RunConfig(draft=str(other)))


def test_a_failing_forward_ends_the_run_in_one_line():
    def fail(kind):
        if kind == "copy":
            raise RuntimeError("no more\nmemory")

    with (
        pytest.raises(EngineError, match="RuntimeError: no more memory"),
        LocalRuntime(RunConfig(), jitter=fail) as runtime,
    ):
        list(runtime.generate(requests()))


def test_text_of_a_model_without_tokenizer_is_refused(tmp_path):
    export_checkpoint("builtin:tiny", tmp_path / "model")
    (tmp_path / "model" / "tokenizer.json").unlink()
    with LocalRuntime(RunConfig(model=str(tmp_path / "model"), max_new_tokens=4)) as runtime:
        assert not runtime.has_tokenizer
        with pytest.raises(InputError, match="input_ids"):
            runtime.encode("text")
        prompts = runtime.default_requests()
        assert len(list(runtime.generate(prompts))) == len(prompts) >= 8
