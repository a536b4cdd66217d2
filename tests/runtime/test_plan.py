import pytest

from moeinspect.errors import InputError
from moeinspect.runtime.config import RunConfig
from moeinspect.runtime.memory.page_allocator import PAGE_SIZE
from moeinspect.runtime.plan import check_requests, make_plan
from moeinspect.runtime.records import PromptRequest


def request(prompt_len=10, new=5, id="r", token=3):
    return PromptRequest(id, (token,) * prompt_len, new)


@pytest.mark.parametrize(
    "config, requests, message",
    [
        (RunConfig(), [], "no prompts"),
        (RunConfig(), [request(prompt_len=0)], "is empty"),
        (RunConfig(), [request(token=100)], "token id 100, outside the vocabulary of 100"),
        (RunConfig(), [request(token=-1)], "token id -1"),
        (RunConfig(), [request(new=-1)], "asks for -1 new tokens"),
        (RunConfig(), [request(prompt_len=60)], "needs 65 positions .* and the model has 64"),
        (RunConfig(draft="d"), [request(prompt_len=52)], "needs 65 positions"),
        (RunConfig(num_kv_slots=16), [request(prompt_len=12)], "needs 24 KV slots .* --num-kv-slots 16"),
        (RunConfig(num_kv_slots=15), [request(prompt_len=4)], "--num-kv-slots 15 has 8"),
    ],
)
def test_what_cannot_run_is_refused_in_one_line(config, requests, message):
    with pytest.raises(InputError, match=message) as error:
        check_requests(config, requests, vocab_size=100, max_position_embeddings=64)
    assert "\n" not in str(error.value)


def test_what_just_fits_is_accepted():
    check_requests(RunConfig(num_kv_slots=64), [request(prompt_len=59)], 100, 64)


def test_every_running_request_fits_by_default():
    requests = [request(prompt_len=n, id=str(n)) for n in (3, 30, 11)]
    plan = make_plan(RunConfig(max_running_requests=2), requests)
    assert plan.num_kv_slots == plan.num_slots - PAGE_SIZE == 40 + 16
    assert (plan.max_len, plan.max_running_requests) == (40, 2)


def test_a_forward_never_has_more_rows_than_the_device_buffer():
    requests = [request(prompt_len=3, id=str(n)) for n in range(20)]
    plan = make_plan(RunConfig(chunked_prefill_size=8, draft="d", num_draft_tokens=4), requests)
    assert plan.max_tokens == 16 * 5
    plan = make_plan(RunConfig(chunked_prefill_size=1 << 30, max_running_requests=1), requests)
    assert plan.max_tokens == 3 + 5  # a prompt, and after a preemption its outputs with it
