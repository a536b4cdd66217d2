"""Samples, requests without rows and streamed answers, in one process and in several."""

from dataclasses import replace

import numpy as np
import pytest
from runtime_harness import assert_identical, requests, run, target_only

from moeinspect.runtime.config import RunConfig

PROMPTS = tuple(requests(5, seed=7))
WAYS = [{}, {"disagg": True}, {"disagg": True, "prefill_workers": 2, "decode_workers": 2}]
ways = pytest.mark.parametrize("way", WAYS, ids=["unified", "disagg", "2x2"])


@ways
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_samples_of_one_request_are_told_apart(way, stream):
    prompts = [replace(prompt, sample=sample, seed=sample) for prompt in PROMPTS[:3] for sample in range(3)]
    config = RunConfig(temperature=1.0, stream=stream)
    seen = run(replace(config, **way), prompts)
    assert_identical(seen, target_only(config, prompts))
    assert {ended.key for ended in seen.values()} == {prompt.key for prompt in prompts}


@ways
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_requests_that_did_not_ask_get_their_tokens_and_no_rows(way, stream):
    asked = {prompt.id: i % 2 == 0 for i, prompt in enumerate(PROMPTS)}
    prompts = [replace(prompt, return_routed_experts=asked[prompt.id]) for prompt in PROMPTS]
    seen = run(RunConfig(stream=stream, **way), prompts)
    expected = target_only(RunConfig(), PROMPTS)
    assert_identical(
        {k: v for k, v in seen.items() if asked[k]}, {k: v for k, v in expected.items() if asked[k]}
    )
    for name, ended in seen.items():
        assert ended.has_routed_experts == asked[name]
        assert ended.output_ids.tolist() == expected[name].output_ids.tolist()
        assert ended.expert_ids.shape == expected[name].expert_ids.shape
        if not asked[name]:
            assert (ended.expert_ids == np.iinfo(ended.expert_ids.dtype).max).all()
            assert ended.expert_ids.dtype == expected[name].expert_ids.dtype
            assert ended.weights.shape == ended.expert_ids.shape and (ended.step == -1).all()
