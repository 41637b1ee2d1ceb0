"""Errors of the rewards package."""


class RewardsError(Exception):
    """Anything that goes wrong between documents and their scores, weights or rewards."""


class StateError(RewardsError, ValueError):
    """A scorer's saved state does not fit its spec, or is no state of that scorer."""


class CheckpointError(RewardsError, ValueError):
    """A weights file is missing, cannot be read, or does not fit the architecture named beside it."""


class SelectError(RewardsError, ValueError):
    """A table of scores does not allow the selection that a spec asks for."""
