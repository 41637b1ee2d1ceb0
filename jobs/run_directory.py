"""A run directory opened for reading: its steps, manifests, tables and metrics.

Owns how they are found. Writes nothing, and says nothing about what the numbers mean. A step that has not
run, or has not finished, is simply absent: readers get None or an empty list and say so.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import PurePosixPath
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs

from jobs.errors import JobError
from schemas import shard
from schemas.errors import ShardError

RUN_FILE = "run.json"
METRICS_FILE = "metrics.jsonl"
DOCUMENT_STEPS = (
    "ingest",
    "clean",
    "dedupe_text",
    "mask_text",
    "mask_repeats",
    "contamination",
    "mask_video",
    "mask_media",
    "mask_regions",
    "interleave",
)  # in order; a run has those that its spec asks for


@dataclass(frozen=True)
class RunDirectory:
    """What `run.json` says of a run."""

    path: str
    name: str
    spec: dict[str, Any]  # resolved
    steps: dict[str, str]  # step name to its path, relative to the run

    def step_path(self, step: str) -> str | None:
        """Return the directory of a step, or None where the run has no such step or it has not started."""
        if step not in self.steps:
            return None
        path = shard.join(self.path, self.steps[step])
        return path if shard.exists(path) else None

    def manifest(self, step: str) -> shard.Manifest | None:
        """Return the manifest of a finished step, else None."""
        path = self.step_path(step)
        return _manifest(path) if path is not None and shard.is_finished(path) else None

    def shards(self, step: str, table: str) -> list[str]:
        """Return the paths of a table's shards in a finished step, in partition order."""
        path, manifest = self.step_path(step), self.manifest(step)
        if path is None or manifest is None:
            return []
        return [shard.join(path, name) for name in sorted(manifest.shards(table) or _listed(path, table))]

    def batches(
        self, step: str, table: str, columns: list[str] | None = None
    ) -> Iterator[tuple[str, pa.Table]]:
        """Yield each shard's path and table, one at a time; local shards are memory-mapped, not loaded."""
        for path in self.shards(step, table):
            yield path, shard.read_table(path, columns)

    def table(self, step: str, table: str, columns: list[str] | None = None) -> pa.Table | None:
        """Return all rows of a table, or None where the step holds none."""
        parts = [part for _, part in self.batches(step, table, columns)]
        return pa.concat_tables(parts) if parts else None

    def find_row(self, step: str, table: str, doc_id: str) -> dict[str, Any] | None:
        """Return the row of one document as plain data, or None."""
        for _, part in self.batches(step, table):
            index = pc.index(part["doc_id"], doc_id).as_py()
            if index >= 0:
                return part.slice(index, 1).to_pylist()[0]
        return None

    def find_rows(self, step: str, table: str, doc_id: str) -> list[dict[str, Any]]:
        """Return all rows that name one document."""
        return [
            row
            for _, part in self.batches(step, table)
            for row in part.filter(pc.equal(part["doc_id"], doc_id)).to_pylist()
        ]

    def find_media(
        self, media_ids: set[str]
    ) -> tuple[dict[str, dict[str, Any]], dict[str, list[dict[str, Any]]]]:
        """Return media rows by id, and the frames of each video among them in time order.

        The row of a medium that could not be decoded is returned too, with its `error`.
        """
        wanted = pa.array(sorted(media_ids), pa.string())
        by_id: dict[str, dict[str, Any]] = {}
        frames: dict[str, dict[tuple[float, str], dict[str, Any]]] = {}
        for _, part in self.batches("ingest", "media"):
            hit = pc.or_(
                pc.is_in(part["media_id"], wanted), pc.fill_null(pc.is_in(part["parent_id"], wanted), False)
            )
            for row in part.filter(hit).to_pylist():
                if row["kind"] == "frame":
                    frames.setdefault(row["parent_id"], {})[row["t_s"], row["media_id"]] = row
                else:
                    by_id.setdefault(row["media_id"], row)
        return by_id, {video: [rows[key] for key in sorted(rows)] for video, rows in frames.items()}

    def metrics(self, step: str) -> list[dict[str, Any]]:
        """Return the rows of a step's `metrics.jsonl`, also while the step is still running.

        Rows of the same step are joined; where a resumed run wrote a value twice, the later one stands. A
        last line cut short by a kill is left out.
        """
        path = self.step_path(step)
        if path is None or not shard.exists(shard.join(path, METRICS_FILE)):
            return []
        with shard.open_buffer(shard.join(path, METRICS_FILE)) as source:
            lines = source.read().decode(errors="replace").splitlines()
        rows: dict[int, dict[str, Any]] = {}
        for row in map(_parsed, lines):
            if "step" in row:
                rows[row["step"]] = {**rows.get(row["step"], {}), **row}
        return [rows[step] for step in sorted(rows)]

    def text(self, step: str, name: str) -> str | None:
        """Return a step's text file, or None where it has no such file."""
        path = self.step_path(step)
        if path is None or not shard.exists(shard.join(path, name)):
            return None
        with shard.open_buffer(shard.join(path, name)) as source:
            return source.read().decode()

    def document_steps(self) -> list[str]:
        """Return the finished document steps, first to last."""
        return [step for step in DOCUMENT_STEPS if self.manifest(step) is not None]

    def scorers(self) -> list[str]:
        """Return the names of the finished score steps, e.g. `score_alignment`."""
        return [
            step
            for step in sorted(self.steps)
            if step.startswith("score_") and self.manifest(step) is not None
        ]


def open_run(path: str) -> RunDirectory:
    """Open a run directory.

    Raises:
        JobError: there is no run at `path`, or its `run.json` is damaged.
    """
    run_file = shard.join(path, RUN_FILE)
    if not shard.exists(run_file):
        raise JobError(f"no run at {path}: it holds no {RUN_FILE}{_other_runs(path)}")
    try:
        value = shard.read_json(run_file)
        return RunDirectory(path, value["name"], value["spec"], value["steps"])
    except (ShardError, KeyError) as error:
        raise JobError(f"cannot read {run_file}: {error}") from error


def _other_runs(path: str) -> str:
    fs, inner = shard.filesystem(path)
    folders = [inner, str(PurePosixPath(inner).parent)]
    found = [
        info.path
        for folder in folders
        for info in fs.get_file_info(pafs.FileSelector(folder, allow_not_found=True))
        if info.type == pafs.FileType.Directory and shard.exists(shard.join(info.path, RUN_FILE))
    ]
    return f"; runs nearby: {', '.join(sorted(found)[:5])}" if found else ""


@cache
def _manifest(path: str) -> shard.Manifest:
    return shard.read_manifest(path)


def _listed(path: str, table: str) -> list[str]:
    """Names of a table's shards on disk, for manifests that name none (the trainer writes its own files)."""
    fs, inner = shard.filesystem(path)
    names = [info.base_name for info in fs.get_file_info(pafs.FileSelector(inner))]
    return [name for name in names if shard.table_of(name) == table and name.endswith(".arrow")]


def _parsed(line: str) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
