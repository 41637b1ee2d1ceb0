"""Spike guard: what it skips, and that it recovers."""

import math

import pytest

from trainer.errors import DivergedError
from trainer.stability import MAX_SKIPPED_IN_A_ROW, SpikeGuard


def guard_with_history() -> SpikeGuard:
    guard = SpikeGuard(sigma=6, window=32)
    for step in range(32):
        assert guard.check(2 + 0.1 * (step % 2), {"decoder": 1 + 0.1 * (step % 2), "index": 1.0}) is None
    return guard


@pytest.mark.parametrize(
    ("loss", "norms", "reason"),
    [
        (3.0, {"decoder": 1.0}, "loss 3 is above"),
        (2.0, {"decoder": 2.0}, "grad_norm 2 is above"),
        (2.0, {"decoder": 1.0, "vision": 5.0}, "grad_norm"),
        (math.nan, {"decoder": 1.0}, "loss is nan"),
        (2.0, {"decoder": 1.0, "index": math.inf}, "grad_norm/index is inf"),
    ],
)
def test_a_spike_is_skipped_with_its_reason(loss: float, norms: dict[str, float], reason: str) -> None:
    assert reason in (guard_with_history().check(loss, norms) or "")


@pytest.mark.parametrize(
    ("loss", "norms"),
    [(2.2, {"decoder": 1.1}), (0.0, {"decoder": 0.0}), (2.0, {"decoder": 1.0, "index": 50.0})],
)
def test_a_usual_step_or_a_fall_is_taken(loss: float, norms: dict[str, float]) -> None:
    assert guard_with_history().check(loss, norms) is None


def test_nothing_is_judged_before_a_quarter_of_the_window() -> None:
    guard = SpikeGuard(sigma=6, window=32)
    assert [guard.check(2.0 if step < 7 else 99.0, {"decoder": 1.0}) for step in range(8)] == [None] * 8


def test_a_lasting_change_of_level_is_accepted_after_some_steps() -> None:
    guard = guard_with_history()
    skipped = [guard.check(3.0, {"decoder": 1.0}) is not None for _ in range(10)]
    assert skipped[0] and not skipped[-1]


def test_a_run_that_only_skips_is_stopped() -> None:
    guard = guard_with_history()
    for _ in range(MAX_SKIPPED_IN_A_ROW - 1):
        guard.check(math.nan, {"decoder": 1.0})
        guard.stop_if_diverged()
    guard.check(math.nan, {"decoder": 1.0})
    with pytest.raises(DivergedError, match="20 steps in a row"):
        guard.stop_if_diverged()
