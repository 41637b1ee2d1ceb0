"""Tables of a PDF page without a grid of ruled lines: words that stand in columns.

Owns the decision what is a table and what are columns of prose, and the cells of a table. The same gap that
parts two columns of an article parts two columns of numbers; what tells them apart is how the words beside it
fill their lines, whether the rows of both sides stand on the same heights, and ruled lines across the gap.
"""

import bisect
import dataclasses
import itertools
import re
import statistics
from collections.abc import Sequence

from datapipe.sources import pdf_rows
from datapipe.sources.pdf_geometry import Box
from datapipe.sources.pdf_grids import NEAR, Cell, Table, places
from datapipe.sources.pdf_lines import joined
from datapipe.sources.pdf_rows import Gutter, Row
from datapipe.sources.pdf_words import Word

LABEL = re.compile(  # of a list item: 2.1, a bullet, (a), [Knu], 12
    r"\d{1,3}(?:\.\d{1,3})+\.?|[•‣◦▪▫●○■□–—*·➢✓❖►▶◆-]|"
    r"[(\[]?(?:\d{1,3}|[a-zA-Z]|[ivxIVX]{1,5})[.)\]:]|\[\w{1,12}\]|\d{1,4}"
)
_MAX_CELL_WORDS = 4.0  # mean words in a cell of a table without ruled lines
_PROSE_WORDS = 4  # words on a line of prose
_PROSE_FRAC = 0.4  # of the rows beside a gutter that are lines of prose, where it parts columns of text
_PROSE_FILL = 0.7  # of its column that a line of prose fills
_MAX_TERM_WORDS = 3.0  # mean words of a term whose explanation stands beside it
_MAX_MATH_FRAC = 0.2  # of the characters; the gaps between more are those of a formula
_ALL_FRAC = 0.95  # of the rows of one side that have words on the other
_MISALIGNED_FRAC = 0.6  # of the rows of the shorter side; rows of a table have more on both sides
_MIN_COLUMN_ROWS = 4  # of short lines beside a column of prose
_RULED_FRAC = 0.1  # ruled lines to a row that cross the gap between cells
_ALIGNED_FRAC = 0.7  # of the rows of a table that have words on both sides of a gap


@dataclasses.dataclass(frozen=True, slots=True)
class _Side:
    """The words beside a gutter, row by row, up to the next gutters."""

    num_rows: int
    num_prose: int  # rows that look like lines of prose
    num_both: int  # rows with words on the other side too
    is_label: bool  # bullets or numbers of list items
    is_code: bool  # of fonts of one width, where gaps are indentation
    math_frac: float  # of the characters that are in fonts for formulas
    is_leader: bool  # most begin or end with dots that lead to a page number
    is_number: bool  # page numbers of a table of contents

    @property
    def is_prose(self) -> bool:
        return self.num_prose >= max(3, _PROSE_FRAC * self.num_rows)


def aligned(
    all_rows: Sequence[Row], gutters: Sequence[Gutter], rules: Sequence[Box]
) -> tuple[list[Table], list[Gutter]]:
    """Return the tables whose columns gutters part, and the gutters that part columns of text."""
    cells: list[Gutter] = []
    columns: list[Gutter] = []
    is_contents = pdf_rows.is_contents(all_rows)
    for gutter in gutters:
        left, right = _sides(all_rows, gutter, gutters)
        if (left.math_frac + right.math_frac) / 2 > _MAX_MATH_FRAC:
            continue
        if left.is_leader or right.is_leader or (is_contents and right.is_number):
            continue
        if (left.is_label and left.num_both >= _ALL_FRAC * left.num_rows) or (
            left.is_code and right.is_code and not (left.is_prose and right.is_prose)
        ):
            continue
        is_column = _parts_columns(left, right) and not _is_ruled(all_rows, gutter, rules)
        (columns if is_column else cells).append(gutter)
    tables = []
    for band in _bands(cells, columns):
        table = _band_table(all_rows, band, columns, rules)
        if table is None:
            columns += band
        else:
            tables.append(table)
    return tables, columns


def _parts_columns(left: _Side, right: _Side) -> bool:
    """Return whether two sides are columns of text.

    Both are prose, or one that explains no terms is, or their lines stand on heights of their own.
    """
    fewest = min(left.num_rows, right.num_rows)
    if fewest >= _MIN_COLUMN_ROWS and left.num_both < _MISALIGNED_FRAC * fewest:
        return True
    if left.is_prose:
        return right.is_prose or right.num_rows >= _MIN_COLUMN_ROWS
    return right.is_prose and left.num_both < _ALL_FRAC * left.num_rows and left.num_rows >= _MIN_COLUMN_ROWS


def _is_ruled(all_rows: Sequence[Row], gutter: Gutter, rules: Sequence[Box]) -> bool:
    """Return whether ruled lines cross a gutter again and again."""
    top, bottom = all_rows[gutter.first].top, all_rows[gutter.last].bottom
    crossing = [r for r in rules if r.y1 - r.y0 <= 3 and r.x0 < gutter.x0 and r.x1 > gutter.x1]
    heights = places([r.y0 for r in crossing if top <= r.y0 <= bottom])
    return len(heights) >= max(2, _RULED_FRAC * (gutter.last - gutter.first + 1))


def _sides(all_rows: Sequence[Row], gutter: Gutter, gutters: Sequence[Gutter]) -> tuple[_Side, _Side]:
    """Return what stands left and right of a gutter, up to the next ones."""
    lefts: list[list[Word]] = []
    rights: list[list[Word]] = []
    num_both = 0
    for number in range(gutter.first, gutter.last + 1):
        others = [g for g in gutters if g is not gutter and g.first <= number <= g.last]
        low = max((g.x0 for g in others if g.x1 <= gutter.x0), default=float("-inf"))
        high = min((g.x1 for g in others if g.x0 >= gutter.x1), default=float("inf"))
        words = all_rows[number].words
        left = [w for w in words if low <= w.x0 and w.x1 <= gutter.x0 + 1]
        right = [w for w in words if w.x0 >= gutter.x1 - 1 and w.x1 <= high]
        num_both += bool(left and right)
        if left:
            lefts.append(left)
        if right:
            rights.append(right)
    return _side(lefts, num_both), _side(rights, num_both)


def _side(parts: Sequence[Sequence[Word]], num_both: int) -> _Side:
    if not parts:
        return _Side(0, 0, 0, False, False, 0.0, False, False)
    widths = [max(w.x1 for w in part) - min(w.x0 for w in part) for part in parts]
    usual = sorted(widths)[9 * len(widths) // 10]
    length = sum(len(w.text) for part in parts for w in part)
    return _Side(
        len(parts),
        sum(
            width >= _PROSE_FILL * usual and _num_words(part) >= _PROSE_WORDS
            for part, width in zip(parts, widths, strict=True)
        ),
        num_both,
        sum(bool(LABEL.fullmatch(joined(list(part)))) for part in parts) >= 0.8 * len(parts),
        all(w.style.mono for part in parts for w in part),
        sum(len(w.text) for part in parts for w in part if w.style.math) / length,
        2 * sum(any(pdf_rows.is_leader(part[end]) for end in (0, -1)) for part in parts) >= len(parts),
        all(len(part) == 1 and pdf_rows.PAGE_NUMBER.fullmatch(part[0].text) for part in parts),
    )


def _num_words(words: Sequence[Word]) -> int:
    """Count words; Chinese and Japanese write none, so two of their characters count as one."""
    text = joined(list(words))
    return max(len(text.split()), sum("\u2e80" <= c <= "\u9fff" for c in text) // 2)


def _bands(cells: Sequence[Gutter], columns: Sequence[Gutter]) -> list[list[Gutter]]:
    """Return the gutters in groups that may be of one table: on the same rows, no text column between."""
    bands: list[list[Gutter]] = []
    for gutter in sorted(cells, key=lambda g: (g.first, g.x0)):
        for band in bands:
            if any(_same_band(gutter, other, columns) for other in band):
                band.append(gutter)
                break
        else:
            bands.append([gutter])
    return bands


def _same_band(gutter: Gutter, other: Gutter, columns: Sequence[Gutter]) -> bool:
    first, last = max(gutter.first, other.first), min(gutter.last, other.last)
    if last - first + 1 < 0.5 * (min(gutter.last - gutter.first, other.last - other.first) + 1):
        return False
    x0, x1 = min(gutter.x0, other.x0), max(gutter.x1, other.x1)
    return not any(g.first <= last and g.last >= first and x0 < g.x0 and g.x1 < x1 for g in columns)


def _band_table(
    all_rows: Sequence[Row], band: list[Gutter], columns: Sequence[Gutter], rules: Sequence[Box]
) -> Table | None:
    """Return the table that gutters on the same rows part, None where they part columns of text."""
    first, last = min(g.first for g in band), max(g.last for g in band)
    left = min(g.x0 for g in band)
    bounds = [g for g in columns if g.first <= last and g.last >= first]
    low = max((g.x1 for g in bounds if g.x1 <= left), default=float("-inf")) - 1
    high = min((g.x0 for g in bounds if g.x0 >= left), default=float("inf")) + 1
    cuts = _column_cuts(band)
    grid: list[list[list[Word]]] = []
    for number, row in enumerate(all_rows[first : last + 1], start=first):
        cells: list[list[Word]] = [[] for _ in range(len(cuts) + 1)]
        own = sorted((g.x0 + g.x1) / 2 for g in band if g.first <= number <= g.last)
        part = None
        for word in row.words:
            if low <= word.x0 and word.x1 <= high:
                middle = (word.x0 + word.x1) / 2
                if bisect.bisect_right(own, middle) != part:
                    part = bisect.bisect_right(own, middle)
                    column = bisect.bisect_right(cuts, middle)
                cells[column].append(word)
        if any(cells):
            grid.append(cells)
    if len(grid) < 2 or not _looks_like_table(grid, band, rules):
        return None
    words = [w for cells in grid for cell in cells for w in cell]
    box = words[0].box
    for word in words[1:]:
        box = box.joined(word.box)
    return Table(box, _logical_rows(grid, rules), frozenset(w.number for w in words))


def _column_cuts(band: Sequence[Gutter]) -> list[float]:
    """Return where columns part; gutters of different rows that overlap are one."""
    merged: list[list[float]] = []
    for gutter in sorted(band, key=lambda g: g.x0):
        if merged and gutter.x0 < merged[-1][1]:
            x0, x1 = max(merged[-1][0], gutter.x0), min(merged[-1][1], gutter.x1)
            merged[-1] = [x0, x1] if x1 > x0 else merged[-1]
        else:
            merged.append([gutter.x0, gutter.x1])
    return [(x0 + x1) / 2 for x0, x1 in merged]


def _looks_like_table(grid: list[list[list[Word]]], band: Sequence[Gutter], rules: Sequence[Box]) -> bool:
    """Decide by ruled lines across the gaps, and by how much the cells hold and how they line up."""
    num_columns = len(grid[0])
    full = [[cell for cell in cells if cell] for cells in grid]
    several = sum(len(cells) > 1 for cells in full) / len(full)
    mean_words = statistics.fmean(_num_words(cell) for cells in full for cell in cells)
    if any(
        LABEL.match(joined(cell)) and _is_bullet(joined(cell)) for cells in grid for cell in cells[1:] if cell
    ):
        return False
    words = [w for cells in grid for cell in cells for w in cell]
    top = min(w.baseline - w.style.size for w in words)
    bottom = max(w.baseline for w in words)
    size = statistics.median(w.style.size for w in words)
    x0, x1 = min(g.x0 for g in band), max(g.x1 for g in band)
    width = max(w.x1 for w in words) - min(w.x0 for w in words)
    crossing = {
        round(r.y0 / NEAR)
        for r in rules
        if r.x0 < x0
        and r.x1 > x1
        and r.x1 - r.x0 >= 0.6 * width
        and r.y1 - r.y0 <= 3
        and top - 1.5 * size <= r.y0 <= bottom + 1.5 * size
    }
    if len(crossing) >= 2 and several >= 0.4:
        return True
    firsts = [cells[0] for cells in grid if cells[0]]
    if num_columns == 2 and len(firsts) >= 2:
        is_hanging = sum(bool(cells[0] and cells[1]) for cells in grid) >= 0.9 * len(firsts)
        term_words = statistics.fmean(_num_words(cell) for cell in firsts)
        if is_hanging and term_words <= _MAX_TERM_WORDS and (len(firsts) >= 3 or crossing):
            return True
    return several >= _ALIGNED_FRAC and mean_words <= _MAX_CELL_WORDS and len(full) >= 3


def _is_bullet(text: str) -> bool:
    return not text[0].isalnum() and text[0] not in "([-–—*"


def _logical_rows(grid: list[list[list[Word]]], rules: Sequence[Box]) -> tuple[tuple[Cell, ...], ...]:
    """Return the rows of a table: lines that only continue a cell belong to the row above."""
    typical = _typical_leading(grid)
    result: list[list[list[str]]] = []
    last_baseline = 0.0
    for cells in grid:
        text = [joined(cell) if cell else "" for cell in cells]
        baseline = max(w.baseline for cell in cells for w in cell)
        x0 = min(w.x0 for cell in cells for w in cell)
        is_ruled = any(last_baseline < r.y0 < baseline and r.x0 <= x0 + 3 and r.x1 > x0 + 9 for r in rules)
        goes_on = bool(result) and not text[0] and sum(map(bool, text)) < max(2, len(text))
        if goes_on and not is_ruled and baseline - last_baseline <= 1.15 * typical:
            for lines, addition in zip(result[-1], text, strict=True):
                lines += [addition] if addition else []
        else:
            result.append([[t] if t else [] for t in text])
        last_baseline = baseline
    return tuple(tuple(tuple(cell) for cell in row) for row in result)


def _typical_leading(grid: list[list[list[Word]]]) -> float:
    baselines = sorted(max(w.baseline for cell in cells for w in cell) for cells in grid)
    steps = [b - a for a, b in itertools.pairwise(baselines)]
    return statistics.median_low(steps) if steps else 0.0
