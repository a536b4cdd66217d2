import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from moeinspect.analysis.rules.hashing import prefix_hashes, row_hashes

TOKENS = st.lists(st.integers(0, 3), max_size=12)


def hashes_of(sequences):
    lengths = [len(sequence) for sequence in sequences]
    flat = np.asarray([token for sequence in sequences for token in sequence], dtype=np.int64)
    position = np.asarray([i for n in lengths for i in range(n)], dtype=np.int64)
    return prefix_hashes(flat, position, np.arange(len(flat)) - position)


@given(st.lists(TOKENS, max_size=4))
def test_prefix_hashes_are_equal_exactly_where_prefixes_are(sequences):
    hashes = hashes_of(sequences)
    prefixes = [tuple(s[: i + 1]) for s in sequences for i in range(len(s))]
    by_hash = dict(zip(hashes.tolist(), prefixes, strict=True))
    assert [by_hash[h] for h in hashes.tolist()] == prefixes
    assert len(by_hash) == len(set(prefixes))


@given(st.integers(0, 10**6), st.sampled_from([np.uint8, np.uint16]), st.integers(1, 5), st.integers(1, 9))
def test_row_hashes_are_equal_exactly_where_the_chosen_layers_are(seed, dtype, layers, top_k):
    rng = np.random.default_rng(seed)
    ids = rng.integers(0, 2, (40, layers, top_k)).astype(dtype)
    chosen = np.flatnonzero(rng.random(layers) < 0.7)
    hashes = row_hashes(ids, chosen)
    rows = [row[chosen].tobytes() for row in ids]
    assert len(set(hashes.tolist())) == len(set(rows))
    assert len(set(zip(hashes.tolist(), rows, strict=True))) == len(set(rows))


def test_row_hashes_do_not_depend_on_how_many_rows_are_hashed_at_once(monkeypatch):
    ids = np.random.default_rng(0).integers(0, 200, (100, 3, 5)).astype(np.uint8)
    whole = row_hashes(ids, np.arange(3))
    monkeypatch.setattr("moeinspect.analysis.rules.hashing.CHUNK_BYTES", 128)
    assert (row_hashes(ids, np.arange(3)) == whole).all()
