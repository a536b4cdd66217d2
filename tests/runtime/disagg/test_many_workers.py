"""Several prefill and decode workers answer what target-only answers, however requests spread over them."""

import functools

import pytest
from runtime_harness import DRAFT, RandomDelays, assert_identical, requests, run, target_only

from moeinspect.runtime.config import RunConfig
from moeinspect.runtime.engine import LocalRuntime

PROMPTS = tuple(requests(8, seed=3))
SAMPLED = {"temperature": 1.0, "top_p": 0.95, "seed": 3}


@functools.cache
def baseline(**options):
    return target_only(RunConfig(**options), PROMPTS)


@pytest.mark.quick(3)
@pytest.mark.parametrize(
    "options",
    [
        {"prefill_workers": 2, "decode_workers": 2},
        {"prefill_workers": 1, "decode_workers": 3, "overlap": False},
        {"prefill_workers": 3, "decode_workers": 1, "chunked_prefill_size": 8},
        {"prefill_workers": 2, "decode_workers": 2, "draft": DRAFT, "max_running_requests": 2},
        {"prefill_workers": 1, "decode_workers": 1, "transfer": "gloo", "overlap": False},
        {"prefill_workers": 2, "decode_workers": 2, "transfer": "gloo", "draft": DRAFT},
    ],
    ids=lambda options: ",".join(f"{k}={v}" for k, v in options.items()),
)
def test_every_number_of_workers_gives_the_bits_of_target_only(options):
    seen = run(RunConfig(disagg=True, **SAMPLED, **options), PROMPTS)
    assert_identical(seen, baseline(**SAMPLED))
    prefill_workers = options["prefill_workers"]
    used = set()
    for ended in seen.values():
        prompt_len = len(ended.prompt_ids)
        prefill, decode = set(ended.worker[:prompt_len]), set(ended.worker[prompt_len:])
        assert len(prefill) == 1 and len(decode) <= 1
        assert max(prefill) < prefill_workers and all(index >= prefill_workers for index in decode)
        used |= prefill | decode
    assert used == set(range(prefill_workers + options["decode_workers"]))


@pytest.mark.quick(2)
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("transfer", ["shm", "gloo"])
def test_random_delays_change_nothing(seed, transfer):
    options = {"prefill_workers": 2, "decode_workers": 2, "transfer": transfer}
    config = RunConfig(disagg=True, draft=DRAFT, **options, **SAMPLED)
    assert_identical(run(config, PROMPTS, jitter=RandomDelays(seed)), baseline(**SAMPLED))


def test_workers_without_a_request_end_like_the_others():
    config = RunConfig(disagg=True, prefill_workers=3, decode_workers=3)
    expected = {PROMPTS[0].id: baseline()[PROMPTS[0].id]}
    assert_identical(run(config, PROMPTS[:1]), expected)


def test_workers_are_named_by_side_and_number():
    with LocalRuntime(RunConfig(disagg=True, prefill_workers=2, decode_workers=3)) as runtime:
        assert runtime.worker_names == ("prefill-0", "prefill-1", "decode-0", "decode-1", "decode-2")
