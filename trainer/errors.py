"""Errors of the trainer package."""


class TrainerError(Exception):
    """Root of what the trainer raises."""


class DataError(TrainerError, ValueError):
    """Spec, tokens and plan do not fit together, or a shard is not what its plan says."""


class SpecChangedError(DataError):
    """A run's folder was made by another spec, so it cannot be continued with this one."""


class CheckpointError(TrainerError, RuntimeError):
    """A checkpoint is missing, unfinished or damaged."""


class DivergedError(TrainerError, RuntimeError):
    """Too many steps in a row were skipped: the run does not train any more."""
