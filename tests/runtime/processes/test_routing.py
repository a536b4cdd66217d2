from moeinspect.runtime.processes.routing import route
from moeinspect.runtime.records import PromptRequest


def ask(name, prompt_len, max_new_tokens=4, sample=0):
    return PromptRequest(name, tuple(range(prompt_len)), max_new_tokens, sample=sample), 0


def test_each_request_goes_to_the_workers_with_the_fewest_tokens_so_far():
    routed = route([ask("a", 20), ask("b", 5), ask("c", 5), ask("d", 5), ask("e", 9)], (0, 1), (2, 3))
    assert [request.prefill for request in routed] == [0, 1, 1, 1, 1]
    assert [request.decode for request in routed] == [2, 3, 3, 3, 2]


def test_the_order_of_the_requests_alone_decides():
    batch = [ask(f"r{i}", 1 + i * 7 % 13, i % 5) for i in range(30)]
    assert route(batch, (0, 1, 2), (3, 4)) == route(batch, (0, 1, 2), (3, 4))


def test_a_request_that_samples_nothing_has_no_decode_worker():
    (routed,) = route([ask("a", 3, max_new_tokens=0)], (0,), (1,))
    assert (routed.prefill, routed.decode) == (0, None)
