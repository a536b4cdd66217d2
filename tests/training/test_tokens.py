"""The tokenizer and the streams of tokens."""

import numpy as np
import pytest
import torch

from training.streams import Windows, heldout_windows, read_stream, training_windows
from training.tokenizer import END_OF_TEXT_ID, encode_stream, read_tokenizer, token_bytes


@pytest.mark.parametrize("text", ["def f(x):\n        return x\n", "Zwölf 🐍\t\x00", "  ", "<|endofte"])
def test_any_text_comes_back(data, text):
    backend = read_tokenizer(data)
    assert backend.decode(backend.encode(text).ids, skip_special_tokens=False) == text


def test_the_bytes_of_the_tokens_are_the_bytes_of_the_text(data, corpus):
    backend = read_tokenizer(data)
    stream = encode_stream(backend, corpus)
    assert token_bytes(backend)[stream].sum() == sum(len(d.text.encode()) for d in corpus)
    assert (stream == END_OF_TEXT_ID).sum() == len(corpus)
    assert stream[0] == END_OF_TEXT_ID


def test_streams_hold_their_split_and_kind_alone(data, corpus):
    backend = read_tokenizer(data)
    for document in corpus:
        if document.split == "heldout":
            stream = np.load(data / f"heldout-{document.kind}.npy")
            assert backend.decode(stream[1:].tolist()) == document.text


def test_the_same_seed_draws_the_same_windows_in_the_asked_shares():
    streams = [torch.zeros(50, dtype=torch.int16), torch.ones(50, dtype=torch.int16)]
    drawn = Windows(streams, (0.75, 0.25), 5, seed=3).draw(8)
    assert drawn.shape == (8, 5)
    assert drawn[:, 0].tolist() == [0] * 6 + [1] * 2
    streams = [torch.arange(100, dtype=torch.int16)]
    one, two, other = (Windows(streams, (1.0,), 5, seed).draw(8) for seed in (3, 3, 4))
    assert torch.equal(one, two)
    assert not torch.equal(one, other)
    assert torch.equal(one, one[:, :1] + torch.arange(5))


def test_every_place_of_a_stream_can_be_drawn():
    seen = Windows([torch.arange(8, dtype=torch.int16)], (1.0,), 3, seed=0).draw(200)
    assert set(seen[:, 0].tolist()) == set(range(6))


def test_training_windows_come_from_the_train_split(data):
    train = {
        tuple(read_stream(data, "train", kind, "cpu").tolist()) for kind in ("library", "tests", "prose")
    }
    joined = [" ".join(map(str, stream)) for stream in train]
    for row in training_windows(data, 20, 0, "cpu").draw(8).tolist():
        assert any(" ".join(map(str, row)) in stream for stream in joined)


def test_heldout_windows_do_not_overlap_and_are_spread_evenly(data):
    stream = read_stream(data, "heldout", "library", "cpu").long()
    rows = heldout_windows(data, "library", 16, 3, "cpu")
    assert torch.equal(rows[0], stream[:16])
    last = (len(stream) // 16 - 1) * 16
    assert torch.equal(rows[2], stream[last : last + 16])
    assert len(heldout_windows(data, "library", 16, 10**9, "cpu")) == len(stream) // 16
