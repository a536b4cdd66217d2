"""How many tokens a step proposes: always as many as asked for, or fitted to what is accepted."""

from __future__ import annotations

from collections.abc import Sequence


class DraftLength:
    """Always `most` tokens. Used by the scheduler, on the host."""

    def __init__(self, most: int) -> None:
        self.most = most

    @property
    def current(self) -> int:
        """Tokens that the next step proposes for each request, 1 to `most`."""
        return self.most

    def observe(self, accepted: Sequence[int]) -> None:
        """A verify step kept that many of each request's proposals."""


class AdaptiveLength(DraftLength):
    """One more than a moving average of what was accepted, so that longer runs are found out.

    Mirrors `AdaptiveSpeculativeParams` of `sglang/srt/speculative/adaptive_spec_params.py` (0.5.23):
    clamp(round(average) + 1, 1, most), looked at every `update_interval` steps after `warmup` steps. All
    lengths are candidates here; upstream has a graph for each and lists a few.
    """

    def __init__(self, most: int, *, alpha: float = 0.2, update_interval: int = 5, warmup: int = 10) -> None:
        super().__init__(most)
        self._alpha = alpha
        self._update_interval = update_interval
        self._warmup = warmup
        self._current = most
        self._average = float(most - 1)
        self._steps = 0

    @property
    def current(self) -> int:
        """Tokens that the next step proposes for each request, 1 to `most`."""
        return self._current

    def observe(self, accepted: Sequence[int]) -> None:
        """Moves the average by the step's mean, and now and then the length after it."""
        if not accepted:
            return
        self._average += self._alpha * (sum(accepted) / len(accepted) - self._average)
        self._steps += 1
        if self._steps > self._warmup and self._steps % self._update_interval == 0:
            self._current = min(max(round(self._average) + 1, 1), self.most)
