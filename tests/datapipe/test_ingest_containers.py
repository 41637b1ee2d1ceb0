"""Ingest of containers: any cut into partitions gives the same rows, a broken file gives what came before."""

import dataclasses
import functools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from datapipe.guard import Guard, Unguarded
from datapipe.sources import files, responses, survey
from datapipe.spec import IngestSpec, SourceSpec
from datapipe.stages import ingest
from schemas import ids
from tests import make
from tests.datapipe import guarded
from tests.datapipe.make_warc import PAGE, gzipped, http, page, picture, record

SPEC = IngestSpec()


@pytest.fixture(scope="module")
def guard() -> Iterator[Guard]:
    with Guard(30, 1 << 30) as made:
        yield made


def cut_to(size: int, max_bytes: int = SPEC.bytes_per_partition) -> IngestSpec:
    return IngestSpec(documents_per_partition=size, bytes_per_partition=max_bytes)


def run(
    root: Path,
    size: int,
    guard: Guard | Unguarded,
    max_bytes: int = SPEC.bytes_per_partition,
    **fields: Any,
) -> list[ingest.Ingested]:
    """Ingest a folder in partitions of a size, as a job does."""
    source = SourceSpec(path=str(root), collection="test", **fields)
    listing = files.list_source(source)
    looked = survey.survey(source, listing.documents, SPEC, guard)
    alone = survey.with_standalone(listing, {name for one in looked for name in one.links})
    found = {one.uri: one for one in looked}
    listed = alone if source.standalone_media else list(listing.documents)
    tables = []
    sizes = {file.uri: file.size_bytes for file, _ in listing.fates}
    for part in survey.partitions(listed, found, cut_to(size, max_bytes), sizes):
        part = [dataclasses.replace(f, index=found[f.uri].index if f.uri in found else None) for f in part]
        load = functools.partial(files.load, source)
        tables.append(ingest.ingest(part, source, SPEC, load, guard))
        assert tables[-1].documents.num_rows <= size
    return tables


def documents(tables: list[ingest.Ingested]) -> list[dict[str, Any]]:
    return pa.concat_tables([t.documents for t in tables]).to_pylist()


def media(tables: list[ingest.Ingested]) -> dict[str, dict[str, Any]]:
    return {row["media_id"]: row for t in tables for row in t.media.to_pylist()}


def quarantine(tables: list[ingest.Ingested]) -> list[tuple[str, str]]:
    return [(row["uri"], row["error_class"]) for t in tables for row in t.quarantine.to_pylist()]


def archive(num_pages: int, seed: int = 0) -> bytes:
    """A web archive of pages with a picture each, one of them on every page."""
    logo = f"{PAGE}/logo.png"
    records = [picture(make.picture(seed=seed), logo)]
    for n in range(num_pages):
        records.append(page(f"<p>Page {n} of {seed}<img src=own.png><img src={logo}>", f"{PAGE}/{n}/"))
        records.append(picture(make.picture(16, 16, seed=100 * seed + n), f"{PAGE}/{n}/own.png"))
    return b"".join(map(gzipped, records))


def session(number: int) -> str:
    said = [
        {"role": "user", "content": f"What is in picture {number}?"},
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": f"shots/{number % 2}.png"}}]},
        {"role": "assistant", "content": f"Number {number}."},
    ]
    return json.dumps({"messages": said}) + "\n"


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make.folder(
        tmp_path_factory.mktemp("corpus"),
        {
            "a.html": "<p>First of all<img src=pictures/p.png>",
            "pictures/p.png": make.picture(seed=50),
            "b.warc.gz": archive(9, seed=1),
            "c/chats.jsonl": "".join(session(n) for n in range(7)) + "{broken\n" + session(7),
            "c/shots/0.png": make.picture(seed=60),
            "c/shots/1.png": make.picture(seed=61),
            "c/chats.jsonl.gz": gzipped("".join(session(n) for n in range(4)).encode()),
            "d.warc": archive(5, seed=2)[:-40],  # cut inside of its last record, a picture
            "e.warc.gz": b"".join(
                map(gzipped, [page("<script>x</script>"), page("<p>Good"), page("\0\1\2" * 99)])
            ),
            "f.warc.gz": gzipped(record(b"x: y", "", "warcinfo", "application/warc-fields")),
            "z.txt": "Last of all",
        },
    )


def test_any_partition_size_gives_the_same_rows_in_the_same_order(corpus: Path, guard: Guard) -> None:
    whole = run(corpus, 1000, guard)
    rows = documents(whole)
    assert len(whole) == 1
    expected = ["a.html", *(f"b.warc.gz#{PAGE}/{n}/" for n in range(9))]
    expected += [f"c/chats.jsonl#{n}" for n in (1, 2, 3, 4, 5, 6, 7, 9)]
    expected += [f"c/chats.jsonl.gz#{n}" for n in range(1, 5)]
    expected += [*(f"d.warc#{PAGE}/{n}/" for n in range(5)), f"e.warc.gz#{PAGE} #2", "z.txt"]
    assert [row["uri"] for row in rows] == expected
    assert len(media(whole)) == 1 + 10 + 2 + 5  # the last picture of the cut archive is not whole
    for size in (1, 3, 64):
        parts = run(corpus, size, guard)
        assert documents(parts) == rows
        assert media(parts) == media(whole)
        assert quarantine(parts) == quarantine(whole)
        for part in parts:
            named = {s["media_id"] for row in part.documents.to_pylist() for s in row["segments"]} - {None}
            assert named == set(part.media["media_id"].to_pylist())


def test_what_fails_in_a_container_is_told_once(corpus: Path, guard: Guard) -> None:
    assert quarantine(run(corpus, 3, guard)) == [
        ("c/chats.jsonl#8", "MalformedMarkup"),
        ("d.warc", "MalformedMarkup"),  # where it breaks
        (f"e.warc.gz#{PAGE}", "EmptyDocument"),
        (f"e.warc.gz#{PAGE} #3", "NotText"),
        ("f.warc.gz", "EmptyDocument"),  # no document in it
    ]


def test_pictures_come_from_the_archive_or_from_beside_the_file(corpus: Path, guard: Guard) -> None:
    rows = {row["uri"]: row for row in documents(run(corpus, 1000, guard))}
    shown = {
        uri: [s["media_id"] for s in row["segments"] if s["kind"] == "image"] for uri, row in rows.items()
    }
    logo = ids.content_id(make.picture(seed=1))
    assert shown[f"b.warc.gz#{PAGE}/3/"] == [ids.content_id(make.picture(16, 16, seed=103)), logo]
    assert shown["c/chats.jsonl#2"] == [ids.content_id(make.picture(seed=61))]
    assert shown[f"d.warc#{PAGE}/4/"][0] is None  # cut off


def test_the_id_of_a_document_is_that_of_its_own_content(corpus: Path, guard: Guard) -> None:
    row = next(row for row in documents(run(corpus, 64, guard)) if row["uri"].startswith("e.warc.gz"))
    assert row["doc_id"] == ids.document_id("test", f"e.warc.gz#{PAGE} #2", ids.content_id(b"<p>Good"))


def test_with_and_without_a_guard_the_rows_are_the_same(corpus: Path, guard: Guard) -> None:
    one, other = run(corpus, 4, guard), run(corpus, 4, Unguarded())
    assert [t.documents for t in one] == [t.documents for t in other]
    assert [t.media for t in one] == [t.media for t in other]
    assert [t.quarantine for t in one] == [t.quarantine for t in other]


def test_a_video_that_is_too_large_is_told_and_its_page_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(responses, "MAX_BODY_BYTES", 5000)
    video = record(http(bytes(9999), "video/mp4"), "http://a.example/v.mp4")
    shown = "<p>Words<video src=http://a.example/v.mp4></video>"
    make.folder(tmp_path, {"a.warc": page(shown * 2) + video})
    tables = run(tmp_path, 10, Unguarded())
    assert [s["media_id"] for s in documents(tables)[0]["segments"]] == [None] * 4
    assert quarantine(tables) == [("a.warc#http://a.example/v.mp4", "FileTooLarge")]


def test_screenshots_that_a_session_names_are_no_documents_of_their_own(corpus: Path, guard: Guard) -> None:
    make.folder(corpus, {"c/shots/alone.png": make.picture(seed=62)})
    found = [row["uri"] for row in documents(run(corpus, 10, guard, standalone_media=True))]
    assert [uri for uri in found if uri.endswith(".png")] == ["c/shots/alone.png"]
    (corpus / "c/shots/alone.png").unlink()


@pytest.mark.parametrize("size", [1, 2, 10])
def test_a_crash_on_a_document_of_a_container_costs_that_document(
    tmp_path: Path, guard: Guard, size: int
) -> None:
    pages = [page(f"<p>Page {n} {'SEGFAULT' * (n in (1, 2))}", f"{PAGE}/{n}") for n in range(5)]
    make.folder(tmp_path, {"a.warc": b"".join(pages)})

    class Faulty(Unguarded):
        def each(self, *arguments: Any, **more: Any) -> list[Any]:
            return guard.each(*arguments, **more)

        def collect(self, function: Any, *arguments: Any, first_limit_s: float | None = None) -> list[Any]:
            return guard.collect(guarded.faulty_stream, function, *arguments, first_limit_s=first_limit_s)

    tables = run(tmp_path, size, Faulty())
    assert [row["uri"] for row in documents(tables)] == [f"a.warc#{PAGE}/{n}" for n in (0, 3, 4)]
    assert quarantine(tables) == [(f"a.warc#{PAGE}/{n}", "DecoderCrashed") for n in (1, 2)]


@given(counts=st.lists(st.none() | st.integers(0, 20), max_size=8), size=st.integers(1, 9))
def test_partitions_hold_every_document_once_in_order(counts: list[int | None], size: int) -> None:
    listed = [files.SourceFile(f"{n}", 1, "", "warc") for n in range(len(counts))]
    surveyed = {f"{n}": survey.Surveyed(f"{n}", count) for n, count in enumerate(counts)}
    cut = survey.partitions(listed, surveyed, cut_to(size))
    taken: list[tuple[str, int]] = []
    for part in cut:
        lengths = []
        for file in part:
            start, stop = file.members or (0, 1)
            num_members = surveyed[file.uri].num_members
            end = num_members if stop is None else stop
            assert end is not None
            lengths.append(end - start)
            taken += [(file.uri, number) for number in range(start, end)]
            assert (stop is None) == (file.members is not None and end == num_members)
        assert sum(lengths) <= size
    assert taken == [
        (f"{n}", m) for n, count in enumerate(counts) for m in range(1 if count is None else count)
    ]
    assert {file.uri for part in cut for file in part} == {file.uri for file in listed}


@given(
    files_of=st.lists(st.tuples(st.integers(0, 50), st.none() | st.integers(0, 20)), max_size=12),
    size=st.integers(1, 9),
    max_bytes=st.integers(1, 60),
)
def test_partitions_hold_no_more_bytes_than_allowed_unless_in_one_document(
    files_of: list[tuple[int, int | None]], size: int, max_bytes: int
) -> None:
    listed = [files.SourceFile(f"{n}", num, "", "warc") for n, (num, _) in enumerate(files_of)]
    surveyed = {f"{n}": survey.Surveyed(f"{n}", count) for n, (_, count) in enumerate(files_of)}
    taken = []
    for part in survey.partitions(listed, surveyed, cut_to(size, max_bytes)):
        documents, num_bytes = 0, 0
        for file in part:
            count = surveyed[file.uri].num_members
            start, stop = file.members or (0, 1)
            end = count if stop is None else stop
            assert end is not None
            documents += end - start
            num_bytes += (end - start) * -(-file.size_bytes // max(count or 1, 1))
            taken += [(file.uri, number) for number in range(start, end)]
        assert documents <= size and (num_bytes <= max_bytes or documents == 1)
    assert taken == [
        (f"{n}", m) for n, (_, count) in enumerate(files_of) for m in range(1 if count is None else count)
    ]


def test_large_files_and_what_pages_embed_are_cut_by_bytes_and_give_the_same_rows(
    tmp_path: Path, guard: Guard
) -> None:
    pictures = {f"p{n}.png": make.picture(64, 64, seed=n) for n in range(6)}
    pages = {f"{n}.md": f"Page {n}\n\n![](p{n}.png)" for n in range(4)}
    make.folder(tmp_path, {**pictures, **pages, "z.warc": archive(6)})
    largest = max(map(len, pictures.values()))
    whole = run(tmp_path, 100, guard, standalone_media=True)
    cut = run(tmp_path, 100, guard, 2 * largest + 100, standalone_media=True)
    assert len(whole) == 1 and documents(cut) == documents(whole) and media(cut) == media(whole)
    shown = [table.documents["uri"].to_pylist() for table in cut]
    assert shown[:3] == [["0.md", "1.md"], ["2.md", "3.md"], ["p4.png", "p5.png"]]
    assert len(shown) > 4 and all("z.warc" in uri for part in shown[3:] for uri in part)


def test_a_container_that_cannot_be_gone_through_is_one_failed_document(tmp_path: Path, guard: Guard) -> None:
    make.folder(tmp_path, {"a.parquet": b"PAR1 and no more", "b.txt": "Words", "c.warc": page("<p>Page") * 3})
    tables = run(tmp_path, 2, guard)
    assert [row["uri"] for row in documents(tables)] == [
        "b.txt",
        *(f"c.warc#{PAGE}{n}" for n in ("", " #2", " #3")),
    ]
    assert quarantine(tables) == [("a.parquet", "MalformedMarkup")]
    assert [t.documents.num_rows for t in tables] == [1, 2, 1]
