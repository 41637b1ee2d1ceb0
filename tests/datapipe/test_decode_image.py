import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image, ImageCms

from datapipe import errors
from datapipe.decode import image
from tests import make

LIMIT = 10**6


def encoded(picture: Image.Image, format: str = "PNG", **options: object) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, format, **options)
    return buffer.getvalue()


def photo(seed: int = 0, width: int = 90, height: int = 60) -> Image.Image:
    return Image.open(io.BytesIO(make.picture(width, height, seed))).convert("RGB")


def test_plain_picture_is_left_as_it_is() -> None:
    decoded = image.decode(encoded(photo()), LIMIT)
    assert (decoded.mime, decoded.width, decoded.height, decoded.num_frames, decoded.policy) == (
        "image/png",
        90,
        60,
        1,
        "",
    )
    assert decoded.pixels.tobytes() == photo().tobytes()


@pytest.mark.parametrize("orientation", range(2, 9))
@pytest.mark.parametrize("format", ["PNG", "TIFF", "WEBP"])
def test_exif_orientation_is_applied_once(orientation: int, format: str) -> None:
    shown_upright = {
        2: Image.Transpose.FLIP_LEFT_RIGHT,
        3: Image.Transpose.ROTATE_180,
        4: Image.Transpose.FLIP_TOP_BOTTOM,
        5: Image.Transpose.TRANSPOSE,
        6: Image.Transpose.ROTATE_90,
        7: Image.Transpose.TRANSVERSE,
        8: Image.Transpose.ROTATE_270,
    }
    stored = photo().transpose(shown_upright[orientation])
    options = {"lossless": True} if format == "WEBP" else {}
    exif = Image.Exif()
    exif[0x0112] = orientation
    decoded = image.decode(encoded(stored, format, exif=exif.tobytes(), **options), LIMIT)
    assert (decoded.pixels.tobytes(), decoded.policy) == (photo().tobytes(), f"exif={orientation}")


def test_transparency_is_laid_on_white() -> None:
    clear = Image.new("RGBA", (8, 8), (0, 0, 0, 0))
    clear.putpixel((0, 0), (10, 20, 30, 255))
    for data in (encoded(clear), encoded(clear.quantize(), transparency=clear.quantize().getpixel((5, 5)))):
        decoded = image.decode(data, LIMIT)
        assert decoded.pixels.getpixel((5, 5)) == (255, 255, 255)
        assert decoded.pixels.getpixel((0, 0)) == (10, 20, 30)
        assert decoded.policy == "alpha=white"


def test_deep_and_four_colour_pictures_become_eight_bit_rgb() -> None:
    ramp = np.linspace(0, 65535, 64).astype(np.uint16).reshape(8, 8)
    decoded = image.decode(encoded(Image.fromarray(ramp)), LIMIT)
    assert decoded.policy == "depth=16"
    assert np.asarray(decoded.pixels)[..., 0].tolist() == (ramp >> 8).tolist()
    floats = image.decode(encoded(Image.fromarray((ramp / 65535).astype(np.float32)), "TIFF"), LIMIT)
    assert abs(np.asarray(floats.pixels)[..., 0].astype(int) - (ramp >> 8)).max() <= 1
    inks = image.decode(encoded(Image.new("CMYK", (8, 8), (0, 255, 255, 0)), "TIFF"), LIMIT)
    assert (inks.policy, inks.pixels.getpixel((0, 0))) == ("mode=CMYK", (255, 0, 0))


def test_colour_profiles_are_converted_and_damaged_ones_ignored() -> None:
    srgb = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB"))
    same = image.decode(encoded(photo(), icc_profile=srgb.tobytes()), LIMIT)
    assert (same.policy, same.pixels_id) == ("icc=srgb", image.decode(encoded(photo()), LIMIT).pixels_id)
    damaged = image.decode(encoded(photo(), icc_profile=b"no profile"), LIMIT)
    assert (damaged.policy, damaged.pixels_id) == ("icc=damaged", same.pixels_id)


def test_animations_show_their_first_frame() -> None:
    frames = [photo(seed).quantize() for seed in (1, 2, 3)]
    decoded = image.decode(encoded(frames[0], "GIF", save_all=True, append_images=frames[1:]), LIMIT)
    assert (decoded.num_frames, decoded.policy, decoded.mime) == (3, "frame=0/3", "image/gif")
    assert decoded.pixels.tobytes() == frames[0].convert("RGB").tobytes()


def chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def test_too_large_pictures_are_refused_by_their_header() -> None:
    for side in (2000, 30_000):
        bomb = (
            b"\x89PNG\r\n\x1a\n"
            + chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0))
            + chunk(b"IDAT", zlib.compress(b""))
            + chunk(b"IEND", b"")
        )
        with pytest.raises(errors.TooManyPixels):
            image.decode(bomb, LIMIT)


@pytest.mark.parametrize("format", ["PNG", "JPEG", "GIF", "WEBP", "BMP", "TIFF"])
@pytest.mark.parametrize("frac", [0.3, 0.6, 0.9])
def test_truncated_pictures_are_refused(format: str, frac: float) -> None:
    rng = np.random.default_rng(0)
    data = encoded(Image.fromarray(rng.integers(0, 256, (64, 64, 3), dtype=np.uint8)), format)
    with pytest.raises(errors.DecodeError):
        image.decode(data[: int(len(data) * frac)], LIMIT)
    with pytest.raises(errors.TruncatedMedium):
        image.decode(encoded(photo(), "JPEG")[:-400], LIMIT)


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"", errors.UnknownMedium),
        (b"no picture at all", errors.UnknownMedium),
        (b"\x89PNG\r\n\x1a\n" + b"x" * 99, errors.DecodeError),
        (
            b'<?xml version="1.0"?><!-- c --><svg xmlns="http://www.w3.org/2000/svg"/>',
            errors.UnsupportedMedium,
        ),
    ],
)
def test_unreadable_files_give_the_same_typed_reason_every_time(data: bytes, error: type[Exception]) -> None:
    messages = set()
    for _ in range(2):
        with pytest.raises(error) as caught:
            image.decode(bytes(bytearray(data)), LIMIT)
        messages.add(str(caught.value))
    assert len(messages) == 1 and "0x" not in messages.pop()


def distance(one: bytes, two: bytes) -> int:
    first, second = (image.decode(data, LIMIT).perceptual_hash for data in (one, two))
    assert first is not None and second is not None
    return (first ^ second).bit_count()


def test_perceptual_hash_joins_copies_and_parts_others() -> None:
    original = photo(1, 300, 200)
    assert distance(encoded(original), encoded(original, "JPEG", quality=40)) <= 4
    assert distance(encoded(original), encoded(original.resize((120, 80)))) <= 4
    assert distance(encoded(original), encoded(photo(2, 300, 200))) > 16


def test_flat_pictures_have_no_perceptual_hash() -> None:
    for colour in ("white", "black", (30, 60, 90)):
        assert image.decode(encoded(Image.new("RGB", (50, 40), colour)), LIMIT).perceptual_hash is None


def test_pixels_id_is_of_the_pixels_and_their_shape() -> None:
    assert (
        image.decode(encoded(photo()), LIMIT).pixels_id
        == image.decode(encoded(photo(), "BMP"), LIMIT).pixels_id
    )
    wide, tall = (image.decode(encoded(Image.new("RGB", size)), LIMIT).pixels_id for size in ((8, 4), (4, 8)))
    assert wide != tall
