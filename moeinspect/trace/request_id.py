"""Which request ids a trace can hold; checked before a run, since ids are stored at a fixed length."""

from moeinspect.errors import InputError

MAX_REQUEST_ID_BYTES = 120


def check_request_id(request_id: str) -> None:
    """Checks that the id survives being stored as fixed-length UTF-8.

    Raises:
        InputError: empty, longer than 120 UTF-8 bytes, with a NUL character, or not encodable as UTF-8.
    """
    if not request_id:
        raise InputError("a request id is empty", "give every request an id of at least one character")
    if "\0" in request_id:
        raise InputError(f"request id {request_id!r} holds a NUL character", "choose another id")
    try:
        size = len(request_id.encode("utf-8"))
    except UnicodeEncodeError:
        raise InputError(
            f"request id {request_id!r} is not valid Unicode text", "choose another id"
        ) from None
    if size > MAX_REQUEST_ID_BYTES:
        raise InputError(
            f"request id {request_id[:40]!r}... has {size} UTF-8 bytes; a trace holds at most"
            f" {MAX_REQUEST_ID_BYTES}",
            "choose a shorter id",
        )
