"""Requests that a run makes up: the built-in prompts, and traffic with the property it is named after."""

from functools import cache

import pytest
from model_harness import ORACLE

from moeinspect.runtime.config import RunConfig
from moeinspect.runtime.models.builtin import open_builtin
from moeinspect.runtime.models.default_prompts import default_prompts
from moeinspect.runtime.models.folder import read_folder_config
from moeinspect.runtime.models.tokenizer import load_tokenizer
from moeinspect.runtime.models.traffic_prompts import default_requests
from moeinspect.runtime.traffic import (
    CHUNK_SEAMS,
    MIXED_OPT_IN,
    PREFILL_ONLY,
    SHARED_PREFIXES,
    STOPS,
    TRAFFICS,
)


@cache
def models():
    names = ("builtin:tiny", "builtin:random")
    builtin = {name: (open_builtin(name)[0], load_tokenizer(name)) for name in names}
    return {**builtin, "folder": (read_folder_config(ORACLE / "checkpoints" / "qwen3_moe"), None)}


@pytest.fixture(params=["builtin:tiny", "builtin:random", "folder"])
def made(request):
    """Makes the requests of a configuration for one of the models."""
    return lambda **options: default_requests(RunConfig(**options), *models()[request.param])


def test_without_traffic_the_built_in_prompts_run_under_the_options_of_the_run():
    config, tokenizer = models()["builtin:tiny"]
    requests = default_requests(RunConfig(max_new_tokens=5, ignore_eos=True, stop=("x",)), config, tokenizer)
    assert [(one.id, one.prompt_ids) for one in requests[:10]] == default_prompts(config, tokenizer)
    assert {(one.max_new_tokens, one.ignore_eos, one.stop) for one in requests} == {(5, True, ("x",))}


def test_the_last_built_in_prompts_begin_like_earlier_ones(made):
    prompts = [request.prompt_ids for request in made()]
    assert len({request.id for request in made()}) == len(prompts) == 13
    for earlier, later in zip(prompts[6:9], prompts[10:], strict=True):
        shared = len(earlier) * 3 // 4
        assert later[:shared] == earlier[:shared] and later != earlier[: len(later)]


@pytest.mark.parametrize("name", TRAFFICS)
def test_traffic_fits_the_model_and_is_the_same_every_time(made, name):
    requests = made(traffic=(name,))
    assert requests == made(traffic=(name,))
    assert len({request.key for request in requests}) == len(requests) >= 4
    assert all(1 <= len(request.prompt_ids) <= 512 for request in requests)


def test_several_kinds_come_one_after_another(made):
    both = made(traffic=(STOPS, PREFILL_ONLY, STOPS))
    assert both == [*made(traffic=(STOPS,)), *made(traffic=(PREFILL_ONLY,))]


def test_shared_prefixes_take_turns(made):
    prompts = [request.prompt_ids for request in made(traffic=(SHARED_PREFIXES,))]
    assert len({prompt[:48] for prompt in prompts}) == 3
    assert prompts[0][:48] == prompts[3][:48] != prompts[1][:48]
    assert len(set(prompts)) == len(prompts) == 15


def test_mixed_opt_in_has_both_and_one_length(made):
    requests = made(traffic=(MIXED_OPT_IN,))
    for worker in range(2):  # also where two of them take turns
        assert {one.return_routed_experts for one in requests[worker::2]} == {True, False}
    assert len({(len(one.prompt_ids), one.max_new_tokens, one.ignore_eos) for one in requests}) == 1


def test_stops_are_a_third_of_the_vocabulary_at_most(made):
    for request in made(traffic=(STOPS,)):
        assert 1 <= len(request.stop_token_ids) <= 4096


def test_prefill_only_has_requests_for_nothing_and_ordinary_ones(made):
    assert {request.max_new_tokens for request in made(traffic=(PREFILL_ONLY,))} == {0, 32}


@pytest.mark.parametrize("size", [16, 64, 1 << 30])
def test_prompts_reach_a_few_tokens_past_a_chunk(made, size):
    chunk = min(size, 64)
    for request in made(traffic=(CHUNK_SEAMS,), chunked_prefill_size=size):
        assert len(request.prompt_ids) > chunk and 1 <= len(request.prompt_ids) % chunk <= 6
