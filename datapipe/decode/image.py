"""Pictures: bytes to canonical pixels, under one policy.

Owns what a picture looks like to everything after it, and the order in which that is made of a file:

1. Which picture: the first frame of an animation (of an APNG with a default image, that one), the first page
   of a TIFF that is no thumbnail, the composite of a PSD, the largest of an icon: `frame=0/12`.
2. Upright: the EXIF orientation is applied: `exif=6`. One that cannot be read is `exif=damaged`.
3. Depth, colour profile, inks and transparency, by `datapipe.decode.colour`: 8 bits, sRGB, opaque.
4. SVG drawings are rendered, by `datapipe.decode.svg`: `svg=640x480`.

The notes in this order are the `policy` of a picture; it is empty where nothing had to be applied. PNG's gAMA
chunk is not applied. Nothing is resized.

A file is whole or it is refused. Pillow reads the header; the pixels of JPEGs come from simplejpeg, which
runs the same libjpeg-turbo faster and tells of damage that Pillow passes over. Both give the same pixels, so
what simplejpeg has no word for (inks, odd subsampling, harmless bytes between markers) is left to Pillow. No
switch of Pillow is touched, and no picture is handed to another program.
"""

import dataclasses
import functools
import io
import re
import threading
import warnings
from typing import Any

import numpy as np
import simplejpeg
from PIL import Image, TiffImagePlugin, UnidentifiedImageError

from datapipe.decode import colour, headers, svg
from datapipe.decode.hashing import Pixels, perceptual_hash, pixels_id
from datapipe.errors import (
    DamagedMedium,
    DecodeError,
    TooManyPixels,
    TruncatedMedium,
    UnknownMedium,
    UnsupportedMedium,
)

__all__ = ["DecodedImage", "Description", "decode", "describe", "perceptual_hash", "pixels_id"]

_ORIENTATION = 0x0112
_NEW_SUBFILE_TYPE = 254
_IS_THUMBNAIL = 1  # bit of a TIFF page's NewSubfileType
_SHORT = re.compile(
    r"truncat|not enough|premature|unexpected end|end of file|only got|outside|EOF", re.IGNORECASE
)
_JPEG_IS_CUT = re.compile(r"Premature end of JPEG file")
_JPEG_IS_DAMAGED = re.compile(
    r"bad Huffman|premature end of data segment|instead of RST|before marker 0xd[0-7]|Arithmetic|DCT coef"
)
_ALPHA_MAY_BE_UNUSED = ("BMP", "DIB", "ICO", "CUR", "TGA")
Image.init()  # opening by format needs the plugins registered, and Pillow waits with most of them
_MAX_SCRATCH_BYTES = 64 * 1024**2


@dataclasses.dataclass(frozen=True)
class Description:
    """What is kept of a picture besides its bytes; `width` and `height` are of the canonical pixels."""

    mime: str
    width: int
    height: int
    num_frames: int
    policy: str  # e.g. "frame=0/12 exif=6 icc=to-srgb alpha=white"; may be empty
    perceptual_hash: int | None
    pixels_id: str


@dataclasses.dataclass(frozen=True)
class DecodedImage(Description):
    """A picture under the policy."""

    array: Pixels  # [height, width, 3], RGB

    @functools.cached_property
    def pixels(self) -> Image.Image:
        """The picture in mode RGB."""
        return Image.fromarray(self.array)


def decode(data: bytes, max_pixels: int) -> DecodedImage:
    """Decode a picture.

    Raises:
        UnsupportedMedium: a known format that is not decoded here, such as HEIC, or a drawing that needs what
            is not at hand.
        UnknownMedium: no picture in a known format.
        TooManyPixels: the header announces more than `max_pixels`; nothing was decoded.
        TruncatedMedium: the file ends early. What there is of it is not used.
        DamagedMedium: any other fault.
    """
    picture = _read(data, max_pixels, None)
    return DecodedImage(**picture.columns(), array=picture.array)


def describe(data: bytes, max_pixels: int) -> Description:
    """Decode a picture to hash it, without keeping its pixels; errors as `decode`.

    The memory of JPEGs is used again from call to call, which on some machines is half of the time.
    """
    return Description(**_read(data, max_pixels, _SCRATCH).columns())


@dataclasses.dataclass(frozen=True)
class _Picture:
    """A picture on its way: canonical pixels, and what is known of its file."""

    array: Pixels
    mime: str
    num_frames: int
    notes: list[str]

    def columns(self) -> dict[str, Any]:
        height, width = self.array.shape[:2]
        return {
            "mime": self.mime,
            "width": width,
            "height": height,
            "num_frames": self.num_frames,
            "policy": " ".join(self.notes),
            "perceptual_hash": perceptual_hash(self.array),
            "pixels_id": pixels_id(self.array),
        }


def _read(data: bytes, max_pixels: int, scratch: "_Scratch | None") -> _Picture:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow warns of what is refused or handled below
            if svg.is_svg(data):
                return _drawing(data, max_pixels)
            return _picture(headers.without_texts(data), max_pixels, scratch)
    except DecodeError:
        raise
    except Image.DecompressionBombError as error:  # of Pillow, whose limit is above any of ours
        announced = re.search(r"\d+", str(error))
        assert announced is not None
        raise TooManyPixels(f"{announced.group()} pixels, more than {max_pixels}") from error
    except UnidentifiedImageError as error:
        raise _unidentified(data) from error
    except Exception as error:  # real files raise OSError, SyntaxError, ZeroDivisionError and many more
        message = re.sub(r"\s*<?[^<\s]* object at 0x[0-9a-f]+>?", "", str(error))
        short = isinstance(error, EOFError) or _SHORT.search(message) or headers.is_cut(data)
        raise (TruncatedMedium if short else DamagedMedium)(f"{type(error).__name__}: {message}") from error


def _unidentified(data: bytes) -> DecodeError:
    name = headers.unsupported_format(data)
    if name is not None:
        return UnsupportedMedium(f"{name} is not decoded")
    if headers.is_known(data):
        return (TruncatedMedium if headers.is_cut(data) else DamagedMedium)("the header cannot be read")
    return UnknownMedium("no picture in a known format")


def _drawing(data: bytes, max_pixels: int) -> _Picture:
    drawn = svg.render(data, max_pixels)
    rgb, notes = colour.to_srgb(drawn)
    return _Picture(np.asarray(rgb), "image/svg+xml", 1, [f"svg={rgb.width}x{rgb.height}", *notes])


def _picture(data: bytes, max_pixels: int, scratch: "_Scratch | None") -> _Picture:
    _check_size(headers.announced_size(data), max_pixels)
    formats = [*headers.FORMATS, "TGA"] if headers.is_tga(data) else headers.FORMATS
    with Image.open(io.BytesIO(data), formats=formats) as image:
        _check_size(image.size, max_pixels)
        format = image.format or "unknown"
        num_frames = 1 if format == "PSD" else getattr(image, "n_frames", 1)  # a PSD counts its layers
        frame = _first_page(image, num_frames) if format == "TIFF" else 0
        turned = _orientation(image) if format == "TIFF" else "1"  # by Pillow, which forgets it when it loads
        if "progressive" in image.info:
            headers.check_scans(data)
        array, notes = _jpeg_pixels(data, image, scratch) if format in ("JPEG", "MPO") else (None, [])
        if array is None:
            image.load()
            _check_size(image.size, max_pixels)
            rgb, notes = colour.to_srgb(image, may_be_unused=format in _ALPHA_MAY_BE_UNUSED)
            array = np.asarray(rgb)
        orientation = _orientation(image)
        array = _upright(array, orientation)
    turns = [turn for turn in (turned, orientation) if turn != "1"]
    notes = [f"exif={turn}" for turn in turns] + notes
    notes = [f"frame={frame}/{num_frames}", *notes] if num_frames > 1 else notes
    return _Picture(array, Image.MIME.get(format, f"image/{format.lower()}"), num_frames, notes)


def _check_size(size: tuple[int, int] | None, max_pixels: int) -> None:
    if size is None:
        return
    if min(size) < 1:
        raise DamagedMedium(f"{size[0]} x {size[1]} pixels")
    if size[0] * size[1] > max_pixels:
        raise TooManyPixels(f"{size[0]} x {size[1]} pixels, more than {max_pixels}")


def _first_page(image: Image.Image, num_pages: int) -> int:
    """Turn a TIFF to its first page that is no thumbnail of another, and return its number."""
    assert isinstance(image, TiffImagePlugin.TiffImageFile)
    for page in range(num_pages):
        image.seek(page)
        if not image.tag_v2.get(_NEW_SUBFILE_TYPE, 0) & _IS_THUMBNAIL:
            return page
    image.seek(0)
    return 0


# ---- orientation


def _orientation(image: Image.Image) -> str:
    """Return the EXIF orientation, 1 to 8. Those in XMP and in PNG texts do not count, as in browsers."""
    if isinstance(image, TiffImagePlugin.TiffImageFile):
        orientation = image.tag_v2.get(_ORIENTATION, 1)
        return str(orientation) if orientation in range(2, 9) else "1"
    if not image.info.get("exif"):
        return "1"
    try:
        exif = Image.Exif()
        exif.load(image.info["exif"])
        orientation = exif.get(_ORIENTATION, 1)
    except Exception:  # EXIF is a format of its own; a damaged one leaves a good picture
        return "damaged"
    return str(orientation) if orientation in range(2, 9) else "1"


def _upright(array: Pixels, orientation: str) -> Pixels:
    """Turn and mirror a picture stored under an orientation (EXIF 2.32, section 4.6.4 A) to stand upright."""
    if orientation in ("1", "damaged"):
        return array
    if orientation in ("5", "6", "7", "8"):
        array = array.transpose(1, 0, 2)
    if orientation in ("3", "4", "7", "8"):
        array = array[::-1]
    if orientation in ("2", "3", "6", "7"):
        array = array[:, ::-1]
    return np.ascontiguousarray(array)


# ---- JPEG


class _Scratch(threading.local):
    """Memory for the pixels of one JPEG at a time, one for each thread."""

    buffer = bytearray()

    def of(self, size_bytes: int) -> bytearray | None:
        if size_bytes > _MAX_SCRATCH_BYTES:
            return None
        if len(self.buffer) < size_bytes:
            self.buffer = bytearray(size_bytes)
        return self.buffer


_SCRATCH = _Scratch()


def _jpeg_pixels(
    data: bytes, image: Image.Image, scratch: _Scratch | None
) -> tuple[Pixels | None, list[str]]:
    """Return the RGB pixels of a JPEG as stored, and the note on its profile; None to leave it to Pillow.

    Raises:
        TruncatedMedium, DamagedMedium: the file ends early, or its picture data are broken.
    """
    profile = image.info.get("icc_profile")
    note = colour.unchanging(profile, image.mode) if profile else ""
    if note is None or image.mode not in ("L", "RGB"):
        return None, []
    channels = 3 if image.mode == "RGB" else 1
    buffer = scratch.of(image.width * image.height * channels) if scratch else None
    try:
        array = simplejpeg.decode_jpeg(data, "RGB" if channels == 3 else "GRAY", buffer=buffer)
    except ValueError as error:
        if _JPEG_IS_CUT.search(str(error)):
            raise TruncatedMedium(str(error)) from error
        if _JPEG_IS_DAMAGED.search(str(error)):
            raise DamagedMedium(str(error)) from error
        return None, []
    if array.shape[:2] != (image.height, image.width):
        return None, []
    return array if channels == 3 else np.repeat(array, 3, axis=2), [note] if note else []
