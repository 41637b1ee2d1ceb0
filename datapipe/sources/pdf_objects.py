"""What a PDF page draws beside text: pictures with their places, ruled lines, and drawings.

Owns the walk over the objects of a page, forms within forms included, and what a path is: a ruled line, the
edges of a box, or a piece of a drawing. Does not decode pictures (`pdf_pictures`).
"""

import ctypes
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import pypdfium2 as pdfium
import pypdfium2.raw as pdfium_c

from datapipe.sources.pdf_geometry import Box, Frame, Matrix

MAX_OBJECTS = 200_000  # of one page; the rest of a map with more is not looked at
_MAX_DEPTH = 12  # forms within forms
_MAX_SEGMENTS = 2_000  # of one path that are looked at
_THIN = 3.0  # points; a path less wide or high is a line
_MIN_RULE = 6.0  # points; shorter lines rule nothing
_WHITE = 250  # of 255
_ROUNDED_FRAC = 0.5  # of its outline that is straight in a box with rounded corners
_STRAIGHT = 0.5  # points


_IDENTITY = Matrix(1, 0, 0, 1, 0, 0)


@dataclasses.dataclass(frozen=True, slots=True)
class Placed:
    """A picture on a page. `matrix` maps its unit square to the page as drawn; `box` is what shows of it."""

    raw: Any
    matrix: Matrix
    box: Box
    full: Box  # with what is clipped away
    width: int  # pixels
    height: int
    size_bytes: int  # of the file or stream
    mark: int  # marked content id, -1 where it has none


@dataclasses.dataclass(frozen=True, slots=True)
class Path:
    """A piece of a drawing."""

    box: Box
    is_curved: bool  # or slanting: no edge of a table or box, rounded ones included
    is_filled: bool


@dataclasses.dataclass(slots=True)
class Objects:
    """What a page draws beside text. Ruled lines are boxes of hardly any width or height."""

    pictures: list[Placed]
    rules: list[Box]
    paths: list[Path]
    is_cut: bool  # more objects than are looked at


def objects(page: pdfium.PdfPage, frame: Frame) -> Objects:
    """Return the pictures, lines and drawings of a page, in the frame."""
    found = Objects([], [], [], False)
    shown = Box(0.0, 0.0, frame.width, frame.height)
    for number, (raw, kind, matrix) in enumerate(_walk(page)):
        if number >= MAX_OBJECTS:
            found.is_cut = True
            break
        if kind == pdfium_c.FPDF_PAGEOBJ_IMAGE:
            placed = _placed(raw, matrix, frame)
            if placed is not None and (placed.width > 1 or placed.height > 1):
                found.pictures.append(placed)
            elif placed is not None:  # a filled box or line
                _add_box(found, placed.box, True)
            continue
        box = _bounds(raw, matrix, frame)
        if box is None or box.x1 < 0 or box.y1 < 0 or box.x0 > shown.x1 or box.y0 > shown.y1:
            continue
        if kind == pdfium_c.FPDF_PAGEOBJ_PATH:
            _add_path(found, raw, matrix, box, frame)
        elif kind == pdfium_c.FPDF_PAGEOBJ_SHADING:
            found.paths.append(Path(box, False, True))
    return found


def _walk(page: pdfium.PdfPage) -> Iterator[tuple[Any, int, Matrix]]:
    """Yield each object that is no text and no form, with its kind and the map of the forms it is in."""
    pending: list[Iterator[tuple[Any, Matrix, int]]] = [_children(page.raw, None, _IDENTITY, 0)]
    while pending:
        entry = next(pending[-1], None)
        if entry is None:
            pending.pop()
            continue
        raw, matrix, depth = entry
        kind = pdfium_c.FPDFPageObj_GetType(raw)
        if kind == pdfium_c.FPDF_PAGEOBJ_FORM:
            if depth < _MAX_DEPTH:
                pending.append(_children(None, raw, _matrix(raw).then(matrix), depth + 1))
        elif kind != pdfium_c.FPDF_PAGEOBJ_TEXT:
            yield raw, kind, matrix


def _children(page: Any, form: Any, matrix: Matrix, depth: int) -> Iterator[tuple[Any, Matrix, int]]:
    count = pdfium_c.FPDFPage_CountObjects(page) if form is None else pdfium_c.FPDFFormObj_CountObjects(form)
    for index in range(count):
        if form is None:
            raw = pdfium_c.FPDFPage_GetObject(page, index)
        else:
            raw = pdfium_c.FPDFFormObj_GetObject(form, index)
        if raw:
            yield raw, matrix, depth


def _matrix(raw: Any) -> Matrix:
    found = pdfium_c.FS_MATRIX()
    pdfium_c.FPDFPageObj_GetMatrix(raw, found)
    return Matrix(found.a, found.b, found.c, found.d, found.e, found.f)


def _bounds(raw: Any, matrix: Matrix, frame: Frame) -> Box | None:
    left, bottom, right, top = (ctypes.c_float() for _ in range(4))
    if not pdfium_c.FPDFPageObj_GetBounds(raw, left, bottom, right, top):
        return None
    edges = left.value, bottom.value, right.value, top.value
    return frame.box(*(edges if matrix is _IDENTITY else matrix.bounds(*edges)))


def _placed(raw: Any, outer: Matrix, frame: Frame) -> Placed | None:
    """Return a picture with its place, None where nothing of it shows."""
    matrix = _matrix(raw).then(outer)
    full = frame.box(*matrix.bounds(0, 0, 1, 1))
    shown = _shared(full, Box(0.0, 0.0, frame.width, frame.height))
    clip = _clip(raw, outer, frame)
    if shown is not None and clip is not None:
        shown = _shared(shown, clip)
    width, height = ctypes.c_uint(), ctypes.c_uint()
    pdfium_c.FPDFImageObj_GetImagePixelSize(raw, width, height)
    if shown is None or not width.value or not height.value:
        return None
    size_bytes = pdfium_c.FPDFImageObj_GetImageDataRaw(raw, None, 0)
    mark = pdfium_c.FPDFPageObj_GetMarkedContentID(raw)
    return Placed(raw, matrix, shown, full, width.value, height.value, size_bytes, mark)


def _shared(box: Box, other: Box) -> Box | None:
    x0, y0 = max(box.x0, other.x0), max(box.y0, other.y0)
    x1, y1 = min(box.x1, other.x1), min(box.y1, other.y1)
    return Box(x0, y0, x1, y1) if x1 > x0 and y1 > y0 else None


def _clip(raw: Any, outer: Matrix, frame: Frame) -> Box | None:
    """Return the box in which an object shows, None where nothing clips it."""
    clip = pdfium_c.FPDFPageObj_GetClipPath(raw)
    if not clip:
        return None
    result: Box | None = None
    for path in range(max(0, pdfium_c.FPDFClipPath_CountPaths(clip))):
        count = pdfium_c.FPDFClipPath_CountPathSegments(clip, path)
        segments = (
            pdfium_c.FPDFClipPath_GetPathSegment(clip, path, i)
            for i in range(min(max(0, count), _MAX_SEGMENTS))
        )
        points = [outer.point(*_point(segment)) for segment in segments]
        if not points:
            continue
        box = frame.box(*_spanned(points))
        result = box if result is None else _shared(result, box) or Box(0.0, 0.0, 0.0, 0.0)
    return result


def _point(segment: Any) -> tuple[float, float]:
    x, y = ctypes.c_float(), ctypes.c_float()
    pdfium_c.FPDFPathSegment_GetPoint(segment, x, y)
    return x.value, y.value


def _add_path(found: Objects, raw: Any, outer: Matrix, box: Box, frame: Frame) -> None:
    """Take in a path: as ruled lines, and as a piece of a drawing where it is more than lines."""
    fill, stroke = ctypes.c_int(), ctypes.c_int()
    pdfium_c.FPDFPath_GetDrawMode(raw, fill, stroke)
    is_filled = bool(fill.value) and not (not stroke.value and _is_white(raw))
    if not is_filled and not stroke.value:
        return
    outline = _outline(raw, _matrix(raw).then(outer), frame)
    if stroke.value:  # pdfium's box of a stroked path is wider by the longest corner it might have
        box = outline.box or box
    if min(box.x1 - box.x0, box.y1 - box.y0) <= _THIN:
        _add_box(found, box, is_filled)
        return
    if not outline.is_curved and (stroke.value or len(outline.edges) <= 4):
        found.rules += outline.edges
    found.paths.append(Path(box, outline.is_curved, is_filled))


def _add_box(found: Objects, box: Box, is_filled: bool) -> None:
    """Take in a plain box, which is a ruled line where it is thin."""
    width, height = box.x1 - box.x0, box.y1 - box.y0
    if min(width, height) <= _THIN and max(width, height) >= _MIN_RULE:
        found.rules.append(box)
    found.paths.append(Path(box, False, is_filled))


def _is_white(raw: Any) -> bool:
    red, green, blue, alpha = (ctypes.c_uint() for _ in range(4))
    if not pdfium_c.FPDFPageObj_GetFillColor(raw, red, green, blue, alpha):
        return False
    return min(red.value, green.value, blue.value) >= _WHITE or not alpha.value


class _Outline(NamedTuple):
    """The upright straight lines of a path, whether it has others, and the box around its points."""

    edges: list[Box]
    is_curved: bool
    box: Box | None


def _outline(raw: Any, matrix: Matrix, frame: Frame) -> _Outline:
    edges: list[Box] = []
    points: list[tuple[float, float]] = []
    controls: list[tuple[float, float]] = []
    is_curved = False
    straight = 0.0  # length of upright lines
    start = last = (0.0, 0.0)
    count = pdfium_c.FPDFPath_CountSegments(raw)
    for index in range(min(count, _MAX_SEGMENTS)):
        segment = pdfium_c.FPDFPath_GetPathSegment(raw, index)
        kind = pdfium_c.FPDFPathSegment_GetType(segment)
        point = matrix.point(*_point(segment))
        if kind == pdfium_c.FPDF_SEGMENT_BEZIERTO:
            is_curved = True
            controls.append(point)
            if len(controls) == 3:
                points += _on_curve(last, *controls)
                last, controls = point, []
            continue
        points.append(point)
        ends = [point]
        if kind == pdfium_c.FPDF_SEGMENT_MOVETO:
            start, last, ends = point, point, []
        if pdfium_c.FPDFPathSegment_GetClose(segment):
            ends.append(start)
        for end in ends:
            across, along = abs(end[0] - last[0]), abs(end[1] - last[1])
            is_curved = is_curved or min(across, along) > _STRAIGHT
            straight += max(across, along) if min(across, along) <= _STRAIGHT else 0.0
            if not is_curved and max(across, along) >= _MIN_RULE:
                edges.append(frame.box(*_spanned((last, end))))
            last = end
    if not points or count > _MAX_SEGMENTS:
        return _Outline([], True, None)
    box = frame.box(*_spanned(points))
    if straight >= _ROUNDED_FRAC * 2 * (box.x1 - box.x0 + box.y1 - box.y0):
        is_curved = False
    return _Outline([] if is_curved else edges, is_curved, box)


def _on_curve(*points: tuple[float, float]) -> list[tuple[float, float]]:
    """Return points on a Bézier curve; its control points lie further out."""
    (ax, ay), (bx, by), (cx, cy), (dx, dy) = points
    weights = [
        ((1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t * t * (1 - t), t**3) for t in (0.25, 0.5, 0.75, 1.0)
    ]
    return [(a * ax + b * bx + c * cx + d * dx, a * ay + b * by + c * cy + d * dy) for a, b, c, d in weights]


def _spanned(points: Sequence[tuple[float, float]]) -> tuple[float, float, float, float]:
    """Return the left, bottom, right and top of points."""
    xs, ys = [x for x, _ in points], [y for _, y in points]
    return min(xs), min(ys), max(xs), max(ys)
