"""What only a look into the files tells before they are ingested: how many documents a container holds, and
which files other files embed.

Owns the guarded look itself, and what follows from it: the pictures and videos that stand alone, and the cut
into partitions. Runs once over a source, in parts, on any number of workers; its result does not depend on
the parts.
"""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

from datapipe import guard as guards
from datapipe.guard import Failure, Guard, Unguarded
from datapipe.sources import containers, formats
from datapipe.sources.containers import Container
from datapipe.sources.files import Listing, SourceFile, load, place, read
from datapipe.sources.items import is_remote, resolve
from datapipe.spec import IngestSpec, SourceSpec

_EMBEDDING = formats.DOCUMENTS - {"text", "pdf", "epub"}  # those hold what they show, or show nothing


@dataclasses.dataclass(frozen=True)
class Surveyed:
    """What was found in a file."""

    uri: str
    num_members: int | None = None  # documents of a container; None for other files
    index: bytes | None = None  # to reach them
    failure: Failure | None = None  # why a container cannot be gone through
    links: list[str] = dataclasses.field(default_factory=list)  # paths from the source's root


def survey(
    source: SourceSpec, files: Sequence[SourceFile], spec: IngestSpec, guard: Guard | Unguarded | None = None
) -> list[Surveyed]:
    """Look into files; into pages only where it matters what they embed (`standalone_media`).

    A page that cannot be read has no links: `ingest` reads it again and reports it.
    """
    guard = guard or guards.shared(spec.time_limit_s, spec.memory_limit_bytes)
    found = {file.uri: Surveyed(file.uri) for file in files}
    for file in files:
        if file.format in formats.CONTAINERS and file.failure is None:
            found[file.uri] = _survey_container(source, file, spec, guard)
    if source.standalone_media:
        pages = [file for file in files if file.format in _EMBEDDING and file.failure is None]
        for uri, names in zip((f.uri for f in pages), _page_links(source, pages, spec, guard), strict=True):
            found[uri] = dataclasses.replace(found[uri], links=names)
    return [found[file.uri] for file in files]


def links(source: SourceSpec, files: Sequence[SourceFile]) -> set[str]:
    """Return every file that files of a source embed."""
    looked = survey(source, files, IngestSpec())
    return {name for one in looked for name in one.links}


def with_standalone(listing: Listing, embedded: set[str]) -> list[SourceFile]:
    """Return documents, and pictures and videos that are not embedded, sorted by path."""
    alone = [file for file in listing.media if file.uri not in embedded]
    return sorted([*listing.documents, *alone], key=lambda file: file.uri)


def partitions(
    files: Iterable[SourceFile],
    surveyed: Mapping[str, Surveyed],
    spec: IngestSpec,
    sizes: Mapping[str, int] | None = None,
) -> list[list[SourceFile]]:
    """Cut files, sorted by path, into lists of at most `documents_per_partition` and `bytes_per_partition`,
    in order; a document that is larger has a list of its own.

    A container is cut into ranges of its documents. Its last range is open, so that where it breaks, exactly
    one range meets the break. One without documents counts as none, and has a range that says so. One that
    cannot be gone through counts as a document, a failed one.

    A document counts with its file, one of a container with the average there, and with the files it is known
    to embed. What a page embeds is known only where the survey looks into pages (`standalone_media`), and
    packed containers count as packed: reading every page twice costs more than what the limit is to save.

    Args:
        surveyed: what was found in the files, by path.
        sizes: the bytes of all files of the source, by path.
    """
    cut: list[list[SourceFile]] = []
    room, room_bytes = 0, 0
    for file in files:
        found = surveyed.get(file.uri, Surveyed(file.uri))
        failure = file.failure or found.failure
        is_whole = found.num_members is None or failure is not None
        num_documents = 1 if is_whole or found.num_members is None else found.num_members
        embedded_bytes = sum((sizes or {}).get(name, 0) for name in found.links)
        each_bytes = -(-(file.size_bytes + embedded_bytes) // max(num_documents, 1))
        start = 0
        while start < num_documents or start == 0:
            is_empty = room == spec.documents_per_partition
            if room == 0 or (num_documents and each_bytes > room_bytes and not is_empty):
                cut.append([])
                room, room_bytes = spec.documents_per_partition, spec.bytes_per_partition
            fitting = max(1, room_bytes // max(each_bytes, 1))
            stop = min(num_documents, start + min(room, fitting))
            members = None if is_whole else (start, stop if stop < num_documents else None)
            cut[-1].append(dataclasses.replace(file, members=members, failure=failure))
            room, room_bytes = room - (stop - start), room_bytes - each_bytes * (stop - start)
            if stop == num_documents:
                break
            start = stop
    return cut


def container(source: SourceSpec, file: SourceFile) -> Container:
    """Return how to open a container.

    Raises:
        SourceError: its path leads out of the source.
    """
    fs, path = place(source, file.uri)
    return Container(fs, path, file.uri, file.content_id, file.format, file.index)


def time_limit_s(file: SourceFile, spec: IngestSpec) -> float:
    """Return how long going through a whole container may take."""
    return guards.limit_s(spec.time_limit_s, file.size_bytes)


def _survey_container(
    source: SourceSpec, file: SourceFile, spec: IngestSpec, guard: Guard | Unguarded
) -> Surveyed:
    given, limit_s = container(source, file), time_limit_s(file, spec)
    (counted,) = guard.each(containers.survey, [(given,)], limit_s)
    if isinstance(counted, Failure):
        return Surveyed(file.uri, failure=counted)
    names: list[str] = []
    if source.standalone_media:
        (named,) = guard.each(containers.links, [(given, spec.max_file_bytes)], limit_s)
        names = _from_root(file.uri, [] if isinstance(named, Failure) else named)
    num_members, index = counted
    return Surveyed(file.uri, num_members, index, links=names)


def _from_root(uri: str, names: Iterable[str]) -> list[str]:
    """Return the names of files that lie beside a container, as paths from the root of the source."""
    resolved = (resolve(uri, name) for name in names if not is_remote(name))
    return [name for name in resolved if name]


def _page_links(
    source: SourceSpec, pages: Sequence[SourceFile], spec: IngestSpec, guard: Guard | Unguarded
) -> list[list[str]]:
    def given() -> Iterable[tuple[bytes, str, str, int]]:
        for page in pages:
            try:
                data = load(source, page.uri, spec.max_file_bytes)
            except Exception:  # the border of one bad file: `ingest` reports it
                data = b""
            yield data, page.uri, page.format, spec.max_file_bytes

    found = guard.each(_hrefs, given())
    return [[] if isinstance(names, Failure) else names for names in found]


def _hrefs(data: bytes, uri: str, format: str, max_bytes: int) -> list[str]:
    """Return the files a page embeds."""
    return sorted({item.href for item in read(data, uri, format, max_bytes).items if item.href})
