"""How a model spreads tokens over its experts, and what its experts are for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tokenizers
import torch
from numpy.typing import NDArray

from training.measure.observe import Observation

_TOKEN_KINDS = ("white space", "words", "digits", "punctuation")


def expert_loads(seen: Observation, layers: Sequence[int]) -> list[dict[str, Any]]:
    """For each MoE layer: smallest and largest load of an expert (1 = its even share), entropy (1 = even)."""
    figures = []
    for layer, chosen in zip(layers, seen.chosen, strict=True):
        shares = chosen.float().sum(dim=0) / chosen.sum()
        entropy = -(shares * shares.clamp_min(1e-12).log()).sum() / np.log(len(shares))
        figures.append(
            {
                "layer": layer,
                "least": round(float(shares.min()) * len(shares), 3),
                "most": round(float(shares.max()) * len(shares), 3),
                "entropy": round(float(entropy), 4),
                "unused": int((shares == 0).sum()),
            }
        )
    return figures


def token_kinds(backend: tokenizers.Tokenizer) -> NDArray[np.int64]:
    """An index into white space, words, digits, punctuation for each token id [V]."""
    kinds = []
    for token in range(backend.get_vocab_size()):
        text = backend.decode([token], skip_special_tokens=False)
        bare = text.strip()
        kinds.append(0 if not bare else 1 if bare[0].isalpha() else 2 if bare[0].isdigit() else 3)
    return np.asarray(kinds)


def masks(seen: Mapping[str, Observation], kinds: NDArray[np.int64]) -> dict[str, torch.Tensor]:
    """Which of all tokens [N], streams one after another, are of a kind of text and of a kind of token."""
    streams = torch.cat([torch.full(o.tokens.shape, i) for i, o in enumerate(seen.values())])
    of_token = torch.from_numpy(kinds)[torch.cat([o.tokens for o in seen.values()])]
    names = list(seen)
    result = {"code": streams != names.index("prose"), "prose": streams == names.index("prose")}
    return result | {name: of_token == i for i, name in enumerate(_TOKEN_KINDS)}


def specialists(
    seen: Mapping[str, Observation], kinds: NDArray[np.int64], layers: Sequence[int]
) -> dict[str, list[dict[str, Any]]]:
    """For each kind of text or token the expert, layer by layer, that is most over-represented there.

    `lift` is its share of the choices at tokens of that kind over its share of all choices; `share` is the
    share of the kind's tokens that choose it.
    """
    chosen = torch.cat([o.chosen for o in seen.values()], dim=1).float()
    everywhere = chosen.mean(dim=1)
    figures: dict[str, list[dict[str, Any]]] = {}
    for name, mask in masks(seen, kinds).items():
        inside = chosen[:, mask].mean(dim=1)
        lift = inside / everywhere.clamp_min(1e-6)
        best = lift.argmax(dim=1)
        figures[name] = [
            {
                "layer": layer,
                "expert": int(e),
                "lift": round(float(lift[row, e]), 2),
                "share": round(float(inside[row, e]), 3),
            }
            for row, (layer, e) in enumerate(zip(layers, best, strict=True))
        ]
    return figures
