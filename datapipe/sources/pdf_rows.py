"""Words on a page to rows, and rows to lines: where columns are parted.

Owns where a line begins and ends. A PDF says nowhere that a page has columns, and often draws them line by
line across the page, so what stands on one height is cut where a gap stays open over several rows (a gutter)
or is wider than any space. Which columns are prose and which are cells of a table is `pdf_tables`'s business,
and their order `pdf_order`'s.
"""

import bisect
import dataclasses
import itertools
import re
import statistics
import unicodedata
from collections.abc import Iterable, Sequence

from datapipe.sources.pdf_geometry import Box
from datapipe.sources.pdf_words import Word

_CORE = 0.7  # of the size, above the baseline: the part of a line that no other line reaches into
_SAME_ROW_FRAC = 0.5  # of the smaller core; raised and lowered words share more than that with their line
_SMALL = 0.85  # of the size of most words; smaller ones may be raised or lowered
_LOOK_BACK = 6  # rows that a word may still belong to
_MIN_GUTTER = 0.75  # of the size; \columnsep of two-column papers is 1.0, a stretched space up to 0.6
_MIN_GUTTER_ROWS = 3  # with text on both sides
_WIDE_GUTTER = 2.0  # of the size; for these two rows are enough
_WIDE_GAP = 4.0  # of the size; wider than any space: one row is enough
_TOUCHING = 0.15  # of the size; words further apart do not touch
_MIN_CONTENTS = 3  # rows with dotted leaders
PAGE_NUMBER = re.compile(r"\d{1,4}|[ivxlc]{1,6}")
_SAME_PLACE = 0.15  # of the size; letters drawn twice to look bold
ACCENTS = {  # as separate glyphs, and what they put on a letter
    "`": "\u0300",
    "´": "\u0301",
    "ˆ": "\u0302",
    "˜": "\u0303",
    "¨": "\u0308",
    "ˇ": "\u030c",
    "¯": "\u0304",
    "˘": "\u0306",
    "˚": "\u030a",
    "¸": "\u0327",
}


@dataclasses.dataclass(slots=True)
class Row:
    """Words on one height, from left to right."""

    words: list[Word]
    top: float  # of the core
    bottom: float
    right: float = float("-inf")  # end of its last word

    @classmethod
    def of(cls, word: Word) -> "Row":
        """Return a row of one word."""
        return cls([word], word.baseline - _CORE * word.style.size, word.baseline, word.x1)

    def add(self, word: Word) -> None:
        """Take in a word; the row's core is that of its largest."""
        self.words.append(word)
        self.right = max(self.right, word.x1)
        if _CORE * word.style.size > self.bottom - self.top:
            self.top, self.bottom = word.baseline - _CORE * word.style.size, word.baseline

    @property
    def size(self) -> float:
        """Font size of most of its words."""
        return statistics.median_low(word.style.size for word in self.words)


@dataclasses.dataclass(slots=True)
class Gutter:
    """White between columns: from x0 to x1, over rows `first` to `last`."""

    x0: float
    x1: float
    first: int
    last: int
    num_between: int  # rows with text on both sides


def rows(words: Iterable[Word]) -> list[Row]:
    """Return the words in rows, from top to bottom. Raised and lowered words stay with their line."""
    found: list[Row] = []
    ordered = sorted(words, key=lambda w: (w.baseline - _CORE / 2 * w.style.size, w.x0, w.number))
    lengths: dict[float, int] = {}
    for word in ordered:
        lengths[word.style.size] = lengths.get(word.style.size, 0) + len(word.text)
    usual = max(lengths, key=lambda size: (lengths[size], size), default=0.0)
    small: list[Word] = []
    for word in ordered:
        if word.style.size < _SMALL * usual:
            small.append(word)
        elif (row := _best(word, found[-_LOOK_BACK:])) is not None:
            row.add(word)
        else:
            found.append(Row.of(word))
    return _with_small(found, small)


def _with_small(found: list[Row], small: Sequence[Word]) -> list[Row]:
    """Return rows with small words: each in the row whose words are nearest, or in rows of their own."""
    found.sort(key=lambda row: row.bottom)
    bottoms = [row.bottom for row in found]
    own: list[Row] = []
    for word in small:
        size = 2 * _CORE * word.style.size
        first = bisect.bisect_left(bottoms, word.baseline - 4 * size)
        last = bisect.bisect_right(bottoms, word.baseline + 4 * size)
        row = _best(word, own[-_LOOK_BACK:] + found[first:last])
        if row is not None:
            row.add(word)
        else:
            own.append(Row.of(word))
    found += own
    for row in found:
        row.words = _accented(_once(sorted(row.words, key=lambda w: (w.x0, w.number))))
    found.sort(key=lambda r: (r.bottom, r.words[0].x0))
    return found


def _best(word: Word, candidates: Sequence[Row]) -> Row | None:
    """Return the row a word fits in; of several, the one with the nearest word."""
    bottom = word.baseline
    top = bottom - _CORE * word.style.size
    fitting = [row for row in candidates if row.bottom > top and row.top < bottom and _fits(word, top, row)]
    if len(fitting) < 2:
        return fitting[0] if fitting else None
    return min(
        fitting,
        key=lambda row: (
            min(max(other.x0 - word.x1, word.x0 - other.x1, 0.0) for other in row.words),
            abs(row.bottom - bottom),
        ),
    )


def _fits(word: Word, top: float, row: Row) -> bool:
    """Return whether a word stands in a row and not in a line of its own above or below some of it."""
    bottom = word.baseline
    if not _overlaps(top, bottom, row.top, row.bottom) and not _touches(word, top, bottom, row):
        return False
    if word.x0 >= row.right:
        return True
    for other in row.words:
        shared = min(word.x1, other.x1) - max(word.x0, other.x0)
        if shared > 0.3 * min(word.x1 - word.x0, other.x1 - other.x0):
            core = _CORE * other.style.size
            if not _overlaps(top, bottom, other.baseline - core, other.baseline):
                return False
    return True


def _touches(word: Word, top: float, bottom: float, row: Row) -> bool:
    """Return whether a word, such as a lowered letter, touches one of a row that leans on others."""
    size = word.style.size
    if abs(bottom - row.bottom) >= size or word.x0 > row.right + size:
        return False
    return any(
        max(other.x0 - word.x1, word.x0 - other.x1) < _TOUCHING * size
        and _overlaps(top, bottom, other.baseline - _CORE * other.style.size, other.baseline)
        for other in row.words
    )


def _overlaps(top: float, bottom: float, other_top: float, other_bottom: float) -> bool:
    shared = min(bottom, other_bottom) - max(top, other_top)
    return shared >= _SAME_ROW_FRAC * min(bottom - top, other_bottom - other_top)


def _once(words: list[Word]) -> list[Word]:
    """Return the words without those drawn a second time, slightly shifted, to look bold or shaded."""
    kept: list[Word] = []
    for word in words:
        if not any(word.text == other.text and _is_again(word, other) for other in kept[-3:]):
            kept.append(word)
    return kept


def _is_again(word: Word, other: Word) -> bool:
    near = _SAME_PLACE * word.style.size
    is_here = word.x0 - other.x0 <= near and abs(word.baseline - other.baseline) <= near
    return is_here and word.number != other.number + 1


def _accented(words: list[Word]) -> list[Word]:
    """Return the words with accents, which TeX draws over capital letters, put on these."""
    if not any(word.text in ACCENTS for word in words):
        return words
    by_number = {word.number: word for word in words}
    for accent in words:
        mark = ACCENTS.get(accent.text)
        letter = by_number.get(accent.number + 1) if mark else None
        if mark is None or letter is None:
            continue
        middle = (accent.x0 + accent.x1) / 2
        one = unicodedata.normalize("NFC", letter.text[0] + mark)
        if len(one) == 1 and letter.x0 <= middle <= letter.x0 + letter.style.size:
            merged = letter._replace(text=one + letter.text[1:], spaced=accent.spaced)
            words = [merged if word is letter else word for word in words if word is not accent]
            by_number[letter.number] = merged
    return words


def gutters(rows: Sequence[Row], obstacles: Sequence[Box]) -> list[Gutter]:
    """Return the white strips between columns, from top to bottom.

    A strip ends at a row whose text crosses it, and at an obstacle (a picture, a line) that does.
    """
    done: list[Gutter] = []
    active: list[Gutter] = []
    walls = sorted(obstacles, key=lambda box: box.y0)
    for number, row in enumerate(rows):
        minimum = _MIN_GUTTER * row.size
        taken = _solid(row, minimum)
        if number:
            above, below = rows[number - 1].bottom, row.bottom
            for wall in walls[bisect.bisect_left(walls, above, key=lambda b: b.y0) :]:
                if wall.y0 >= below:
                    break
                done += [g for g in active if wall.x0 < g.x0 and wall.x1 > g.x1]
                active = [g for g in active if not (wall.x0 < g.x0 and wall.x1 > g.x1)]
        going = []
        for gutter in active:
            free = _free_part(taken, gutter, minimum)
            if free is None:
                done.append(gutter)
                continue
            gutter.x0, gutter.x1 = free
            if taken[0][0] < gutter.x0 and taken[-1][1] > gutter.x1:
                gutter.num_between += 1
                gutter.last = number
            going.append(gutter)
        covered = [(g.x0, g.x1) for g in going]
        for (_, left), (right, _) in itertools.pairwise(taken):
            if not any(x0 < right and x1 > left for x0, x1 in covered):
                going.append(Gutter(left, right, number, number, 1))
        active = going
    return [g for g in done + active if _is_gutter(g, rows)]


def _is_gutter(gutter: Gutter, rows: Sequence[Row]) -> bool:
    if gutter.num_between >= _MIN_GUTTER_ROWS:
        return True
    size = max(row.size for row in rows[gutter.first : gutter.last + 1])
    return gutter.num_between == 2 and gutter.x1 - gutter.x0 >= _WIDE_GUTTER * size


def _solid(row: Row, minimum: float) -> list[tuple[float, float]]:
    """Return the stretches of a row in which no gap is as wide as a gutter."""
    taken = [(row.words[0].x0, row.words[0].x1)]
    for word in row.words[1:]:
        start, end = taken[-1]
        if word.x0 - end >= minimum:
            taken.append((word.x0, word.x1))
        else:
            taken[-1] = (start, max(end, word.x1))
    return taken


def _free_part(
    taken: list[tuple[float, float]], gutter: Gutter, minimum: float
) -> tuple[float, float] | None:
    """Return the widest part of a gutter that a row leaves free, None where it is too narrow."""
    free, start = [], gutter.x0
    for left, right in taken:
        if right <= start:
            continue
        if left >= gutter.x1:
            break
        free.append((start, left))
        start = right
    free.append((start, gutter.x1))
    x0, x1 = max(free, key=lambda part: part[1] - part[0])
    return (x0, x1) if x1 - x0 >= minimum else None


def segments(rows: Sequence[Row], gutters: Sequence[Gutter]) -> list[list[list[Word]]]:
    """Return each row's words cut at the gutters that pass it, and where a gap is wider than any space."""
    result = []
    in_contents = is_contents(rows)
    for number, row in enumerate(rows):
        cuts = sorted((g.x0 + g.x1) / 2 for g in gutters if g.first <= number <= g.last)
        parts: list[list[Word]] = []
        end = part = None
        size = row.size
        for word in row.words:
            place = bisect.bisect_right(cuts, (word.x0 + word.x1) / 2)
            is_led = in_contents and PAGE_NUMBER.fullmatch(word.text) is not None
            if (
                end is None
                or place != part
                or (not is_led and _is_apart(parts[-1][-1], word, word.x0 - end, size))
            ):
                parts.append([])
                end = word.x1
            parts[-1].append(word)
            part, end = place, max(end, word.x1)
        result.append(parts)
    return result


def is_leader(word: Word) -> bool:
    """Return whether a word is a dot, or dots, that lead to a page number."""
    return not word.text.strip(".·․‥…")


def is_contents(rows: Sequence[Row]) -> bool:
    """Return whether rows are (partly) a table of contents, whose dots lead to page numbers."""
    led = (sum(is_leader(w) for w in row.words) >= 3 or "....." in row.words[-1].text for row in rows)
    return sum(led) >= _MIN_CONTENTS


def _is_apart(last: Word, word: Word, gap: float, size: float) -> bool:
    """Return whether two words in a row are of two lines: far apart, or apart and not on one baseline."""
    if gap > _WIDE_GAP * max(size, word.style.size):
        return not is_leader(last) and not is_leader(word)
    is_level = abs(last.baseline - word.baseline) <= _SAME_PLACE * size
    same_size = abs(last.style.size - word.style.size) <= 0.1 * size
    return gap > _MIN_GUTTER * size and same_size and not is_level
