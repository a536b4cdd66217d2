"""A decode worker's request that is aborted while its KV waits in host memory."""

import multiprocessing

from runtime_harness import run, target_only

from moeinspect.runtime.config import RunConfig
from moeinspect.runtime.disagg.decode_half import DecodeHalf
from moeinspect.runtime.records import PromptRequest

PROMPTS = tuple(
    PromptRequest(f"r{i}", tuple(range(11 * i, 11 * i + 10)), 40, ignore_eos=True) for i in range(4)
)

_advance = DecodeHalf._advance


def _abort_retracted(half):
    for request in list(half.scheduler.residents.waiting):
        if request.num_retractions:
            half.scheduler.abort(request.key)
    _advance(half)


class AbortRetracted:
    """Runs in every worker: makes a decode worker abort what it has just retracted."""

    def __call__(self, _kind):
        if multiprocessing.current_process().name.startswith("decode"):
            DecodeHalf._advance = _abort_retracted


def test_its_rows_come_from_what_was_computed_before():
    config = RunConfig(disagg=True, num_kv_slots=112, max_running_requests=4)
    seen, whole = run(config, PROMPTS, jitter=AbortRetracted()), target_only(RunConfig(), PROMPTS)
    aborted = [ended for ended in seen.values() if ended.finish_reason == "abort"]
    assert aborted and all(len(ended.output_ids) > 1 and ended.num_retractions for ended in aborted)
    for ended in seen.values():
        want, count = whole[ended.id], len(ended.output_ids)
        assert ended.output_ids.tolist() == want.output_ids[:count].tolist()
        assert len(ended.expert_ids) == len(ended.prompt_ids) + count - 1
        assert ended.expert_ids.tobytes() == want.expert_ids[: len(ended.expert_ids)].tobytes()
