"""Checkpoints: a run's whole state on disk, published at once.

Owns the directory format, saving, finding the latest good one, loading. Does not know what the loop state
means.

`<directory>/step-00000050/` holds the torch DCP files of model and optimiser (`state/`), `model.json` (the
model's config), `loop.json` (the loop's state, plain data) and `finished.json`, written last, which names all
others with size and hash. The directory is filled under a temporary name, synced, and renamed: what has the
final name is whole, and a kill at any moment leaves the one before.
"""

import logging
import os
import re
import shutil
import warnings
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_model_state_dict, get_state_dict, set_state_dict

from schemas import ids, shard
from schemas.errors import ShardError
from trainer.errors import CheckpointError
from trainer.model.config import ModelConfig
from trainer.model.model import OmniModel

FINISHED = "finished.json"
MODEL = "model.json"
LOOP = "loop.json"
STATE = "state"
_NAME = re.compile(r"step-(\d{8})")
_TEMPORARY = "tmp-"

logger = logging.getLogger(__name__)


def save(
    directory: str,
    step: int,
    *,
    model: OmniModel,
    optimizer: torch.optim.Optimizer,
    loop: dict[str, Any],
    keep: int,
) -> str:
    """Publish a checkpoint as `<directory>/step-<step>` and delete all but the newest `keep`; return its
    path.

    Raises:
        CheckpointError: it could not be written; what was there before is untouched.
    """
    _remove_temporary(directory)
    final = os.path.join(directory, f"step-{step:08d}")
    temporary = os.path.join(directory, f"{_TEMPORARY}step-{step:08d}")
    try:
        os.makedirs(temporary)
        model_state, optimizer_state = get_state_dict(model, optimizer)
        _quietly(
            dcp.save,
            {"model": model_state, "optimizer": optimizer_state},
            checkpoint_id=os.path.join(temporary, STATE),
        )
        shard.write_json(os.path.join(temporary, MODEL), model.config.model_dump(mode="json"))
        shard.write_json(os.path.join(temporary, LOOP), loop)
        shard.write_json(os.path.join(temporary, FINISHED), {"step": step, "files": _describe(temporary)})
        _sync_tree(temporary)
        _remove(final)
        os.rename(temporary, final)
        _sync(directory)
    except (OSError, ShardError, dcp.api.CheckpointException) as error:
        raise CheckpointError(f"cannot write checkpoint {final}: {error}") from error
    for old in list_checkpoints(directory)[:-keep]:
        _remove(old)
    return final


def list_checkpoints(directory: str) -> list[str]:
    """Return the paths of published checkpoints, oldest first, damaged ones included."""
    names = os.listdir(directory) if os.path.isdir(directory) else []
    return [os.path.join(directory, name) for name in sorted(names) if _NAME.fullmatch(name)]


def latest(directory: str) -> str | None:
    """Return the newest checkpoint that is finished and undamaged, or None.

    A damaged one is left out with a warning that names the damaged file.
    """
    for path in reversed(list_checkpoints(directory)):
        try:
            verify(path)
        except CheckpointError as error:
            logger.warning("%s; taking the one before", error)
            continue
        return path
    return None


def verify(path: str) -> None:
    """Check that a checkpoint is finished and every file has the bytes it was written with.

    Raises:
        CheckpointError: naming the file that is missing or differs.
    """
    try:
        expected = shard.read_json(os.path.join(path, FINISHED))["files"]
    except (ShardError, OSError, KeyError, TypeError) as error:
        problem = f"no finished checkpoint at {path}: {FINISHED} is missing or damaged"
        raise CheckpointError(problem) from error
    found = _describe(path)
    for name, description in expected.items():
        if found.get(name) != description:
            problem = "is missing" if name not in found else "has other bytes than were written"
            raise CheckpointError(f"damaged checkpoint {path}: {name} {problem}")


def load(path: str, model: OmniModel, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Fill model and optimiser from a checkpoint and return its loop state.

    Raises:
        CheckpointError: it is unfinished or damaged, or was made by a model of another shape.
    """
    verify(path)
    _check_config(path, model.config)
    model_state, optimizer_state = get_state_dict(model, optimizer)
    state: dict[str, Any] = {"model": model_state, "optimizer": optimizer_state}
    _quietly(dcp.load, state, checkpoint_id=os.path.join(path, STATE))
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    return shard.read_json(os.path.join(path, LOOP))


def load_model(path: str) -> OmniModel:
    """Return the model of a checkpoint, for evaluation or as the start of another run.

    Raises:
        CheckpointError: it is unfinished or damaged.
    """
    verify(path)
    model = OmniModel(ModelConfig(**shard.read_json(os.path.join(path, MODEL))))
    state = {"model": get_model_state_dict(model)}
    _quietly(dcp.load, state, checkpoint_id=os.path.join(path, STATE))
    model.load_state_dict(state["model"])
    return model


def _check_config(path: str, config: ModelConfig) -> None:
    saved = ModelConfig(**shard.read_json(os.path.join(path, MODEL)))
    for name in ModelConfig.model_fields:
        if getattr(saved, name) != getattr(config, name):
            raise CheckpointError(
                f"checkpoint {path} holds a model with {name} {getattr(saved, name)}, "
                f"this one has {getattr(config, name)}"
            )


def _quietly(call: Any, *args: Any, **kwargs: Any) -> None:
    """Call DCP without its warnings about running in one process."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*torch.distributed.*")
        call(*args, no_dist=True, **kwargs)


def _describe(path: str) -> dict[str, dict[str, Any]]:
    """Return size and hash of every file below `path` except the marker, by relative name."""
    described = {}
    for folder, _, names in os.walk(path):
        for name in names:
            relative = os.path.relpath(os.path.join(folder, name), path)
            if relative != FINISHED:
                with open(os.path.join(folder, name), "rb") as source:
                    data = source.read()
                described[relative] = {"size_bytes": len(data), "content_id": ids.content_id(data)}
    return described


def _sync_tree(path: str) -> None:
    for folder, _, names in os.walk(path):
        for name in (*names, "."):
            _sync(os.path.join(folder, name))


def _sync(path: str) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _remove(path: str) -> None:
    """Delete a published checkpoint; it loses its name first, so that a kill leaves no half of one behind."""
    if os.path.isdir(path):
        doomed = os.path.join(os.path.dirname(path), f"{_TEMPORARY}old-{os.path.basename(path)}")
        os.rename(path, doomed)
        shutil.rmtree(doomed)


def _remove_temporary(directory: str) -> None:
    for name in os.listdir(directory) if os.path.isdir(directory) else []:
        if name.startswith(_TEMPORARY):
            shutil.rmtree(os.path.join(directory, name))
