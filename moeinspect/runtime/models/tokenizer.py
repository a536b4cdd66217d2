"""Text to token ids and back."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import tokenizers

from moeinspect.errors import InputError
from moeinspect.runtime.builtin_names import BUILTIN_PREFIX
from moeinspect.runtime.models.builtin import trained_folder
from moeinspect.runtime.models.random_pair import EOS_ID, NUM_BYTES

TOKENIZER_FILE = "tokenizer.json"
_SPECIAL_TOKENS = {NUM_BYTES: "<|begin|>", EOS_ID: "<|end|>"}


class Tokenizer:
    """A Hugging Face tokenizer."""

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        self._backend = backend

    def encode(self, text: str) -> tuple[int, ...]:
        """Token ids of a text, with the special tokens that the tokenizer adds by itself."""
        return tuple(self._backend.encode(text).ids)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of token ids without special tokens; bytes that are no UTF-8 become U+FFFD."""
        text: str = self._backend.decode(list(ids), skip_special_tokens=True)
        return text

    def to_json(self) -> str:
        """What `tokenizer.json` holds."""
        text: str = self._backend.to_str(pretty=True)
        return text


def load_tokenizer(name_or_path: str) -> Tokenizer | None:
    """The tokenizer of a checkpoint folder or an embedded model; None without one.

    Raises:
        InputError: `tokenizer.json` is damaged.
    """
    folder: Path | None = Path(name_or_path)
    if name_or_path.startswith(BUILTIN_PREFIX):
        folder = trained_folder(name_or_path)
    if folder is None:
        return byte_tokenizer()
    path = folder / TOKENIZER_FILE
    if not path.exists():
        return None
    try:
        return Tokenizer(tokenizers.Tokenizer.from_file(str(path)))
    except Exception as error:  # the library raises bare Exception
        raise InputError(f"{path}: not a readable tokenizer: {error}") from error


def byte_tokenizer() -> Tokenizer:
    """Token ids are the bytes of the UTF-8 text; two special tokens follow them."""
    alphabet = _byte_characters()
    vocab = {alphabet[byte]: byte for byte in range(NUM_BYTES)}
    backend = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocab, merges=[]))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = tokenizers.decoders.ByteLevel()
    for token_id, token in sorted(_SPECIAL_TOKENS.items()):
        backend.add_special_tokens([token])
        if backend.token_to_id(token) != token_id:
            raise InputError(f"special token {token} did not receive id {token_id}")
    return Tokenizer(backend)


def _byte_characters() -> list[str]:
    """The printable character that byte-level tokenizers write for each byte (GPT-2's table)."""
    printable = {*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAC + 1), *range(0xAE, 0xFF + 1)}
    characters = []
    hidden = 0
    for byte in range(NUM_BYTES):
        if byte in printable:
            characters.append(chr(byte))
        else:
            characters.append(chr(NUM_BYTES + hidden))
            hidden += 1
    return characters
