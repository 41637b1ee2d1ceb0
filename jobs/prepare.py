"""The prepare job: raw files to token shards, step by step.

Owns which stage's output feeds which stage, and how a stage's pure functions become tasks over partitions.
"""

import functools
from collections import Counter

import pyarrow as pa
import pyarrow.compute as pc

from datapipe.on_ray import Output, finish
from datapipe.sources import speech
from datapipe.sources.files import would_read
from datapipe.spec import TokenizeSpec
from datapipe.stages import clean, interleave, mask_regions, mask_text, mask_video, tokenize
from jobs.contamination import contamination_step
from jobs.dedupe import dedupe_text_step
from jobs.dedupe_media import dedupe_media_step
from jobs.errors import SpecError
from jobs.ingest import ingest_step, list_source
from jobs.mask import mask_media_step, mask_repeats_step
from jobs.spec import PrepareJob, expand
from jobs.stages import document_stage, media_stage
from jobs.state import RunState, partition_numbers, read_batches
from schemas import ids, shard, tokens
from schemas.errors import ShardError


def prepare(run: RunState, job: PrepareJob) -> None:
    """Raw files to token shards. Each step reads the documents of the one before it.

    Raises:
        SpecError: a source, the tokenizer or a detector cannot be had; nothing was run.
    """
    _check_output(run, job)
    tokenizer = _given_tokenizer(job)
    asked = job.contamination.sources if job.contamination is not None else ()
    benchmarks = [list_source(f"{job.name}.contamination.sources.{n}", s) for n, s in enumerate(asked)]
    if job.mask_regions is not None:
        mask_regions.check_available(job.mask_regions)
    if job.ingest.video.speech_model is not None:
        speech.check_available(job.ingest.video.speech_model)
    ingest_step(run, job)
    done = document_stage(
        run, "clean", clean.VERSION, clean.clean, job.clean, "ingest", job.clean.max_drop_frac
    )
    dedupe_media_step(run, job)
    done = dedupe_text_step(run, job, done)
    done = document_stage(run, "mask_text", mask_text.VERSION, mask_text.mask_text, job.mask_text, done)
    done = mask_repeats_step(run, job, done)
    if job.contamination is not None:
        done = contamination_step(run, job, done, benchmarks)
    else:
        run.steps.pop("contamination", None)  # an earlier spec asked for it
    done = media_stage(run, "mask_video", mask_video.VERSION, mask_video.mask_video, job.mask_video, done)
    done = mask_media_step(run, job, done)
    if job.mask_regions is not None:
        done = media_stage(
            run, "mask_regions", mask_regions.VERSION, mask_regions.mask_regions, job.mask_regions, done
        )
    else:
        run.steps.pop("mask_regions", None)
    document_stage(
        run,
        "interleave",
        interleave.VERSION,
        interleave.interleave,
        job.interleave,
        done,
        job.interleave.max_drop_frac,
    )
    _tokenize(run, job, tokenizer)


def _check_output(run: RunState, job: PrepareJob) -> None:
    """See that no source reads what the run writes.

    Raises:
        SpecError: one would.
    """
    output = run.steps_root.removesuffix("/steps")
    for number, source in enumerate(job.sources):
        if would_read(source, shard.join(output, "report.html")):
            raise SpecError(
                f"output: {output!r} lies in {job.name}.sources.{number}, {source.path!r}, which would read "
                "what was written: choose another, or `exclude` it there"
            )


def _tokenize(run: RunState, job: PrepareJob, given: bytes | None) -> None:
    step = run.step(
        "tokenize",
        tokenize.VERSION,
        job.tokenize,
        run.id_of("interleave", "tokenize"),
        run.id_of("ingest", "tokenize"),
        *([ids.content_id(given)] if given else []),
    )
    source_path, media_path = run.path_of("interleave", "tokenize"), run.path_of("ingest", "tokenize")

    def work() -> shard.Manifest:
        partitions = partition_numbers(source_path, "documents")
        vocabulary = run.engine.run_phase(
            step,
            functools.partial(_vocabulary, job.tokenize, source_path, given),
            [len(partitions)],
            "vocabulary",
        )
        task = functools.partial(_tokenize_partition, job.tokenize, source_path, media_path, step.path)
        records = run.engine.run_phase(step, task, partitions)
        return finish(step, [*vocabulary, *records], "tokens")

    run.commit(step, work)


def _given_tokenizer(job: PrepareJob) -> bytes | None:
    if job.tokenize.tokenizer is None:
        return None
    path, where = expand(job.tokenize.tokenizer), f"{job.name}.tokenize.tokenizer"
    if not shard.exists(path):
        raise SpecError(f"{where}: there is no file {path!r}")
    try:
        with shard.open_buffer(path) as source:
            given: bytes = source.read()
        tokenize.check_tokenizer(given.decode())
    except (ShardError, OSError, ValueError) as error:
        raise SpecError(f"{where}: {path!r}: {error}") from error
    return given


def _vocabulary(spec: TokenizeSpec, source_path: str, given: bytes | None, num_partitions: int) -> Output:
    if given is not None:
        return Output(files={"tokenizer.json": given})
    texts = (
        segment["text"]
        for index in range(num_partitions)
        for batch in read_batches(source_path, "documents", index)
        for segments in batch["segments"].to_pylist()
        for segment in segments
        if segment["kind"] == "text"
    )
    return Output(files={"tokenizer.json": tokenize.train_tokenizer(texts, spec).encode()})


def _tokenize_partition(
    spec: TokenizeSpec, source_path: str, media_path: str, step_path: str, index: int
) -> Output:
    with shard.open_buffer(shard.join(step_path, "tokenizer.json")) as source:
        tokenizer = source.read().decode()
    media = shard.read_table(shard.join(media_path, shard.shard_name("media", index)))
    batches = [
        tokenize.tokenize(batch, media, tokenizer, spec)
        for batch in read_batches(source_path, "documents", index)
    ]
    table = pa.Table.from_batches(batches, schema=tokens.SCHEMA)
    return Output({"tokens": table}, rows_in=table.num_rows, metrics=_count_tokens(table))


def _count_tokens(table: pa.Table) -> dict[str, int]:
    counts: Counter[str] = Counter({"tokens": pc.sum(table["num_tokens"]).as_py() or 0})
    for spans in table["spans"].to_pylist():
        for span in spans:
            length = span["end"] - span["start"]
            counts[f"tokens_{span['kind']}"] += length
            counts["tokens_trained"] += length if span["loss_weight"] > 0 else 0
            if span["reason"]:
                counts[f"tokens_masked_{span['reason']}"] += length
    counts["images"] = pc.sum(pc.list_value_length(table["images"])).as_py() or 0
    return dict(sorted(counts.items()))
