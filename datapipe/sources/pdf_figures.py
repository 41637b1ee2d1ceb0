"""The figures of a PDF page: its pictures, tiles and layers put together, and drawings.

Owns which picture objects are one picture, which paths are a drawing, and which words are labels in one. Does
not make files of them (`pdf_pictures`).
"""

import dataclasses
import re
from collections.abc import Sequence

import numpy as np

from datapipe.sources.pdf_geometry import Box, Frame
from datapipe.sources.pdf_lines import rows
from datapipe.sources.pdf_objects import Objects, Path, Placed
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
_PROSE_WORDS = 6  # on a row, and as many as fill this ...
_PROSE_FILL = 0.6  # ... of the drawing's width
_MAX_PROSE_ROWS = 2
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
    pieces = [
        path
        for path in paths
        if path.box.area < _PAGE_FRAC * page
        and not any(path.box.overlap(table) >= 0.9 * path.box.area > 0 for table in tables)
        and not _is_panel(path, centres)
    ]
    if len(pieces) < _MIN_PATHS and sum(path.is_curved for path in pieces) < _MIN_CURVED:
        return []
    result = []
    for group in _near(pieces, frame):
        box = group[0].box
        for path in group[1:]:
            box = box.joined(path.box)
        if not _is_drawing(group, box):
            continue
        box = Box(max(0.0, box.x0), max(0.0, box.y0), min(frame.width, box.x1), min(frame.height, box.y1))
        inside = [
            w
            for w, c in zip(words, centres, strict=True)
            if box.x0 <= c[0] <= box.x1 and box.y0 <= c[1] <= box.y1
        ]
        if _holds_prose(inside, box) or any(box.overlap(table) > 0.5 * table.area for table in tables):
            continue
        result.append(_with_labels(box, inside, words))
    return _disjoint(result)


def _is_panel(path: Path, centres: np.ndarray) -> bool:
    """Return whether a path is a box around text."""
    box = path.box
    if box.area < _MIN_AREA or not len(centres):
        return False
    inside = (
        (centres[:, 0] >= box.x0)
        & (centres[:, 0] <= box.x1)
        & (centres[:, 1] >= box.y0)
        & (centres[:, 1] <= box.y1)
    )
    return int(inside.sum()) >= _PANEL_WORDS


def _is_drawing(group: Sequence[Path], box: Box) -> bool:
    """Return whether paths are more than an icon, a few lines, or a box with rounded corners and a shadow."""
    if min(box.x1 - box.x0, box.y1 - box.y0) < _MIN_SIDE or box.area < _MIN_AREA:
        return False
    if sum(path.is_curved for path in group) < _MIN_CURVED and len(group) < _MIN_PATHS:
        return False
    border = min(_BORDER, (box.x1 - box.x0) / 3, (box.y1 - box.y0) / 3)
    inner = Box(box.x0 + border, box.y0 + border, box.x1 - border, box.y1 - border)
    inside = [p for p in group if p.box.overlap(inner) > 0 and p.box.overlap(inner) < 0.8 * inner.area]
    thin = sum(p.box.area == 0 or min(p.box.x1 - p.box.x0, p.box.y1 - p.box.y0) <= 3 for p in group)
    return len(inside) + thin > 1


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
