"""What repeats over the pages of a PDF: running headers and footers, page numbers, backgrounds, overlays.

Owns the decision by repetition and place; what it names leaves the stream under a mask, with the reason
`page_header`, `page_footer`, `page_background` or `overlay`. An overlay is a slide that the next page shows
again with more on it.
"""

import dataclasses
import re
from collections import Counter, defaultdict
from collections.abc import Sequence

from datapipe.sources.pdf_geometry import Box
from datapipe.sources.pdf_lines import Line
from datapipe.sources.pdf_page import Page, Picture

_BAND_FRAC = 0.14  # of the page's height, at the top and at the bottom, where headers and footers stand
_PICTURE_BAND_FRAC = 0.25
_PAGE_FRAC = 0.85
_MIN_PAGES = 3  # that show the same line at the same height
_SLOT_FRAC = 0.5  # of the pages that have a line at one height, in one size, half of them repeated ones
_MIN_SLOT_PAGES = 5
_BUCKET = 4.0  # points; heights in the same or the next bucket are the same
_MAX_SIZE = 1.12  # times the size of most text; titles of slides repeat as well, and are larger
_SAME_PLACE = 2.0  # points
_NUMBER = re.compile(r"\d+")
_ROMAN = re.compile(r"[ivxlcdm]+")
_PAGE_NUMBER = re.compile(r"\W*(\d{1,5})\W*")


@dataclasses.dataclass(slots=True)
class Furniture:
    """What leaves: reasons by page number and line or picture number, and the pages that are overlays."""

    lines: dict[int, dict[int, str]]
    pictures: dict[int, dict[int, str]]
    overlays: frozenset[int]


@dataclasses.dataclass(frozen=True, slots=True)
class _Candidate:
    page: int
    number: int
    reason: str
    bucket: int
    key: str
    size: float


def furniture(pages: Sequence[Page], body_size: float) -> Furniture:
    """Return what repeats. `body_size` is the font size of most text."""
    overlays = frozenset(i for i in range(len(pages) - 1) if _is_overlay(pages[i], pages[i + 1]))
    lasting = len(pages) - len(overlays)
    candidates = [c for i, page in enumerate(pages) for c in _candidates(i, page, body_size)]
    found = _repeated([c for c in candidates if c.page not in overlays], _page_offsets(pages, candidates))
    keys = {(c.reason, c.key) for c in found}
    slots = _slots([c for c in candidates if c.page not in overlays], found, lasting)
    lines: dict[int, dict[int, str]] = defaultdict(dict)
    for c in found:
        lines[c.page][c.number] = c.reason
    for c in candidates:  # overlays share the furniture of what they become
        if c.page in overlays and c.key != "#" and (c.reason, c.key) in keys:
            lines[c.page][c.number] = c.reason
    for c in sorted(candidates, key=lambda c: c.bucket if c.reason == "page_header" else -c.bucket):
        if (c.reason, c.bucket, c.size) in slots and _is_outermost(pages[c.page], c, lines[c.page]):
            lines[c.page][c.number] = c.reason
    return Furniture(dict(lines), _pictures(pages, overlays), overlays)


def _candidates(index: int, page: Page, body_size: float) -> list[_Candidate]:
    found = []
    for number, line in enumerate(page.lines):
        if line.style.size > _MAX_SIZE * body_size:
            continue
        if line.baseline <= _BAND_FRAC * page.height:
            reason = "page_header"
        elif line.baseline - line.style.size >= (1 - _BAND_FRAC) * page.height:
            reason = "page_footer"
        else:
            continue
        bucket = round((line.baseline if reason == "page_header" else page.height - line.baseline) / _BUCKET)
        found.append(_Candidate(index, number, reason, bucket, _key(line.text), line.style.size))
    return found


def _key(text: str) -> str:
    """Return what a line has in common with the same header on another page."""
    text = "".join(text.casefold().split())
    return "#" if _ROMAN.fullmatch(text) else _NUMBER.sub("#", text)


def _page_offsets(pages: Sequence[Page], candidates: Sequence[_Candidate]) -> set[tuple[int, int]]:
    """Return (page, line) of the lone numbers that count the pages."""
    offsets: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for c in candidates:
        match = _PAGE_NUMBER.fullmatch(pages[c.page].lines[c.number].text)
        if match:
            offsets[int(match.group(1)) - c.page].append((c.page, c.number))
    enough = min(_MIN_PAGES, max(2, len(pages)))
    return {place for places in offsets.values() if len({p for p, _ in places}) >= enough for place in places}


def _repeated(candidates: Sequence[_Candidate], numbers: set[tuple[int, int]]) -> list[_Candidate]:
    pages: dict[tuple[str, str, int], set[int]] = defaultdict(set)
    for c in candidates:
        for bucket in (c.bucket - 1, c.bucket, c.bucket + 1):
            pages[c.reason, c.key, bucket].add(c.page)
    return [
        c
        for c in candidates
        if (c.page, c.number) in numbers
        or (c.key.strip("#.-–—|/") and len(pages[c.reason, c.key, c.bucket]) >= _MIN_PAGES)
    ]


def _slots(
    candidates: Sequence[_Candidate], found: Sequence[_Candidate], num_pages: int
) -> set[tuple[str, int, float]]:
    """Return the places (edge, height, size) where most pages have a header or footer, whatever it says."""
    occupied: dict[tuple[str, int, float], set[int]] = defaultdict(set)
    for c in candidates:
        occupied[c.reason, c.bucket, c.size].add(c.page)
    known = Counter(
        (c.reason, c.bucket, c.size) for c in {(f.page, f.reason, f.bucket): f for f in found}.values()
    )
    return {
        slot
        for slot, pages in occupied.items()
        if len(pages) >= max(_MIN_SLOT_PAGES, _SLOT_FRAC * num_pages) and known[slot] >= 0.5 * len(pages)
    }


def _is_outermost(page: Page, candidate: _Candidate, known: dict[int, str]) -> bool:
    """Return whether only headers stand above a line, or only footers below it."""
    line = page.lines[candidate.number]
    others = (other for n, other in enumerate(page.lines) if n not in known and n != candidate.number)
    if candidate.reason == "page_header":
        return all(other.baseline >= line.baseline - 1 for other in others)
    return all(other.baseline <= line.baseline + 1 for other in others)


def _pictures(pages: Sequence[Page], overlays: frozenset[int]) -> dict[int, dict[int, str]]:
    """Return the pictures that pages share at one place near an edge, and backgrounds."""
    places: dict[tuple[bytes, tuple[int, ...]], set[int]] = defaultdict(set)
    for index, page in enumerate(pages):
        for picture in page.pictures:
            if index not in overlays and picture.file is not None:
                places[picture.file.data, _rounded(picture.box)].add(index)
    found: dict[int, dict[int, str]] = defaultdict(dict)
    for index, page in enumerate(pages):
        for number, picture in enumerate(page.pictures):
            if picture.file is None:
                continue
            if len(places[picture.file.data, _rounded(picture.box)]) >= _MIN_PAGES:
                reason = _edge(page, picture.box)
                if reason is not None:
                    found[index][number] = reason
    return dict(found)


def _rounded(box: Box) -> tuple[int, ...]:
    return tuple(round(edge / _SAME_PLACE) for edge in box)


def _edge(page: Page, box: Box) -> str | None:
    if box.area >= _PAGE_FRAC * page.width * page.height:
        return "page_background"
    if box.y1 <= _PICTURE_BAND_FRAC * page.height:
        return "page_header"
    return "page_footer" if box.y0 >= (1 - _PICTURE_BAND_FRAC) * page.height else None


def _is_overlay(page: Page, following: Page) -> bool:
    """Return whether all that a page shows stands on the following one at the same place."""
    if (round(page.width), round(page.height)) != (round(following.width), round(following.height)):
        return False
    if page.label != following.label or (not page.label and page.width <= page.height):
        return False
    if not page.lines or page.is_scan or len(page.tables) > len(following.tables):
        return False
    at: dict[tuple[int, int], list[Line]] = defaultdict(list)
    for line in following.lines:
        at[_place(line)].append(line)
    shown = sum(any(other.text.startswith(line.text) for other in at[_place(line)]) for line in page.lines)
    own = [line for line in page.lines if not _PAGE_NUMBER.fullmatch(line.text)]
    missing = len(page.lines) - shown
    if missing > len(page.lines) - len(own) or not own:
        return False
    rows = {row for table in following.tables for row in table.rows}
    if any(row not in rows for table in page.tables for row in table.rows):
        return False
    return all(any(_covers(other, picture) for other in following.pictures) for picture in page.pictures)


def _place(line: Line) -> tuple[int, int]:
    return round(line.box.x0), round(line.baseline)


def _covers(picture: Picture, other: Picture) -> bool:
    return picture.box.overlap(other.box) >= 0.7 * other.box.area
