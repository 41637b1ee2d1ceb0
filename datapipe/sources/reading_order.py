"""The order in which a reader takes in boxes on a slide or page.

Owns geometry only: boxes in, their order out. A page is cut into bands from top to bottom, a band into
columns from left to right, a column into bands again, and so on. Bands whose columns match belong together
where a picture stands over its words, or a label over its text: there the columns are read one by one. Where
boxes overlap so that no cut parts them, the largest is taken out first.
"""

import dataclasses
import itertools
from collections.abc import Sequence

_OVERLAP_FRAC = 0.15  # boxes are a little larger than what they show: so much of a side may overlap ...
_OVERLAP_OF_PAGE = 0.03  # ... but not more of the page than this
_LABEL_HEIGHT_OF_PAGE = 0.12  # text boxes that are lower hold a label, not a text
_MAX_TANGLED = 100  # more boxes without a cut are sorted by their corners: taking out each takes its time


@dataclasses.dataclass(frozen=True)
class Box:
    """A box on a page, in any unit, y downwards."""

    x0: float
    y0: float
    x1: float
    y1: float
    is_medium: bool = False


@dataclasses.dataclass(frozen=True)
class _Page:
    boxes: Sequence[Box]
    width: float
    height: float


_Cut = list[list[int]]


def order(boxes: Sequence[Box], width: float, height: float, right_to_left: bool = False) -> list[int]:
    """Return the numbers of the boxes in reading order; boxes at the same place keep theirs.

    Args:
        width, height: of the page the boxes stand on.
        right_to_left: columns are read from the right, as in Arabic or Hebrew.

    >>> left, right_top, right_bottom = Box(0, 0, 4, 9), Box(5, 0, 9, 4), Box(5, 5, 9, 9)
    >>> order([right_bottom, right_top, left], 9, 9)
    [2, 1, 0]
    """
    if right_to_left:
        boxes = [dataclasses.replace(b, x0=width - b.x1, x1=width - b.x0) for b in boxes]
    return _ordered(_Page(boxes, width, height), list(range(len(boxes))))


def _ordered(page: _Page, numbers: list[int]) -> list[int]:
    """Return `numbers` in reading order: band by band, or where there is one, column by column."""
    if len(numbers) < 2:
        return numbers
    groups = _grouped(page, _cut(page, numbers, "y"))
    if len(groups) > 1:
        return [n for group in groups for n in _ordered_columns(page, [n for band in group for n in band])]
    return _ordered_columns(page, numbers)


def _ordered_columns(page: _Page, numbers: list[int]) -> list[int]:
    columns = _cut(page, numbers, "x")
    if len(columns) == 1:
        return _untangled(page, numbers)
    return [n for column in columns for n in _ordered(page, column)]


def _untangled(page: _Page, numbers: list[int]) -> list[int]:
    """Order boxes that no cut parts: the largest comes first unless it begins below the others."""
    if len(numbers) < 2:
        return numbers
    if len(numbers) > _MAX_TANGLED:
        return sorted(numbers, key=lambda n: (page.boxes[n].y0, page.boxes[n].x0, n))
    largest = max(numbers, key=lambda n: (_area(page.boxes[n]), -n))
    rest = [n for n in numbers if n != largest]
    top = min(page.boxes[n].y0 for n in rest)
    begins_below = page.boxes[largest].y0 > top + _OVERLAP_OF_PAGE * page.height
    return [*_ordered(page, rest), largest] if begins_below else [largest, *_ordered(page, rest)]


def _cut(page: _Page, numbers: list[int], axis: str) -> _Cut:
    """Return the boxes in groups that do not overlap along an axis, in its direction."""
    extent = page.width if axis == "x" else page.height
    sides = {n: _shrunk(page.boxes[n], axis, extent) for n in numbers}
    groups: _Cut = []
    end = 0.0
    for number in sorted(numbers, key=lambda n: (*sides[n], n)):
        low, high = sides[number]
        if not groups or low > end or (low == end and high > low):
            groups.append([])
            end = high
        groups[-1].append(number)
        end = max(end, high)
    return [sorted(group) for group in groups]


def _shrunk(box: Box, axis: str, extent: float) -> tuple[float, float]:
    low, high = (box.x0, box.x1) if axis == "x" else (box.y0, box.y1)
    margin = min(_OVERLAP_FRAC * (high - low), _OVERLAP_OF_PAGE * extent)
    return low + margin, high - margin


def _grouped(page: _Page, bands: _Cut) -> list[_Cut]:
    """Return the bands in groups: one by one, or those that are read column by column together."""
    groups: list[_Cut] = []
    kinds: list[str] = []  # of the bands of the last group
    for band in bands:
        kind = _kind(page, band)
        if (
            groups
            and kind
            and all(kinds)
            and kind not in kinds
            and _belong(page, groups[-1], band, kind, kinds)
        ):
            groups[-1].append(band)
            kinds.append(kind)
        else:
            groups.append([band])
            kinds = [kind]
    return groups


def _kind(page: _Page, band: list[int]) -> str:
    """Return what a band holds: medium, label or text; "" where it holds both pictures and words."""
    boxes = [page.boxes[n] for n in band]
    media = [b.is_medium for b in boxes]
    if all(media):
        return "medium"
    if any(media):
        return ""
    return "label" if max(b.y1 - b.y0 for b in boxes) <= _LABEL_HEIGHT_OF_PAGE * page.height else "text"


def _belong(page: _Page, group: _Cut, band: list[int], kind: str, kinds: list[str]) -> bool:
    """Return whether a band continues the columns of the bands above it."""
    above = group[-1]
    numbers = [n for b in group for n in b]
    columns = _cut(page, [*numbers, *band], "x")
    if len(columns) < 2 or not all({n in band for n in column} == {True, False} for column in columns):
        return False
    if "medium" in (kind, kinds[-1]):
        return True
    boxes = page.boxes
    gap_y = min(boxes[n].y0 for n in band) - max(boxes[n].y1 for n in above)
    gaps_x = [
        min(boxes[n].x0 for n in right) - max(boxes[n].x1 for n in left)
        for left, right in itertools.pairwise(columns)
    ]
    return gap_y < min(gaps_x)


def _area(box: Box) -> float:
    return (box.x1 - box.x0) * (box.y1 - box.y0)
