"""A request that loses its slots and is aborted, or meets a weight update, before it has them again."""

import functools
from dataclasses import replace

import pytest
from runtime_harness import run, target_only

from moeinspect.runtime.config import RunConfig
from moeinspect.runtime.records import PromptRequest
from moeinspect.runtime.scheduler.scheduler import Scheduler
from moeinspect.runtime.unified import UnifiedServer

PROMPTS = tuple(
    PromptRequest(f"r{i}", tuple(range(11 * i, 11 * i + 10)), 40, ignore_eos=True) for i in range(4)
)
TIGHT = RunConfig(num_kv_slots=112, max_running_requests=4)


@functools.cache
def whole():
    return target_only(RunConfig(), PROMPTS)


@pytest.mark.quick(2)
@pytest.mark.parametrize("moment", ["waiting", "computing-again"])
@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("prefix_cache", [True, False])
def test_an_aborted_request_has_the_rows_of_all_its_tokens(moment, overlap, prefix_cache, monkeypatch):
    receive, aborted = UnifiedServer._receive, []

    def abort_retracted(server, idle):
        residents = server._scheduler.residents
        requests = residents.waiting if moment == "waiting" else residents.active
        for request in list(requests):
            again = request.num_retractions and not request.is_finished
            if again and (moment == "waiting" or request.computed_len < request.num_fed):
                aborted.append(request.key)
                server._scheduler.abort(request.key)
        return receive(server, idle)

    monkeypatch.setattr(UnifiedServer, "_receive", abort_retracted)
    config = replace(TIGHT, overlap=overlap, prefix_cache=prefix_cache, chunked_prefill_size=4)
    seen = run(config, PROMPTS)
    assert aborted
    for ended in seen.values():
        want, count = whole()[ended.id], len(ended.output_ids)
        assert (ended.finish_reason == "abort") == (ended.key in aborted)
        assert ended.output_ids.tolist() == want.output_ids[:count].tolist()
        assert len(ended.expert_ids) == len(ended.prompt_ids) + max(0, count - 1)
        assert ended.expert_ids.tobytes() == want.expert_ids[: len(ended.expert_ids)].tobytes()


@pytest.mark.parametrize("overlap", [True, False])
def test_rows_computed_before_a_weight_update_stay_though_their_request_waits_for_slots(overlap, monkeypatch):
    update, waited = Scheduler._update_weights, []

    def note(scheduler):
        waited.append(any(request.num_retractions for request in scheduler.residents.waiting))
        return update(scheduler)

    monkeypatch.setattr(Scheduler, "_update_weights", note)
    steps = iter(range(24, 72, 6))
    while not any(waited):
        step = next(steps)
        config = replace(TIGHT, overlap=overlap, weight_updates=((step, "builtin:tiny-updated"),))
        for ended in run(config, PROMPTS).values():
            count = int((ended.weight_version == 0).sum())
            assert (ended.weight_version[:count] == 0).all()
            assert ended.expert_ids[:count].tobytes() == whole()[ended.id].expert_ids[:count].tobytes()
