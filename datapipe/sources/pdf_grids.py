"""Tables whose cells are boxed by ruled lines, and what a table is.

Owns which ruled lines make a grid, and which words stand in which of its cells. Tables without a grid are
`pdf_tables`'s business.
"""

import bisect
import dataclasses
from collections.abc import Sequence

from datapipe.sources.pdf_geometry import Box
from datapipe.sources.pdf_lines import joined
from datapipe.sources.pdf_rows import rows
from datapipe.sources.pdf_words import Word

NEAR = 2.5  # points between ruled lines that meet
_MIN_COVERED = 0.5  # of the sides of a grid's columns and rows that are ruled; flow charts have far less
_WORDS_TO_CURVE = 15  # words for each curved line in a table; a flow chart has fewer

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
        open_rules = [j for j in open_rules if rules[j].y1 >= box.y0 - NEAR]
        for j in open_rules:
            if rules[j].x0 <= box.x1 + NEAR and rules[j].x1 >= box.x0 - NEAR:
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
    covered_x = sum(r.x1 - r.x0 for r in _merged(across, 0)) / (len(places(ys)) * max(1.0, box.x1 - box.x0))
    covered_y = sum(r.y1 - r.y0 for r in _merged(upright, 1)) / (len(places(xs)) * max(1.0, box.y1 - box.y0))
    xs, ys = places([*xs, box.x0, box.x1]), places([*ys, box.y0, box.y1])  # the outer lines may be missing
    if len(xs) < 3 or len(ys) < 3 or min(covered_x, covered_y) < _MIN_COVERED:
        return None
    inside = [
        w for w in words if box.x0 <= (w.x0 + w.x1) / 2 <= box.x1 and box.y0 <= w.baseline <= box.y1 + 1
    ]
    cells: dict[tuple[int, int], list[Word]] = {}
    for row in rows(inside):
        y = row.bottom - 1
        cuts = sorted({(r.x0 + r.x1) / 2 for r in upright if r.y0 - NEAR <= y <= r.y1 + NEAR})
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


def places(values: list[float]) -> list[float]:
    """Return values in order, those that are nearly the same as one."""
    found: list[float] = []
    for value in sorted(values):
        if not found or value - found[-1] > NEAR:
            found.append(value)
    return found


def _merged(rules: Sequence[Box], axis: int) -> list[Box]:
    """Return ruled lines along an axis (0: x) with those that lie on each other as one."""
    merged: list[Box] = []
    for rule in sorted(rules, key=lambda r: (round((r[1 - axis] + r[3 - axis]) / 2 / NEAR), r[axis])):
        if merged:
            last = merged[-1]
            same = abs((rule[1 - axis] + rule[3 - axis]) - (last[1 - axis] + last[3 - axis])) / 2 <= NEAR
            if same and rule[axis] <= last[axis + 2] + NEAR:
                merged[-1] = last.joined(rule)
                continue
        merged.append(rule)
    return merged


def _cell(words: Sequence[Word]) -> Cell:
    return tuple(joined(row.words) for row in rows(words))


def _without_empty_columns(text: tuple[tuple[Cell, ...], ...]) -> tuple[tuple[Cell, ...], ...]:
    full = [c for c in range(len(text[0])) if any(row[c] for row in text)]
    return tuple(tuple(row[c] for c in full) for row in text)
