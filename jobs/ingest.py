"""The ingest step of a prepare job: survey, cut into partitions, ingest.

Owns how the files of all sources become tasks; what is in a file, `datapipe.sources.survey` says, and what is
made of it, `datapipe.stages.ingest`.
"""

import dataclasses
import functools
from collections import Counter
from typing import Any

import pyarrow as pa

from datapipe.errors import SourceError
from datapipe.guard import Failure
from datapipe.on_ray import Output, Step, finish
from datapipe.sources import files as source_files
from datapipe.sources import formats, survey
from datapipe.spec import IngestSpec, SourceSpec
from datapipe.stages import ingest
from jobs.errors import JobError, SpecError
from jobs.spec import PrepareJob
from jobs.state import RunState
from schemas import files as files_table
from schemas import shard

_SURVEY = pa.schema(
    [
        pa.field("uri", pa.string(), nullable=False),
        pa.field("num_members", pa.int64()),  # documents of a container
        pa.field("index", pa.large_binary()),  # to reach them
        pa.field("error_class", pa.string()),  # why a container cannot be gone through
        pa.field("message", pa.string()),
        pa.field("links", pa.list_(pa.string()), nullable=False),  # files it embeds
    ]
)


@dataclasses.dataclass(frozen=True)
class _Part:
    """Files of one source that a task works on; and of its containers, which shard holds the index."""

    source: SourceSpec
    files: list[source_files.SourceFile]
    shards: dict[str, str] = dataclasses.field(default_factory=dict)  # by uri


def ingest_step(run: RunState, job: PrepareJob) -> None:
    listed = [list_source(f"{job.name}.sources.{n}", source) for n, source in enumerate(job.sources)]
    # Where a corpus lies does not change what is made of it: its content does.
    hashed = {
        "limits": job.ingest.model_dump(mode="json"),
        "sources": [source.model_dump(mode="json", exclude={"path"}) for source, _ in listed],
    }
    step = run.step("ingest", ingest.VERSION, hashed, *(listing.fingerprint for _, listing in listed))

    def work() -> shard.Manifest:
        told = run.engine.run_phase(step, _table_of_files, listed, "files")
        parts = _partitions(run, job.ingest, step, listed)
        task = functools.partial(_ingest_partition, job.ingest, step.path)
        records = run.engine.run_phase(step, task, parts)
        if not any(_num_documents(record) for record in records):
            raise JobError(
                f"none of the {sum(len(part.files) for part in parts)} files could be read; the reasons "
                f"stand in {shard.join(step.path, 'quarantine-*.arrow')}"
            )
        return finish(step, [*records, *told], "documents")

    run.commit(step, work)


def list_source(where: str, source: SourceSpec) -> tuple[SourceSpec, source_files.Listing]:
    """Return a source with its collection named, and what it holds.

    Raises:
        SpecError: it cannot be listed; the message begins with `where`, its place in the spec.
    """
    try:
        named = source.model_copy(update={"collection": source_files.collection(source)})
        return named, source_files.list_source(named)
    except SourceError as error:
        raise SpecError(f"{where}.{error}") from error


def _num_documents(record: dict[str, Any]) -> int:
    return sum(file["num_rows"] for file in record["files"] if shard.table_of(file["name"]) == "documents")


def _table_of_files(listed: tuple[SourceSpec, source_files.Listing]) -> Output:
    """Return what became of every file of a source."""
    source, listing = listed
    rows = [
        {
            "collection": source.collection,
            "uri": file.uri,
            "size_bytes": file.size_bytes,
            "content_id": file.content_id or None,
            "format": file.format,
            "fate": fate,
        }
        for file, fate in listing.fates
    ]
    metrics = {f"files_{fate}": count for fate, count in listing.counts.items()}
    return Output({"files": pa.Table.from_pylist(rows, schema=files_table.SCHEMA)}, metrics=metrics)


def _partitions(
    run: RunState, spec: IngestSpec, step: Step, listed: list[tuple[SourceSpec, source_files.Listing]]
) -> list[_Part]:
    """Look into the files where the cut depends on what is in them, and cut."""
    looked_into = [
        (number, part)
        for number, (source, listing) in enumerate(listed)
        for part in _to_survey(source, listing, spec.documents_per_partition)
    ]
    run.engine.run_phase(
        step, functools.partial(_survey_part, spec), [part for _, part in looked_into], "survey"
    )
    surveyed: list[dict[str, survey.Surveyed]] = [{} for _ in listed]
    shards: list[dict[str, str]] = [{} for _ in listed]
    columns = [name for name in _SURVEY.names if name != "index"]
    for index, (number, _) in enumerate(looked_into):
        name = shard.shard_name("survey", index)
        for row in shard.read_table(shard.join(step.path, name), columns).to_pylist():
            surveyed[number][row["uri"]] = _surveyed(row)
            shards[number][row["uri"]] = name
    parts = []
    for number, (source, listing) in enumerate(listed):
        files = list(listing.documents)
        if source.standalone_media:
            files = survey.with_standalone(listing, {n for f in surveyed[number].values() for n in f.links})
        sizes = {file.uri: file.size_bytes for file, _ in listing.fates}
        for cut in survey.partitions(files, surveyed[number], spec, sizes):
            used = {file.uri: shards[number][file.uri] for file in cut if file.members is not None}
            parts.append(_Part(source, cut, used))
    return parts


def _surveyed(row: dict[str, Any]) -> survey.Surveyed:
    failure = None if row["error_class"] is None else Failure(row["error_class"], row["message"])
    return survey.Surveyed(row["uri"], row["num_members"], None, failure, row["links"])


def _to_survey(source: SourceSpec, listing: source_files.Listing, size: int) -> list[_Part]:
    """Return the files to look into, in parts: each container alone, and pages if what they embed matters."""
    is_container = [file.format in formats.CONTAINERS for file in listing.documents]
    containers = [f for f, is_one in zip(listing.documents, is_container, strict=True) if is_one]
    pages = [f for f, is_one in zip(listing.documents, is_container, strict=True) if not is_one]
    if not source.standalone_media:
        pages = []
    groups = [*([file] for file in containers), *(pages[i : i + size] for i in range(0, len(pages), size))]
    return [_Part(source, group) for group in groups]


def _survey_part(spec: IngestSpec, part: _Part) -> Output:
    rows = [
        {
            "uri": found.uri,
            "num_members": found.num_members,
            "index": found.index,
            "error_class": found.failure.error_class if found.failure is not None else None,
            "message": found.failure.message if found.failure is not None else None,
            "links": found.links,
        }
        for found in survey.survey(part.source, part.files, spec)
    ]
    return Output({"survey": pa.Table.from_pylist(rows, schema=_SURVEY)})


def _ingest_partition(spec: IngestSpec, step_path: str, part: _Part) -> Output:
    load = functools.partial(source_files.load, part.source, max_bytes=spec.max_file_bytes)
    files = [
        dataclasses.replace(file, index=_index(step_path, part.shards[file.uri], file.uri))
        if file.uri in part.shards
        else file
        for file in part.files
    ]
    made = ingest.ingest(files, part.source, spec, load)
    reasons = Counter(made.quarantine["error_class"].to_pylist())
    kinds = Counter(made.media["kind"].to_pylist())
    unusable = made.media.num_rows - made.media["error"].null_count
    return Output(
        {"documents": made.documents, "media": made.media, "quarantine": made.quarantine},
        rows_in=made.documents.num_rows + made.quarantine.num_rows,
        dropped={f"quarantine:{name}": n for name, n in sorted(reasons.items())},
        metrics={f"media_{kind}": n for kind, n in sorted(kinds.items())} | {"media_unusable": unusable},
    )


def _index(step_path: str, name: str, uri: str) -> bytes | None:
    table = shard.read_table(shard.join(step_path, name), ["uri", "index"])
    return table["index"][table["uri"].to_pylist().index(uri)].as_py()
