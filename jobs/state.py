"""What the jobs of one run share: the engine, the steps done so far, and reading a step's partitions.

Owns how one step finds another's output. Does not know what a step does.
"""

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

import pyarrow as pa
from pydantic import BaseModel

from datapipe.on_ray import Engine, Step
from jobs.errors import JobError
from schemas import shard

_MAKERS = {
    "ingest": "a prepare job",
    "interleave": "a prepare job",
    "tokenize": "a prepare job",
    "plan": "a plan job",
}

Commit = Callable[[Step, Callable[[], shard.Manifest]], None]


@dataclasses.dataclass
class RunState:
    """What the jobs of one run share: the engine, the directory of steps, and the steps done so far by
    name.
    """

    engine: Engine
    steps_root: str
    steps: dict[str, str]  # step name -> step id
    commit: Commit  # runs a step unless it is finished, records and shows it

    def step(self, name: str, version: str, spec: BaseModel | dict[str, Any], *inputs: str) -> Step:
        """Describe a step; `inputs` are ids of steps or fingerprints of raw input.

        How many rows it may drop changes none of them: the limit can be raised and nothing is done twice.
        """
        plain = spec.model_dump(mode="json") if isinstance(spec, BaseModel) else spec
        plain = {name: value for name, value in plain.items() if name != "max_drop_frac"}
        return Step(name, version, plain, inputs, self.steps_root)

    def id_of(self, name: str, needed_by: str) -> str:
        """Return the id of an earlier step.

        Raises:
            JobError: no such step has run into this output.
        """
        if name not in self.steps:
            raise JobError(
                f"{needed_by} needs the step {name!r}, which this output does not hold: "
                f"run {_MAKERS.get(name, 'the job that makes it')} first, or use a pipeline"
            )
        return self.steps[name]

    def path_of(self, name: str, needed_by: str) -> str:
        """Return the directory of an earlier step; errors as `id_of`."""
        return shard.join(self.steps_root, self.id_of(name, needed_by))


def partition_numbers(step_path: str, table: str) -> range:
    """Return the partition numbers of a finished step."""
    return range(len(shard.read_manifest(step_path).shards(table)))


def read_batches(step_path: str, table: str, index: int) -> Iterable[pa.RecordBatch]:
    """Return the record batches of one partition; an empty partition has one batch without rows."""
    read = shard.read_table(shard.join(step_path, shard.shard_name(table, index)))
    return read.to_batches() or [pa.RecordBatch.from_pylist([], schema=read.schema)]


def read_all(step_path: str, table: str, num_partitions: int) -> pa.Table:
    return pa.concat_tables(
        [
            shard.read_table(shard.join(step_path, shard.shard_name(table, index)))
            for index in range(num_partitions)
        ]
    )
