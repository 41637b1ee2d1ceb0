"""The dedupe steps of a prepare job, phase by phase.

Owns how signatures are collected, clustered and marked over partitions; what a duplicate is, the stages say.
"""

import functools

import pyarrow as pa

from datapipe.on_ray import Output, finish
from datapipe.spec import DedupeTextSpec
from datapipe.stages import dedupe_text
from jobs.spec import PrepareJob
from jobs.stages import split
from jobs.state import RunState, partition_numbers, read_all, read_batches
from schemas import shard


def dedupe_text_step(run: RunState, job: PrepareJob) -> None:
    step = run.step("dedupe_text", dedupe_text.VERSION, job.dedupe_text, run.id_of("clean", "dedupe_text"))
    source_path = run.path_of("clean", "dedupe_text")

    def work() -> shard.Manifest:
        partitions, spec = partition_numbers(source_path, "documents"), job.dedupe_text
        run.engine.run_phase(
            step, functools.partial(_signatures, spec, source_path), partitions, "signatures"
        )
        run.engine.run_phase(
            step, functools.partial(_clusters, spec, step.path), [len(partitions)], "clusters"
        )
        task = functools.partial(_mark_duplicates, spec, source_path, step.path)
        records = run.engine.run_phase(step, task, partitions)
        return finish(step, records, "documents", spec.max_drop_frac)

    run.commit(step, work)


def _signatures(spec: DedupeTextSpec, source_path: str, index: int) -> Output:
    batches = [dedupe_text.signatures(batch, spec) for batch in read_batches(source_path, "documents", index)]
    return Output({"signatures": pa.Table.from_batches(batches)})


def _clusters(spec: DedupeTextSpec, step_path: str, num_partitions: int) -> Output:
    return Output({"clusters": dedupe_text.cluster(read_all(step_path, "signatures", num_partitions), spec)})


def _mark_duplicates(spec: DedupeTextSpec, source_path: str, step_path: str, index: int) -> Output:
    clusters = shard.read_table(shard.join(step_path, shard.shard_name("clusters", 0)))
    return split(
        [dedupe_text.mark(batch, clusters, spec) for batch in read_batches(source_path, "documents", index)]
    )
