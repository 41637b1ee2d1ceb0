"""Where the shapes of a slide lie: frames of DrawingML, groups and turns as boxes on the slide.

Owns geometry in EMU (914,400 to the inch), y downwards. Reads no content.
"""

import dataclasses
import math

from lxml import etree

from datapipe.sources.office import NAMESPACES
from datapipe.sources.reading_order import Box

Point = tuple[float, float]
NOWHERE = Box(0, 0, 0, 0)
_UNITS_EMU = {"mm": 36_000, "cm": 360_000, "in": 914_400, "pt": 12_700, "pc": 152_400, "pi": 152_400}
_MAX_EMU = 1e12  # more than a thousand kilometres, or no number


@dataclasses.dataclass(frozen=True)
class Transform:
    """An affine map from a group's coordinates to the slide's: x' = a x + c y + e, y' = b x + d y + f."""

    a: float = 1.0
    b: float = 0.0
    c: float = 0.0
    d: float = 1.0
    e: float = 0.0
    f: float = 0.0

    def __call__(self, point: Point) -> Point:
        x, y = point
        return self.a * x + self.c * y + self.e, self.b * x + self.d * y + self.f

    def after(self, inner: "Transform") -> "Transform":
        """Return the map that applies `inner` first."""
        (e, f), (a, b), (c, d) = self((inner.e, inner.f)), (inner.a, inner.b), (inner.c, inner.d)
        return Transform(
            self.a * a + self.c * b,
            self.b * a + self.d * b,
            self.a * c + self.c * d,
            self.b * c + self.d * d,
            e,
            f,
        )


def is_somewhere(box: Box) -> bool:
    """Return whether a box is that of a shape that says where it is."""
    return box.x0 < box.x1 or box.y0 < box.y1


def box_of(frame: etree._Element | None, transform: Transform, is_medium: bool) -> Box:
    """Return the upright box around a shape on the slide, turned as it is."""
    if frame is None:
        return dataclasses.replace(NOWHERE, is_medium=is_medium)
    x, y, width, height = _rectangle(frame, "off", "ext")
    corners = [(x, y), (x + width, y), (x, y + height), (x + width, y + height)]
    turn = _turn(frame, (x + width / 2, y + height / 2))
    points = [transform(turn(corner)) for corner in corners]
    xs, ys = ([p[axis] for p in points] for axis in (0, 1))
    return Box(min(xs), min(ys), max(xs), max(ys), is_medium)


def around(boxes: list[Box], is_medium: bool) -> Box:
    """Return the box around some boxes."""
    if not boxes:
        return NOWHERE
    return Box(
        min(b.x0 for b in boxes),
        min(b.y0 for b in boxes),
        max(b.x1 for b in boxes),
        max(b.y1 for b in boxes),
        is_medium,
    )


def of_group(xfrm: etree._Element | None) -> Transform:
    """Return the map from a group's own coordinates (ECMA-376 part 1, 20.1.7.5) to those around it."""
    if xfrm is None or xfrm.find("a:chExt", NAMESPACES) is None:
        return Transform()
    x, y, width, height = _rectangle(xfrm, "off", "ext")
    child_x, child_y, child_width, child_height = _rectangle(xfrm, "chOff", "chExt")
    scale_x = width / child_width if child_width else 1.0
    scale_y = height / child_height if child_height else 1.0
    placed = Transform(a=scale_x, d=scale_y, e=x - child_x * scale_x, f=y - child_y * scale_y)
    flip_x, flip_y = (-1.0 if xfrm.get(flip) in ("1", "true") else 1.0 for flip in ("flipH", "flipV"))
    flipped = Transform(
        a=flip_x, d=flip_y, e=(1 - flip_x) * (x + width / 2), f=(1 - flip_y) * (y + height / 2)
    )
    return _turn(xfrm, (x + width / 2, y + height / 2)).after(flipped).after(placed)


def _turn(frame: etree._Element, center: Point) -> Transform:
    """Return the turn of a frame (60,000ths of a degree, clockwise) about its centre."""
    angle = math.radians(emu(frame, "rot", 0) / 60_000)
    cos, sin, (x, y) = math.cos(angle), math.sin(angle), center
    return Transform(cos, sin, -sin, cos, x - cos * x + sin * y, y - sin * x - cos * y)


def _rectangle(xfrm: etree._Element, offset: str, extent: str) -> tuple[float, float, float, float]:
    at, size = xfrm.find(f"a:{offset}", NAMESPACES), xfrm.find(f"a:{extent}", NAMESPACES)
    return emu(at, "x", 0), emu(at, "y", 0), emu(size, "cx", 0), emu(size, "cy", 0)


def emu(element: etree._Element | None, name: str, default: float) -> float:
    """Return a length in EMU; ISO Strict files write it with a unit. The default where it is no length."""
    text = (element.get(name) or "") if element is not None else ""
    try:
        length = float(text[:-2]) * _UNITS_EMU[text[-2:]] if text[-2:] in _UNITS_EMU else float(text)
    except ValueError:
        return default
    return length if abs(length) < _MAX_EMU else default
