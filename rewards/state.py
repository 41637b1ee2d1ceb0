"""What training a scorer gives, and how it is kept: named arrays as bytes that hold no code."""

import dataclasses
import io
import zipfile
from typing import Any

import numpy as np

from rewards.errors import StateError


@dataclasses.dataclass(frozen=True)
class Fitted:
    """A trained scorer: its state for `score`, and what a reader should know of its training as plain
    data.
    """

    state: bytes
    report: dict[str, Any]


def to_bytes(arrays: dict[str, np.ndarray]) -> bytes:
    """Return named arrays as an npz file; equal arrays give equal bytes."""
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **arrays)
    return buffer.getvalue()


def from_bytes(state: bytes, names: set[str], scorer: str) -> dict[str, np.ndarray]:
    """Return the arrays of a state.

    Raises:
        StateError: the bytes are no npz file of plain arrays, or the arrays have other names.
    """
    try:
        with np.load(io.BytesIO(state), allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except (ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
        raise StateError(f"state: no saved {scorer} scorer ({error})") from error
    if set(arrays) != names:
        raise StateError(f"state: holds {sorted(arrays)}, a {scorer} scorer has {sorted(names)}")
    return arrays


# The state of a scorer that had too little to train on; not empty, so that it can be mapped like any file.
UNTRAINED = to_bytes({})
