"""Pictures of a PDF page as files.

Owns how a picture gets its bytes: those of the JPEG or JPEG 2000 file in the PDF where they show what the
page shows, else a PNG of what pdfium makes of them; and pictures of a part of a page.

A PDF may turn, mirror and mask the file inside it, invert its colours or read them in another space, all
outside of the file. So the file is decoded as the pipeline will decode it and compared with pdfium's
rendering before its bytes are trusted. A picture that is only turned keeps its bytes with an EXIF
orientation.
"""

import ctypes
import hashlib
import io
import struct
import zlib
from collections.abc import Hashable
from typing import NamedTuple

import numpy as np
import pypdfium2 as pdfium
import pypdfium2.raw as pdfium_c
from PIL import Image, ImageChops, ImageOps

from datapipe.sources.pdf_geometry import Box, Frame
from datapipe.sources.pdf_objects import Placed

MAX_PIXELS = 89_478_485  # of one picture; Pillow's limit for a warning, as in IngestSpec
MAX_RENDERED_PIXELS = 8_000_000
POINTS_PER_INCH = 72.0
DRAWING_DPI = 150.0  # drawings and pages without a picture of known resolution
_FILES = {"DCTDecode": "image/jpeg", "JPXDecode": "image/jp2"}
_SAMPLED = 64  # side of the small copies that are compared
_COMPARED = 8  # side to which they are averaged first
_MAX_MEAN_DIFFERENCE = 12.0  # levels of 255
_MAX_DIFFERENCE = 60.0
_WHOLE_FRAC = 0.9  # of a picture that must show for its file to be taken
_OPAQUE = 250  # of 255
_FLAT = 2.0  # levels; what varies less shows nothing
_PNG_LEVEL = 4  # half the time of level 6 for 2 % more bytes


class File(NamedTuple):
    """The bytes of a picture."""

    data: bytes
    mime: str


def picture(document: pdfium.PdfDocument, page: pdfium.PdfPage, placed: Placed, frame: Frame) -> File | None:
    """Return a placed picture as the page shows it, upright in the frame; None where it cannot be decoded.

    What is clipped away is left out. A picture with too many pixels gives a PNG that ends after its header:
    the pipeline refuses it by name and never decodes it.
    """
    if placed.width * placed.height > MAX_PIXELS:
        return File(_header_only(placed.width, placed.height), "image/png")
    if placed.box.area < _WHOLE_FRAC * placed.full.area:
        return region(page, frame, placed.box, dots_per_inch(placed))
    orientation = _orientation(placed, frame)
    file = _own_file(placed)
    sample = None if file is None else _rendered(document, page, placed, _SAMPLED, _SAMPLED)
    if sample is not None and file is not None and _is_opaque(sample):
        for wanted in dict.fromkeys((None, orientation)):
            data = file.data if wanted is None else _with_orientation(file, wanted)
            if data is not None and _shows(data, _turned(sample, orientation)):
                return File(data, file.mime)
    full = _rendered(document, page, placed, placed.width, placed.height)
    if full is None:
        return None
    if _is_lost_on_white(full):
        return region(page, frame, placed.box, dots_per_inch(placed))
    return File(png(_turned(full, orientation)), "image/png")


def key(placed: Placed, frame: Frame) -> Hashable:
    """Return what two placed pictures share that have the same file.

    Stencils take the colour they are filled with; it is part of the key for all.
    """
    length = pdfium_c.FPDFImageObj_GetImageDataRaw(placed.raw, None, 0)
    data = ctypes.create_string_buffer(max(1, length))
    pdfium_c.FPDFImageObj_GetImageDataRaw(placed.raw, data, length)
    digest = hashlib.blake2b(data.raw, digest_size=16).digest()
    red, green, blue, alpha = (ctypes.c_uint() for _ in range(4))
    pdfium_c.FPDFPageObj_GetFillColor(placed.raw, red, green, blue, alpha)
    colour = red.value, green.value, blue.value, alpha.value
    shown = None
    if placed.box.area < _WHOLE_FRAC * placed.full.area:
        shown = tuple(round(edge, 1) for edge in placed.box)
    return digest, placed.width, placed.height, _orientation(placed, frame), colour, shown


def region(page: pdfium.PdfPage, frame: Frame, box: Box, resolution: float) -> File | None:
    """Return a part of the page as a PNG; None where it has no size, or is white all over."""
    pixels = render(page, frame, box, resolution)
    if pixels is None or not ImageChops.invert(pixels).getbbox():
        return None
    return File(png(pixels), "image/png")


def render(page: pdfium.PdfPage, frame: Frame, box: Box, resolution: float) -> Image.Image | None:
    """Draw a part of the page on white, at some dots per inch, or fewer for `MAX_RENDERED_PIXELS`."""
    scale = resolution / POINTS_PER_INCH
    width, height = (box.x1 - box.x0) * scale, (box.y1 - box.y0) * scale
    if width <= 0 or height <= 0:
        return None
    scale *= min(1.0, (MAX_RENDERED_PIXELS / (width * height)) ** 0.5)
    columns = max(1, round((box.x1 - box.x0) * scale))
    lines = max(1, round((box.y1 - box.y0) * scale))
    if columns * lines > 2 * MAX_RENDERED_PIXELS:
        return None
    bitmap = pdfium.PdfBitmap.new_native(columns, lines, pdfium_c.FPDFBitmap_BGR)
    try:
        bitmap.fill_rect((255, 255, 255, 255), 0, 0, columns, lines)
        pdfium_c.FPDF_RenderPageBitmap(
            bitmap,
            page,
            round(-box.x0 * scale),
            round(-box.y0 * scale),
            max(1, round(frame.width * scale)),
            max(1, round(frame.height * scale)),
            (frame.quarter_turns - page.get_rotation() // 90) % 4,
            pdfium_c.FPDF_ANNOT,
        )
        return bitmap.to_pil().convert("RGB")
    finally:
        bitmap.close()


def png(pixels: Image.Image) -> bytes:
    """Return pixels as a PNG: black and white or grey where that is all they hold, alpha where it is used."""
    if pixels.mode == "RGBA" and _is_opaque(pixels):
        pixels = pixels.convert("RGB")
    if pixels.mode == "RGB":
        values = np.asarray(pixels)
        if (values[..., 0] == values[..., 1]).all() and (values[..., 1] == values[..., 2]).all():
            pixels = pixels.getchannel("R")
            if not pixels.point([0, *[1] * 254, 0]).getbbox():
                pixels = pixels.convert("1", dither=Image.Dither.NONE)
    buffer = io.BytesIO()
    pixels.save(buffer, "PNG", compress_level=_PNG_LEVEL)
    return buffer.getvalue()


def dots_per_inch(placed: Placed) -> float:
    """Return a picture's resolution on the page."""
    matrix = placed.matrix
    wide, high = np.hypot(matrix.a, matrix.b), np.hypot(matrix.c, matrix.d)
    per_point = max(placed.width / max(wide, 0.01), placed.height / max(high, 0.01))
    return float(min(1200.0, max(POINTS_PER_INCH, per_point * POINTS_PER_INCH)))


def _header_only(width: int, height: int) -> bytes:
    """Return a PNG that ends where its pixels would begin."""
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = (
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in ((b"IHDR", header), (b"IDAT", b""))
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def _own_file(placed: Placed) -> File | None:
    """Return the picture file in the PDF, if it is one that stands alone."""
    count = pdfium_c.FPDFImageObj_GetImageFilterCount(placed.raw)
    if count < 1:
        return None
    buffer = ctypes.create_string_buffer(64)
    pdfium_c.FPDFImageObj_GetImageFilter(placed.raw, count - 1, buffer, len(buffer))
    mime = _FILES.get(buffer.value.decode("latin-1"))
    if mime is None:
        return None
    get = pdfium_c.FPDFImageObj_GetImageDataDecoded if count > 1 else pdfium_c.FPDFImageObj_GetImageDataRaw
    length = get(placed.raw, None, 0)
    data = ctypes.create_string_buffer(max(1, length))
    get(placed.raw, data, length)
    return File(data.raw[:length], mime)


def _rendered(
    document: pdfium.PdfDocument, page: pdfium.PdfPage, placed: Placed, width: int, height: int
) -> Image.Image | None:
    """Return the picture alone, unturned, with its masks and colours, at a size in pixels."""
    before = pdfium_c.FS_MATRIX()
    pdfium_c.FPDFPageObj_GetMatrix(placed.raw, before)
    pdfium_c.FPDFPageObj_SetMatrix(placed.raw, pdfium_c.FS_MATRIX(width, 0, 0, height, 0, 0))
    try:
        raw = pdfium_c.FPDFImageObj_GetRenderedBitmap(document, page, placed.raw)
    finally:
        pdfium_c.FPDFPageObj_SetMatrix(placed.raw, before)
    if not raw:
        return None
    pixels = pdfium.PdfBitmap.from_raw(raw).to_pil()  # freed with its buffer, which the copy does not share
    return pixels.copy() if pixels.mode in ("RGB", "RGBA") else pixels.convert("RGB")


def _is_opaque(pixels: Image.Image) -> bool:
    return pixels.mode != "RGBA" or int(np.asarray(pixels.getchannel("A")).min()) >= _OPAQUE


def _is_lost_on_white(pixels: Image.Image) -> bool:
    """Return whether a picture with transparency shows on its dark page only: a white logo."""
    if _is_opaque(pixels):
        return False
    alpha = np.asarray(pixels.getchannel("A"), dtype=np.float64)
    grey = np.asarray(pixels.convert("L"), dtype=np.float64)
    return bool(alpha.std() > _FLAT and ((255 - grey) * alpha / 255).std() <= _FLAT)


def _orientation(placed: Placed, frame: Frame) -> int:
    """Return the EXIF orientation that makes the stored picture what the frame shows, to a quarter turn."""
    m = placed.matrix
    # Where the stored picture's right and down point in the frame (right, down), for each turn of the page.
    right, down = {
        0: ((m.a, -m.b), (-m.c, m.d)),
        1: ((m.b, m.a), (-m.d, -m.c)),
        2: ((-m.a, m.b), (m.c, -m.d)),
        3: ((-m.b, -m.a), (m.d, m.c)),
    }[frame.quarter_turns]
    if abs(right[0]) >= abs(right[1]):
        return {(1, 1): 1, (-1, 1): 2, (-1, -1): 3, (1, -1): 4}[_sign(right[0]), _sign(down[1])]
    return {(1, 1): 5, (1, -1): 6, (-1, -1): 7, (-1, 1): 8}[_sign(right[1]), _sign(down[0])]


def _sign(value: float) -> int:
    return 1 if value >= 0 else -1


_TRANSPOSES = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


def _turned(pixels: Image.Image, orientation: int) -> Image.Image:
    """Return pixels as a viewer that knows an EXIF orientation shows them."""
    return pixels.transpose(_TRANSPOSES[orientation]) if orientation in _TRANSPOSES else pixels


def _with_orientation(file: File, orientation: int) -> bytes | None:
    """Return a JPEG with this EXIF orientation and no other; None where the file is no plain JPEG."""
    if file.mime != "image/jpeg" or not file.data.startswith(b"\xff\xd8\xff"):
        return None
    data, kept, place = file.data, [b"\xff\xd8"], 2
    tags = struct.pack(">2sHIHHHIHHI", b"MM", 42, 8, 1, 0x0112, 3, 1, orientation, 0, 0)
    exif = b"Exif\0\0" + tags
    kept.append(b"\xff\xe1" + struct.pack(">H", len(exif) + 2) + exif)
    while data[place : place + 1] == b"\xff" and 0xE0 <= data[place + 1] <= 0xEF:
        end = place + 2 + int.from_bytes(data[place + 2 : place + 4], "big")
        segment = data[place:end]
        if not segment[4:].startswith(b"Exif\0"):
            kept.append(segment)
        place = end
    return b"".join(kept) + data[place:]


def _shows(data: bytes, expected: Image.Image) -> bool:
    """Return whether a file, decoded by itself, shows nearly the same as pdfium does."""
    try:
        with Image.open(io.BytesIO(data)) as image:
            if image.width * image.height > MAX_PIXELS:
                return False
            image.draft("RGB" if image.mode == "RGB" else None, (_SAMPLED * 2, _SAMPLED * 2))
            pixels = ImageOps.exif_transpose(image).convert("RGB")
    except Exception:  # whatever is wrong with the file, pdfium's rendering takes its place
        return False
    sides = (_COMPARED, _COMPARED)
    own, other = (
        np.asarray(p.convert("RGB").resize(sides, Image.Resampling.BOX), dtype=np.float64)
        for p in (pixels, expected)
    )
    difference = np.abs(own - other)
    return bool(difference.mean() <= _MAX_MEAN_DIFFERENCE and difference.max() <= _MAX_DIFFERENCE)
