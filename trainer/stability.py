"""Spike guard: which optimiser steps are not taken.

Owns the decision and its history. The caller skips the step and logs the reason with the documents of the
batch.
"""

import dataclasses
import math
import statistics
from collections.abc import Mapping

from trainer.errors import DivergedError

# Values seen before the guard judges, as a fraction of the window: the first steps' loss falls too fast.
MIN_HISTORY_FRAC = 0.25
MAX_SKIPPED_IN_A_ROW = 20


@dataclasses.dataclass
class SpikeGuard:
    """Skips a step whose loss or gradient norm is not finite or lies far above its recent values.

    "Far" is `sigma` standard deviations above the mean of the last `window` steps (OLMo-core's skip step: 6
    and 128). Finite outliers enter the history, so a lasting change of level is accepted after a few steps.
    """

    sigma: float
    window: int
    losses: list[float] = dataclasses.field(default_factory=list)
    grad_norms: list[float] = dataclasses.field(default_factory=list)
    skipped_in_a_row: int = 0

    def check(self, loss: float, grad_norms: Mapping[str, float]) -> str | None:
        """Return why the step must be skipped, or None, and remember the values.

        The index is left out of the gradient norm that is judged: its loss changes level when the dense
        warm-up ends.
        """
        grad_norm = math.hypot(*(norm for name, norm in grad_norms.items() if name != "index"))
        reason = None
        norms = {f"grad_norm/{name}": norm for name, norm in grad_norms.items()}
        for name, value in {"loss": loss, **norms}.items():
            if not math.isfinite(value):
                reason = reason or f"{name} is {value}"
        for name, value, history in (("loss", loss, self.losses), ("grad_norm", grad_norm, self.grad_norms)):
            reason = reason or self._spike(name, value, history)
            if math.isfinite(value):
                history.append(value)
                del history[: -self.window]
        self.skipped_in_a_row = self.skipped_in_a_row + 1 if reason else 0
        return reason

    def stop_if_diverged(self) -> None:
        """Stop a run that no longer trains.

        Raises:
            DivergedError: `MAX_SKIPPED_IN_A_ROW` steps in a row were skipped.
        """
        if self.skipped_in_a_row >= MAX_SKIPPED_IN_A_ROW:
            raise DivergedError(
                f"{self.skipped_in_a_row} steps in a row were skipped: lower "
                "optimizer.learning_rate, or look at the documents that metrics.jsonl names"
            )

    def _spike(self, name: str, value: float, history: list[float]) -> str | None:
        if len(history) < max(2, MIN_HISTORY_FRAC * self.window):
            return None
        mean, deviation = statistics.fmean(history), statistics.stdev(history)
        limit = mean + self.sigma * deviation
        if value <= limit:
            return None
        return f"{name} {value:.4g} is above {limit:.4g}, {self.sigma:g} deviations over its mean"
