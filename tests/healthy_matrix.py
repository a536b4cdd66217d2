"""In a healthy run any difference from target-only is a bug: all switches, pairwise and at random.

    python tests/healthy_matrix.py [--minutes M] [--seed N] [--skip N] [--only MODEL]

Runs configurations until the time is up: first a set that covers every pair of values of the switches in
`switches.py`, then random draws. Compares tokens, experts, weights and margins of every request with the
target-only run bit by bit; every run checks its own pools (`check_integrity`). Prints each configuration that
differs or fails, and in the end configurations, rows and minutes.
"""

import argparse
import random
import sys
import time
import traceback
from functools import cache
from itertools import chain, islice

from runtime_harness import RandomDelays, run, target_only
from switches import MODELS, draw, pairwise

from moeinspect.runtime.config import RunConfig
from moeinspect.runtime.engine import LocalRuntime
from moeinspect.runtime.memory.page_allocator import PAGE_SIZE
from moeinspect.runtime.records import PromptRequest

MOST_NEW = 14


@cache
def vocabulary(model):
    with LocalRuntime(RunConfig(model=model)) as runtime:
        return runtime.model.vocab_size


def prompts_for(model, seed, mixed):
    """Prompts that share prefixes; `mixed`: samples, opt-outs, aborts, stops, no new tokens among them."""
    rng = random.Random(seed)
    vocab = vocabulary(model)
    head = tuple(rng.randrange(vocab) for _ in range(3 * PAGE_SIZE))
    prompts = []
    for i in range(7):
        ids = head[: rng.randint(0, 3) * PAGE_SIZE] + tuple(
            rng.randrange(vocab) for _ in range(rng.randint(1, 30))
        )
        options = {}
        if mixed:
            options = rng.choice(
                [
                    {},
                    {"return_routed_experts": False},
                    {"abort_after": rng.randint(0, 6)},
                    {"stop_token_ids": tuple(range(0, vocab, 5))},
                    {"max_new_tokens": 0},
                    {"sample": 1},
                ]
            )
        new = options.pop("max_new_tokens", rng.randint(1, MOST_NEW))
        prompts.append(PromptRequest(f"p{i}", ids, new, **{"ignore_eos": i % 2 == 0} | options))
        if options.get("sample"):
            prompts.append(PromptRequest(f"p{i}", ids, new, ignore_eos=i % 2 == 0))
    return prompts


@cache
def baseline(model, dtype, sampling, seed, mixed):
    """The target-only run of the same prompts, none of them aborted, all with their rows."""
    prompts = [
        PromptRequest(
            p.id,
            p.prompt_ids,
            p.max_new_tokens,
            ignore_eos=p.ignore_eos,
            sample=p.sample,
            stop_token_ids=p.stop_token_ids,
        )
        for p in prompts_for(model, seed, mixed)
    ]
    return target_only(RunConfig(model=model, dtype=dtype, **dict(sampling)), prompts)


def differences(choice, seed):
    """Rows compared, and what differs from target-only in this configuration, in words."""
    mixed = choice["requests"] == "mixed"
    prompts = prompts_for(choice["model"], seed, mixed)
    longest = max(len(p.prompt_ids) + p.max_new_tokens for p in prompts)
    config = choice.config(longest + 2 * choice["num_draft_tokens"] + 3 * PAGE_SIZE)
    sampling = tuple((name, getattr(config, name)) for name in ("temperature", "top_p", "top_k", "seed"))
    expected = baseline(choice["model"], choice["dtype"], sampling, seed, mixed)
    hooks = {"jitter": RandomDelays(seed, most=0.0005)} if choice["delays"] else {}
    seen = run(config, prompts, **hooks)
    rows, found = 0, []
    if seen.keys() != expected.keys():
        found.append(f"requests {sorted(map(str, seen.keys() ^ expected.keys()))} are missing or surplus")
    for prompt in prompts:
        key = prompt.key if prompt.sample else prompt.id
        if key in seen and key in expected:
            rows += len(seen[key].expert_ids)
            found += _differences_of(prompt, seen[key], expected[key])
    return rows, found


def _differences_of(prompt, have, want):
    kept = len(have.output_ids)
    if have.output_ids.tolist() != want.output_ids[:kept].tolist():
        yield f"{have.key}: other tokens"
        return
    if have.finish_reason == "abort":
        if prompt.abort_after is None:
            yield f"{have.key}: aborted"
    elif kept != len(want.output_ids) or have.finish_reason != want.finish_reason:
        yield f"{have.key}: {kept} tokens ({have.finish_reason}), not {len(want.output_ids)}"
    elif len(have.expert_ids) != len(want.expert_ids):
        yield f"{have.key}: {len(have.expert_ids)} rows, not {len(want.expert_ids)}"
    if have.has_routed_experts != prompt.return_routed_experts:
        yield f"{have.key}: rows that were not asked for, or none"
    if have.has_routed_experts:
        n = len(have.expert_ids)
        for name in ("expert_ids", "weights", "margin"):
            a, b = getattr(have, name), getattr(want, name)[:n]
            if a.tobytes() != b.tobytes():
                wrong = (a != b).reshape(n, -1).any(1)
                yield f"{have.key}: {name} differ in {wrong.sum()} of {n} rows, first {wrong.argmax()}"


def main():
    parser = argparse.ArgumentParser(description="Compares healthy runs of all switches with target-only.")
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--skip", type=int, default=0, help="go on behind so many configurations")
    parser.add_argument("--only", choices=MODELS, help="this model alone")
    arguments = parser.parse_args()
    start = time.monotonic()
    rng = random.Random(arguments.seed)
    choices = chain(pairwise(arguments.seed), iter(lambda: draw(rng), None))
    configurations = rows = bad = pairs = 0
    covering = len(list(pairwise(arguments.seed)))
    for number, choice in enumerate(choices):
        if time.monotonic() - start > 60 * arguments.minutes:
            break
        if number < arguments.skip or arguments.only not in (None, choice["model"]):
            continue
        try:
            compared, found = differences(choice, arguments.seed + number % 5)
        except Exception as error:
            compared, found = 0, [f"{type(error).__name__}: {error}", traceback.format_exc()]
        configurations, rows = configurations + 1, rows + compared
        pairs += number < covering
        if found:
            bad += 1
            print(f"DIFFERS {choice}", *found, sep="\n  ", flush=True)
        elif sys.stderr.isatty():
            print(f"\r{configurations} configurations, {rows} rows", end="", file=sys.stderr, flush=True)
    minutes = (time.monotonic() - start) / 60
    print(
        f"{configurations} configurations ({pairs} of the {covering} that cover all pairs), {rows} rows, "
        f"{minutes:.1f} minutes, {bad} configurations differ"
    )
    return 1 if bad else 0


def sample_of(seed, count):
    """A few random configurations, for the quick tests."""
    rng = random.Random(seed)
    return list(islice(iter(lambda: draw(rng), None), count))


if __name__ == "__main__":
    sys.exit(main())
