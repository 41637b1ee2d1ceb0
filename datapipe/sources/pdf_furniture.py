"""What repeats over the pages of a PDF: running headers and footers, page numbers, backgrounds, overlays.

Owns the decision by repetition and place; what it names leaves the stream under a mask, with the reason
`page_header`, `page_footer`, `page_background` or `overlay`. An overlay is a slide that the next page shows
again with more on it.
"""

import dataclasses
import itertools
import re
from collections import defaultdict
from collections.abc import Sequence

from datapipe.sources.pdf_geometry import Box
from datapipe.sources.pdf_lines import joined
from datapipe.sources.pdf_page import Page, Picture, is_whole
from datapipe.sources.pdf_rows import segments
from datapipe.sources.pdf_words import Word

_BAND_FRAC = 0.14  # of the page's height, at the top and at the bottom, where headers and footers stand
_PICTURE_BAND_FRAC = 0.25
_MIN_PAGES = 3  # that show the same line at the same height
_SLOT_FRAC = 0.5  # of the pages that have a line at one height, in one size, half of them repeated ones
_MIN_SLOT_PAGES = 5
_BUCKET = 4.0  # points; heights in the same or the next bucket are the same
_MAX_SIZE = 1.12  # times the size of most text; titles of slides repeat as well, and are larger
_SAME_PLACE = 2.0  # points
_NUMBER = re.compile(r"\d{1,6}|\b[ivxl]+\b")
_ROMAN_VALUES = {"i": 1, "v": 5, "x": 10, "l": 50}
_PAGE_NUMBER = re.compile(r"\W*(\d{1,5}|[ivxl]+)\W*")


@dataclasses.dataclass(frozen=True, slots=True)
class Running:
    """A header or footer of one page: its text, the reason for which it leaves, and its words by number."""

    text: str
    reason: str
    numbers: tuple[int, ...]


@dataclasses.dataclass(slots=True)
class Furniture:
    """What leaves, by the page's number in the sequence: lines, pictures by number; and overlays."""

    lines: dict[int, list[Running]]
    pictures: dict[int, dict[int, str]]
    overlays: frozenset[int]


@dataclasses.dataclass(frozen=True, slots=True)
class _Candidate:
    page: int
    running: Running
    bucket: int
    keys: tuple[str, ...]  # what it has in common with the same header on another page
    size: float
    baseline: float

    @property
    def slot(self) -> tuple[str, int, float]:
        """Edge, height and size."""
        return self.running.reason, self.bucket, self.size


def furniture(pages: Sequence[Page], body_size: float) -> Furniture:
    """Return what repeats. `body_size` is the font size of most text."""
    overlays = frozenset(i for i in range(len(pages) - 1) if _is_overlay(pages[i], pages[i + 1]))
    candidates = [c for i, page in enumerate(pages) for c in _candidates(i, page, body_size)]
    lasting = [c for c in candidates if c.page not in overlays]
    found = _repeated(lasting, _page_numbers(candidates, len(pages)))
    slots = _slots(lasting, found, len(pages) - len(overlays))
    found |= _on_overlays(candidates, found, overlays)
    for c in sorted(candidates, key=lambda c: (c.bucket, c.page)):
        if c.slot in slots and _is_outermost(pages[c.page], c, found):
            found.add(c)
    if _is_everything(pages, found):
        found = set()
    lines: dict[int, list[Running]] = defaultdict(list)
    for c in sorted(found, key=lambda c: (c.page, c.baseline, c.running.numbers)):
        lines[c.page].append(c.running)
    return Furniture(dict(lines), _pictures(pages, overlays), overlays)


def _candidates(index: int, page: Page, body_size: float) -> list[_Candidate]:
    """Return the lines near the upper and the lower edge."""
    found = []
    low, high = _BAND_FRAC * page.height, (1 - _BAND_FRAC) * page.height
    outer = [row for row in page.rows if row.bottom <= low or row.top >= high]
    for row, parts in zip(outer, segments(outer, []), strict=True):
        reason = "page_header" if row.bottom <= low else "page_footer"
        for part in parts:
            size = max(word.style.size for word in part)
            if size > _MAX_SIZE * body_size:
                continue
            bucket = round((row.bottom if reason == "page_header" else page.height - row.bottom) / _BUCKET)
            text = joined(part)
            running = Running(text, reason, tuple(word.number for word in part))
            found.append(_Candidate(index, running, bucket, _keys(text, index), size, row.bottom))
    return found


def _keys(text: str, page: int) -> tuple[str, ...]:
    """Return what a line may have in common with others: its text, and that with a number that counts pages.

    The numbers of sections, which stand in headings at the top of pages, count none.
    """
    text = " ".join(text.casefold().split())
    keys = [text]
    for match in _NUMBER.finditer(text):
        offset = _value(match.group()) - page
        keys.append(f"{text[: match.start()]}<{offset}>{text[match.end() :]}")
    return tuple(keys)


def _value(number: str) -> int:
    """Return the value of a number in digits, or in Roman ones."""
    if number.isdecimal():
        return int(number)
    values = [_ROMAN_VALUES[c] for c in number]
    return sum(-v if v < after else v for v, after in itertools.zip_longest(values, values[1:], fillvalue=0))


def _page_numbers(candidates: Sequence[_Candidate], num_pages: int) -> set[_Candidate]:
    """Return the lone numbers that count the pages."""
    offsets: dict[int, list[_Candidate]] = defaultdict(list)
    for c in candidates:
        if match := _PAGE_NUMBER.fullmatch(c.running.text.casefold()):
            offsets[_value(match.group(1)) - c.page].append(c)
    enough = min(_MIN_PAGES, max(2, num_pages))
    return {c for group in offsets.values() if len({c.page for c in group}) >= enough for c in group}


def _repeated(candidates: Sequence[_Candidate], numbers: set[_Candidate]) -> set[_Candidate]:
    pages: dict[tuple[str, str, int], set[int]] = defaultdict(set)
    for c in candidates:
        for key in c.keys:
            for bucket in (c.bucket - 1, c.bucket, c.bucket + 1):
                pages[c.running.reason, key, bucket].add(c.page)
    return numbers | {
        c
        for c in candidates
        if any(len(pages[c.running.reason, key, c.bucket]) >= _MIN_PAGES for key in c.keys)
    }


def _slots(
    candidates: Sequence[_Candidate], found: set[_Candidate], num_pages: int
) -> set[tuple[str, int, float]]:
    """Return the places where most pages have a header or footer, whatever it says."""
    occupied: dict[tuple[str, int, float], set[int]] = defaultdict(set)
    known: dict[tuple[str, int, float], set[int]] = defaultdict(set)
    for c in candidates:
        occupied[c.slot].add(c.page)
        if c in found:
            known[c.slot].add(c.page)
    return {
        slot
        for slot, pages in occupied.items()
        if len(pages) >= max(_MIN_SLOT_PAGES, _SLOT_FRAC * num_pages) and 2 * len(known[slot]) >= len(pages)
    }


def _on_overlays(
    candidates: Sequence[_Candidate], found: set[_Candidate], overlays: frozenset[int]
) -> set[_Candidate]:
    """Return the headers and footers of overlays, which are those of the slides they become."""
    keys = {(c.running.reason, c.bucket, key) for c in found for key in c.keys}
    return {
        c
        for c in candidates
        if c.page in overlays and any((c.running.reason, c.bucket, key) in keys for key in c.keys)
    }


def _is_outermost(page: Page, candidate: _Candidate, found: set[_Candidate]) -> bool:
    """Return whether only headers stand above a line, or only footers below it."""
    known = {n for c in found if c.page == candidate.page for n in c.running.numbers}
    known.update(candidate.running.numbers)
    others = [row.bottom for row in page.rows if any(word.number not in known for word in row.words)]
    if candidate.running.reason == "page_header":
        return all(bottom >= candidate.baseline - 1 for bottom in others)
    return all(bottom <= candidate.baseline + 1 for bottom in others)


def _is_everything(pages: Sequence[Page], found: set[_Candidate]) -> bool:
    """Return whether the pages hold nothing but what repeats: then it is what they say."""
    words = {(c.page, number) for c in found for number in c.running.numbers}
    return all(
        not page.pictures
        and not page.tables
        and all((index, word.number) in words for row in page.rows for word in row.words)
        for index, page in enumerate(pages)
    )


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
    if is_whole(box, page.width, page.height):
        return "page_background" if page.rows and not page.is_scan else None
    if box.y1 <= _PICTURE_BAND_FRAC * page.height:
        return "page_header"
    return "page_footer" if box.y0 >= (1 - _PICTURE_BAND_FRAC) * page.height else None


def _is_overlay(page: Page, following: Page) -> bool:
    """Return whether all that a page shows stands on the following one at the same place."""
    if (round(page.width), round(page.height)) != (round(following.width), round(following.height)):
        return False
    if page.label != following.label or (not page.label and page.width <= page.height):
        return False
    if not page.rows or page.is_scan or len(page.tables) > len(following.tables):
        return False
    shown = {_place(word) for row in following.rows for word in row.words}
    words = [word for row in page.rows for word in row.words]
    missing = [word for word in words if _place(word) not in shown]
    if len(missing) == len(words) or not all(_is_page_number(word, page) for word in missing):
        return False
    rows = {row for table in following.tables for row in table.rows}
    if any(row not in rows for table in page.tables for row in table.rows):
        return False
    return all(any(_covers(other, picture) for other in following.pictures) for picture in page.pictures)


def _place(word: Word) -> tuple[str, int, int]:
    return word.text, round(word.x0), round(word.baseline)


def _is_page_number(word: Word, page: Page) -> bool:
    is_at_edge = not _BAND_FRAC * page.height < word.baseline < (1 - _BAND_FRAC) * page.height
    return is_at_edge and any(c.isdigit() for c in word.text)


def _covers(picture: Picture, other: Picture) -> bool:
    return picture.box.overlap(other.box) >= 0.7 * other.box.area
