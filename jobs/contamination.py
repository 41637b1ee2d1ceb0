"""The contamination step of a prepare job: benchmarks are read like a corpus, and met with the documents.

Owns how the index is made and reaches the partitions; what a hit is, the stage says.
"""

import functools

import pyarrow as pa

from datapipe.errors import SourceError
from datapipe.on_ray import Output, finish
from datapipe.sources import files as source_files
from datapipe.spec import ContaminationSpec, IngestSpec, SourceSpec
from datapipe.stages import contamination, ingest
from jobs.spec import PrepareJob
from jobs.stages import media_without_bytes, split
from jobs.state import RunState, partition_numbers, read_all, read_batches
from schemas import shard


def contamination_step(
    run: RunState,
    job: PrepareJob,
    source: str,
    benchmarks: list[tuple[SourceSpec, source_files.Listing]],
) -> str:
    """Mask what documents share with the benchmarks; `source` is the step whose documents are looked at."""
    spec = job.contamination
    assert spec is not None
    sources = [benchmark for benchmark, _ in benchmarks]
    # Where a benchmark lies does not matter: its content does.
    hashed = {
        **spec.model_dump(mode="json", exclude={"sources"}),
        "sources": [s.model_dump(mode="json", exclude={"path"}) for s in sources],
        "limits": job.ingest.model_dump(mode="json"),
    }
    inputs = (run.id_of(source, "contamination"), run.id_of("ingest", "contamination"))
    fingerprints = (listing.fingerprint for _, listing in benchmarks)
    step = run.step("contamination", contamination.VERSION, hashed, *inputs, *fingerprints)
    source_path, media_path = run.path_of(source, "contamination"), run.path_of("ingest", "contamination")

    def work() -> shard.Manifest:
        run.engine.run_phase(step, functools.partial(_index, spec, job.ingest), sources, "benchmark")
        run.engine.run_phase(step, functools.partial(_joined, step.path), [len(sources)], "index")
        task = functools.partial(_mark, spec, source_path, media_path, step.path)
        records = run.engine.run_phase(step, task, partition_numbers(source_path, "documents"))
        return finish(step, records, "documents", spec.max_drop_frac)

    run.commit(step, work)
    return "contamination"


def _index(spec: ContaminationSpec, limits: IngestSpec, source: SourceSpec) -> Output:
    """Read a benchmark.

    Raises:
        SourceError: a file cannot be read; what it holds would go unnoticed.
    """
    files = source_files.list_files(source)
    made = ingest.ingest(files, source, limits, functools.partial(source_files.load, source))
    for refused in made.quarantine.to_pylist():
        raise SourceError(
            f"contamination.sources: {source.path}: {refused['uri']}: {refused['error_class']}: "
            f"{refused['message']}; exclude it if it is no part of the benchmark"
        )
    batches = [contamination.index(batch, made.media, spec) for batch in made.documents.to_batches()]
    return Output({"benchmark": pa.Table.from_batches(batches, schema=contamination.INDEX)})


def _joined(step_path: str, num_sources: int) -> Output:
    return Output({"index": contamination.joined(read_all(step_path, "benchmark", num_sources))})


def _mark(spec: ContaminationSpec, source_path: str, media_path: str, step_path: str, index: int) -> Output:
    known = shard.read_table(shard.join(step_path, shard.shard_name("index", 0)))
    media = media_without_bytes(media_path, index)
    return split(
        [
            contamination.mark(batch, media, known, spec)
            for batch in read_batches(source_path, "documents", index)
        ]
    )
