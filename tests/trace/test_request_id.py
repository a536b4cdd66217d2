import pytest

from moeinspect.errors import InputError
from moeinspect.trace.request_id import check_request_id


@pytest.mark.parametrize("request_id", ["a", "x" * 120, "é" * 60, "with space", "日本" * 20])
def test_ids_up_to_120_utf8_bytes_are_accepted(request_id):
    check_request_id(request_id)


@pytest.mark.parametrize(
    ("request_id", "words"),
    [
        ("", "empty"),
        ("x" * 121, "121 UTF-8 bytes"),
        ("é" * 61, "122 UTF-8 bytes"),
        ("a\0b", "NUL"),
        ("\ud800", "Unicode"),
    ],
)
def test_an_id_that_would_be_changed_by_storing_is_refused(request_id, words):
    with pytest.raises(InputError, match=words):
        check_request_id(request_id)
