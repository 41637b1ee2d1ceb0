"""The score job: one step a scorer, each a map (features), a reduce (fit) and a map (scores).

Owns the hand-over of documents with their pictures to `rewards`.
"""

import functools
from collections import Counter
from types import ModuleType

import pyarrow as pa

from datapipe.on_ray import Output, finish
from jobs.spec import ScoreJob, ScorerSpec
from jobs.state import RunState, partition_numbers, read_all, read_batches
from rewards import alignment, text_quality
from schemas import document, shard

SCORERS: dict[str, ModuleType] = {"text_quality": text_quality, "alignment": alignment}


def score(run: RunState, job: ScoreJob) -> None:
    """One sidecar table a scorer: features by partition, one fit, scores by partition."""
    for spec in job.scorers:
        _score(run, spec)


def _score(run: RunState, spec: ScorerSpec) -> None:
    scorer = SCORERS[spec.kind]
    name = f"score_{scorer.SCORER}"
    step = run.step(name, scorer.VERSION, spec, run.id_of("interleave", name), run.id_of("ingest", name))
    source_path, media_path = run.path_of("interleave", name), run.path_of("ingest", name)

    def work() -> shard.Manifest:
        partitions = partition_numbers(source_path, "documents")
        features = functools.partial(_features, scorer.SCORER, spec, source_path, media_path)
        run.engine.run_phase(step, features, partitions, "features")
        fitted = run.engine.run_phase(
            step, functools.partial(_fit, scorer.SCORER, spec, step.path), [len(partitions)], "fit"
        )
        records = run.engine.run_phase(
            step, functools.partial(_score_partition, scorer.SCORER, spec, step.path), partitions
        )
        return finish(step, [*fitted, *records], "scores")

    run.commit(step, work)


def _features(kind: str, spec: ScorerSpec, source_path: str, media_path: str, index: int) -> Output:
    media = shard.read_table(shard.join(media_path, shard.shard_name("media", index)))
    batches = [
        SCORERS[kind].features(document.with_media(batch, media), spec)
        for batch in read_batches(source_path, "documents", index)
    ]
    return Output({"features": pa.Table.from_batches(batches)})


def _fit(kind: str, spec: ScorerSpec, step_path: str, num_partitions: int) -> Output:
    fitted = SCORERS[kind].fit(read_all(step_path, "features", num_partitions), spec)
    return Output(files={"state.bin": fitted.state}, metrics={"fit": fitted.report})


def _score_partition(kind: str, spec: ScorerSpec, step_path: str, index: int) -> Output:
    with shard.open_buffer(shard.join(step_path, "state.bin")) as source:
        state = source.read()
    batches = [
        SCORERS[kind].score(batch, state, spec) for batch in read_batches(step_path, "features", index)
    ]
    table = pa.Table.from_batches(batches)
    errors = Counter(error for error in table["error"].to_pylist() if error)
    return Output(
        {"scores": table},
        rows_in=table.num_rows,
        metrics={f"errors_{error}": n for error, n in sorted(errors.items())},
    )
