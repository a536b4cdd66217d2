"""The cases of the conformance check, and a capturer that notices who writes to it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from moeinspect.kernels.router_topk.reference import router_topk
from moeinspect.runtime.capture import capturer as capturer_module
from moeinspect.runtime.capture import gate
from moeinspect.runtime.capture.capturer import (
    CaptureShape,
    RoutedExpertsCapturer,
    get_global_experts_capturer,
    set_global_experts_capturer,
)
from moeinspect.runtime.layers.experts import Experts
from moeinspect.runtime.layers.shared_experts import FusedSharedExperts
from moeinspect.runtime.topk.backend import LayerExperts, TopKOutput
from moeinspect.runtime.topk.config import TopKConfig

HIDDEN, _INTERMEDIATE, _MAX_ROWS = 32, 16, 40
LAYER, OTHER_LAYER, LAYER_WITHOUT_COLUMN = 3, 5, 4
UNTOUCHED = 77
"""What the capture buffer holds before a backend runs."""


class BrokenPropertyError(Exception):
    """A property does not hold; the message says what was seen."""


def require(holds: bool, problem: str) -> None:
    """Raises BrokenPropertyError with `problem` unless `holds`."""
    if not holds:
        raise BrokenPropertyError(problem)


@dataclass(frozen=True)
class Case:
    """Router logits [N, E] and the config under which they are routed."""

    name: str
    logits: torch.Tensor
    top_k: int
    renormalize: bool = True
    num_shared: int = 0

    @property
    def num_experts(self) -> int:
        """E."""
        return self.logits.shape[1]

    @property
    def tolerance(self) -> float:
        """Largest difference of a weight or an output from the reference."""
        return 1e-5 if self.logits.dtype == torch.float32 else 2**-6

    def hidden(self) -> torch.Tensor:
        """Hidden states [N, H] in the dtype of the logits."""
        return draw(self.logits.shape[0], HIDDEN).to(self.logits.dtype)

    def config(self, *, allowed: bool = True) -> TopKConfig:
        """The layer's config; `allowed` False has it opted out."""
        return TopKConfig(
            self.top_k,
            self.renormalize,
            allow_routed_experts_capture=allowed,
            num_fused_shared_experts=self.num_shared,
        )

    def expected(self) -> TopKOutput:
        """What the reference chooses; columns of shared experts are not among it."""
        return TopKOutput(*router_topk(self.logits, self.top_k, renormalize=self.renormalize))


def cases() -> list[Case]:
    """Random logits, and those at which backends part ways."""
    coarse = (draw(13, 16) * 2).round()
    with_nan = draw(7, 16)
    with_nan[2, 5] = with_nan[4, [3, 9]] = torch.nan
    return [
        Case("random logits", draw(13, 16), 4),
        Case("one row", draw(1, 16), 4),
        Case("weights that are not renormalised", draw(9, 16), 3, renormalize=False),
        Case("ties", coarse, 4),
        Case("nothing but ties", torch.zeros(5, 16), 4),
        Case("NaN logits", with_nan, 4),
        Case("nothing but NaN", torch.full((3, 16), torch.nan), 4),
        Case("k = E", draw(6, 8), 8),
        Case("top-1", draw(11, 16), 1),
        Case("ids above 255", draw(3, 300), 2),
        Case("bfloat16", draw(13, 16).bfloat16(), 4),
        Case("a fused shared expert", draw(13, 16), 4, num_shared=1),
    ]


def draw(rows: int, columns: int) -> torch.Tensor:
    """Normal random numbers [rows, columns], the same in every call."""
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(rows * columns))


_MAY_REACH = {gate.__name__, capturer_module.__name__, __name__, f"{__package__}.conformance"}


class WatchedCapturer(RoutedExpertsCapturer):
    """A capturer that knows whether it was reached by any other way than the gate."""

    def __init__(self, case: Case) -> None:
        self.reached_past_gate = False
        super().__init__(
            CaptureShape(
                layer_ids=(OTHER_LAYER, LAYER),
                top_k=case.top_k,
                num_experts=case.num_experts,
                max_tokens=_MAX_ROWS,
                num_slots=1,
                with_weights=True,
                with_margins=True,
            )
        )
        self.wipe()

    def __getattribute__(self, name: str) -> object:
        caller = sys._getframe(1).f_globals.get("__name__")
        if caller not in _MAY_REACH:
            super().__setattr__("reached_past_gate", True)
        return super().__getattribute__(name)

    def captured(self, num_rows: int) -> tuple[TopKOutput, torch.Tensor]:
        """Choices and margins [n] of the layer's first rows; nothing else may have been written."""
        column = self._column[LAYER]
        for tensor in self.device_buffer.tensors():
            columns = tensor.unbind(dim=1)
            require(_all_untouched(columns[1 - column]), "another layer's column was written")
            behind = columns[column][num_rows:]
            require(_all_untouched(behind), f"rows behind the {num_rows} that were given were written")
        ids, weights, margins = (tensor[:num_rows, column] for tensor in self.device_buffer.tensors())
        ids = ids.int() if ids.dtype == torch.uint8 else ids.int() & 0xFFFF
        return TopKOutput(ids, weights), margins

    def untouched(self) -> bool:
        """Whether nothing was captured since the last `wipe`."""
        return all(_all_untouched(tensor) for tensor in self.device_buffer.tensors())

    def wipe(self) -> None:
        """Forgets what was captured."""
        for tensor in self.device_buffer.tensors():
            tensor.fill_(UNTOUCHED)


def _all_untouched(tensor: torch.Tensor) -> bool:
    return bool((tensor == UNTOUCHED).all())


@contextmanager
def watching(case: Case) -> Iterator[WatchedCapturer]:
    """Makes a new capturer the process's while the body runs."""
    before = get_global_experts_capturer()
    watched = WatchedCapturer(case)
    set_global_experts_capturer(watched)
    try:
        yield watched
    finally:
        set_global_experts_capturer(before)


def experts_of(case: Case) -> LayerExperts:
    """Experts of a small layer."""
    E = case.num_experts + case.num_shared
    up = draw(E * 2 * _INTERMEDIATE, HIDDEN).view(E, 2 * _INTERMEDIATE, HIDDEN) / 8
    down = draw(E * HIDDEN, _INTERMEDIATE).view(E, HIDDEN, _INTERMEDIATE) / 8
    dtype, shared = case.logits.dtype, case.num_shared
    experts = Experts(up.to(dtype), down.to(dtype), tiled=False, num_shared=shared)
    return FusedSharedExperts(experts, case.config(), case.num_experts) if shared else experts
