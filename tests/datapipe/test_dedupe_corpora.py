"""Duplicates in real manuals: a translation that hardly is one, a book in 26 languages, one in three formats.

What is duplicate is told by exact similarity and by the names of the files.
"""

import functools
from collections import Counter
from pathlib import PurePath
from typing import Any

import pyarrow as pa
import pytest

from datapipe.sources import files as source_files
from datapipe.spec import DedupeTextSpec, IngestSpec, SourceSpec
from datapipe.stages import dedupe_text, ingest
from jobs.fetch import fetch
from schemas import document
from tests.datapipe.test_dedupe_text import clusters_of, similarity

pytestmark = pytest.mark.slow

SPEC = DedupeTextSpec()
FILES_AT_A_TIME = 64

Row = dict[str, Any]


def read(package: str, *include: str) -> list[Row]:
    """The documents of a Debian package; their collection is its name."""
    source = SourceSpec(path=str(fetch(f"debian:{package}")[0]), collection=package, include=include)
    files = source_files.list_source(source).documents
    tables = [
        ingest.ingest(
            files[start : start + FILES_AT_A_TIME],
            source,
            IngestSpec(),
            functools.partial(source_files.load, source),
        ).documents
        for start in range(0, len(files), FILES_AT_A_TIME)
    ]
    return pa.concat_tables(tables).to_pylist()


def marked(rows: list[Row]) -> list[Row]:
    batch = pa.RecordBatch.from_pylist(rows, schema=document.SCHEMA)
    return dedupe_text.mark(batch, clusters_of(batch, SPEC, batch_rows=256)).to_pylist()


def name(row: Row) -> str:
    return PurePath(row["uri"]).name


def text(row: Row) -> str:
    """What is left of the text under the masks that drop."""
    texts = [segment["text"] or "" for segment in row["segments"]]
    for mask in row["masks"]:
        if mask["action"] == "drop" and mask["box"] is None:
            whole = texts[mask["segment"]]
            start, end = mask["start"] or 0, len(whole) if mask["end"] is None else mask["end"]
            texts[mask["segment"]] = whole[:start] + "\n" * (end - start) + whole[end:]
    return "\n".join(texts).casefold()


def test_a_translation_that_is_english_is_found_page_by_page() -> None:
    """gimp-help-zh-cn holds the pictures of gimp-help-en and, for the most part, its English text."""
    rows = marked([*read("gimp-help-en", "**/*.html"), *read("gimp-help-zh-cn", "**/*.html")])
    pages: dict[str, list[Row]] = {}
    for row in rows:
        pages.setdefault(name(row), []).append(row)
    twins = [pair for pair in pages.values() if len(pair) == 2]
    assert len(twins) > 650
    found = [a["cluster_id"] is not None and a["cluster_id"] == b["cluster_id"] for a, b in twins]
    missed = [
        name(a)
        for (a, b), is_found in zip(twins, found, strict=True)
        if not is_found and similarity(text(a), text(b)) >= SPEC.min_similarity
    ]
    assert missed == []
    assert sum(found) > 0.8 * len(twins)
    by_cluster: dict[str, set[str]] = {}
    for row in rows:
        by_cluster.setdefault(row["cluster_id"] or row["doc_id"], set()).add(name(row))
    assert max(len(names) for names in by_cluster.values()) == 1  # no page leaves for another page


def test_languages_of_a_book_merge_where_they_are_not_translated() -> None:
    """debian-handbook is in 26 languages; what is not translated yet stands there in English."""
    rows = marked(read("debian-handbook", "**/*.html"))
    by_id = {row["doc_id"]: row for row in rows}
    left = [row for row in rows if row["drop_reason"]]
    assert len(left) > 900
    assert all(name(row) == name(by_id[row["cluster_id"]]) for row in left)
    sample = left[:: len(left) // 60]
    assert all(
        similarity(text(row), text(by_id[row["cluster_id"]])) >= SPEC.min_text_similarity for row in sample
    )


def test_a_manual_in_three_formats_is_one_document_and_its_next_edition_another() -> None:
    """debian-edu-doc-en holds two editions, each as HTML, PDF and EPUB, each file twice."""
    rows = marked(read("debian-edu-doc-en", "**/*.html", "**/*.pdf", "**/*.epub"))
    manuals = [row for row in rows if name(row).endswith(("-manual.html", "-manual.pdf", "-manual.epub"))]
    manuals = [row for row in manuals if name(row).startswith(("debian-edu-bullseye", "debian-edu-bookworm"))]
    editions = Counter((name(row).split("-")[2], row["cluster_id"]) for row in manuals)
    assert sorted(editions.values()) == [6, 6] and len({edition for edition, _ in editions}) == 2
    assert sum(row["drop_reason"] is None for row in manuals) == 2
