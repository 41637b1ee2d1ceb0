"""The mask steps of a prepare job that look at more than one document, phase by phase.

Owns how occurrences are collected, reduced and marked over partitions; what a mask means, the stages say.
"""

import functools

import pyarrow as pa

from datapipe.on_ray import Output, finish
from datapipe.spec import MaskMediaSpec
from datapipe.stages import mask_media
from jobs.spec import PrepareJob
from jobs.stages import media_without_bytes, split
from jobs.state import RunState, partition_numbers, read_all, read_batches
from schemas import shard


def mask_media_step(run: RunState, job: PrepareJob, source: str) -> str:
    """Mask pictures that carry no content; `source` is the step whose documents are looked at."""
    step = run.step(
        "mask_media",
        mask_media.VERSION,
        job.mask_media,
        run.id_of(source, "mask_media"),
        run.id_of("ingest", "mask_media"),
    )
    source_path, media_path = run.path_of(source, "mask_media"), run.path_of("ingest", "mask_media")

    def work() -> shard.Manifest:
        partitions, spec = partition_numbers(source_path, "documents"), job.mask_media
        run.engine.run_phase(
            step, functools.partial(_occurrences, source_path, media_path), partitions, "occurrences"
        )
        run.engine.run_phase(
            step, functools.partial(_repeated, spec, step.path), [len(partitions)], "repeated"
        )
        task = functools.partial(_mark_media, spec, source_path, media_path, step.path)
        records = run.engine.run_phase(step, task, partitions)
        return finish(step, records, "documents")

    run.commit(step, work)
    return "mask_media"


def _occurrences(source_path: str, media_path: str, index: int) -> Output:
    media = media_without_bytes(media_path, index)
    batches = [
        mask_media.occurrences(batch, media) for batch in read_batches(source_path, "documents", index)
    ]
    return Output({"occurrences": pa.Table.from_batches(batches)})


def _repeated(spec: MaskMediaSpec, step_path: str, num_partitions: int) -> Output:
    return Output({"repeated": mask_media.repeated(read_all(step_path, "occurrences", num_partitions), spec)})


def _mark_media(spec: MaskMediaSpec, source_path: str, media_path: str, step_path: str, index: int) -> Output:
    repeated = shard.read_table(shard.join(step_path, shard.shard_name("repeated", 0)))
    media = media_without_bytes(media_path, index)
    return split(
        [
            mask_media.mark(batch, media, repeated, spec)
            for batch in read_batches(source_path, "documents", index)
        ]
    )
