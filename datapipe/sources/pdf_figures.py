"""The figures of a PDF page: its pictures, tiles and layers put together, and drawings.

Owns which picture objects are one picture, which paths are a drawing, and which words are labels in one. Does
not make files of them (`pdf_pictures`).
"""

import dataclasses
import re
from collections.abc import Sequence

import numpy as np

from datapipe.sources.pdf_geometry import Box, Frame
from datapipe.sources.pdf_objects import Objects, Path, Placed
from datapipe.sources.pdf_rows import rows
from datapipe.sources.pdf_words import Word

_TOUCHING = 1.0  # points between tiles of one picture
_STRIP_ASPECT = 3.0  # two tiles make one picture only if one of them is a strip
_SAME_AREA_FRAC = 0.8  # of the larger; pictures that share so much are layers of one
_CELL = 3.0  # points; paths closer than a cell belong together
_MIN_SIDE = 25.0  # points; smaller drawings are icons and ornaments
_MIN_AREA = 1500.0  # square points
_MIN_CURVED = 2  # curved or slanting paths that make a drawing ...
_MIN_PATHS = 15  # ... or straight ones
_MAX_TEXT_FRAC = 0.35  # of the area; more is a box around text
_BORDER = 12.0  # points; what lies only there is a frame
_PAGE_FRAC = 0.85  # of the page; paths as large are backgrounds
_PANEL_WORDS = 15  # in a box that is therefore no part of a drawing
_PANEL_CURVES = 5  # curved paths on a panel that is the background of a drawing
_PROSE_WORDS = 6  # on a row, and as many as fill this ...
_PROSE_FILL = 0.6  # ... of the drawing's width
_MAX_PROSE_ROWS = 2
_PIECES = 14.0  # points between pieces of one drawing
_LABEL_DISTANCE = 9.0  # points from a drawing to the labels of its axes
_LABEL_WORDS = 4
CAPTION = re.compile(
    r"(?:fig(?:ure|\.)?|abb(?:ildung|\.)?|tab(?:le|elle|leau|la|ela|\.)?|photo|plate|scheme|chart|image|bild|"
    r"figura|video|obr(?:ázek|\.)?|рис(?:унок|\.)?|табл(?:ица|\.)?|図|表|图|圖|그림|표)"
    r"\s*(?:[A-Z]?\.?\d+(?:[.–-]\d+)*[a-z]?|[IVXL]+\b)",
    re.IGNORECASE,
)


@dataclasses.dataclass(frozen=True, slots=True)
class Figure:
    """A picture, or a part of the page to be drawn: then `placed` is None and `layers` are pictures in it.

    `labels` are the numbers of words in a drawing.
    """

    box: Box
    placed: Placed | None
    layers: tuple[Placed, ...]
    labels: frozenset[int]


def figures(objects: Objects, words: Sequence[Word], tables: Sequence[Box], frame: Frame) -> list[Figure]:
    """Return the figures of a page, in no particular order."""
    pictures = _pictures(objects.pictures)
    drawings = _drawings(objects.paths, words, tables, frame)
    result = []
    for picture in pictures:
        inside = [d for d in drawings if d[0].overlap(picture.box) > 0.5 * min(picture.box.area, d[0].area)]
        page_picture = picture.box.area > _PAGE_FRAC * frame.width * frame.height
        if not inside or page_picture:
            result.append(picture)
            continue
        for box, labels in inside:
            merged = box.joined(picture.box)
            layers = (*picture.layers, *([picture.placed] if picture.placed else []))
            picture = Figure(merged, None, layers, picture.labels | labels)
        drawings = [d for d in drawings if d not in inside]
        result.append(picture)
    if not words and drawings:  # letters are drawn as well, as far as one can tell
        box, layers = drawings[0][0], tuple(objects.pictures)
        for other in (*(d[0] for d in drawings), *(p.box for p in layers)):
            box = box.joined(other)
        return [Figure(box, None, layers, frozenset())]
    result += [Figure(box, None, (), labels) for box, labels in drawings]
    return result


def _pictures(pictures: Sequence[Placed]) -> list[Figure]:
    """Return placed pictures with tiles and layers of one picture together."""
    unique: dict[tuple[int, ...], Placed] = {}
    for picture in pictures:
        key = (*(round(edge) for edge in picture.box), picture.width, picture.height, picture.size_bytes)
        unique.setdefault(key, picture)
    left = sorted(unique.values(), key=lambda p: (p.box.y0, p.box.x0))
    groups: list[list[Placed]] = []
    for picture in left:
        joined = [g for g in groups if any(_belong(picture, other) for other in g)]
        groups = [g for g in groups if not any(g is j for j in joined)]
        groups.append([p for g in joined for p in g] + [picture])
    result = []
    for group in groups:
        if len(group) == 1 or (len(group) == 2 and not _is_one(*group)):
            result += [Figure(p.box, p, (), frozenset()) for p in group]
            continue
        box = group[0].box
        for picture in group[1:]:
            box = box.joined(picture.box)
        result.append(Figure(box, None, tuple(group), frozenset()))
    return result


def _belong(picture: Placed, other: Placed) -> bool:
    """Return whether two pictures are layers of one, or tiles side by side."""
    a, b = picture.box, other.box
    if a.overlap(b) > _SAME_AREA_FRAC * max(a.area, b.area):
        return True
    same_rows = abs(a.y0 - b.y0) <= _TOUCHING and abs(a.y1 - b.y1) <= _TOUCHING
    same_columns = abs(a.x0 - b.x0) <= _TOUCHING and abs(a.x1 - b.x1) <= _TOUCHING
    beside = min(abs(a.x1 - b.x0), abs(b.x1 - a.x0)) <= _TOUCHING
    under = min(abs(a.y1 - b.y0), abs(b.y1 - a.y0)) <= _TOUCHING
    return (same_rows and beside) or (same_columns and under)


def _is_one(first: Placed, second: Placed) -> bool:
    """Return whether two pictures that belong together are one, and not two photographs side by side."""
    if first.box.overlap(second.box) > 0.5 * min(first.box.area, second.box.area):
        return True
    sides = [(p.box.x1 - p.box.x0, p.box.y1 - p.box.y0) for p in (first, second)]
    return any(max(side) >= _STRIP_ASPECT * min(side) for side in sides)


def _drawings(
    paths: Sequence[Path], words: Sequence[Word], tables: Sequence[Box], frame: Frame
) -> list[tuple[Box, frozenset[int]]]:
    """Return the boxes of drawings with their labels."""
    page = frame.width * frame.height
    centres = np.array([((w.x0 + w.x1) / 2, w.baseline - 0.3 * w.style.size) for w in words]).reshape(-1, 2)
    pieces: list[Path] = []
    panels: list[Path] = []
    for path in paths:
        is_background = path.box.area >= _PAGE_FRAC * page and (path.is_filled or not path.is_curved)
        if not is_background and not any(_is_within(path.box, table) for table in tables):
            (panels if _is_panel(path, centres) else pieces).append(path)
    if len(pieces) < _MIN_PATHS and sum(path.is_curved for path in pieces) < _MIN_CURVED:
        return []
    curves = [path.box for path in pieces if path.is_curved]
    behind = [p for p in panels if sum(_is_within(c, p.box) for c in curves) >= _PANEL_CURVES]
    found: list[Box] = []
    for tried in (pieces + behind, pieces) if behind else (pieces,):
        left = [p for p in tried if not any(_is_within(p.box, box) for box in found)]
        found += _regions(left, words, centres, frame)
    found = [box for box in found if not any(box.overlap(table) > 0.5 * table.area for table in tables)]
    return _disjoint([_with_labels(box, _words_in(box, words, centres), words) for box in found])


def _is_within(box: Box, other: Box) -> bool:
    return (
        box.x0 >= other.x0 - _TOUCHING
        and box.y0 >= other.y0 - _TOUCHING
        and box.x1 <= other.x1 + _TOUCHING
        and box.y1 <= other.y1 + _TOUCHING
    )


def _regions(pieces: Sequence[Path], words: Sequence[Word], centres: np.ndarray, frame: Frame) -> list[Box]:
    """Return the boxes of drawings that paths make, with the pieces around them."""
    shown = Box(0.0, 0.0, frame.width, frame.height)
    groups = [(_around(group), group) for group in _near(pieces, frame)]
    found = []
    for box, group in groups:
        if not _is_drawing(group, box, centres) or _holds_prose(_words_in(box, words, centres), box):
            continue
        box = _grown(box, [other for other, _ in groups], words, centres)
        found.append(_shared(box, shown))
    return found


def _around(paths: Sequence[Path]) -> Box:
    box = paths[0].box
    for path in paths[1:]:
        box = box.joined(path.box)
    return box


def _shared(box: Box, other: Box) -> Box:
    return Box(max(box.x0, other.x0), max(box.y0, other.y0), min(box.x1, other.x1), min(box.y1, other.y1))


def _grown(box: Box, groups: Sequence[Box], words: Sequence[Word], centres: np.ndarray) -> Box:
    """Return a drawing's box with the pieces around it, as long as no text gets between."""
    left = [other for other in groups if other != box]
    while True:
        reach = Box(box.x0 - _PIECES, box.y0 - _PIECES, box.x1 + _PIECES, box.y1 + _PIECES)
        for other in left:
            if other.x0 > reach.x1 or other.x1 < reach.x0 or other.y0 > reach.y1 or other.y1 < reach.y0:
                continue
            merged = box.joined(other)
            is_rule = min(other.x1 - other.x0, other.y1 - other.y0) <= 3 and merged.area > 1.3 * box.area
            if not is_rule and not _holds_prose(_words_in(merged, words, centres), merged):
                box = merged
                left.remove(other)
                break
        else:
            return box


def _words_in(box: Box, words: Sequence[Word], centres: np.ndarray) -> list[Word]:
    return [w for w, is_inside in zip(words, _inside(centres, box), strict=True) if is_inside]


def _is_panel(path: Path, centres: np.ndarray) -> bool:
    """Return whether a path is a box around text."""
    box = path.box
    if box.area < _MIN_AREA or not len(centres):
        return False
    return int(_inside(centres, box).sum()) >= _PANEL_WORDS


def _inside(centres: np.ndarray, box: Box) -> np.ndarray:
    """Return which points, [n, 2], are in a box."""
    low, high = np.array((box.x0, box.y0)), np.array((box.x1, box.y1))
    return np.asarray(np.logical_and(centres >= low, centres <= high).all(axis=1))


def _is_drawing(group: Sequence[Path], box: Box, centres: np.ndarray) -> bool:
    """Return whether paths are more than an icon, a few lines, or a box with rounded corners and a shadow."""
    if min(box.x1 - box.x0, box.y1 - box.y0) < _MIN_SIDE or box.area < _MIN_AREA:
        return False
    if sum(path.is_curved for path in group) < _MIN_CURVED and len(group) < _MIN_PATHS:
        return False
    if not any(path.is_curved for path in group):
        boxes = [path.box for path in group if min(path.box.x1 - path.box.x0, path.box.y1 - path.box.y0) > 3]
        if 2 * sum(bool(_inside(centres, other).any()) for other in boxes) > len(boxes):
            return False  # shaded lines of code, shaded cells
    border = min(_BORDER, (box.x1 - box.x0) / 3, (box.y1 - box.y0) / 3)
    inner = Box(box.x0 + border, box.y0 + border, box.x1 - border, box.y1 - border)
    inside = [
        p
        for p in group
        if _meets(p.box, inner)
        and (p.box.overlap(inner) < 0.8 * inner.area or (p.is_curved and not p.is_filled))
    ]
    return len(inside) > 1


def _meets(box: Box, other: Box) -> bool:
    return box.x0 <= other.x1 and box.x1 >= other.x0 and box.y0 <= other.y1 and box.y1 >= other.y0


def _holds_prose(words: Sequence[Word], box: Box) -> bool:
    if sum(w.box.area for w in words) > _MAX_TEXT_FRAC * box.area:
        return True
    width = _PROSE_FILL * (box.x1 - box.x0)
    prose = [
        row
        for row in rows(words)
        if len(row.words) >= _PROSE_WORDS and sum(w.x1 - w.x0 for w in row.words) >= width
    ]
    return len(prose) > _MAX_PROSE_ROWS


def _with_labels(box: Box, inside: Sequence[Word], words: Sequence[Word]) -> tuple[Box, frozenset[int]]:
    """Return a drawing's box, grown by the labels at its sides, and the numbers of its words."""
    numbers = {w.number for w in inside}
    for _ in range(2):
        d = _LABEL_DISTANCE
        reach = Box(box.x0 - d, box.y0 - d, box.x1 + d, box.y1 + d)
        around = [w for w in words if reach.y0 <= w.baseline <= reach.y1 + w.style.size]
        width = box.x1 - box.x0
        for row in rows(around):
            for run in _runs(row.words):
                is_inside = any(w.number in numbers for w in run)
                is_short = len(run) <= _LABEL_WORDS or (is_inside and run[-1].x1 - run[0].x0 <= width)
                is_near = is_inside or any(w.box.overlap(reach) > 0 for w in run)
                if is_near and is_short and not _is_caption(run):
                    numbers |= {w.number for w in run}
                    for word in run:
                        box = box.joined(word.box)
    return box, frozenset(numbers)


def _is_caption(words: Sequence[Word]) -> bool:
    return CAPTION.match(" ".join(word.text for word in words)) is not None


def _runs(words: Sequence[Word]) -> list[list[Word]]:
    """Return the words of a row cut where a gap is wider than a space."""
    runs = [[words[0]]]
    for word in words[1:]:
        if word.x0 - runs[-1][-1].x1 > word.style.size:
            runs.append([])
        runs[-1].append(word)
    return runs


def _disjoint(drawings: list[tuple[Box, frozenset[int]]]) -> list[tuple[Box, frozenset[int]]]:
    """Return drawings with those that overlap as one."""
    result: list[tuple[Box, frozenset[int]]] = []
    for box, labels in drawings:
        while (hit := next((d for d in result if d[0].overlap(box) > 0), None)) is not None:
            result.remove(hit)
            box, labels = box.joined(hit[0]), labels | hit[1]
        result.append((box, labels))
    return result


def _near(paths: Sequence[Path], frame: Frame) -> list[list[Path]]:
    """Return paths in groups, those together that a grid of coarse cells does not part."""
    if not paths:
        return []
    cell = max(_CELL, max(frame.width, frame.height) / 400)
    width, height = int(frame.width / cell) + 2, int(frame.height / cell) + 2
    grid = np.zeros((height, width), dtype=bool)
    corners = []
    for path in paths:
        x0, x1 = (min(width - 1, max(0, int(x / cell))) for x in (path.box.x0, path.box.x1))
        y0, y1 = (min(height - 1, max(0, int(y / cell))) for y in (path.box.y0, path.box.y1))
        corners.append((y0, x0))
        if path.is_filled or path.is_curved:
            grid[y0 : y1 + 1, x0 : x1 + 1] = True
        else:
            grid[y0, x0 : x1 + 1] = grid[y1, x0 : x1 + 1] = True
            grid[y0 : y1 + 1, x0] = grid[y0 : y1 + 1, x1] = True
    labels = _components(grid)
    groups: dict[int, list[Path]] = {}
    for path, (y, x) in zip(paths, corners, strict=True):
        groups.setdefault(int(labels[y, x]), []).append(path)
    return list(groups.values())


def _components(grid: np.ndarray) -> np.ndarray:
    """Return a number for each connected part of a grid, diagonals included."""
    parent: list[int] = []

    def root(i: int) -> int:
        while parent[i] != i:
            parent[i] = parent[parent[i]]
            i = parent[i]
        return i

    labels = np.full(grid.shape, -1, dtype=np.int64)
    changes = np.diff(np.pad(grid.astype(np.int8), ((0, 0), (1, 1))), axis=1)
    starts, ends = np.argwhere(changes == 1).tolist(), np.argwhere(changes == -1).tolist()
    above: list[tuple[int, int, int]] = []
    runs: list[tuple[int, int, int]] = []
    line = -1
    for (y, start), (_, end) in zip(starts, ends, strict=True):
        if y != line:
            above, runs, line = runs if y == line + 1 else [], [], y
        number = len(parent)
        parent.append(number)
        for other_start, other_end, other in above:
            if other_start <= end and start <= other_end:
                parent[root(number)] = root(other)
        labels[y, start:end] = number
        runs.append((start, end, number))
    roots = np.array([root(i) for i in range(len(parent))] or [0])
    return np.where(labels >= 0, roots[labels], -1)
