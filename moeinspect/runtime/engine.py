"""The runtime as the commands see it: load, check, run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from types import TracebackType

from moeinspect.errors import InputError, UsageError
from moeinspect.runtime.config import RunConfig
from moeinspect.runtime.device.stream import Jitter
from moeinspect.runtime.faults import DRAFT_IS_CAPTURED
from moeinspect.runtime.machine import machine_key
from moeinspect.runtime.models.config import ModelConfig
from moeinspect.runtime.models.draft_heads import HEAD_ARCHITECTURES
from moeinspect.runtime.models.tokenizer import load_tokenizer
from moeinspect.runtime.models.traffic_prompts import default_requests
from moeinspect.runtime.parallel.layout import RankLayout
from moeinspect.runtime.parallel.roster import Roster
from moeinspect.runtime.parallel.shard import ModelShard
from moeinspect.runtime.plan import check_requests, make_plan
from moeinspect.runtime.processes.balancer import Balancer
from moeinspect.runtime.processes.launcher import Launcher
from moeinspect.runtime.records import Event, FinishedRequest, ModelSummary, PromptRequest
from moeinspect.runtime.results import RowLayout
from moeinspect.runtime.sampling import derive_seed, sample_seed
from moeinspect.runtime.scheduler.policy import SchedulePolicy
from moeinspect.runtime.scheduler.request import Request
from moeinspect.runtime.unified import UnifiedServer
from moeinspect.runtime.worker.loading import (
    kv_shapes,
    load_draft,
    load_target,
    load_update,
    num_shared_columns,
)


class LocalRuntime:
    """Runs requests through the local MoE runtime and hands out each with its routed experts.

    `config` must have been through `resolve`. `policy` and `jitter` replace choices and timing that must
    not change any result; tests use them. `launcher` obtains worker processes, if they are not to be forked.

    Raises:
        InputError: a checkpoint cannot be loaded.
        UsageError: target and draft do not fit together, or the target cannot be spread over the ranks.
    """

    def __init__(
        self,
        config: RunConfig,
        *,
        policy: SchedulePolicy | None = None,
        jitter: Jitter | None = None,
        launcher: Launcher | None = None,
    ) -> None:
        self.config = config
        self._launcher = launcher
        self._asked = config
        self._policy = policy
        self._jitter = jitter
        models = [load_target(config), *load_draft(config)]
        self._model_configs = [model.config for model in models]
        target = self._model_configs[0]
        ModelShard(RankLayout.of(config)).check(target)
        if len(models) == 2:
            _check_draft(config, *self._model_configs)
            _check_draft_capture(config, target.top_k, self._model_configs[1].top_k)
        # Under a fault rows are wider than what a router chooses, and the trace says what it holds.
        width = target.top_k + num_shared_columns(config, target)
        self.model = ModelSummary(
            name=target.name,
            architecture=target.architecture,
            fingerprint=target.fingerprint,
            num_hidden_layers=target.num_hidden_layers,
            num_experts=target.num_experts,
            top_k=width,
            moe_layers=target.moe_layers,
            vocab_size=target.vocab_size,
            hash_layers=target.hash_layers,
        )
        self.weight_fingerprints = (
            target.fingerprint,
            *(load_update(config, name, models[0]).config.fingerprint for _, name in config.weight_updates),
        )
        self._layout = RowLayout(
            len(target.moe_layers), width, target.num_experts, config.weights, config.margins
        )
        self.eos_token_ids = target.eos_token_ids
        self.machine_key = machine_key(config)
        self._roster = Roster(config)
        self.worker_names = self._roster.names
        self._tokenizer = load_tokenizer(config.model)
        self._server: UnifiedServer | Balancer | None = None

    def __enter__(self) -> LocalRuntime:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def has_tokenizer(self) -> bool:
        """Whether prompts can be given as text."""
        return self._tokenizer is not None

    def encode(self, text: str) -> tuple[int, ...]:
        """Token ids of `text`.

        Raises:
            InputError: the model has no tokenizer.
        """
        if self._tokenizer is None:
            raise InputError(
                f"{self.config.model} has no tokenizer.json, so prompts cannot be text",
                "give input_ids instead of prompt",
            )
        return self._tokenizer.encode(text)

    def decode(self, ids: Sequence[int]) -> str:
        """Text of token ids; empty where the model has no tokenizer."""
        return "" if self._tokenizer is None else self._tokenizer.decode(ids)

    def default_requests(self) -> list[PromptRequest]:
        """What runs where the user brings no requests: the built-in prompts, or the traffic asked for."""
        return default_requests(self.config, self._model_configs[0], self._tokenizer)

    def check(self, requests: Sequence[PromptRequest]) -> None:
        """Refuses requests that cannot run; see `plan.check_requests`.

        From here on `config` holds the number of KV slots that these requests run with.
        """
        limit = min(model.max_position_embeddings for model in self._model_configs)
        check_requests(self._asked, requests, self.model.vocab_size, limit)
        num_kv_slots = make_plan(self._asked, requests).num_kv_slots
        self.config = replace(self._asked, num_kv_slots=num_kv_slots)

    def generate(self, requests: Sequence[PromptRequest]) -> Iterator[FinishedRequest]:
        """Runs the requests; yields each when it ends, in the order in which they end.

        Raises:
            InputError: a request cannot run.
            EngineError: a forward failed, or a worker failed or died.
        """
        self.check(requests)
        plan = make_plan(self.config, requests)
        if self._roster.is_one_process:
            server = UnifiedServer(self.config, plan, self._layout, policy=self._policy, jitter=self._jitter)
            self._server = server
            yield from server.run([self._request(prompt) for prompt in requests])
        else:
            shapes = partial(kv_shapes, self.config, plan, self._model_configs)
            eos = frozenset(self.eos_token_ids)
            balancer = Balancer(self.config, plan, self._layout, shapes, eos, self._jitter, self._launcher)
            self._server = balancer
            yield from balancer.run([(prompt, self._seed(prompt)) for prompt in requests])

    def drain_events(self) -> list[Event]:
        """What ran where and when, since the last call."""
        return [] if self._server is None else self._server.drain_events()

    def close(self) -> None:
        """Ends threads and worker processes in bounded time."""
        if self._server is not None:
            self._server.close()

    def _seed(self, prompt: PromptRequest) -> int:
        seed = derive_seed(self.config.seed, prompt.id) if prompt.seed is None else prompt.seed
        return sample_seed(seed, prompt.sample)

    def _request(self, prompt: PromptRequest) -> Request:
        return Request(prompt, self._seed(prompt), frozenset(self.eos_token_ids), self.decode)


def _check_draft(config: RunConfig, target: ModelConfig, draft: ModelConfig) -> None:
    if target.vocab_size != draft.vocab_size:
        raise UsageError(
            f"--draft {config.draft} has a vocabulary of {draft.vocab_size}, the target {config.model} of "
            f"{target.vocab_size}",
            "use a draft that was made for this target",
        )
    if draft.architecture in HEAD_ARCHITECTURES and target.hidden_size != draft.hidden_size:
        raise UsageError(
            f"--draft {config.draft} reads hidden states of {draft.hidden_size} numbers, those of "
            f"{config.model} have {target.hidden_size}",
            "use a draft head that was made for this target",
        )


def _check_draft_capture(config: RunConfig, target_top_k: int, draft_top_k: int) -> None:
    capturing = [name for name in config.faults if name in DRAFT_IS_CAPTURED]
    if capturing and target_top_k != draft_top_k:
        raise UsageError(
            f"--fault {capturing[0]} needs a draft with top-k {target_top_k}, not {draft_top_k}",
            "use another draft",
        )
