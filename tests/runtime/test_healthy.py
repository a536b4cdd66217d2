"""In a healthy run any difference from target-only is a bug."""

import functools
import threading
from contextlib import contextmanager

import pytest
from runtime_harness import DRAFT, RandomDelays, RandomPolicy, assert_identical, requests, run, target_only

from moeinspect.runtime.config import RunConfig
from moeinspect.runtime.device.event_log import EventLog
from moeinspect.runtime.engine import LocalRuntime

GREEDY = RunConfig()
SAMPLED = RunConfig(temperature=1.0, top_p=0.95, top_k=100, seed=3)
PROMPTS = tuple(requests())
FORWARDS = ("prefill", "decode", "draft", "verify", "draft-extend")


@functools.cache
def baseline(dtype, sampled):
    return target_only(config(dtype, sampled), PROMPTS)


def config(dtype, sampled, **options):
    base = {"temperature": 1.0, "top_p": 0.95, "top_k": 100, "seed": 3} if sampled else {}
    return RunConfig(dtype=dtype, **base, **options)


@pytest.mark.quick(7)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("sampled", [False, True], ids=["greedy", "sampled"])
@pytest.mark.parametrize(
    "options",
    [
        {"overlap": False},
        {"overlap": False, "chunked_prefill_size": 8, "max_running_requests": 4},
        {"chunked_prefill_size": 8},
        {"max_running_requests": 1, "chunked_prefill_size": 64},
        {"overlap": False, "draft": DRAFT},
        {"draft": DRAFT, "chunked_prefill_size": 8},
        {"draft": DRAFT, "num_draft_tokens": 1, "max_running_requests": 4},
        {"draft": DRAFT, "num_draft_tokens": 7, "max_running_requests": 1},
        {"disagg": True, "overlap": False},
        {"disagg": True, "chunked_prefill_size": 8, "max_running_requests": 4},
        {"disagg": True, "draft": DRAFT},
        {"disagg": True, "draft": DRAFT, "chunked_prefill_size": 8, "max_running_requests": 1},
    ],
    ids=lambda options: ",".join(f"{k}={v}" for k, v in options.items()),
)
def test_every_way_to_run_gives_the_bits_of_target_only(dtype, sampled, options):
    assert_identical(run(config(dtype, sampled, **options), PROMPTS), baseline(dtype, sampled))


@pytest.mark.quick(2)
@pytest.mark.parametrize("seed", range(8))
def test_random_schedules_give_the_bits_of_target_only(seed):
    draft = DRAFT if seed % 2 else None
    options = {"draft": draft, "overlap": seed % 4 < 2}
    seen = run(config("float32", seed % 3 == 0, **options), PROMPTS, policy=RandomPolicy(seed))
    assert_identical(seen, baseline("float32", seed % 3 == 0))


@pytest.mark.quick(2)
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    "options", [{"draft": DRAFT}, {"draft": DRAFT, "disagg": True}], ids=["unified", "disagg"]
)
def test_random_delays_on_every_stream_change_nothing(seed, options):
    seen = run(config("float32", True, **options), PROMPTS, jitter=RandomDelays(seed))
    assert_identical(seen, baseline("float32", True))


def test_every_prompt_alone_gives_the_bits_of_the_batch():
    alone = {}
    for prompt in PROMPTS:
        alone |= run(GREEDY, [prompt])
    assert_identical(alone, baseline("float32", False))


@pytest.mark.quick(2)
@pytest.mark.parametrize("options", [{}, {"draft": DRAFT}, {"disagg": True, "draft": DRAFT}])
def test_slots_that_are_used_again_hold_the_rows_of_their_new_owner(options):
    need = max(len(p.prompt_ids) + p.max_new_tokens for p in PROMPTS) + 16
    seen = run(config("float32", False, num_kv_slots=2 * need, **options), PROMPTS)
    assert_identical(seen, baseline("float32", False))
    owners = {}
    for ended in seen.values():
        for slot in set(ended.slot.tolist()):
            owners.setdefault(slot, set()).add(ended.id)
    assert any(len(ids) > 1 for ids in owners.values())


def test_two_threads_give_the_same_bits_in_every_schedule():
    threads = {"threads": 2}
    expected = target_only(RunConfig(**threads), PROMPTS)
    assert_identical(run(RunConfig(draft=DRAFT, chunked_prefill_size=8, **threads), PROMPTS), expected)


def test_rows_carry_where_and_how_they_were_computed():
    seen = run(RunConfig(disagg=True, draft=DRAFT, ignore_eos=True), PROMPTS)
    for prompt in PROMPTS:
        ended, prompt_len = seen[prompt.id], len(prompt.prompt_ids)
        assert ended.origin[:prompt_len].tolist() == [0] * prompt_len
        assert ended.worker[:prompt_len].tolist() == [0] * prompt_len
        assert (ended.origin[prompt_len:] == 2).all() and (ended.worker[prompt_len:] == 1).all()
        assert (ended.step >= 0).all() and (ended.slot >= 8).all()
        assert len(ended.expert_ids) == prompt_len + len(ended.output_ids) - 1


def test_drafts_are_counted_without_the_bonus_token():
    seen = run(RunConfig(draft=DRAFT, num_draft_tokens=4), PROMPTS)
    assert all(0 <= e.num_accepted <= e.num_drafted and e.num_drafted % 4 == 0 for e in seen.values())
    for ended in seen.values():
        verified = len(ended.output_ids) - 1
        steps = ended.num_drafted // 4
        # Each step keeps its accepted drafts and one more token, unless the request ends on a draft.
        assert ended.num_accepted + steps - verified in (0, 1)


def test_a_target_that_drafts_for_itself_has_every_proposal_accepted():
    prompts = [p for p in PROMPTS if p.max_new_tokens > 6]
    seen = run(RunConfig(draft="builtin:tiny", temperature=1.0), prompts)
    for ended in seen.values():
        steps = ended.num_drafted // 4
        assert steps == -(-(len(ended.output_ids) - 1) // 5)


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    "options", [{}, {"draft": DRAFT}, {"disagg": True}], ids=["plain", "draft", "disagg"]
)
def test_forwards_run_while_the_host_works_on_the_step_before(options, monkeypatch):
    def overlapping_share(overlap, **hooks):
        with LocalRuntime(RunConfig(overlap=overlap, ignore_eos=True, **options), **hooks) as runtime:
            events = []
            for _ in runtime.generate(requests(8, seed=5, max_new=40)):
                events += runtime.drain_events()
            events += runtime.drain_events()
        forwards = [e for e in events if e.lane == "compute" and e.kind in FORWARDS]
        host = [e for e in events if e.lane == "host"]
        steps = {(e.worker, e.step) for e in forwards}
        overlapped = {
            (f.worker, f.step)
            for f in forwards
            for h in host
            if h.worker == f.worker and h.step != f.step and h.start < f.end and f.start < h.end
        }
        return len(overlapped) / len(steps)

    assert overlapping_share(False) == 0
    with monkeypatch.context() as patch:
        patch.setattr(EventLog, "interval", forwards_last(EventLog.interval))
        # None without overlap; how many of all on a busy machine is up to its scheduler.
        assert overlapping_share(True, jitter=LongForwards()) > 0.2


def forwards_last(interval):
    """`EventLog.interval`, in which a step's forward ends once the host has turned to another step.

    So it does not matter for how long a busy machine keeps the host waiting for a core. A host that waits for
    the forward never turns to another step; the forward then ends all the same.
    """
    changed = threading.Condition()
    host_steps, working, done = [], [None], set()

    def host_turned(step, since):
        return working[0] not in (None, step) or any(other != step for other in host_steps[since:])

    @contextmanager
    def long_interval(log, lane, kind, step):
        with interval(log, lane, kind, step):
            since = len(host_steps)
            if lane == "host":
                with changed:
                    host_steps.append(step)
                    working[0] = step
                    changed.notify_all()
            try:
                yield
                if lane == "compute" and kind in FORWARDS and step not in done:
                    with changed:
                        changed.wait_for(lambda: host_turned(step, since), timeout=1)
                    done.add(step)
            finally:
                if lane == "host":
                    working[0] = None

    return long_interval


class LongForwards:
    """Brings `forwards_last` to the workers of a run, in which it arrives as a copy."""

    def __call__(self, _kind):
        pass

    def __setstate__(self, _state):
        EventLog.interval = forwards_last(EventLog.interval)

    def __getstate__(self):
        return "has to be set"
