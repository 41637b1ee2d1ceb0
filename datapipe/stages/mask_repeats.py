"""Mask repeats: what a site shows on all its pages, paragraphs that come again, sentences from a template.

Owns three reasons, found by counting documents, and which occurrence stays:

- `boilerplate`: navigation, banners and footers. Two neighbouring lines (or the start or end of a document
  and the line at it) that stand so in many documents of a site, numbers and dates aside, and are reached from
  the start or the end without crossing the document's content. They leave every document. A heading is never
  masked, nor is a word such as "Note" that stands in many places, but never in the same company.
- `duplicate_paragraph`: a long paragraph of the same words as another one, in any document. All but one keep
  their place as context and train nothing, so that each text trains once and no flow is broken.
- `template_text`: a sentence that stands in many documents of a site, with other numbers, dates or names. One
  trains. Of the others the words between the names train nothing, for the names are what they say; where
  another document says the same with the same names, nothing of it trains.

The occurrence that trains is that of the smallest doc_id, which comes from content, among those that no
other mask covers, boilerplate included; neither the order of documents nor their split into partitions
changes the result. A paragraph that is boilerplate in part is a paragraph like others.

Looked at are paragraphs, list items and notes; for boilerplate also tables and alternative texts. Captions,
code and transcripts are content and end a run of boilerplate. Agent sessions are not looked at: their prompts
and results have a policy in `mask_text`. What another stage's mask drops is as if it were not there.

Parts: `counts` of lines and sites (map; sums by `merged`), `large_sites` (reduce), `repeated` (reduce of a
bucket of keys, see `in_buckets`), `text_counts` of what trains (map; needs the repeated lines), `repeated`
once more, `mark` (map). Memory is that of one bucket's keys, some 500 bytes each; of a map that of the
repeated keys it is given, some 100 bytes each.
"""

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from datapipe.spec import MaskRepeatsSpec
from datapipe.stages.page_text import Line, Page, Passage, page
from datapipe.stages.quality_rules import SESSION_ROLES
from schemas import document

VERSION = "2"
DETECTOR = "repeats"

MAX_GAP_LINES = 2  # short lines of a page's own between boilerplate: its title, those of its neighbours

COUNTS = pa.schema(
    [
        pa.field("kind", pa.string(), nullable=False),  # site, lines, text, template
        pa.field("key", pa.uint64(), nullable=False),
        pa.field("site", pa.uint64(), nullable=False),  # the site or folder the key is of; 0 for texts
        pa.field("num_documents", pa.int64(), nullable=False),
        pa.field("first_doc_id", pa.string(), nullable=False),  # empty for sites and lines
    ]
)
SITES = pa.schema(
    [
        pa.field("site", pa.uint64(), nullable=False),
        pa.field("num_documents", pa.int64(), nullable=False),
    ]
)
REPEATED = pa.schema(
    [
        pa.field("key", pa.uint64(), nullable=False),
        pa.field("num_documents", pa.int64(), nullable=False),
        pa.field("first_doc_id", pa.string(), nullable=False),
    ]
)

Mask = dict[str, Any]
Place = tuple[int, int, int]  # segment, start, end


def counts(batch: pa.RecordBatch, spec: MaskRepeatsSpec) -> pa.Table:
    """Return the number of documents of each key of lines of a batch, and of each site (`COUNTS`)."""
    found: list[tuple[str, int, int, str]] = []
    for here in _pages(batch, spec):
        found += {("site", site, site, "") for site in here.sites}
        found += {("lines", key, site, "") for _, site, key in here.neighbours()}
    return _counted(found)


def text_counts(batch: pa.RecordBatch, repeated: pa.Table, spec: MaskRepeatsSpec) -> pa.Table:
    """Return the number of documents of each text and template of a batch that no mask covers (`COUNTS`).

    Args:
        repeated: the keys of lines that are (`REPEATED`), those of the batch at least.
    """
    found: list[tuple[str, int, int, str]] = []
    pages = list(_pages(batch, spec))
    first = _first(pages, repeated)
    for here in pages:
        doc_id, taken = here.row["doc_id"], [*_boilerplate(here, first), *_masked(here)]
        keys: set[tuple[str, int, int, str]] = set()
        for passage in here.passages:
            if not _is_in(passage, taken):
                keys.add(("text", passage.text, 0, doc_id))
                templates = zip(passage.templates, here.sites, strict=False)
                keys |= {("template", key, site, doc_id) for key, site in templates}
        found += keys
    return _counted(found)


def _counted(found: list[tuple[str, int, int, str]]) -> pa.Table:
    columns = list(zip(*found, strict=True)) or [(), (), (), ()]
    columns.insert(COUNTS.get_field_index("num_documents"), (1,) * len(found))
    arrays = [pa.array(column, field.type) for column, field in zip(columns, COUNTS, strict=True)]
    return merged(pa.table(arrays, schema=COUNTS))


def merged(counts: pa.Table) -> pa.Table:
    """Return counts of different documents as one, ordered by key."""
    table = counts.group_by(["kind", "key", "site"]).aggregate(
        [("num_documents", "sum"), ("first_doc_id", "min")]
    )
    table = table.rename_columns({"num_documents_sum": "num_documents", "first_doc_id_min": "first_doc_id"})
    order = [("key", "ascending"), ("kind", "ascending"), ("site", "ascending")]
    return table.select(COUNTS.names).cast(COUNTS).sort_by(order)


def large_sites(counts: pa.Table, spec: MaskRepeatsSpec) -> pa.Table:
    """Return the sites and folders that have documents enough for boilerplate and templates (`SITES`)."""
    counts = merged(counts.filter(pc.equal(counts["kind"], "site")))
    counts = counts.filter(pc.greater_equal(counts["num_documents"], spec.min_documents))
    return pa.table([counts["site"], counts["num_documents"]], schema=SITES)


def in_buckets(counts: pa.Table, num_buckets: int) -> list[pa.RecordBatch]:
    """Return counts, without those of sites, as one batch for each bucket of keys."""
    rows = counts.filter(pc.not_equal(counts["kind"], "site")).combine_chunks()
    buckets = rows["key"].to_numpy() % num_buckets
    order = np.argsort(buckets, kind="stable")
    offsets = np.searchsorted(buckets[order], np.arange(num_buckets + 1)).tolist()
    rows = rows.take(pa.array(order))
    whole = pa.record_batch([rows[name].combine_chunks() for name in COUNTS.names], schema=COUNTS)
    return [whole.slice(start, end - start) for start, end in itertools.pairwise(offsets)]


def repeated(counts: pa.Table, sites: pa.Table, spec: MaskRepeatsSpec) -> pa.Table:
    """Return the keys that are repeated often enough (`REPEATED`); all rows of a key must be in `counts`.

    A text is repeated from two documents on, lines and templates by the spec's limits.
    """
    table = merged(counts)
    place = pc.index_in(table["site"], value_set=sites["site"])  # null for small sites
    of_site = pc.cast(pc.take(sites["num_documents"], place), pa.float64())
    num_documents = pc.cast(table["num_documents"], pa.float64())
    is_common = pc.and_(pc.equal(table["kind"], "text"), pc.greater(num_documents, 1))
    for kind, frac in (("lines", spec.min_boilerplate_frac), ("template", spec.min_template_frac)):
        is_of_many = pc.and_(
            pc.greater_equal(num_documents, spec.min_documents),
            pc.fill_null(pc.greater_equal(num_documents, pc.multiply(of_site, frac)), False),
        )
        is_common = pc.or_(is_common, pc.and_(pc.equal(table["kind"], kind), is_of_many))
    return table.filter(is_common).select(REPEATED.names).cast(REPEATED)


def mark(batch: pa.RecordBatch, repeated: pa.Table, spec: MaskRepeatsSpec) -> pa.RecordBatch:
    """Return the documents with masks on what is repeated and not masked to the same effect yet."""
    pages = list(_pages(batch, spec))
    first = _first(pages, repeated)
    found = {here.row["doc_id"]: _masks(here, first, spec) for here in pages}
    column = [
        masks + found.get(doc_id, [])
        for doc_id, masks in zip(batch["doc_id"].to_pylist(), batch["masks"].to_pylist(), strict=True)
    ]
    index, field = document.SCHEMA.get_field_index("masks"), document.SCHEMA.field("masks")
    return batch.set_column(index, field, pa.array(column, type=field.type))


# ---- one document


def _pages(batch: pa.RecordBatch, spec: MaskRepeatsSpec) -> Iterator[Page]:
    """Yield the documents that are looked at."""
    for row in batch.select(["doc_id", "uri", "collection", "lang", "segments", "masks"]).to_pylist():
        if not any(segment["role"] in SESSION_ROLES for segment in row["segments"]):
            yield page(row, _dropped(row["masks"]), spec.min_paragraph_words)


def _first(pages: Sequence[Page], repeated: pa.Table) -> dict[int, str]:
    """Return the repeated keys of these documents, and of texts the doc_id that trains each."""
    keys = {key for here in pages for _, _, key in here.neighbours()}
    keys |= {key for here in pages for passage in here.passages for key in passage.keys}
    mine = repeated.filter(pc.is_in(repeated["key"], value_set=pa.array(keys, pa.uint64())))
    return dict(zip(mine["key"].to_pylist(), mine["first_doc_id"].to_pylist(), strict=True))


def _dropped(masks: Sequence[Mask]) -> frozenset[int]:
    """Return the segments that a mask of another stage drops as a whole."""
    return frozenset(
        mask["segment"]
        for mask in masks
        if mask["action"] == "drop"
        and mask["start"] is mask["end"] is mask["box"] is None
        and mask["detector"] != DETECTOR
    )


def _masks(here: Page, first: dict[int, str], spec: MaskRepeatsSpec) -> list[Mask]:
    """Return the new masks of a document; `first` has the repeated keys and the doc_id that trains each."""
    gone, masked, seen = list(_boilerplate(here, first)), _masked(here), set[int]()
    masks = [_mask(here, place, "boilerplate", spec.boilerplate_action) for place in gone]
    for passage in here.passages:
        if not _is_in(passage, gone):
            masks += _masks_on(passage, here, first, seen, spec)
            if not _is_in(passage, masked):
                seen.add(passage.text)
    masks.sort(key=lambda mask: (mask["segment"], mask["start"] or 0))
    return [mask for mask in masks if not any(_covers(old, mask, here) for old in here.row["masks"])]


def _masks_on(
    passage: Passage, here: Page, first: dict[int, str], seen: set[int], spec: MaskRepeatsSpec
) -> list[Mask]:
    """Return the masks of a passage; `seen` are the texts of its document that train so far."""
    doc_id = here.row["doc_id"]
    is_copy = passage.text in seen or first.get(passage.text, doc_id) != doc_id
    whole = (passage.start, passage.end)
    if passage.is_long and is_copy:
        return [_mask(here, (passage.segment, *whole), "duplicate_paragraph", spec.paragraph_action)]
    if not any(first.get(key, doc_id) != doc_id for key in passage.templates):
        return []
    places = (whole,) if is_copy or spec.template_action == "drop" else passage.fixed
    return [_mask(here, (passage.segment, *place), "template_text", spec.template_action) for place in places]


def _masked(here: Page) -> list[Place]:
    """Return what the masks of other stages cover, whatever they do there."""
    lengths = [len(segment["text"] or "") for segment in here.row["segments"]]
    return [
        (number, mask["start"] or 0, lengths[number] if mask["end"] is None else mask["end"])
        for mask in here.row["masks"]
        if mask["box"] is None and mask["detector"] != DETECTOR
        for number in [mask["segment"]]
    ]


def _is_in(passage: Passage, places: Sequence[Place]) -> bool:
    """Return whether one of some places covers a whole passage."""
    return any(
        segment == passage.segment and start <= passage.start and passage.end <= end
        for segment, start, end in places
    )


def _boilerplate(here: Page, first: dict[int, str]) -> Iterator[Place]:
    """Yield the places of lines that are boilerplate, neighbours of one segment as one."""
    lines = here.lines
    pairs = [number for number, _, key in here.neighbours() if key in first]
    common = frozenset(line for number in pairs for line in (number - 1, number))
    ways = (range(len(lines)), range(len(lines) - 1, -1, -1))
    chosen = sorted({number for way in ways for number in _run(lines, common, way)})
    while chosen:
        size = 1
        while chosen[size:] and _goes_on(chosen[size - 1], chosen[size], lines):
            size += 1
        yield _with_line_end(lines[chosen[0]], lines[chosen[size - 1]], here)
        chosen = chosen[size:]


def _run(lines: Sequence[Line], common: frozenset[int], way: range) -> Iterator[int]:
    """Yield the lines of boilerplate from an edge on, up to the first content."""
    gap = 0
    for number in way:
        line = lines[number]
        if number in common and line.text is not None:
            gap = 0
            if not line.is_heading:
                yield number
        elif line.text is None or not line.is_short or gap == MAX_GAP_LINES:
            return
        else:
            gap += 1


def _goes_on(number: int, following: int, lines: Sequence[Line]) -> bool:
    return following == number + 1 and lines[following].segment == lines[number].segment


def _with_line_end(first: Line, last: Line, here: Page) -> Place:
    """Return the place of some lines with the line end behind them, or that before them at a text's end."""
    text = here.row["segments"][first.segment]["text"]
    end = len(text) if not text[last.end :].strip() else last.end + 1
    start = 0 if not text[: first.start].strip() else first.start - (end == len(text))
    return first.segment, start, end


# ---- masks


def _mask(here: Page, place: Place, reason: str, action: str) -> Mask:
    """Return a mask; one over the whole segment has no ends."""
    segment, start, end = place
    is_whole = start == 0 and end == len(here.row["segments"][segment]["text"])
    return {
        "segment": segment,
        "start": None if is_whole else start,
        "end": None if is_whole else end,
        "box": None,
        "reason": reason,
        "action": action,
        "detector": DETECTOR,
    }


def _covers(old: Mask, new: Mask, here: Page) -> bool:
    """Return whether a mask already does to all of these characters what the new one would, or drops them."""
    if (
        old["segment"] != new["segment"]
        or old["box"] is not None
        or old["action"] not in (new["action"], "drop")
    ):
        return False
    end = len(here.row["segments"][new["segment"]]["text"]) if new["end"] is None else new["end"]
    return (old["start"] or 0) <= (new["start"] or 0) and (old["end"] is None or old["end"] >= end)
