import numpy as np

from moeinspect.runtime.answers import Answer, AnswerWriter, Ended, read_answers
from moeinspect.runtime.client import Client
from moeinspect.runtime.records import PromptRequest
from moeinspect.runtime.scheduler.outputs import StepOutputs
from moeinspect.runtime.scheduler.request import Request


def request(name, **options):
    return Request(PromptRequest(name, (1, 2), 8, **options), 0, frozenset(), str)


def step(*entries):
    """Outputs of a step that added `tokens` to each request."""
    outputs = StepOutputs()
    for asked, tokens, rows in entries:
        asked.output_ids += tokens
        outputs.add(asked, tokens, rows)
    return outputs


def test_without_streaming_every_token_comes_with_the_end():
    writer, asked = AnswerWriter(stream=False), request("a")
    assert read_answers(writer.write(step((asked, [5, 6], None)))) == []
    asked.finish_reason = "length"
    (answer,) = read_answers(writer.write(step((asked, [7], "rows"))))
    assert (answer.new_tokens, answer.ended, answer.rows) == ([5, 6, 7], Ended("length"), "rows")


def test_with_streaming_tokens_come_as_they_are_made_and_rows_with_the_last():
    writer, asked = AnswerWriter(stream=True), request("a", sample=2)
    (first,) = read_answers(writer.write(step((asked, [5, 6], None))))
    asked.finish_reason = "stop"
    (last,) = read_answers(writer.write(step((asked, [7], "rows"))))
    assert first == Answer(("a", 2), [5, 6], None, None)
    assert last == Answer(("a", 2), [7], Ended("stop"), "rows")


def test_rows_that_were_not_asked_for_do_not_travel_and_leave_their_place_in_the_list():
    writer = AnswerWriter(stream=False)
    batch = [request("a", return_routed_experts=False), request("b")]
    for asked in batch:
        asked.finish_reason = "length"
    answers = writer.write(step((batch[0], [1], "rows of a"), (batch[1], [2], "rows of b")))
    assert answers.routed_experts == [None, "rows of b"]
    assert [answer.rows for answer in read_answers(answers)] == [None, "rows of b"]


def test_a_client_that_has_seen_enough_goes_away_once():
    prompt = PromptRequest("a", (1,), 8, abort_after=3)
    client = Client([prompt])
    for tokens in ([1, 2], [3, 4], [5]):
        client.take(Answer(prompt.key, tokens, None, None))
    assert client.take_aborts() == [prompt.key] and client.take_aborts() == []
    client.take(Answer(prompt.key, [6], Ended("abort"), None))
    asked, tokens = client.end(prompt.key)
    assert asked is prompt and np.array_equal(tokens, [1, 2, 3, 4, 5, 6]) and not client.is_waiting


def test_a_client_does_not_abort_what_has_ended():
    prompt = PromptRequest("a", (1,), 3, abort_after=3)
    client = Client([prompt])
    client.take(Answer(prompt.key, [1, 2, 3], Ended("length"), None))
    assert client.take_aborts() == []
