"""Interleave: a document's segments become its training stream, in reading order, drop masks applied.

Owns what is in the stream and where: which segments leave and why (`departures`), the characters and seconds
that masks cut out, and the numbers and offsets the other masks then need. Does not decide what to mask
(`mask_text`, `mask_media`) and looks at no pixels: a mask with a `box` moves with its picture and is applied
when it is tokenised.

    before                                      after
    0 text  paragraph  Ask me@a.org for it.     0 text  paragraph  Ask me@a.org for it.
    1 image            logo                     1 image            dialog
    2 image            dialog                   2 text  caption    The dialog
    3 text  alt        Screenshot
    4 text  caption    The dialog
    masks: segment 1 drop repeated_image        masks: segment 0, 4 to 12 no_loss email
           segment 0, 4 to 12 no_loss email

The order never changes: a picture stays where the page has it, its caption beside it, a transcript behind its
stretch of video. A text is a picture's own (`_owners`) where its role is alt or caption and it follows the
picture directly or after another of these. When the picture leaves, such a text becomes a paragraph, or it
would pass for the caption of the picture before; its alternative text stays only when the picture could not
be had, to stand in for it.
"""

import math
from typing import Any

import pyarrow as pa

from datapipe.spec import InterleaveSpec
from schemas import document

VERSION = "2"

Segment = dict[str, Any]
Mask = dict[str, Any]
Range = tuple[float, float]


def interleave(batch: pa.RecordBatch, spec: InterleaveSpec) -> pa.RecordBatch:
    """Return the documents with their training stream as segments, and only the masks that still apply to it.

    A document of which nothing is left gets the drop reason `empty` and keeps its segments and masks, for
    whoever looks at what was dropped. A segment that left has no number in the output, so no mask there can
    tell why: `departures` of the input row does.
    """
    rows = [{**row, **_stream(row["segments"], row["masks"], spec)} for row in batch.to_pylist()]
    return pa.RecordBatch.from_pylist(rows, schema=document.SCHEMA)


def departures(segments: list[Segment], masks: list[Mask], spec: InterleaveSpec) -> list[str | None]:
    """Return, for each segment of a document before interleaving, why it leaves; None where it stays.

    The reason is that of the mask that drops the segment, or `no_medium` (the picture or video could not be
    had), `empty` (no text, or none that masks left), `max_images`, or for alternative text `keep_alt` (the
    spec keeps none), `no_picture` (its picture was taken out) or `has_caption` (its picture has a caption,
    which says it better).
    """
    dropped, cuts = _dropped(masks), _cuts(masks)
    reasons = [
        dropped.get(number) or _own_reason(segment, cuts.get(number, []), spec)
        for number, segment in enumerate(segments)
    ]
    images = [
        number
        for number, segment in enumerate(segments)
        if segment["kind"] == "image" and reasons[number] is None
    ]
    for number in images[spec.max_images :]:
        reasons[number] = "max_images"
    for number, picture in _owners(segments).items():
        if segments[number]["role"] == "alt" and reasons[picture] not in (None, "no_medium"):
            reasons[number] = reasons[number] or "no_picture"
    for number in _alt_beside_caption(_orphans_as_paragraphs(segments, reasons), reasons):
        reasons[number] = "has_caption"
    return reasons


def _stream(segments: list[Segment], masks: list[Mask], spec: InterleaveSpec) -> dict[str, Any]:
    """Return the columns of a document's row that interleaving changes."""
    reasons, cuts = departures(segments, masks, spec), _cuts(masks)
    stream: list[Segment] = []
    places: dict[int, list[int]] = {}  # segment before -> segments after
    for number, segment in enumerate(_orphans_as_paragraphs(segments, reasons)):
        if reasons[number] is None:
            pieces = _cut(segment, cuts.get(number, []))
            places[number] = list(range(len(stream), len(stream) + len(pieces)))
            stream += pieces
    if not stream:
        return {"drop_reason": "empty"}
    moved = [
        _moved(mask, segments[mask["segment"]], place, stream[place], cuts.get(mask["segment"], []))
        for mask in masks
        if mask["action"] == "no_loss" or mask["box"] is not None
        for place in places.get(mask["segment"], [])
    ]
    return {"segments": stream, "masks": [mask for mask in moved if mask is not None]}


def _own_reason(segment: Segment, cuts: list[Range], spec: InterleaveSpec) -> str | None:
    """Return why a segment that no mask drops leaves, whatever stands around it."""
    if segment["kind"] != "text" and segment["media_id"] is None:
        return "no_medium"
    if segment["role"] == "alt" and not spec.keep_alt:
        return "keep_alt"
    stays = any(piece["kind"] != "text" or piece["text"].strip() for piece in _cut(segment, cuts))
    return None if stays else "empty"


# ---- a picture and its texts


def _owners(segments: list[Segment]) -> dict[int, int]:
    """Return, for each alternative text and caption that follows a picture or video, its number."""
    owners: dict[int, int] = {}
    picture = None
    for number, segment in enumerate(segments):
        if segment["kind"] != "text":
            picture = number
        elif segment["role"] not in ("alt", "caption"):
            picture = None
        elif picture is not None:
            owners[number] = picture
    return owners


def _orphans_as_paragraphs(segments: list[Segment], reasons: list[str | None]) -> list[Segment]:
    """Return the segments, where the texts of pictures that leave have become paragraphs."""
    orphans = {number for number, picture in _owners(segments).items() if reasons[picture] is not None}
    return [
        {**segment, "role": "paragraph"} if number in orphans else segment
        for number, segment in enumerate(segments)
    ]


def _alt_beside_caption(segments: list[Segment], reasons: list[str | None]) -> list[int]:
    """Return the alternative texts whose picture has a caption, among the segments that stay.

    What leaves is not looked at, so that interleaving a stream once more changes nothing.
    """
    staying = [number for number, reason in enumerate(reasons) if reason is None]
    owners = _owners([segments[number] for number in staying])
    roles = [segments[number]["role"] for number in staying]
    captioned = {picture for text, picture in owners.items() if roles[text] == "caption"}
    return [
        staying[text] for text, picture in owners.items() if roles[text] == "alt" and picture in captioned
    ]


# ---- masks


def _dropped(masks: list[Mask]) -> dict[int, str]:
    """Return the segments that a mask drops as a whole, each with the reason of the first such mask."""
    return {
        mask["segment"]: mask["reason"]
        for mask in reversed(masks)
        if mask["action"] == "drop" and mask["box"] is None and _is_whole(mask)
    }


def _cuts(masks: list[Mask]) -> dict[int, list[Range]]:
    """Return the ranges that masks drop inside segments: sorted, joined where they meet."""
    cuts: dict[int, list[Range]] = {}
    dropped = _dropped(masks)
    ranges = [
        (mask["segment"], *_range(mask))
        for mask in masks
        if mask["action"] == "drop" and mask["box"] is None and mask["segment"] not in dropped
    ]
    for segment, start, end in sorted(ranges):
        of_segment = cuts.setdefault(segment, [])
        if of_segment and start <= of_segment[-1][1]:
            of_segment[-1] = (of_segment[-1][0], max(end, of_segment[-1][1]))
        elif start < end:
            of_segment.append((start, end))
    return cuts


def _is_whole(mask: Mask) -> bool:
    return mask["start"] is None and mask["end"] is None


def _range(mask: Mask) -> Range:
    """Return a mask's [start, end); a side left open reaches as far as the segment does."""
    return (0 if mask["start"] is None else mask["start"], math.inf if mask["end"] is None else mask["end"])


def _cut(segment: Segment, cuts: list[Range]) -> list[Segment]:
    """Return what the cuts leave of a segment: one shorter text, or the stretches of video between them."""
    if not cuts or segment["kind"] == "image":
        return [segment]
    if segment["kind"] == "text":
        text = segment["text"]
        left = "".join(text[int(start) : int(end)] for start, end in _rest(0, len(text), cuts))
        return [{**segment, "text": left}]
    cuts_s = [(start / 1000, end / 1000) for start, end in cuts]
    return [
        {**segment, "t_start_s": start, "t_end_s": None if end == math.inf else end}
        for start, end in _rest(*_stretch(segment), cuts_s)
    ]


def _stretch(segment: Segment) -> Range:
    """Return the seconds of a video that a segment shows; without an end, to that of the video."""
    return segment["t_start_s"] or 0.0, math.inf if segment["t_end_s"] is None else segment["t_end_s"]


def _rest(start: float, end: float, cuts: list[Range]) -> list[Range]:
    """Return the parts of [start, end) that no cut covers."""
    edges = [start, *(min(max(edge, start), end) for cut in cuts for edge in cut), end]
    return [(left, right) for left, right in zip(edges[::2], edges[1::2], strict=True) if left < right]


def _moved(mask: Mask, before: Segment, number: int, after: Segment, cuts: list[Range]) -> Mask | None:
    """Return a mask of segment `before` for its piece `after`, segment `number`; None where it misses it."""
    moved = {**mask, "segment": number}
    if _is_whole(mask):
        return moved
    start, end = _range(mask)
    if before["kind"] == "text":
        start, end = (_shifted(min(edge, len(before["text"])), cuts) for edge in (start, end))
        return {**moved, "start": int(start), "end": int(end)} if start < end else None
    start_s, end_s = _stretch(after)
    return moved if start < end_s * 1000 and end > start_s * 1000 else None


def _shifted(offset: float, cuts: list[Range]) -> float:
    """Return the offset of a character after the cuts before it are gone."""
    return offset - sum(min(end, offset) - start for start, end in cuts if start < offset)
