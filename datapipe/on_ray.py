"""Runs pure functions over partitions on Ray, and commits what they return.

Owns the Ray session, resume, retries, progress and the commit of a step. Does not know what a stage does: it
is handed a function from a partition's argument to an `Output`. Tasks read and write files themselves; large
data never rides Ray's object store.

A step is a directory named by the hash of what made it (`schemas.ids.step_id`). A partition's result is
committed by its marker file `<phase>-<index>.json`, the step by its `manifest.json`, written last. So a
killed run starts again where it was, a finished step is skipped, and the bytes do not depend on how many
workers there were.
"""

import dataclasses
import logging
import os
import socket
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pyarrow as pa
import ray
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from datapipe.errors import ClusterUnreachable, StorageNotShared, TooManyDropped, WorkerLost
from schemas import ids, shard

logger = logging.getLogger(__name__)

MAX_RETRIES = 3
CONNECT_LIMIT_S = 10.0
START_ATTEMPTS = 3
OBJECT_STORE_BYTES = 200 * 1024**2
WORKER_ENVIRONMENT = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}


@dataclasses.dataclass(frozen=True)
class Output:
    """What a task makes of one partition: tables by name, other files, and what it counted.

    Numbers in `metrics` are summed over partitions; any other value must come from one partition only.
    """

    tables: dict[str, pa.Table] = dataclasses.field(default_factory=dict)
    files: dict[str, bytes] = dataclasses.field(default_factory=dict)
    rows_in: int = 0
    dropped: dict[str, int] = dataclasses.field(default_factory=dict)
    metrics: dict[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Step:
    """A step before it has run: its name, what makes it, and where its output goes."""

    name: str
    version: str
    spec: Any  # resolved spec, plain data
    inputs: tuple[str, ...]  # ids of what it reads
    root: str  # directory that holds all steps

    @property
    def id(self) -> str:
        """Name and hash of the step."""
        return ids.step_id(self.name, self.version, self.spec, self.inputs)

    @property
    def path(self) -> str:
        """Directory of the step's output."""
        return shard.join(self.root, self.id)

    def is_finished(self) -> bool:
        """Whether the step was committed before."""
        return shard.is_finished(self.path)


class Engine:
    """A Ray session that starts when the first partition has to run, so that skipping finished steps costs
    nothing.

    `address=None` starts Ray on this machine and never joins a cluster that happens to run here.
    """

    def __init__(
        self, num_workers: int | None = None, address: str | None = None, show_progress: bool = True
    ):
        self.num_workers = num_workers or os.cpu_count() or 1
        self.address = address
        self.show_progress = show_progress
        self._started = False

    def __enter__(self) -> "Engine":
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start or join Ray, once.

        Raises:
            ClusterUnreachable: nothing answers at `address`.
        """
        if self._started:
            return
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        runtime_env = {"env_vars": WORKER_ENVIRONMENT}
        if self.address is None:
            self._start_local(runtime_env)
        else:
            _check_reachable(self.address)
            try:
                ray.init(address=self.address, log_to_driver=False, runtime_env=runtime_env)
            except ConnectionError as error:
                raise ClusterUnreachable(f"address: {self.address!r}: {error}") from error
        self._started = True

    def _start_local(self, runtime_env: dict[str, Any]) -> None:
        """Start Ray here; it gives its own processes 30 s to come up, which a busy machine can exceed."""
        for attempt in range(1, START_ATTEMPTS + 1):
            try:
                ray.init(
                    address="local",
                    num_cpus=self.num_workers,
                    include_dashboard=False,
                    log_to_driver=False,
                    logging_level=logging.ERROR,
                    object_store_memory=OBJECT_STORE_BYTES,
                    runtime_env=runtime_env,
                )
                return
            except Exception as error:  # Ray raises a bare Exception for its start-up time limit
                ray.shutdown()
                if "timed out during startup" not in str(error) or attempt == START_ATTEMPTS:
                    raise
                logger.warning("Ray did not come up in time; attempt %d of %d", attempt + 1, START_ATTEMPTS)

    def stop(self) -> None:
        """Leave Ray and free its memory; the next partition starts it again."""
        if self._started:
            ray.shutdown()
            self._started = False

    def run_phase(
        self, step: Step, task: Callable[[Any], Output], arguments: Sequence[Any], phase: str = "partition"
    ) -> list[dict[str, Any]]:
        """Run `task` on each argument, skip those committed before, and return their records in order.

        Raises:
            WorkerLost: a partition's worker died `MAX_RETRIES` times over, or Ray's process here ended.
            StorageNotShared: a worker on another machine writes to a disk of its own.
            Exception: whatever the task raised; partitions finished before stay committed.
        """
        there = shard.names_in(step.path)
        records = {i: _committed(step.path, phase, i, there) for i in range(len(arguments))}
        waiting = [i for i, record in records.items() if record is None]
        if waiting:
            with self._progress() as progress:
                label = step.name if phase == "partition" else f"{step.name} {phase}"
                bar = progress.add_task(label, total=len(arguments), completed=len(arguments) - len(waiting))
                self.start()
                for index, record in self._submit(step, task, arguments, phase, waiting):
                    if not shard.exists(shard.join(step.path, _marker(phase, index))):
                        raise StorageNotShared(
                            f"{step.name}: a worker wrote partition {index} to {step.path}, which this "
                            "machine does not see; on a cluster `output` must be a shared path or s3://"
                        )
                    records[index] = record
                    progress.advance(bar)
        return [records[i] for i in range(len(arguments))]  # type: ignore[misc]  # none is None any more

    def _submit(
        self,
        step: Step,
        task: Callable[[Any], Output],
        arguments: Sequence[Any],
        phase: str,
        waiting: list[int],
    ) -> Iterable[tuple[int, dict[str, Any]]]:
        remote = ray.remote(max_retries=MAX_RETRIES, num_cpus=1)(_run_partition)
        queue, running = list(reversed(waiting)), dict[Any, int]()
        while queue or running:
            while queue and len(running) < 2 * self.num_workers:
                index = queue.pop()
                running[remote.remote(task, arguments[index], step.path, phase, index)] = index
            finished, _ = ray.wait(list(running), num_returns=1)
            index = running.pop(finished[0])
            try:
                yield index, ray.get(finished[0])
            except ray.exceptions.RayTaskError as error:
                error.cause.add_note(f"on a worker, partition {index} of {step.name}:\n{error}")
                raise error.cause from None
            except (
                ray.exceptions.WorkerCrashedError,
                ray.exceptions.OutOfMemoryError,
                ray.exceptions.NodeDiedError,
            ) as error:
                raise WorkerLost(
                    f"{step.name}: the worker of partition {index} died {MAX_RETRIES + 1} times "
                    f"({type(error).__name__}); is there enough memory?"
                ) from error
            except ray.exceptions.LocalRayletDiedError as error:
                raise WorkerLost(
                    f"{step.name}: Ray's own process on this machine ended at partition {index}; what was "
                    "committed stays, and the same command goes on from there"
                ) from error

    def _progress(self) -> Progress:
        return Progress(
            TextColumn("{task.description:<24}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            disable=not self.show_progress,
            transient=True,
        )


def _check_reachable(address: str) -> None:
    """Knock at a cluster's door: Ray itself tries for minutes, and logs all the while."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not colon or not port.isdigit():
        return  # such as `auto`
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_LIMIT_S).close()
    except OSError as error:
        raise ClusterUnreachable(f"address: nothing answers at {address!r}: {error}") from error


def _run_partition(
    task: Callable[[Any], Output], argument: Any, step_path: str, phase: str, index: int
) -> dict[str, Any]:
    """Runs on a worker: do the work, write its shards, then the marker that commits them."""
    output = task(argument)
    written = [
        shard.write_table(shard.join(step_path, shard.shard_name(name, index)), table)
        for name, table in output.tables.items()
    ]
    for name, data in output.files.items():
        shard.write_bytes(shard.join(step_path, name), data)
        written.append(shard.ShardFile(name, 0, len(data), ids.content_id(data)))
    record = {
        "files": [dataclasses.asdict(file) for file in written],
        "rows_in": output.rows_in,
        "dropped": output.dropped,
        "metrics": output.metrics,
    }
    shard.write_json(shard.join(step_path, _marker(phase, index)), record)
    return record


def _marker(phase: str, index: int) -> str:
    return f"{phase}-{index:05d}.json"


def _committed(step_path: str, phase: str, index: int, there: set[str]) -> dict[str, Any] | None:
    """Return a partition's record if it was committed and its files are there, else None."""
    if _marker(phase, index) not in there:
        return None
    record = shard.read_json(shard.join(step_path, _marker(phase, index)))
    return record if all(file["name"] in there for file in record["files"]) else None


def finish(
    step: Step, records: Sequence[dict[str, Any]], output_table: str, max_drop_frac: float = 1.0
) -> shard.Manifest:
    """Sum the records of a step's partitions, check the dropped fraction, and commit the step.

    `rows_out` counts the rows of `output_table`.

    Raises:
        TooManyDropped: more than `max_drop_frac` of the rows were dropped; nothing is committed.
    """
    files = [shard.ShardFile(**file) for record in records for file in record["files"]]
    rows_in = sum(record["rows_in"] for record in records)
    dropped: Counter[str] = Counter()
    summed: dict[str, Any] = {}
    for record in records:
        dropped.update(record["dropped"])
        for name, value in record["metrics"].items():
            summed[name] = value + summed.get(name, 0) if isinstance(value, int | float) else value
    if rows_in and dropped.total() > max_drop_frac * rows_in:
        raise TooManyDropped(
            f"{step.name}: {dropped.total()} of {rows_in} documents dropped "
            f"({dict(dropped.most_common())}), more than max_drop_frac {max_drop_frac} allows; they stand in "
            f"{shard.join(step.path, 'dropped-*.arrow')}. Raised, it goes on from here"
        )
    rows_out = sum(file.num_rows for file in files if shard.table_of(file.name) == output_table)
    manifest = shard.Manifest(
        step=step.id,
        version=step.version,
        spec=step.spec,
        inputs=list(step.inputs),
        rows_in=rows_in,
        rows_out=rows_out,
        dropped=dict(sorted(dropped.items())),
        metrics=summed,
        files=files,
    )
    shard.write_manifest(step.path, manifest)
    return manifest
