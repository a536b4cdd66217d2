"""Prompts files: what is accepted, and that every refusal names file, line and reason."""

import io
import json

import pytest

from moeinspect.commands._prompts import read_prompts, to_requests
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
        '{"id": "a", "prompt": "Hi", "seed": 7, "max_new_tokens": 3, "return_routed_experts": true, "n": 1}',
    )
    assert (line.id, line.text, line.input_ids, line.seed, line.max_new_tokens) == ("a", "Hi", None, 7, 3)


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
        ('{"prompt": "x", "max_new_tokens": "3"}', '"max_new_tokens" is "3"; give an integer from 1'),
        ('{"prompt": "x", "max_new_tokens": -1}', '"max_new_tokens" is -1'),
        ('{"prompt": "x", "max_new_tokens": false}', '"max_new_tokens" is false'),
        ('{"prompt": "x", "max_new_tokens": 0}', '"max_new_tokens": 0 is not built yet in this version'),
        ('{"prompt": "x", "stop": "."}', '"stop" is not built yet in this version'),
        ('{"prompt": "x", "n": 2}', '"n" above 1 is not built yet in this version'),
        ('{"prompt": "x", "n": 0}', '"n" is 0'),
        (
            '{"prompt": "x", "return_routed_experts": false}',
            '"return_routed_experts": false is not built yet in this version',
        ),
        ('{"prompt": "x", "return_routed_experts": 1}', '"return_routed_experts" is not true or false'),
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
