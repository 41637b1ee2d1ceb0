"""The order in which the parts of a PDF page are read.

Owns which lines stand together as a block, and the order of blocks, tables and pictures. Lines come cut at
the columns (`pdf_lines`).
"""

import statistics
from collections.abc import Sequence

import numpy as np

from datapipe.sources.pdf_geometry import Box
from datapipe.sources.pdf_lines import Line

_MAX_LEADING = 1.9  # of the size; wider apart, lines stand in blocks of their own
_LEADING_SLACK = 1.25  # times the page's usual distance of lines, where that is larger
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
            and _share_width(block[-1].box, line.box)
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


def _larger(line: Line, other: Line) -> float:
    return max(line.style.size, other.style.size)


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
