"""Boxes, turned pages and affine maps: the geometry that the parts of the PDF reader share.

A frame is the page turned by quarter turns, its corner at the top left, y downwards, in points (1/72 inch).
"""

from typing import NamedTuple


class Box(NamedTuple):
    """A rectangle in a frame."""

    x0: float
    y0: float
    x1: float
    y1: float

    def joined(self, other: "Box") -> "Box":
        """Return the smallest box around both."""
        return Box(
            min(self.x0, other.x0), min(self.y0, other.y0), max(self.x1, other.x1), max(self.y1, other.y1)
        )

    def overlap(self, other: "Box") -> float:
        """Return the area of what both share."""
        width = min(self.x1, other.x1) - max(self.x0, other.x0)
        height = min(self.y1, other.y1) - max(self.y0, other.y0)
        return width * height if width > 0 and height > 0 else 0.0

    @property
    def area(self) -> float:
        """Width times height."""
        return (self.x1 - self.x0) * (self.y1 - self.y0)


class Frame(NamedTuple):
    """The page turned clockwise by quarter turns; left, bottom, right, top are its edges as drawn."""

    quarter_turns: int
    left: float
    bottom: float
    right: float
    top: float

    @property
    def width(self) -> float:
        """Width of the turned page."""
        return self.top - self.bottom if self.quarter_turns % 2 else self.right - self.left

    @property
    def height(self) -> float:
        """Height of the turned page."""
        return self.right - self.left if self.quarter_turns % 2 else self.top - self.bottom

    def box(self, left: float, bottom: float, right: float, top: float) -> Box:
        """Return a rectangle of the page as drawn in this frame."""
        match self.quarter_turns:
            case 0:
                return Box(left - self.left, self.top - top, right - self.left, self.top - bottom)
            case 1:
                return Box(bottom - self.bottom, left - self.left, top - self.bottom, right - self.left)
            case 2:
                return Box(self.right - right, bottom - self.bottom, self.right - left, top - self.bottom)
        return Box(self.top - top, self.right - right, self.top - bottom, self.right - left)

    def turned(self, box: Box, quarter_turns: int) -> Box:
        """Return a box of this frame in the frame of as many quarter turns."""
        match self.quarter_turns:
            case 0:
                drawn = (box.x0 + self.left, self.top - box.y1, box.x1 + self.left, self.top - box.y0)
            case 1:
                drawn = (box.y0 + self.left, box.x0 + self.bottom, box.y1 + self.left, box.x1 + self.bottom)
            case 2:
                drawn = (self.right - box.x1, box.y0 + self.bottom, self.right - box.x0, box.y1 + self.bottom)
            case _:
                drawn = (self.right - box.y1, self.top - box.x1, self.right - box.y0, self.top - box.x0)
        return self._replace(quarter_turns=quarter_turns).box(*drawn)


class Matrix(NamedTuple):
    """An affine map: (x, y) to (a x + c y + e, b x + d y + f)."""

    a: float
    b: float
    c: float
    d: float
    e: float
    f: float

    def then(self, outer: "Matrix") -> "Matrix":
        """Return this map followed by another."""
        return Matrix(
            self.a * outer.a + self.b * outer.c,
            self.a * outer.b + self.b * outer.d,
            self.c * outer.a + self.d * outer.c,
            self.c * outer.b + self.d * outer.d,
            self.e * outer.a + self.f * outer.c + outer.e,
            self.e * outer.b + self.f * outer.d + outer.f,
        )

    def point(self, x: float, y: float) -> tuple[float, float]:
        """Return where a point goes."""
        return self.a * x + self.c * y + self.e, self.b * x + self.d * y + self.f

    def bounds(
        self, left: float, bottom: float, right: float, top: float
    ) -> tuple[float, float, float, float]:
        """Return the smallest upright rectangle around where a rectangle goes."""
        corners = [self.point(x, y) for x in (left, right) for y in (bottom, top)]
        xs, ys = [x for x, _ in corners], [y for _, y in corners]
        return min(xs), min(ys), max(xs), max(ys)
