"""Trains the byte-level BPE tokenizer on the train split and writes every stream of tokens.

Streams are `<|endoftext|>`, document, `<|endoftext|>`, document, ... in a seeded order, as uint16 arrays:
`train-KIND.npy`, `heldout-KIND.npy`.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import tokenizers
from numpy.typing import NDArray

from training.corpus import KINDS, SPLITS, Document, read_documents
from training.options import parser

TOKENIZER_FILE = "tokenizer.json"
END_OF_TEXT = "<|endoftext|>"
END_OF_TEXT_ID = 0
VOCABULARY = 1024
_STREAM_SEED = 1


def train_tokenizer(texts: Iterable[str], vocabulary: int) -> tokenizers.Tokenizer:
    """A BPE over bytes with GPT-2's splitting into words; `<|endoftext|>` is token 0."""
    backend = tokenizers.Tokenizer(tokenizers.models.BPE())
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(texts, trainer)
    return backend


def read_tokenizer(folder: Path) -> tokenizers.Tokenizer:
    """The tokenizer of a data folder."""
    return tokenizers.Tokenizer.from_file(str(folder / TOKENIZER_FILE))


def encode_stream(backend: tokenizers.Tokenizer, documents: Sequence[Document]) -> NDArray[np.uint16]:
    """The documents' tokens one after another, each document led by `<|endoftext|>`; [tokens]."""
    order = sorted(documents, key=lambda document: document.source)
    random.Random(_STREAM_SEED).shuffle(order)
    parts = [[END_OF_TEXT_ID, *encoded.ids] for encoded in backend.encode_batch([d.text for d in order])]
    return np.concatenate([np.asarray(part, dtype=np.uint16) for part in parts])


def token_bytes(backend: tokenizers.Tokenizer) -> NDArray[np.int64]:
    """Bytes of text that each token stands for [V]; 0 for `<|endoftext|>`."""
    # In the byte-level alphabet one character is one byte.
    lengths = [len(backend.id_to_token(i) or "") for i in range(backend.get_vocab_size())]
    lengths[END_OF_TEXT_ID] = 0
    return np.asarray(lengths, dtype=np.int64)


def stream_file(folder: Path, split: str, kind: str) -> Path:
    """Where the tokens of a split of a kind of document stand."""
    return folder / f"{split}-{kind}.npy"


def main(arguments: Sequence[str] | None = None) -> None:
    """Trains, encodes, writes, and prints the sizes."""
    options = parser(__doc__)
    options.add_argument("--vocabulary", type=int, default=VOCABULARY)
    chosen = options.parse_args(arguments)
    documents = read_documents(chosen.data)
    backend = train_tokenizer((d.text for d in documents if d.split == "train"), chosen.vocabulary)
    backend.save(str(chosen.data / TOKENIZER_FILE))
    sizes = {}
    for split in SPLITS:
        for kind in KINDS:
            stream = encode_stream(backend, [d for d in documents if (d.split, d.kind) == (split, kind)])
            np.save(stream_file(chosen.data, split, kind), stream)
            num_bytes = int(token_bytes(backend)[stream].sum())
            sizes[f"{split} {kind}"] = {"tokens": len(stream), "bytes": num_bytes}
    sys.stdout.write(json.dumps(sizes, indent=1) + "\n")


if __name__ == "__main__":
    main()
