"""`metrics.jsonl`: one row of numbers a step.

Owns the file: appending, cutting it back to a checkpoint, reading it. Names are `area/name_unit`.
"""

import json
import math
import os
from typing import Any

from schemas import shard


class MetricsWriter:
    """Appends rows to a file; rows past `last_step`, left by a killed run, are cut off first, atomically."""

    def __init__(self, path: str, last_step: int) -> None:
        kept = [row for row in read_metrics(path) if row["step"] <= last_step] if os.path.exists(path) else []
        shard.write_bytes(path, "".join(_line(row) for row in kept).encode())
        self._file = open(path, "a", encoding="utf-8")  # noqa: SIM115 (closed by close)

    def write(self, step: int, values: dict[str, Any]) -> None:
        """Append one row."""
        self._file.write(_line({"step": step, **values}))
        self._file.flush()

    def sync(self) -> None:
        """Make the rows so far survive a power cut; called before a checkpoint counts on them."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _line(row: dict[str, Any]) -> str:
    # NaN and infinity are no JSON numbers; a reader gets null, and the reason stands in stability/reason.
    finite = {
        key: value if not isinstance(value, float) or math.isfinite(value) else None
        for key, value in row.items()
    }
    return json.dumps(finite, ensure_ascii=False, allow_nan=False) + "\n"


def read_metrics(path: str) -> list[dict[str, Any]]:
    """Return the rows of a metrics file; a last line that was cut short by a kill is left out."""
    with open(path, encoding="utf-8") as source:
        return [json.loads(line) for line in source if line.endswith("\n")]
