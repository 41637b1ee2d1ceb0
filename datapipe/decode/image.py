"""Pictures: bytes to canonical pixels, under one policy.

Owns what a picture looks like to everything after it: EXIF orientation applied, colours in sRGB, transparency
on white, first frame of animations, eight bits a channel, RGB. What was applied is noted in `policy`. Does
not resize.
"""

import dataclasses
import functools
import io
import re
import warnings

import numpy as np
from PIL import Image, ImageCms, ImageOps, UnidentifiedImageError

from datapipe.errors import (
    DamagedMedium,
    DecodeError,
    TooManyPixels,
    TruncatedMedium,
    UnknownMedium,
    UnsupportedMedium,
)
from schemas import ids

HASH_SIDE = 8
_HASH_INPUT_SIDE = 32
_FLAT_DEVIATION = 1.0  # grey levels; below it a picture has no structure to hash
_ORIENTATION = 0x0112
_SVG = re.compile(
    rb"(?:\xef\xbb\xbf)?\s*(?:<\?xml[^>]*\?>\s*)?"
    rb"(?:<!--.*?-->\s*|<!DOCTYPE[^>\[]*(?:\[.*?\])?\s*>\s*)*<svg\b",
    re.DOTALL | re.IGNORECASE,
)


@dataclasses.dataclass(frozen=True)
class DecodedImage:
    """A picture under the policy; `width` and `height` are those of `pixels`."""

    pixels: Image.Image  # mode RGB
    mime: str
    width: int
    height: int
    num_frames: int
    policy: str  # e.g. "frame=0/12 exif=6 alpha=white icc=srgb"; may be empty
    perceptual_hash: int | None
    pixels_id: str


def decode(data: bytes, max_pixels: int) -> DecodedImage:
    """Decode a picture.

    Raises:
        UnsupportedMedium: SVG.
        UnknownMedium: no picture in a format Pillow knows.
        TooManyPixels: the header announces more than `max_pixels`; nothing was decoded.
        TruncatedMedium: the file ends early. What there is of it is not used.
        DamagedMedium: any other fault.
    """
    if _SVG.match(data[:4096]):
        raise UnsupportedMedium("SVG drawings are not decoded")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow warns of what is refused or handled below
            return _decode(data, max_pixels)
    except DecodeError:
        raise
    except Image.DecompressionBombError as error:
        raise TooManyPixels(str(error)) from error
    except UnidentifiedImageError as error:
        raise UnknownMedium("no picture in a known format") from error
    except Exception as error:  # real files raise OSError, SyntaxError, ZeroDivisionError and many more
        message = re.sub(r"\s*<?[^<\s]* object at 0x[0-9a-f]+>?", "", str(error))
        short = "truncated" in message or isinstance(error, EOFError)
        raise (TruncatedMedium if short else DamagedMedium)(f"{type(error).__name__}: {message}") from error


def _decode(data: bytes, max_pixels: int) -> DecodedImage:
    with Image.open(io.BytesIO(data)) as image:
        if image.width * image.height > max_pixels:
            raise TooManyPixels(f"{image.width} x {image.height} pixels, more than {max_pixels}")
        mime = Image.MIME.get(image.format or "", f"image/{(image.format or 'unknown').lower()}")
        num_frames = getattr(image, "n_frames", 1)
        orientation = _orientation(image)
        image.load()
        applied = [f"frame=0/{num_frames}"] if num_frames > 1 else []
        applied += [f"exif={orientation}"] if orientation != "1" else []
        pixels = _upright(image)
        for step in (_eight_bits, _on_white, _srgb):
            pixels, note = step(pixels)
            applied += [note] if note else []
        pixels = pixels.convert("RGB")
    return DecodedImage(
        pixels,
        mime,
        pixels.width,
        pixels.height,
        num_frames,
        " ".join(applied),
        perceptual_hash(pixels),
        pixels_id(pixels),
    )


def _orientation(image: Image.Image) -> str:
    """Return the EXIF orientation, 1 to 8. Loading turns TIFF files and forgets theirs, so ask before."""
    try:
        orientation = image.getexif().get(_ORIENTATION, 1)
    except Exception:  # EXIF is a format of its own; a damaged one leaves a good picture
        return "damaged"
    return str(orientation) if orientation in range(2, 9) else "1"


def _upright(image: Image.Image) -> Image.Image:
    return ImageOps.exif_transpose(image) if _orientation(image) not in ("1", "damaged") else image


def _eight_bits(image: Image.Image) -> tuple[Image.Image, str]:
    if image.mode == "F":
        values = np.asarray(image, dtype=np.float64)
        low, high = (0.0, 1.0) if values.min() >= 0 and values.max() <= 1 else (values.min(), values.max())
        scaled = (values - low) * (255.0 / max(high - low, 1e-12))
        return Image.fromarray(scaled.round().astype(np.uint8)), "depth=float"
    if image.mode.startswith("I"):
        levels = np.asarray(image).astype(np.int64)
        if image.mode != "I" or levels.max() > 255:
            levels = levels.clip(0, 65535) >> 8
        return Image.fromarray(levels.clip(0, 255).astype(np.uint8)), "depth=16"
    return image, ""


def _on_white(image: Image.Image) -> tuple[Image.Image, str]:
    if not image.has_transparency_data:
        return image, ""
    profile = image.info.get("icc_profile")
    rgba = image.convert("RGBA")
    white = Image.new("RGBA", rgba.size, (255, 255, 255, 255))
    flat = Image.alpha_composite(white, rgba).convert("RGB")
    if profile is not None and image.mode not in ("LA", "La"):
        flat.info["icc_profile"] = profile
    return flat, "alpha=white"


def _srgb(image: Image.Image) -> tuple[Image.Image, str]:
    profile = image.info.get("icc_profile")
    if image.mode == "P":
        image = image.convert("RGB")
    note = "mode=CMYK" if image.mode == "CMYK" else ""
    if not profile:
        return image, note
    try:
        source = ImageCms.ImageCmsProfile(io.BytesIO(profile))
        if "srgb" in ImageCms.getProfileDescription(source).lower():
            return image, f"{note} icc=srgb".strip()
        converted = ImageCms.profileToProfile(image, source, _srgb_profile(), outputMode="RGB")
    except Exception:  # a damaged or unfitting profile leaves a good picture
        return image, f"{note} icc=damaged".strip()
    assert converted is not None
    return converted, f"{note} icc=srgb".strip()


@functools.cache
def _srgb_profile() -> ImageCms.ImageCmsProfile:
    return ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB"))


def pixels_id(pixels: Image.Image) -> str:
    """Return the hash of an RGB picture's size and pixels."""
    return ids.content_id(f"{pixels.width}x{pixels.height}:".encode() + pixels.tobytes())


def perceptual_hash(pixels: Image.Image) -> int | None:
    """Return a 64-bit hash that similar pictures share but for a few bits; None for flat pictures.

    A bit says whether one of the 63 lowest frequencies of the grey picture is above their median (pHash:
    Zauner, "Implementation and Benchmarking of Perceptual Image Hash Functions", 2010, section 3.2.1; the
    mean level is left out). A picture of one colour has no frequencies, so any hash of it would be noise that
    merges black with white.
    """
    grey = pixels.convert("L").resize((_HASH_INPUT_SIDE, _HASH_INPUT_SIDE), Image.Resampling.BOX)
    levels = np.asarray(grey, dtype=np.float64)
    if levels.std() < _FLAT_DEVIATION:
        return None
    basis = _cosines()
    low = (basis @ levels @ basis.T).ravel()
    bits = low > np.median(low[1:])
    bits[0] = False
    return int(np.packbits(bits).view(">u8")[0])


@functools.cache
def _cosines() -> np.ndarray:
    """Return the first rows of the orthogonal DCT-II matrix, [8, 32]."""
    frequency, place = np.mgrid[0:HASH_SIDE, 0:_HASH_INPUT_SIDE]
    basis = np.cos(np.pi * frequency * (2 * place + 1) / (2 * _HASH_INPUT_SIDE))
    basis[0] /= np.sqrt(2)
    return basis
