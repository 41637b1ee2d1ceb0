"""Colours: a picture in any mode of Pillow becomes opaque, 8 bits a channel, sRGB.

Owns depth, colour profiles, inks and transparency, in this order, and the words for them in `policy`. Knows
no file formats and turns nothing.

Depth. Of 8, 10, 12, 14 and 16 bits the fewest that hold all levels of a deep grey picture are its full scale,
for cameras and scanners leave the upper bits empty, and such pictures would come out black: `depth=12`. Whole
numbers beyond 16 bits, or negative ones, are stretched from the smallest to the largest: `depth=32 -5..99`.
Floats in 0 to 1 and in 0 to 255 are taken as such; others are stretched from their 0.1th to their 99.9th
percentile, so that one wild value does not blacken the rest: `depth=float 0..1`. Of deep colour pictures
Pillow reads the upper 8 bits.

Profiles. Converted to sRGB by relative colorimetry with black point compensation, as browsers do. A profile
that changes no colour by more than two levels is sRGB, whatever it calls itself: the pixels are left alone.
`icc=srgb`, `icc=to-srgb`; `icc=damaged` and `icc=unfitting` (for another kind of colours) leave pixels alone
too. Grey pictures under an RGB profile count as RGB.

Inks. CMYK without a profile becomes (1-c)(1-k), as in browsers: `mode=CMYK`.

Transparency. Laid on white in sRGB: `alpha=white`; on black, `alpha=black`, where the picture would vanish on
white; `alpha=unused` where all of it is zero in a format whose writers often leave it so.
"""

import functools
import io

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageCms

_VISIBLE_DEVIATION = 1.0  # grey levels; a picture that varies less shows nothing
_SAME_LEVELS = 2  # conversions of sRGB by another's rounding differ by as much
_BIT_DEPTHS = (8, 10, 12, 14, 16)
_STRETCHED_PERCENTILES = (0.1, 99.9)
_PROFILE_CLASSES = ("mntr", "scnr", "prtr", "spac")
_PROFILE_MODES = {"RGB ": "RGB", "GRAY": "L", "CMYK": "CMYK", "Lab ": "LAB"}


def to_srgb(image: Image.Image, may_be_unused: bool = False) -> tuple[Image.Image, list[str]]:
    """Return a picture in mode RGB under the policy above, and the notes on what was applied.

    Args:
        may_be_unused: whether transparency everywhere means that the file does not use its fourth channel.
    """
    profile = image.info.get("icc_profile")
    image, alpha, notes = _eight_bits(image)
    if alpha is None:
        image, alpha = _without_alpha(image)
    if image.mode == "CMYK":
        notes.append("mode=CMYK")
    image, icc = _converted(image, profile) if profile else (image, None)
    notes += [icc] if icc else []
    rgb = _as_rgb(image)
    if alpha is None:
        return rgb, notes
    if may_be_unused and alpha.getextrema() == (0, 0):
        return rgb, [*notes, "alpha=unused"]
    flat, backdrop = _opaque(rgb, alpha)
    return flat, [*notes, f"alpha={backdrop}"]


def unchanging(profile: bytes, mode: str) -> str | None:
    """Return the note on a profile that leaves pictures in `mode` as they are; None for one that does not."""
    try:
        of, _, is_same = _transform(profile)
    except Exception:  # as in `_converted`
        return "icc=damaged"
    if of != mode and (of, mode) != ("RGB", "L"):
        return "icc=unfitting"
    return "icc=srgb" if is_same else None


# ---- depth


def _eight_bits(image: Image.Image) -> tuple[Image.Image, Image.Image | None, list[str]]:
    """Return a deep picture in mode L, with the alpha of the one level that its file calls transparent."""
    if image.mode not in ("F", "I") and not image.mode.startswith("I;"):
        return image, None, []
    values = np.asarray(image)
    levels, note = _float_levels(values) if image.mode == "F" else _whole_levels(values.astype(np.int64))
    clear = image.info.get("transparency")
    alpha = None
    if isinstance(clear, int):
        alpha = Image.fromarray(np.where(values == clear, 0, 255).astype(np.uint8))
    return Image.fromarray(levels), alpha, [note]


def _whole_levels(values: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.uint8], str]:
    low, high = int(values.min()), int(values.max())
    bits = next((bits for bits in _BIT_DEPTHS if high < 1 << bits), None)
    if low < 0 or bits is None:
        scaled = (values - low) * 255 // max(1, high - low)
        return scaled.astype(np.uint8), f"depth=32 {low}..{high}"
    return (values >> bits - 8).astype(np.uint8), f"depth={bits}"


def _float_levels(values: npt.NDArray[np.float32]) -> tuple[npt.NDArray[np.uint8], str]:
    finite = values[np.isfinite(values)].astype(np.float64)
    low, high = (finite.min(), finite.max()) if finite.size else (0.0, 0.0)
    if low >= 0 and high <= 255:
        low, high = 0.0, 1.0 if high <= 1 else 255.0
    else:
        low, high = np.percentile(finite, _STRETCHED_PERCENTILES)
    known = np.nan_to_num(values.astype(np.float64), nan=low, posinf=high, neginf=low)
    scaled = (known - low) * (255.0 / max(high - low, 1e-12))
    return scaled.clip(0, 255).round().astype(np.uint8), f"depth=float {low:.6g}..{high:.6g}"


# ---- transparency


def _without_alpha(image: Image.Image) -> tuple[Image.Image, Image.Image | None]:
    """Return a picture's colours in mode L, RGB, CMYK or LAB, and its alpha where it is not opaque."""
    if image.has_transparency_data:
        clear = image.info.get("transparency")
        if isinstance(clear, tuple) and max(clear) > 255:  # of a deep PNG, whose colours Pillow made 8 bits
            image.info["transparency"] = tuple(level >> 8 for level in clear)
        is_grey = image.mode in ("1", "L", "LA", "La")
        if image.mode in ("La", "RGBa"):
            image = image.convert("LA" if image.mode == "La" else "RGBA")
        if image.mode not in ("LA", "RGBA"):
            image = image.convert("LA" if is_grey and image.mode == "L" else "RGBA")
        alpha = image.getchannel("A")
        colours = image.convert("L" if image.mode == "LA" else "RGB")
        return colours, alpha if alpha.getextrema() != (255, 255) else None
    if image.mode in ("L", "RGB", "CMYK", "LAB"):
        return image, None
    return image.convert("L" if image.mode == "1" else "RGB"), None


def _opaque(rgb: Image.Image, alpha: Image.Image) -> tuple[Image.Image, str]:
    white = _laid_on(rgb, alpha, 255)
    if not _shows_something(white):
        black = _laid_on(rgb, alpha, 0)
        if _shows_something(black):
            return black, "black"
    return white, "white"


def _laid_on(rgb: Image.Image, alpha: Image.Image, level: int) -> Image.Image:
    return Image.composite(rgb, Image.new("RGB", rgb.size, (level, level, level)), alpha)


def _shows_something(rgb: Image.Image) -> bool:
    return bool(np.asarray(rgb.convert("L")).std() >= _VISIBLE_DEVIATION)


# ---- colours


def _as_rgb(image: Image.Image) -> Image.Image:
    if image.mode == "LAB":
        lab = ImageCms.ImageCmsProfile(ImageCms.createProfile("LAB"))
        converted = ImageCms.profileToProfile(image, lab, _srgb(), outputMode="RGB")
        assert converted is not None
        return converted
    return image if image.mode == "RGB" else image.convert("RGB")


def _converted(image: Image.Image, profile: bytes) -> tuple[Image.Image, str]:
    """Return a picture with its profile applied, and the note on how that went."""
    try:
        mode, transform, is_same = _transform(profile)
    except Exception:  # a damaged profile leaves a good picture; lcms and Pillow raise many kinds
        return image, "icc=damaged"
    if mode == "RGB" and image.mode == "L":
        image = image.convert("RGB")
    if mode != image.mode:
        return image, "icc=unfitting"
    if is_same:
        return image, "icc=srgb"
    converted = ImageCms.applyTransform(image, transform)
    assert converted is not None
    return converted, "icc=to-srgb"


@functools.lru_cache(maxsize=32)
def _transform(profile: bytes) -> tuple[str, ImageCms.ImageCmsTransform, bool]:
    """Return the mode of the pictures a profile is for, its way to sRGB, and whether that changes nothing."""
    source = ImageCms.ImageCmsProfile(io.BytesIO(profile))
    if source.profile.device_class not in _PROFILE_CLASSES:
        raise ValueError(f"a profile of class {source.profile.device_class!r} describes no picture")
    mode = _PROFILE_MODES[source.profile.xcolor_space]
    transform = ImageCms.buildTransform(
        source,
        _srgb(),
        mode,
        "RGB",
        ImageCms.Intent.RELATIVE_COLORIMETRIC,
        ImageCms.Flags.BLACKPOINTCOMPENSATION,
    )
    if mode not in ("RGB", "L"):
        return mode, transform, False
    probe = _probe(mode)
    shown = ImageCms.applyTransform(probe, transform)
    assert shown is not None
    difference = np.asarray(shown).astype(int) - np.asarray(probe.convert("RGB"))
    return mode, transform, bool(abs(difference).max() <= _SAME_LEVELS)


def _probe(mode: str) -> Image.Image:
    """Return a picture of all greys, and in mode RGB of an even choice of colours."""
    greys = np.repeat(np.arange(256, dtype=np.uint8)[:, None], 3, axis=1)
    colours = np.stack(np.meshgrid(*[np.arange(0, 256, 51, dtype=np.uint8)] * 3), axis=-1).reshape(-1, 3)
    picture = Image.fromarray(np.concatenate([greys, colours] if mode == "RGB" else [greys])[None])
    return picture.convert(mode)


@functools.cache
def _srgb() -> ImageCms.ImageCmsProfile:
    return ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB"))
