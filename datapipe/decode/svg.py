"""SVG drawings: rendered by resvg at their natural size, or refused where a part would be missing.

Owns how large a drawing is rendered, what of it may not be there, and the fonts. resvg runs no scripts and
fetches nothing; a drawing that needs another file (pictures, style sheets), text in HTML, or characters that
the fonts lack is refused, for it would come out with a hole. Animations show their beginning. Fonts are the
DejaVu faces that matplotlib carries, never those of the machine, so a drawing looks the same on every worker.
"""

import base64
import binascii
import functools
import importlib.util
import io
import re
import urllib.parse
import zlib
from pathlib import Path
from typing import Any

import resvg_py
from lxml import etree
from PIL import Image

from datapipe.errors import DamagedMedium, DecodeError, TooManyPixels, UnsupportedMedium

MAX_SIDE = 2048  # pixels; drawings have no resolution, and a larger picture would only be shrunk
MAX_BYTES = 16 * 1024**2  # unpacked; the largest of 7,458 in openclipart-svg is smaller
MAX_ELEMENTS = 200_000  # drawn, after `use` repeats them
_DOTS_PER_INCH = 96
_UNITS = {
    "": 1,
    "px": 1,
    "pt": 4 / 3,
    "pc": 16,
    "mm": 96 / 25.4,
    "cm": 96 / 2.54,
    "in": 96,
    "em": 16,
    "ex": 8,
}
_LENGTH = re.compile(r"\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?)\s*([a-z]*)\s*", re.IGNORECASE)
_START = re.compile(
    rb"(?:\xef\xbb\xbf)?\s*(?:<\?xml[^>]*\?>\s*)?"
    rb"(?:<!--.*?-->\s*|<\?.*?\?>\s*|<!DOCTYPE[^>\[]*(?:\[.*?\])?\s*>\s*)*<(?:\w+:)?svg\b",
    re.DOTALL | re.IGNORECASE,
)
_HREFS = ("href", "{http://www.w3.org/1999/xlink}href")
_FONTS = (
    "DejaVuSans",
    "DejaVuSans-Bold",
    "DejaVuSans-Oblique",
    "DejaVuSans-BoldOblique",
    "DejaVuSerif",
    "DejaVuSerif-Bold",
    "DejaVuSerif-Italic",
    "DejaVuSansMono",
    "DejaVuSansMono-Bold",
)


def is_svg(data: bytes) -> bool:
    """Return whether the bytes begin as an SVG drawing does, plain or gzipped."""
    if data[:2] == b"\x1f\x8b":
        data = _unzipped(data, 4096, strict=False)
    return _START.match(data[:4096]) is not None


def render(data: bytes, max_pixels: int) -> Image.Image:
    """Return a drawing as RGBA pixels, at its natural size (96 dots per inch), at most `MAX_SIDE` a side.

    Raises:
        DamagedMedium: no well-formed XML, no size, or nothing that can be drawn.
        UnsupportedMedium: needs a file, HTML or characters that are not at hand.
        TooManyPixels: unpacks to more than `MAX_BYTES`, repeats parts to more than `MAX_ELEMENTS`, or embeds
            a picture larger than `max_pixels`.
    """
    root = _parsed(_unzipped(data, MAX_BYTES) if data[:2] == b"\x1f\x8b" else data)
    _check_complete(root, max_pixels)
    _check_repeats(root)
    width, height = _natural_size(root)
    scale = min(1.0, MAX_SIDE / max(width, height), (max_pixels / (width * height)) ** 0.5)
    size = (max(1, round(width * scale)), max(1, round(height * scale)))
    try:
        png = resvg_py.svg_to_bytes(
            svg_string=etree.tostring(root, encoding="unicode"),
            width=size[0],
            height=size[1],
            dpi=_DOTS_PER_INCH,
            skip_system_fonts=True,
            font_files=list(_fonts()),
            font_family="DejaVu Sans",
            sans_serif_family="DejaVu Sans",
            serif_family="DejaVu Serif",
            monospace_family="DejaVu Sans Mono",
            cursive_family="DejaVu Sans",
            fantasy_family="DejaVu Sans",
        )
    except BaseException as error:  # a panic in Rust is no Exception
        if isinstance(error, Exception) or type(error).__name__ == "PanicException":
            raise DamagedMedium(f"cannot be drawn: {error}") from None
        raise
    with Image.open(io.BytesIO(png), formats=["PNG"]) as image:
        return image.convert("RGBA")


def _unzipped(data: bytes, max_bytes: int, strict: bool = True) -> bytes:
    try:
        unpacked = zlib.decompressobj(wbits=31).decompress(data, max_bytes + 1)
    except zlib.error as error:
        if not strict:
            return b""
        raise DamagedMedium(f"gzip: {error}") from error
    if strict and len(unpacked) > max_bytes:
        raise TooManyPixels(f"unpacks to more than {max_bytes} bytes")
    return unpacked


def _parsed(data: bytes) -> Any:
    if len(data) > MAX_BYTES:
        raise TooManyPixels(f"{len(data)} bytes, more than {MAX_BYTES}")
    parser = etree.XMLParser(no_network=True, load_dtd=False, huge_tree=False, remove_comments=True)
    try:
        root = etree.fromstring(data, parser)
    except etree.XMLSyntaxError as error:
        raise DamagedMedium(f"no well-formed XML: {error}") from error
    except ValueError as error:
        raise DamagedMedium(f"no XML: {error}") from error
    if root.tag != "{http://www.w3.org/2000/svg}svg":
        raise DamagedMedium("the root is no svg element in the SVG namespace")
    return root


def _check_complete(root: Any, max_pixels: int) -> None:
    """Refuse a drawing of which a part would be missing."""
    for sheet in root.xpath("//processing-instruction('xml-stylesheet')"):
        raise UnsupportedMedium(f"needs the style sheet {sheet.get('href')}")
    for element in root.iter(etree.Element):
        name = etree.QName(element).localname
        if name in ("image", "feImage"):
            _check_picture(element, max_pixels)
        elif name == "foreignObject" and "".join(element.itertext()).strip() and not _has_fallback(element):
            raise UnsupportedMedium("shows text in HTML (foreignObject)")
        elif name == "style" and "@import" in (element.text or ""):
            raise UnsupportedMedium("imports a style sheet")
        elif name in ("text", "tspan", "textPath"):
            _check_characters((element.text or "") + "".join(child.tail or "" for child in element))


def _check_picture(element: Any, max_pixels: int) -> None:
    href = next((element.get(name) for name in _HREFS if element.get(name)), "")
    if not href or href.startswith("#"):
        return
    if not href.startswith("data:"):
        raise UnsupportedMedium(f"shows another file: {href[:80]}")
    head, _, body = href.partition(",")
    try:
        data = base64.b64decode(body) if "base64" in head else urllib.parse.unquote_to_bytes(body)
        if is_svg(data):
            return
        with Image.open(io.BytesIO(data)) as image:
            if image.width * image.height > max_pixels:
                raise TooManyPixels(f"embeds a picture of {image.width} x {image.height} pixels")
    except DecodeError:
        raise
    except Image.DecompressionBombError as error:
        raise TooManyPixels(f"embeds a picture: {error}") from error
    except (binascii.Error, ValueError, OSError, SyntaxError) as error:
        raise DamagedMedium("embeds a picture that cannot be read") from error


def _has_fallback(element: Any) -> bool:
    """Return whether another branch of a `switch` is drawn in place of HTML."""
    parent = element.getparent()
    return parent is not None and etree.QName(parent).localname == "switch" and len(parent) > 1


def _check_characters(text: str) -> None:
    if text.isascii():
        return
    missing = {c for c in text if not c.isspace() and ord(c) >= 0x80 and ord(c) not in _characters()}
    if missing:
        raise UnsupportedMedium(f"text with characters that the fonts lack, such as {min(missing)!r}")


def _check_repeats(root: Any) -> None:
    """Refuse a drawing whose `use` elements repeat each other until it is too large to draw."""
    by_id = {element.get("id"): element for element in root.iter(etree.Element) if element.get("id")}
    counts: dict[Any, int] = {}

    def count(element: Any, above: frozenset[Any]) -> int:
        if element in counts or element in above:
            return counts.get(element, 0)
        inside, total = above | {element}, 1
        for child in element.iterchildren(etree.Element):
            total += count(child, inside)
        if etree.QName(element).localname == "use":
            target = by_id.get(
                next((element.get(n, "") for n in _HREFS if element.get(n)), "").removeprefix("#")
            )
            total += count(target, inside) if target is not None else 0
        counts[element] = total
        if total > MAX_ELEMENTS:
            raise TooManyPixels(f"repeats its parts to more than {MAX_ELEMENTS} elements")
        return total

    try:
        count(root, frozenset())
    except RecursionError as error:
        raise TooManyPixels("nests its parts too deeply") from error


def _natural_size(root: Any) -> tuple[float, float]:
    """Return width and height in pixels: as declared, or by the view box where one or both are missing."""
    box = [float(n) for n in re.findall(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?", root.get("viewBox", ""))]
    box_size = (box[2], box[3]) if len(box) == 4 and box[2] > 0 and box[3] > 0 else None
    width, height = _pixels(root.get("width")), _pixels(root.get("height"))
    if width is None and height is None and box_size:
        width, height = box_size
    elif box_size:
        width = width if width is not None else (height or 0) * box_size[0] / box_size[1]
        height = height if height is not None else width * box_size[1] / box_size[0]
    if not width or not height or width < 0 or height < 0 or width * height == float("inf"):
        raise DamagedMedium(f"no size: width {root.get('width')}, height {root.get('height')}")
    return width, height


def _pixels(length: str | None) -> float | None:
    """Return a length in pixels; None where there is none, or it is a share of the page's."""
    match = _LENGTH.fullmatch(length or "")
    if match is None or match[2].lower() not in _UNITS:
        return None
    return float(match[1]) * _UNITS[match[2].lower()]


@functools.cache
def _fonts() -> tuple[str, ...]:
    found = importlib.util.find_spec("matplotlib")
    assert found is not None and found.submodule_search_locations, "matplotlib is a dependency"
    folder = Path(found.submodule_search_locations[0]) / "mpl-data" / "fonts" / "ttf"
    return tuple(str(folder / f"{name}.ttf") for name in _FONTS)


@functools.cache
def _characters() -> frozenset[int]:
    """Return the code points that the regular sans-serif face can draw."""
    from fontTools.ttLib import TTFont  # matplotlib brings it; few drawings need it

    with TTFont(_fonts()[0], lazy=True) as font:
        return frozenset(font.getBestCmap())
