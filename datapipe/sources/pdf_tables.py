"""Tables of a PDF page: cells between ruled lines, or words that stand in columns.

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

from datapipe.sources import pdf_lines
from datapipe.sources.pdf_geometry import Box
from datapipe.sources.pdf_lines import Gutter, Row, joined, rows
from datapipe.sources.pdf_words import Word

LABEL = re.compile(
    r"\d{1,3}(?:\.\d{1,3})+\.?|[•‣◦▪▫●○■□–—*·➢✓❖►▶◆-]|[(\[]?(?:\d{1,3}|[a-zA-Z]|[ivxIVX]{1,5})[.)\]:]|\[\w{1,12}\]|\d{1,4}"
)
_NEAR = 2.5  # points between ruled lines that meet
_MIN_COVERED = 0.5  # of the sides of a grid's columns and rows that are ruled; flow charts have far less
_MAX_CELL_WORDS = 4.0  # mean words in a cell of a table without ruled lines
_WORDS_TO_CURVE = 15  # words for each curved line in a table; a flow chart has fewer
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

Cell = tuple[str, ...]  # its lines


@dataclasses.dataclass(frozen=True, slots=True)
class Table:
    """Rows of cells, and which words (by number) stand in them."""

    box: Box
    rows: tuple[tuple[Cell, ...], ...]
    numbers: frozenset[int]


def ruled(words: Sequence[Word], rules: Sequence[Box], curves: Sequence[Box]) -> list[Table]:
    """Return the tables whose cells are boxed by ruled lines.

    Args:
        curves: boxes of curved and slanting lines; where there are some between little text, it is a drawing.
    """
    tables = (_grid(words, group) for group in _meeting(rules))
    return [table for table in tables if table is not None and not _is_chart(table, curves)]


def _is_chart(table: Table, curves: Sequence[Box]) -> bool:
    inside = sum(table.box.overlap(curve) > 0.5 * curve.area for curve in curves)
    return inside >= 2 and len(table.numbers) < _WORDS_TO_CURVE * inside


def _meeting(rules: Sequence[Box]) -> list[list[Box]]:
    """Return the ruled lines in groups that meet or cross."""
    parent = list(range(len(rules)))

    def root(i: int) -> int:
        while parent[i] != i:
            parent[i] = parent[parent[i]]
            i = parent[i]
        return i

    order = sorted(range(len(rules)), key=lambda i: rules[i].y0)
    open_rules: list[int] = []
    for i in order:
        box = rules[i]
        open_rules = [j for j in open_rules if rules[j].y1 >= box.y0 - _NEAR]
        for j in open_rules:
            if rules[j].x0 <= box.x1 + _NEAR and rules[j].x1 >= box.x0 - _NEAR:
                parent[root(i)] = root(j)
        open_rules.append(i)
    groups: dict[int, list[Box]] = {}
    for i in order:
        groups.setdefault(root(i), []).append(rules[i])
    return list(groups.values())


def _grid(words: Sequence[Word], rules: Sequence[Box]) -> Table | None:
    """Return the table that a group of ruled lines makes, None where it is a frame or a drawing."""
    across = [r for r in rules if r.x1 - r.x0 > r.y1 - r.y0]
    upright = [r for r in rules if r.x1 - r.x0 <= r.y1 - r.y0]
    if len(across) < 2 or not upright:
        return None
    box = rules[0]
    for rule in rules[1:]:
        box = box.joined(rule)
    xs, ys = ([(r[k] + r[k + 2]) / 2 for r in group] for k, group in ((0, upright), (1, across)))
    covered_x = sum(r.x1 - r.x0 for r in _merged(across, 0)) / (len(_places(ys)) * max(1.0, box.x1 - box.x0))
    covered_y = sum(r.y1 - r.y0 for r in _merged(upright, 1)) / (len(_places(xs)) * max(1.0, box.y1 - box.y0))
    xs, ys = _places([*xs, box.x0, box.x1]), _places([*ys, box.y0, box.y1])  # the outer lines may be missing
    if len(xs) < 3 or len(ys) < 3 or min(covered_x, covered_y) < _MIN_COVERED:
        return None
    inside = [
        w for w in words if box.x0 <= (w.x0 + w.x1) / 2 <= box.x1 and box.y0 <= w.baseline <= box.y1 + 1
    ]
    cells: dict[tuple[int, int], list[Word]] = {}
    for row in rows(inside):
        y = row.bottom - 1
        cuts = sorted({(r.x0 + r.x1) / 2 for r in upright if r.y0 - _NEAR <= y <= r.y1 + _NEAR})
        last = None
        for word in row.words:
            part = bisect.bisect_right(cuts, (word.x0 + word.x1) / 2)
            if part != last:
                column = max(0, bisect.bisect_right(xs, (word.x0 + word.x1) / 2) - 1)
            last = part
            place = min(max(0, bisect.bisect_right(ys, y) - 1), len(ys) - 2)
            cells.setdefault((place, min(column, len(xs) - 2)), []).append(word)
    if len({r for r, _ in cells}) < 2 or len({c for _, c in cells}) < 2:
        return None
    if len(cells) < 0.3 * (len(xs) - 1) * (len(ys) - 1):
        return None
    text = tuple(
        tuple(_cell(cells.get((r, c), [])) for c in range(len(xs) - 1))
        for r in range(len(ys) - 1)
        if any((r, c) in cells for c in range(len(xs) - 1))
    )
    return Table(box, _without_empty_columns(text), frozenset(w.number for w in inside))


def _places(values: list[float]) -> list[float]:
    """Return values in order, those that are nearly the same as one."""
    places: list[float] = []
    for value in sorted(values):
        if not places or value - places[-1] > _NEAR:
            places.append(value)
    return places


def _merged(rules: Sequence[Box], axis: int) -> list[Box]:
    """Return ruled lines along an axis (0: x) with those that lie on each other as one."""
    merged: list[Box] = []
    for rule in sorted(rules, key=lambda r: (round((r[1 - axis] + r[3 - axis]) / 2 / _NEAR), r[axis])):
        if merged:
            last = merged[-1]
            same = abs((rule[1 - axis] + rule[3 - axis]) - (last[1 - axis] + last[3 - axis])) / 2 <= _NEAR
            if same and rule[axis] <= last[axis + 2] + _NEAR:
                merged[-1] = last.joined(rule)
                continue
        merged.append(rule)
    return merged


def _cell(words: Sequence[Word]) -> Cell:
    return tuple(joined(row.words) for row in rows(words))


def _without_empty_columns(text: tuple[tuple[Cell, ...], ...]) -> tuple[tuple[Cell, ...], ...]:
    full = [c for c in range(len(text[0])) if any(row[c] for row in text)]
    return tuple(tuple(row[c] for c in full) for row in text)


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
    is_contents = pdf_lines.is_contents(all_rows)
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
    places = _places([r.y0 for r in crossing if top <= r.y0 <= bottom])
    return len(places) >= max(2, _RULED_FRAC * (gutter.last - gutter.first + 1))


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
        2 * sum(any(pdf_lines.is_leader(part[end]) for end in (0, -1)) for part in parts) >= len(parts),
        all(len(part) == 1 and pdf_lines.PAGE_NUMBER.fullmatch(part[0].text) for part in parts),
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
        round(r.y0 / _NEAR)
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
