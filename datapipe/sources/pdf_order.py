"""The order in which the parts of a PDF page are read.

Owns which lines stand together as a block, and the order of blocks, tables and pictures. Lines come cut at
the columns (`pdf_lines`).
"""

import re
import statistics
from collections.abc import Sequence

import numpy as np

from datapipe.sources.pdf_geometry import Box
from datapipe.sources.pdf_lines import Line

_MAX_LEADING = 1.9  # of the size; wider apart, lines stand in blocks of their own
_LEADING_SLACK = 1.25  # times the page's usual distance of lines, where that is larger
_CODE_LEADING = 1.8  # of the size
_CODE_INDENT = 24  # characters
_FORMULA_FRAC = 0.15  # of the characters in fonts for formulas
_FORMULA_GAP = 2.5  # font sizes between the pieces of a formula
_FORMULA_REACH = 12.0  # font sizes between a formula and its number
_EQUATION_NUMBER = re.compile(r"\(\w{1,3}(?:\.\d{1,3})*[a-z]?\)")
_MIN_SHARED = 2.0  # points; boxes that share less of the width stand beside each other
_MIN_SHARED_FRAC = 0.05  # of the narrower one


def usual_leading(lines: Sequence[Line]) -> float:
    """Return the usual distance of baselines of lines that stand under each other, in font sizes."""
    steps = []
    ordered = sorted(lines, key=lambda line: line.baseline)
    for index, line in enumerate(ordered):
        for below in ordered[index + 1 : index + 12]:
            step = below.baseline - line.baseline
            if step > 4 * line.style.size:
                break
            if step > 0.5 * line.style.size and _share_width(line.box, below.box):
                steps.append(step / max(line.style.size, 0.1))
                break
    return statistics.median(steps) if steps else 1.2


def blocks(lines: Sequence[Line], obstacles: Sequence[Box]) -> list[list[Line]]:
    """Return lines in blocks: each line of one stands under the last, in the same column.

    A line under two blocks, and lines side by side under one, start blocks: there columns begin or end. So
    does a line with an obstacle, such as a picture, between it and the block.
    """
    limit = max(_MAX_LEADING, _LEADING_SLACK * usual_leading(lines))
    ordered = sorted(lines, key=lambda line: (line.baseline, line.box.x0))
    done: list[list[Line]] = []
    open_blocks: list[list[Line]] = []
    for index, line in enumerate(ordered):
        reach = [b for b in open_blocks if line.baseline - b[-1].baseline <= limit * _larger(line, b[-1])]
        done += [b for b in open_blocks if b not in reach]
        open_blocks = reach
        above = [
            block
            for block in open_blocks
            if line.baseline - block[-1].baseline > 0.4 * min(line.style.size, block[-1].style.size)
            and (_share_width(block[-1].box, line.box) or _is_code_below(block, line))
            and not _is_between(block[-1], line, obstacles)
        ]
        above = [
            b for b in above if not any(_hides(other[-1], b[-1], line) for other in above if other is not b)
        ]
        if len(above) == 1 and not _has_neighbour(ordered, index, above[0][-1]):
            above[0].append(line)
        else:
            open_blocks.append([line])
    return done + open_blocks


def formulas(found: Sequence[list[Line]]) -> list[list[Line]]:
    """Return blocks with the pieces of each displayed formula, which stand on many heights, as one."""
    groups: list[list[list[Line]]] = []
    pieces = [block for block in found if _is_formula_piece(block)]
    for block in sorted(pieces, key=lambda b: (around(b).y0, around(b).x0)):
        near = [group for group in groups if any(_is_near(block, other) for other in group)]
        groups = [group for group in groups if not any(group is other for other in near)]
        groups.append([member for group in near for member in group] + [block])
    merged = [g for g in groups if len(g) > 1 and any(_math_frac(block) >= _FORMULA_FRAC for block in g)]
    gone = {id(block) for group in merged for block in group}
    result = [block for block in found if id(block) not in gone]
    for group in merged:
        lines = [line for block in group for line in block]
        result.append(sorted(lines, key=lambda line: (round(line.baseline / 3), line.box.x0)))
    return result


def _is_formula_piece(block: Sequence[Line]) -> bool:
    """Return whether a block is (a part of) a formula: of its fonts, a sign or two, or its number."""
    if len(block) > 3:
        return False
    text = " ".join(line.text for line in block)
    return len(text) <= 4 or _math_frac(block) >= _FORMULA_FRAC or _is_equation_number(block)


def _is_equation_number(block: Sequence[Line]) -> bool:
    return len(block) == 1 and _EQUATION_NUMBER.fullmatch(block[0].text) is not None


def _math_frac(block: Sequence[Line]) -> float:
    length = sum(len(line.text) for line in block)
    return sum(line.math_frac * len(line.text) for line in block) / max(1, length)


def _is_near(block: Sequence[Line], other: Sequence[Line]) -> bool:
    """Return whether two pieces of a formula touch; its number may stand far to the right of it."""
    a, b = around(block), around(other)
    size = block[0].style.size
    high = min(a.y1, b.y1) - max(a.y0, b.y0)
    apart = max(a.x0, b.x0) - min(a.x1, b.x1)
    left, right = (block, other) if a.x0 <= b.x0 else (other, block)
    if _is_equation_number(left):
        return False
    reach = _FORMULA_REACH if _is_equation_number(right) else _FORMULA_GAP
    return high > -0.3 * size and apart < (reach if high > 0 else 0.5) * size


def around(lines: Sequence[Line]) -> Box:
    """Return the box around lines."""
    box = lines[0].box
    for line in lines[1:]:
        box = box.joined(line.box)
    return box


def _larger(line: Line, other: Line) -> float:
    return max(line.style.size, other.style.size)


def _is_code_below(block: Sequence[Line], line: Line) -> bool:
    """Return whether a line is the next one of a piece of code, whose lines may be short and indented."""
    last = block[-1]
    if not (line.is_mono and last.is_mono) or line.baseline - last.baseline > _CODE_LEADING * line.style.size:
        return False
    left = min(one.box.x0 for one in block)
    return -1 <= line.box.x0 - left <= _CODE_INDENT * line.char_width


def _hides(other: Line, last: Line, line: Line) -> bool:
    """Return whether a line stands between the last line of a block and a line under it."""
    return other.baseline > last.baseline + 0.4 * last.style.size and _share_width(other.box, last.box)


def _is_between(above: Line, below: Line, obstacles: Sequence[Box]) -> bool:
    x0, x1 = max(above.box.x0, below.box.x0), min(above.box.x1, below.box.x1)
    return any(
        above.baseline - 1 <= (box.y0 + box.y1) / 2 <= below.baseline and box.x0 < x1 and box.x1 > x0
        for box in obstacles
    )


def _has_neighbour(ordered: Sequence[Line], index: int, above: Line) -> bool:
    """Return whether another line on the same height also stands under a line."""
    line = ordered[index]
    for step in (-1, 1):
        place = index + step
        while 0 <= place < len(ordered):
            other = ordered[place]
            if abs(other.baseline - line.baseline) > 0.4 * line.style.size:
                break
            if not _share_width(other.box, line.box) and _share_width(other.box, above.box):
                return True
            place += step
    return False


def _share_width(box: Box, other: Box) -> bool:
    shared = min(box.x1, other.x1) - max(box.x0, other.x0)
    return shared > min(_MIN_SHARED, 0.5 * min(box.x1 - box.x0, other.x1 - other.x0)) and (
        shared > _MIN_SHARED_FRAC * min(box.x1 - box.x0, other.x1 - other.x0)
    )


def reading_order(boxes: Sequence[Box], right_to_left: bool = False) -> list[int]:
    """Return the numbers of boxes in the order they are read.

    A box comes after those above it that share some of its width, and after those to its left unless boxes
    that share width, each with the next, lead from one down to the other: a title or a wide figure ends the
    columns above it. Source: T. Breuel, "High Performance Document Layout Analysis", 2003, section 4, with
    chains of boxes in place of one. Ties and circles are resolved from the top.
    """
    if len(boxes) < 2:
        return list(range(len(boxes)))
    x0, y0, x1, y1 = np.array(boxes, dtype=np.float64).T
    if right_to_left:
        x0, x1 = -x1, -x0
    width = np.minimum(x1[:, None], x1) - np.maximum(x0[:, None], x0)
    narrow = np.minimum((x1 - x0)[:, None], x1 - x0)
    shares = width > np.maximum(np.minimum(_MIN_SHARED, 0.5 * narrow), _MIN_SHARED_FRAC * narrow)
    rank = np.lexsort((x0, y1, y0)).argsort()
    above = shares & (rank[:, None] < rank)
    chained = _closure(above)
    left = ~shares & (x0[:, None] < x0) & ~chained & ~chained.T
    before = above | left
    np.fill_diagonal(before, False)
    return _sorted_by(before, rank)


def _closure(relation: np.ndarray) -> np.ndarray:
    """Return which pairs a chain of a relation joins."""
    closed = relation
    while True:
        steps = closed.astype(np.float32)
        longer = closed | (steps @ steps > 0)
        if (longer == closed).all():
            return closed
        closed = longer


def _sorted_by(before: np.ndarray, rank: np.ndarray) -> list[int]:
    """Return a topological order; where none is free, the one with the fewest before it comes first."""
    waiting = before.sum(axis=0)
    left = np.ones(len(rank), dtype=bool)
    order = []
    for _ in range(len(rank)):
        candidates = np.flatnonzero(left)
        free = candidates[waiting[candidates] == waiting[candidates].min()]
        chosen = int(free[rank[free].argmin()])
        order.append(chosen)
        left[chosen] = False
        waiting = waiting - before[chosen]
    return order
