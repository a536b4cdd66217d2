"""How well a model predicts held-out text, beside a model that only knows how frequent each token is."""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray

from training.measure.observe import Observation


def unigram_losses(train: torch.Tensor, vocabulary: int) -> torch.Tensor:
    """Loss in nats of each token id [V] under its frequency in the training text, each counted once more."""
    counts = torch.bincount(train.long(), minlength=vocabulary).double() + 1
    return (counts.sum() / counts).log()


def text_figures(seen: Observation, unigram: torch.Tensor, bytes_of: NDArray[np.int64]) -> dict[str, float]:
    """Nats a token and bits a byte of the model and of the unigram, and the share of tokens guessed right."""
    predicted = ~seen.losses.isnan()
    tokens = seen.tokens[predicted]
    num_bytes = int(bytes_of[tokens.numpy()].sum())
    model, plain = float(seen.losses[predicted].double().sum()), float(unigram[tokens].sum())
    right = (seen.top[:-1] == seen.tokens[1:])[predicted[1:]].float().mean()
    return {
        "tokens": int(predicted.sum()),
        "loss": round(model / len(tokens), 4),
        "unigram_loss": round(plain / len(tokens), 4),
        "bits_per_byte": round(model / math.log(2) / num_bytes, 4),
        "unigram_bits_per_byte": round(plain / math.log(2) / num_bytes, 4),
        "guessed": round(float(right), 4),
    }
