"""Every mode routes as transformers does: recorded results of other software, not our own baseline."""

from pathlib import Path

import numpy as np
import pytest
from runtime_harness import run

from moeinspect.runtime.config import RunConfig
from moeinspect.runtime.records import PromptRequest

ORACLE = Path(__file__).parents[1] / "data" / "oracle"
MODES = {
    "target-only": {"target_only": True},
    "normal": {"overlap": False},
    "overlap": {},
    "small-chunks": {"chunked_prefill_size": 8},
    "draft": {"draft": "SELF"},
    "disagg": {"disagg": True},
    "disagg,normal": {"disagg": True, "overlap": False, "chunked_prefill_size": 7},
    "disagg,draft": {"disagg": True, "draft": "SELF"},
}


@pytest.mark.quick(6)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["qwen3_moe", "qwen3_moe-hubstyle"])
def test_sets_weights_and_tokens_are_those_of_transformers(name, mode):
    expected = np.load(ORACLE / "expected" / f"{name}.fp32.npz")
    model = str(ORACLE / "checkpoints" / name)
    options = {key: model if value == "SELF" else value for key, value in MODES[mode].items()}
    tokens, prompt_len = expected["tokens"][0].tolist(), int(expected["prompt_len"])
    # Neighbours in the batch, so that it is not the only request that runs.
    prompts = [
        PromptRequest("oracle", tuple(tokens[:prompt_len]), len(tokens) - prompt_len),
        PromptRequest("shorter", tuple(tokens[:11]), 9),
        PromptRequest("other", tuple(reversed(tokens[:30])), 20),
    ]
    seen = run(RunConfig(model=model, **options), prompts)["oracle"]
    assert seen.output_ids.tolist() == tokens[prompt_len:]
    order = np.argsort(seen.expert_ids, axis=-1, kind="stable")
    assert (np.take_along_axis(seen.expert_ids, order, -1) == expected["ids_sorted"][0]).all()
    weights = np.take_along_axis(seen.weights, order, -1)
    assert np.abs(weights - expected["weights_sorted"][0]).max() < 1e-5
    logits = np.sort(expected["router_logits"][0], axis=-1)[..., ::-1]
    assert np.abs(seen.margin - (logits[..., 3] - logits[..., 4])).max() < 1e-4
