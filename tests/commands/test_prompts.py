"""Prompts files: what is accepted, and that every refusal names file, line and reason."""

import io
import json

import pytest

from moeinspect.commands._prompts import PromptLine, read_prompts, to_requests
from moeinspect.console import Console
from moeinspect.errors import InputError


def console(stdin: str = "") -> Console:
    return Console(io.TextIOWrapper(io.BytesIO(stdin.encode())), io.StringIO(), io.StringIO(), {})


def parse(tmp_path, text):
    path = tmp_path / "prompts.jsonl"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_prompts(str(path), console())


def refusal(tmp_path, text) -> str:
    with pytest.raises(InputError) as caught:
        parse(tmp_path, text)
    message = str(caught.value)
    assert "\n" not in message
    return message.replace(str(tmp_path) + "/", "")


def test_every_key_is_read(tmp_path):
    (line,) = parse(
        tmp_path,
        '{"id": "a", "prompt": "Hi", "seed": 7, "max_new_tokens": 3, "return_routed_experts": false, "n": 2}',
    )
    assert (line.id, line.text, line.input_ids, line.seed, line.max_new_tokens) == ("a", "Hi", None, 7, 3)
    assert (line.return_routed_experts, line.n) == (False, 2)


def test_stops_are_one_text_or_several(tmp_path):
    lines = parse(
        tmp_path,
        '{"prompt": "x", "stop": "."}\n{"prompt": "x", "stop": ["a", "b"], "stop_token_ids": [3]}\n'
        '{"prompt": "x", "stop": []}\n{"prompt": "x", "abort_after": 0}',
    )
    assert [line.stop for line in lines] == [(".",), ("a", "b"), (), None]
    assert [line.stop_token_ids for line in lines] == [(), (3,), (), ()]
    assert [line.abort_after for line in lines] == [None, None, None, 0]


def test_absent_ids_are_the_number_of_the_request(tmp_path):
    lines = parse(tmp_path, '{"prompt": "x"}\n\n{"id": "b", "input_ids": [1]}\r\n{"input_ids": [2, 3]}')
    assert [line.id for line in lines] == ["0", "b", "2"]
    assert lines[2].input_ids == (2, 3)


def test_numbers_are_ids_as_they_are_written(tmp_path):
    (line,) = parse(tmp_path, '{"id": 17, "prompt": "x"}')
    assert line.id == "17"


def test_null_is_the_same_as_absent(tmp_path):
    (line,) = parse(tmp_path, '{"id": null, "prompt": "x", "input_ids": null, "seed": null, "stop": null}')
    assert (line.id, line.text, line.seed) == ("0", "x", None)


def test_a_byte_order_mark_and_line_separators_inside_text_are_fine(tmp_path):
    (line,) = parse(tmp_path, '\ufeff{"prompt": "a\u2028b"}\n')
    assert line.text == "a\u2028b"


def test_stdin_is_read_for_a_dash():
    (line,) = read_prompts("-", console('{"prompt": "x"}'))
    assert line.where == "stdin:1"


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(InputError, match=r"nowhere\.jsonl: cannot read the prompts: No such file"):
        read_prompts(str(tmp_path / "nowhere.jsonl"), console())


def test_a_folder_is_no_file(tmp_path):
    with pytest.raises(InputError, match="Is a directory"):
        read_prompts(str(tmp_path), console())


@pytest.mark.parametrize("text", ["", "\n \n"])
def test_an_empty_file_is_refused(tmp_path, text):
    assert refusal(tmp_path, text).startswith("prompts.jsonl: no prompts in it")


GOOD = '{"id": "good", "prompt": "x"}\n'


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"prompt": "x"', "broken JSON: Expecting ',' delimiter (column 15)"),
        ("prompt: x", "broken JSON: Expecting value"),
        ('{"prompt": "x", "prompt": "y"}', "broken JSON: a key stands in it twice"),
        ("[" * 100_000, "broken JSON"),
        ('{"input_ids": [' + "9" * 5000 + "]}", "broken JSON"),
        ('["x"]', "not a JSON object"),
        ("3", "not a JSON object"),
        ("{}", 'neither of "prompt" and "input_ids"'),
        ('{"prompt": "x", "input_ids": [1]}', 'both of "prompt" and "input_ids"'),
        ('{"prompt": ""}', '"prompt" is empty'),
        ('{"prompt": 3}', '"prompt" is not text'),
        ('{"prompt": "\\ud800"}', '"prompt" holds half a surrogate pair'),
        ('{"input_ids": []}', '"input_ids" is empty'),
        ('{"input_ids": "1 2"}', '"input_ids" is not a list of integers'),
        ('{"input_ids": [1, true]}', '"input_ids" has true at position 1'),
        ('{"input_ids": [1.0]}', '"input_ids" has 1.0 at position 0'),
        ('{"input_ids": [NaN]}', '"input_ids" has NaN at position 0'),
        ('{"input_ids": [-1]}', '"input_ids" has -1 at position 0'),
        ('{"input_ids": [99999999999999999999]}', '"input_ids" has 99999999999999999999 at position 0'),
        ('{"id": true, "prompt": "x"}', '"id" is not text'),
        ('{"id": "", "prompt": "x"}', '"id" is empty'),
        ('{"id": 1.5, "prompt": "x"}', '"id" is not text'),
        (json.dumps({"id": "x" * 121, "prompt": "x"}), "121 UTF-8 bytes"),
        ('{"id": "a\\u0000", "prompt": "x"}', "NUL"),
        ('{"prompt": "x", "seed": -1}', '"seed" is -1; give an integer from 0'),
        ('{"prompt": "x", "seed": true}', '"seed" is true'),
        ('{"prompt": "x", "seed": 9223372036854775808}', '"seed" is 9223372036854775808'),
        ('{"prompt": "x", "max_new_tokens": "3"}', '"max_new_tokens" is "3"; give an integer from 0'),
        ('{"prompt": "x", "max_new_tokens": -1}', '"max_new_tokens" is -1'),
        ('{"prompt": "x", "max_new_tokens": false}', '"max_new_tokens" is false'),
        ('{"prompt": "x", "n": 0}', '"n" is 0'),
        ('{"prompt": "x", "return_routed_experts": 1}', '"return_routed_experts" is not true or false'),
        ('{"prompt": "x", "stop": 3}', '"stop" is not text'),
        ('{"prompt": "x", "stop": ["a", ""]}', '"stop" is empty'),
        ('{"prompt": "x", "stop_token_ids": 3}', '"stop_token_ids" is not a list of integers'),
        ('{"prompt": "x", "stop_token_ids": [1, -2]}', '"stop_token_ids" has -2 at position 1'),
        ('{"prompt": "x", "n": 10001}', '"n" is 10001; give an integer from 1 to 10000'),
        ('{"prompt": "x", "abort_after": -1}', '"abort_after" is -1; give an integer from 0'),
        ('{"prompt": "x", "temprature": 1}', "unknown key 'temprature'; known keys: id, prompt"),
        ('{"id": "good", "prompt": "y"}', "id 'good' stands at prompts.jsonl:1 already"),
    ],
)
def test_a_bad_line_is_refused_with_file_line_and_reason(tmp_path, line, reason):
    message = refusal(tmp_path, GOOD + line)
    assert message.startswith("prompts.jsonl:2: ")
    assert reason in message


def test_an_assigned_id_that_is_taken_is_refused(tmp_path):
    assert "id '1' stands at prompts.jsonl:1 already" in refusal(
        tmp_path, '{"id": "1", "prompt": "x"}\n{"prompt": "y"}'
    )


def test_bytes_that_are_no_text_are_refused_with_their_line(tmp_path):
    assert refusal(tmp_path, GOOD.encode() + b'{"prompt": "\xff"}\n').startswith(
        "prompts.jsonl:2: not UTF-8 text"
    )


class Letters:
    """A tokenizer whose ids are the code points of letters."""

    def __init__(self, has_tokenizer=True):
        self.has_tokenizer = has_tokenizer

    def encode(self, text):
        return tuple(ord(c) for c in text if c.isalpha())


def test_requests_take_the_line_before_the_default(tmp_path):
    lines = parse(tmp_path, '{"prompt": "ab", "max_new_tokens": 2, "seed": 5}\n{"input_ids": [9]}')
    first, second = to_requests(lines, Letters(), max_new_tokens=8, ignore_eos=True)
    assert (first.prompt_ids, first.max_new_tokens, first.seed, first.ignore_eos) == ((97, 98), 2, 5, True)
    assert (second.prompt_ids, second.max_new_tokens, second.seed) == ((9,), 8, None)


def test_text_without_a_tokenizer_is_refused_with_its_line(tmp_path):
    lines = parse(tmp_path, GOOD)
    with pytest.raises(InputError, match=r"jsonl:1: the model has no tokenizer.*give input_ids"):
        to_requests(lines, Letters(has_tokenizer=False), max_new_tokens=8, ignore_eos=False)


def test_text_of_no_token_is_refused_with_its_line(tmp_path):
    lines = parse(tmp_path, '{"prompt": "..."}')
    with pytest.raises(InputError, match="jsonl:1: the prompt is no token long"):
        to_requests(lines, Letters(), max_new_tokens=8, ignore_eos=False)


def test_a_request_with_several_samples_becomes_one_request_for_each(tmp_path):
    line = PromptLine("f:1", "a", None, (1, 2), seed=5, n=3)
    samples = to_requests([line], Letters(), max_new_tokens=8, ignore_eos=False)
    assert [sample.key for sample in samples] == [("a", 0), ("a", 1), ("a", 2)]
    assert {(sample.prompt_ids, sample.seed, sample.max_new_tokens) for sample in samples} == {((1, 2), 5, 8)}


def test_requests_carry_what_their_line_asks_for():
    line = PromptLine(
        "f:1",
        "a",
        None,
        (1,),
        max_new_tokens=0,
        stop=("x",),
        stop_token_ids=(3, 4),
        return_routed_experts=False,
        abort_after=2,
    )
    (request,) = to_requests([line], Letters(), max_new_tokens=8, ignore_eos=False, stop=("y",))
    assert (request.max_new_tokens, request.stop, request.stop_token_ids) == (0, ("x",), (3, 4))
    assert (request.return_routed_experts, request.abort_after) == (False, 2)


def test_stops_of_the_command_line_serve_lines_that_name_none():
    lines = [PromptLine("f:1", "a", None, (1,)), PromptLine("f:2", "b", None, (1,), stop=())]
    requests = to_requests(lines, Letters(), max_new_tokens=8, ignore_eos=False, stop=("y",))
    assert [request.stop for request in requests] == [("y",), ()]


def test_a_stop_string_without_a_tokenizer_is_refused_with_its_line():
    lines = [PromptLine("f:1", "a", None, (1,), stop_token_ids=(3,)), PromptLine("f:2", "b", None, (1,))]
    bare = Letters(has_tokenizer=False)
    assert len(to_requests(lines, bare, max_new_tokens=8, ignore_eos=False)) == 2
    with pytest.raises(InputError, match="f:2: the model has no tokenizer for a stop string"):
        to_requests([lines[1]], bare, max_new_tokens=8, ignore_eos=False, stop=("y",))
