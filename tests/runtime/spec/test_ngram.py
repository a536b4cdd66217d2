import random

import pytest
import torch

from moeinspect.runtime.sampling import SamplingParams
from moeinspect.runtime.spec.draft_length import DraftLength
from moeinspect.runtime.spec.ngram import Ngram, best_matches, continuations
from moeinspect.runtime.worker.device_state import DeviceState


def padded(texts, width=40, filler=9):
    """Histories [B, width] with garbage past each text, and the positions of their last tokens."""
    rows = [[*text, *[filler] * (width - len(text))] for text in texts]
    return torch.tensor(rows), torch.tensor([len(text) - 1 for text in texts])


def by_hand(text, num_tokens):
    """The tokens that followed the latest, longest earlier match of the last three tokens."""
    for n in (3, 2, 1):
        for end in range(len(text) - 2, n - 2, -1):
            if len(text) >= n and text[end - n + 1 : end + 1] == text[-n:]:
                grown = list(text)
                for i in range(num_tokens):
                    grown.append(grown[end + 1 + i])
                return grown[len(text) :]
    return [text[-1]] * num_tokens


def test_the_tokens_after_the_longest_and_latest_match_are_proposed():
    rng = random.Random(0)
    texts = [[rng.randrange(4) for _ in range(rng.randint(1, 30))] for _ in range(200)]
    history, last = padded(texts, filler=0)
    seen = continuations(history, last, best_matches(history, last, 1), 5)[:, 0]
    assert seen.tolist() == [by_hand(text, 5) for text in texts]


def test_a_text_that_repeats_itself_is_continued_as_if_it_went_on():
    history, last = padded([[1, 2, 3, 1, 2, 3, 1, 2]])
    matches = best_matches(history, last, 1)
    assert continuations(history, last, matches, 7)[0, 0].tolist() == [3, 1, 2, 3, 1, 2, 3]


def test_without_a_match_the_last_token_is_proposed():
    history, last = padded([[1, 2, 3]], filler=3)
    assert continuations(history, last, best_matches(history, last, 2), 2).tolist() == [[[3, 3], [3, 3]]]


def test_what_stands_past_the_last_token_is_not_read():
    texts = [[5, 6, 7, 5, 6], [1, 1, 2, 1]]
    proposals = []
    for filler in (5, 8):
        history, last = padded(texts, filler=filler)
        proposals.append(continuations(history, last, best_matches(history, last, 3), 4).tolist())
    assert proposals[0] == proposals[1]


@pytest.mark.parametrize("num_drafts, width", [(5, 2), (4, 2), (3, 4), (7, 3)])
def test_a_tree_has_a_branch_for_each_match(num_drafts, width):
    state = DeviceState(1, 40, SamplingParams())
    text = (1, 2, 3, 4, 1, 2, 5, 6, 2, 7, 1, 2)
    state.assign(0, torch.arange(8, 48).numpy(), 0, text)
    state.next_position[0] = len(text) - 1
    proposal = Ngram(state, DraftLength(num_drafts), width).propose(torch.tensor([0]), num_drafts, [])
    followers = [[5, 6, 2], [3, 4, 1], [7, 1, 2], [2, 2, 2]]  # the best match has two tokens, and is later
    tokens, parents = proposal.tokens[0].tolist(), proposal.parents[0].tolist()
    assert len(tokens) == len(parents) == num_drafts
    for node in range(1, num_drafts + 1):
        depth = proposal.shape.node_depths[node]
        branch = (node - 1) % min(width, num_drafts)
        assert tokens[node - 1] == followers[branch][depth - 1]
        assert parents[node - 1] == (0 if depth == 1 else node - width)
