"""The plan job: token shards and scores to the table that names every training sequence.

Owns the hand-over of `rewards.select`'s weights to `datapipe.stages.pack`.
"""

import functools
from collections import Counter

import pyarrow as pa

from datapipe.on_ray import Output, finish
from datapipe.stages import pack
from jobs.errors import JobError
from jobs.spec import PlanJob
from jobs.state import RunState, partition_numbers, read_all
from rewards import select
from schemas import shard


def plan(run: RunState, job: PlanJob) -> None:
    """Token spans to training sequences, with the documents' weights from selection."""
    inputs = [run.id_of("tokenize", job.name), run.id_of("interleave", job.name)]
    scores_path = None
    if job.select is not None:
        inputs.append(run.id_of(f"score_{job.select.scorer}", job.name))
        scores_path = run.path_of(f"score_{job.select.scorer}", job.name)
    step = run.step(
        job.name,
        pack.VERSION + select.VERSION,
        job.model_dump(mode="json", include={"select", "pack"}),
        *inputs,
    )
    tokens_path, documents_path = run.path_of("tokenize", job.name), run.path_of("interleave", job.name)

    def work() -> shard.Manifest:
        partitions = partition_numbers(tokens_path, "tokens")
        run.engine.run_phase(
            step, functools.partial(_describe, tokens_path, documents_path), partitions, "described"
        )
        records = run.engine.run_phase(
            step, functools.partial(_pack, job, step.path, scores_path), [len(partitions)]
        )
        return finish(step, records, "plan")

    run.commit(step, work)


def _describe(tokens_path: str, documents_path: str, index: int) -> Output:
    name = shard.shard_name("tokens", index)
    tokens = shard.read_table(shard.join(tokens_path, name))
    described = pa.Table.from_batches([pack.describe(tokens, name)])
    documents = shard.read_table(
        shard.join(documents_path, shard.shard_name("documents", index)), ["doc_id", "collection"]
    )
    collection = dict(zip(documents["doc_id"].to_pylist(), documents["collection"].to_pylist(), strict=True))
    strata = [
        f"{collection[doc_id]}/{modality}"
        for doc_id, modality in zip(
            described["doc_id"].to_pylist(), described["modality"].to_pylist(), strict=True
        )
    ]
    return Output({"described": described.append_column("stratum", pa.array(strata, pa.string()))})


def _pack(job: PlanJob, step_path: str, scores_path: str | None, num_partitions: int) -> Output:
    described = read_all(step_path, "described", num_partitions)
    weights = pa.array([1.0] * described.num_rows, pa.float32())
    not_selected: dict[str, int] = {}
    if job.select is not None and scores_path is not None:
        scores = shard.read_step_table(scores_path, "scores")
        chosen = select.select(scores, described.select(["doc_id", "stratum"]), job.select)
        by_id = dict(zip(chosen["doc_id"].to_pylist(), chosen["weight"].to_pylist(), strict=True))
        weights = pa.array([by_id[doc_id] for doc_id in described["doc_id"].to_pylist()], pa.float32())
        not_selected = dict(sorted(Counter(r for r in chosen["reason"].to_pylist() if r).items()))
    packed = pack.pack(described.append_column("weight", weights), job.pack)
    if packed.plan.num_rows == 0:
        raise JobError(f"plan: no sequence could be made of {described.num_rows} documents: {packed.report}")
    return Output(
        {"plan": packed.plan, "heldout": packed.heldout},
        rows_in=described.num_rows,
        dropped=not_selected,
        metrics={"report": packed.report},
    )
