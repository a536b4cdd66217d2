"""The embedded pair: the draft often proposes the target's token, but chooses experts of its own."""

import time
from functools import cache

import numpy as np
import pytest
import torch
from model_harness import RoutingProbe, load, make_batch, make_kv, run_alone

from moeinspect.runtime.models.builtin import open_builtin
from moeinspect.runtime.models.default_prompts import default_prompts
from moeinspect.runtime.models.expected import HASH_TABLE
from moeinspect.runtime.models.loader import load_model
from moeinspect.runtime.models.random_pair import EOS_ID
from moeinspect.runtime.models.tokenizer import load_tokenizer
from moeinspect.runtime.sampling import SamplingParams, derive_seed, sample

NUM_NEW, NUM_DRAFT = 32, 4


@cache
def pair():
    models = [load("builtin:random"), load("builtin:random-draft")]
    return [(model, RoutingProbe(model)) for model in models]


@cache
def observe(temperature):
    """Shares of accepted proposals, and both models' experts over the text that the target writes."""
    (target, target_probe), (draft, draft_probe) = pair()
    prompts = default_prompts(target.config, load_tokenizer("builtin:random"))
    params = SamplingParams(temperature=temperature)
    accepted = drafted = 0
    routed = []
    for name, prompt in prompts:
        seed = derive_seed(0, name)
        tokens = generate(target, prompt, seed, params)
        _, target_ids, *_ = run_alone(target, target_probe, tokens[:-1])
        logits, draft_ids, *_ = run_alone(draft, draft_probe, tokens[:-1])
        new = len(tokens) - len(prompt)
        proposals = sample(logits[len(prompt) - 1 :], [seed] * new, range(new), params).tolist()
        hits = [a == b for a, b in zip(proposals, tokens[len(prompt) :], strict=True)]
        a, d = follow_chains(hits)
        accepted, drafted = accepted + a, drafted + d
        routed.append((target_ids, draft_ids))
    target_ids, draft_ids = (torch.cat(ids) for ids in zip(*routed, strict=True))
    return accepted / drafted, target_ids, draft_ids


def generate(model, prompt, seed, params):
    kv, tokens, fed = make_kv(model, 256), list(prompt), 0
    for position in range(NUM_NEW):
        slots = list(range(1, 1 + len(tokens)))
        logits = model.forward(make_batch([(tokens[fed:], fed, slots)]), kv)[-1:]
        fed = len(tokens)
        tokens += sample(logits, [seed], [position], params).tolist()
        if tokens[-1] == EOS_ID:
            break
    return tokens


def follow_chains(hits):
    """Accepted and proposed tokens when up to four are proposed at a time and one is always won."""
    accepted = drafted = position = 0
    while position < len(hits) - 1:
        chain = hits[position : min(position + NUM_DRAFT, len(hits) - 1)]
        won = [*chain, False].index(False)
        accepted, drafted, position = accepted + won, drafted + len(chain), position + won + 1
    return accepted, drafted


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_at_least_a_fifth_of_the_proposals_is_accepted_and_a_fifth_rejected(temperature):
    share, *_ = observe(temperature)
    assert 0.2 <= share <= 0.8


def common_layers(target_ids, draft_ids):
    """(layer, target ids, draft ids) of the MoE layers of the draft, all of which the target has."""
    (target, _), (draft, _) = pair()
    for column, layer in enumerate(draft.config.moe_layers):
        yield (
            layer,
            target_ids[:, target.config.moe_layers.index(layer)].numpy(),
            draft_ids[:, column].numpy(),
        )


def overlap(a, b):
    """Mean number of experts that two [n, K] choices have in common."""
    return (a[:, :, None] == b[:, None, :]).sum(axis=(1, 2)).mean()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_on_common_layers_the_experts_agree_near_chance(temperature):
    _, target_ids, draft_ids = observe(temperature)
    seen = list(common_layers(target_ids, draft_ids))
    assert [layer for layer, *_ in seen] == [1, 2]
    for _, of_target, of_draft in seen:
        assert overlap(of_target, of_draft) <= 2 * 4 * 4 / 32


def test_no_renaming_of_experts_makes_them_agree():
    _, target_ids, draft_ids = observe(0.0)
    for _, of_target, of_draft in common_layers(target_ids, draft_ids):
        half = len(of_target) // 2
        renamed = best_renaming(of_target[:half], of_draft[:half])[of_draft[half:]]
        # K = 4 if the draft's ids were a renaming of the target's; what is left is what frequency gives.
        assert overlap(of_target[half:], renamed) < 1.5


def best_renaming(a, b):
    """A renaming of b's experts that meets a's most often: greedy over the table of joint choices."""
    together = np.zeros((32, 32))
    for i in range(4):
        for j in range(4):
            np.add.at(together, (b[:, i], a[:, j]), 1)
    renaming = np.zeros(32, dtype=np.int64)
    for _ in range(32):
        source, target = np.unravel_index(together.argmax(), together.shape)
        renaming[source] = target
        together[source, :] = together[:, target] = -1
    return renaming


def test_greedy_decoding_does_not_fall_into_short_loops():
    (target, _), _ = pair()
    for _, prompt in default_prompts(target.config, load_tokenizer("builtin:random")):
        new = generate(target, prompt, 0, SamplingParams())[len(prompt) :]
        assert len(set(new)) >= 10 or new[-1] == EOS_ID


def test_all_experts_of_the_target_are_in_use():
    _, target_ids, _ = observe(0.0)
    for column in range(target_ids.shape[1]):
        assert len(target_ids[:, column].unique()) >= 30


def test_the_embedded_pairs_are_different_models():
    pairs = ("builtin:tiny", "builtin:random", "builtin:random-shared", "builtin:random-hash")
    names = [name for pair in pairs for name in (pair, f"{pair}-draft")] + ["builtin:random-shared-updated"]
    assert len({load(name).config.fingerprint for name in names}) == len(names)


@pytest.mark.parametrize("name", ["builtin:random", "builtin:random-hash"])
def test_the_draft_shares_all_but_routers_and_experts(name):
    (_, target), (draft_config, draft) = open_builtin(name), open_builtin(f"{name}-draft")
    assert 0 not in draft_config.moe_layers
    for name in draft.infos:
        same = torch.equal(draft.tensor(name), target.tensor(name))
        assert same == (".mlp.gate." not in name and ".experts." not in name), name


def test_the_pair_with_a_shared_expert_is_the_random_one_and_that_expert():
    for name in ("builtin:random", "builtin:random-draft"):
        (plain, weights), (config, shared) = open_builtin(name), open_builtin(with_shared(name))
        assert (plain.num_shared_experts, config.num_shared_experts) == (0, 1)
        more = {key for key in shared.infos if ".shared_experts." in key}
        assert len(more) == 3 * len(config.moe_layers)
        assert shared.infos.keys() - more == weights.infos.keys()
        assert all(torch.equal(shared.tensor(key), weights.tensor(key)) for key in weights.infos)
    target, draft = (open_builtin(with_shared(n))[1] for n in ("builtin:random", "builtin:random-draft"))
    assert all(torch.equal(draft.tensor(key), target.tensor(key)) for key in more)


def with_shared(name):
    return name.replace("random", "random-shared")


def test_the_hash_routed_pair_is_the_random_one_with_tables_of_distinct_experts():
    for name, layers in (("random", [1, 2]), ("random-draft", [1, 2])):
        (plain, weights), (config, hashed) = open_builtin(f"builtin:{name}"), hash_twin(name)
        assert config.hash_layers == (1, 2) and not plain.hash_layers
        assert "hash_layers" in config.essentials and "hash_layers" not in plain.essentials
        assert all(torch.equal(hashed.tensor(key), weights.tensor(key)) for key in weights.infos)
        for layer in layers:
            table = hashed.tensor(f"model.layers.{layer}.mlp.{HASH_TABLE}")
            assert table.shape == (config.vocab_size, config.top_k) and table.dtype == torch.int64
            assert all(len(set(row)) == config.top_k for row in table.tolist())
            assert len(table.unique()) == config.num_experts
        assert len(hashed.infos) == len(weights.infos) + len(layers)


def hash_twin(name):
    return open_builtin(f"builtin:{name.replace('random', 'random-hash')}")


def test_a_weight_update_leaves_tables_alone():
    old, new = open_builtin("builtin:random-hash")[1], open_builtin("builtin:random-hash-updated")[1]
    prefix = "model.layers.1.mlp.gate."
    assert torch.equal(old.tensor(f"{prefix}tid2eid"), new.tensor(f"{prefix}tid2eid"))
    assert not torch.equal(old.tensor(f"{prefix}weight"), new.tensor(f"{prefix}weight"))


def test_weights_are_the_same_on_every_machine():
    _, weights = open_builtin("builtin:random")
    first = weights.tensor("model.layers.1.mlp.gate.weight").flatten()[:4]
    assert first.tolist() == [-0.09716796875, 0.2001953125, 0.111328125, 0.13671875]
    table = hash_twin("random")[1].tensor(f"model.layers.1.mlp.{HASH_TABLE}")
    assert table[0].tolist() == [21, 20, 25, 14]


def test_loading_takes_a_fraction_of_a_second():
    seconds = []
    for _ in range(3):
        start = time.process_time()
        load_model("builtin:random", dtype=torch.float32, deterministic=True)
        seconds.append(time.process_time() - start)
    assert min(seconds) < 0.25  # 0.05 on an idle core
