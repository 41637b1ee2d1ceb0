"""Pictures from bytes: which frame, upright, whole or refused, and nothing switched on the way."""

import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image, ImageFile

from datapipe import errors
from datapipe.decode import headers, image
from tests import make

LIMIT = 10**6
UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_90,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_270,
}


def encoded(picture: Image.Image, format: str = "PNG", **options: object) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, format, **options)
    return buffer.getvalue()


def photo(seed: int = 0, width: int = 90, height: int = 60) -> Image.Image:
    return Image.open(io.BytesIO(make.picture(width, height, seed))).convert("RGB")


def noise(width: int = 64, height: int = 64) -> Image.Image:
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8))


def chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def png(
    width: int, height: int, pixels: bytes, depth: int = 8, colour: int = 2, before: bytes = b""
) -> bytes:
    """A PNG chunk by chunk; `pixels` without the filter bytes of its lines."""
    step = len(pixels) // max(1, height)
    lines = b"".join(b"\0" + pixels[i : i + step] for i in range(0, len(pixels), max(1, step)))
    head = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    parts = chunk(b"IHDR", head) + before + chunk(b"IDAT", zlib.compress(lines)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + parts


def test_plain_picture_is_left_as_it_is() -> None:
    decoded = image.decode(encoded(photo()), LIMIT)
    seen = (decoded.mime, decoded.width, decoded.height, decoded.num_frames, decoded.policy)
    assert seen == ("image/png", 90, 60, 1, "")
    assert decoded.pixels.tobytes() == decoded.array.tobytes() == photo().tobytes()


# ---- which picture


def test_animations_show_their_first_frame() -> None:
    frames = [photo(seed) for seed in (1, 2, 3)]
    for format, options in (("GIF", {}), ("WEBP", {"lossless": True}), ("PNG", {})):
        saved = [frame.quantize() for frame in frames] if format == "GIF" else frames
        data = encoded(saved[0], format, save_all=True, append_images=saved[1:], duration=50, **options)
        decoded = image.decode(data, LIMIT)
        assert (decoded.num_frames, decoded.policy) == (3, "frame=0/3"), format
        assert decoded.pixels.tobytes() == saved[0].convert("RGB").tobytes(), format


def test_an_apng_shows_its_default_image_although_that_is_no_frame() -> None:
    still, *frames = [photo(seed) for seed in (1, 2, 3)]
    data = encoded(still, "PNG", save_all=True, append_images=frames, default_image=True)
    assert image.decode(data, LIMIT).pixels.tobytes() == still.tobytes()


def test_a_gif_frame_smaller_than_the_canvas_stands_on_white() -> None:
    canvas = Image.new("P", (20, 10), 1)
    canvas.putpalette([10, 200, 30, 255, 255, 255] + [0] * 756)
    data = bytearray(encoded(canvas.crop((0, 0, 10, 10)), "GIF", transparency=1))
    data[6:8] = (20).to_bytes(2, "little")  # the logical screen becomes wider than the frame
    decoded = image.decode(bytes(data), LIMIT)
    assert decoded.width == 20 and decoded.pixels.getpixel((15, 5)) == (255, 255, 255)


def test_the_first_page_of_a_tiff_that_is_no_thumbnail_is_shown() -> None:
    large, small = photo(1), photo(2, 30, 20)
    large.encoderinfo = {"tiffinfo": {254: 0}}  # how Pillow takes it for one page
    decoded = image.decode(
        encoded(small, "TIFF", save_all=True, append_images=[large], tiffinfo={254: 1}), LIMIT
    )
    assert (decoded.pixels.tobytes(), decoded.policy) == (large.tobytes(), "frame=1/2")
    only_small = encoded(small, "TIFF", save_all=True, append_images=[photo(3)], tiffinfo={254: 1})
    assert image.decode(only_small, LIMIT).policy == "frame=0/2"


# ---- upright


@pytest.mark.parametrize("orientation", range(2, 9))
@pytest.mark.parametrize("format", ["PNG", "TIFF", "WEBP"])
def test_exif_orientation_is_applied_once(orientation: int, format: str) -> None:
    stored = photo().transpose(UPRIGHT[orientation])
    options = {"lossless": True} if format == "WEBP" else {}
    exif = Image.Exif()
    exif[0x0112] = orientation
    decoded = image.decode(encoded(stored, format, exif=exif.tobytes(), **options), LIMIT)
    assert (decoded.pixels.tobytes(), decoded.policy) == (photo().tobytes(), f"exif={orientation}")


@pytest.mark.parametrize("orientation", range(2, 9))
@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
def test_exif_orientation_is_applied_to_jpegs_of_all_kinds(orientation: int, mode: str) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    stored = photo().convert(mode).transpose(UPRIGHT[orientation])
    turned = image.decode(encoded(stored, "JPEG", exif=exif.tobytes(), quality=95), LIMIT)
    plain = image.decode(encoded(photo().convert(mode), "JPEG", quality=95), LIMIT)
    assert (turned.width, turned.height, turned.policy.split()[0]) == (90, 60, f"exif={orientation}")
    assert abs(turned.array.astype(int) - plain.array).mean() < 4


def test_damaged_exif_leaves_a_good_picture_as_it_lies() -> None:
    damaged = b"Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03"
    decoded = image.decode(encoded(photo(), "JPEG", exif=damaged), LIMIT)
    assert (decoded.width, decoded.height) == (90, 60) and decoded.policy in ("", "exif=damaged")


# ---- JPEG


@pytest.mark.parametrize("mode", ["RGB", "L"])
@pytest.mark.parametrize("options", [{}, {"progressive": True}, {"subsampling": 0}, {"subsampling": 1}])
def test_jpeg_pixels_are_those_of_pillow(mode: str, options: dict[str, object]) -> None:
    data = encoded(noise(93, 61).convert(mode), "JPEG", quality=60, **options)
    with Image.open(io.BytesIO(data)) as pillow:
        expected = pillow.convert("RGB").tobytes()
    assert image.decode(data, LIMIT).array.tobytes() == expected


def test_a_description_equals_the_decoded_picture_whatever_was_described_before() -> None:
    pictures = [
        encoded(photo(1, 200, 150), "JPEG"),
        encoded(photo(2, 90, 60), "JPEG"),
        encoded(photo(3, 90, 60).convert("L"), "JPEG"),
        encoded(photo(4, 300, 200), "JPEG"),
        encoded(photo(5)),
    ]
    for data in [*pictures, *reversed(pictures)]:
        decoded, described = image.decode(data, LIMIT), image.describe(data, LIMIT)
        assert {name: getattr(decoded, name) for name in vars(described)} == vars(described)


def test_a_jpeg_with_broken_picture_data_is_refused() -> None:
    data = bytearray(encoded(noise(), "JPEG"))
    start = data.index(b"\xff\xda") + 200
    data[start : start + 40] = b"\xff\x00" * 20
    with pytest.raises(errors.DamagedMedium):
        image.decode(bytes(data), LIMIT)
    assert image.decode(encoded(noise(), "JPEG") + b"junk after the end", LIMIT).width == 64


def test_a_jpeg_of_endless_scans_is_refused() -> None:
    data = encoded(photo(), "JPEG", progressive=True)
    last = data.rindex(b"\xff\xda")
    with pytest.raises(errors.DamagedMedium, match="scans"):
        image.decode(data[:-2] + data[last:-2] * 600 + data[-2:], LIMIT)


# ---- refused


def test_too_large_pictures_are_refused_by_their_header() -> None:
    for side in (2000, 30_000):
        with pytest.raises(errors.TooManyPixels):
            image.decode(png(side, side, b""), LIMIT)
    canvas = b"RIFF\x1e\0\0\0WEBPVP8X\x0a\0\0\0\x02\0\0\0" + b"\xfe\x3f\0" * 2 + bytes(8)
    with pytest.raises(errors.TooManyPixels, match="16383 x 16383"):
        image.decode(canvas, LIMIT)


def test_a_bomb_that_pillow_stops_names_our_limit() -> None:
    gif = b"GIF89a" + struct.pack("<HH", 65535, 65535) + b"\0\0\0," + struct.pack("<HHHH", 0, 0, 65535, 65535)
    with pytest.raises(errors.TooManyPixels, match=f"^4294836225 pixels, more than {LIMIT}$"):
        image.decode(gif + b"\0\2\2\x44\1\0;", LIMIT)


@pytest.mark.parametrize(
    "format", ["PNG", "JPEG", "GIF", "WEBP", "BMP", "TIFF", "AVIF", "JPEG2000", "ICO", "QOI", "PPM", "DDS"]
)
@pytest.mark.parametrize("frac", [0.3, 0.6, 0.9])
def test_truncated_pictures_are_refused(format: str, frac: float) -> None:
    data = encoded(noise(), format)
    with pytest.raises(errors.TruncatedMedium):
        image.decode(data[: int(len(data) * frac)], LIMIT)


@pytest.mark.parametrize("size", [(0, 8), (8, 0), (0, 0)])
def test_pictures_without_a_side_are_refused(size: tuple[int, int]) -> None:
    with pytest.raises(errors.DecodeError):
        image.decode(png(*size, b""), LIMIT)


def test_a_wrong_checksum_refuses_a_png() -> None:
    data = bytearray(encoded(photo()))
    data[-20] ^= 1
    with pytest.raises(errors.DamagedMedium, match="checksum"):
        image.decode(bytes(data), LIMIT)


@pytest.mark.parametrize("kind", [b"zTXt", b"iTXt"])
def test_texts_that_unpack_to_much_are_not_unpacked(kind: bytes) -> None:
    packed = zlib.compress(bytes(20 * 1024**2), 1)
    body = b"k\0\0" + packed if kind == b"zTXt" else b"k\0\1\0\0\0" + packed
    plain = encoded(photo())
    decoded = image.decode(plain[:33] + chunk(kind, body) + plain[33:], LIMIT)
    assert decoded.pixels_id == image.decode(plain, LIMIT).pixels_id


def test_a_profile_that_unpacks_to_much_is_refused() -> None:
    plain = encoded(photo())
    bomb = chunk(b"iCCP", b"k\0\0" + zlib.compress(bytes(20 * 1024**2), 1))
    with pytest.raises(errors.DamagedMedium):
        image.decode(plain[:33] + bomb + plain[33:], LIMIT)


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"", errors.UnknownMedium),
        (b"no picture at all", errors.UnknownMedium),
        (b"\x89PNG\r\n\x1a\n" + b"x" * 99, errors.DecodeError),
        (b"\xff\xd8\xff\xe0junk", errors.DecodeError),
        (b"BM" + bytes(60), errors.DamagedMedium),
        (b'<?xml version="1.0"?><!-- c --><svg xmlns="http://www.w3.org/2000/svg"/>', errors.DamagedMedium),
    ],
)
def test_unreadable_files_give_the_same_typed_reason_every_time(data: bytes, error: type[Exception]) -> None:
    messages = set()
    for _ in range(2):
        with pytest.raises(error) as caught:
            image.decode(bytes(bytearray(data)), LIMIT)
        messages.add(str(caught.value))
    assert len(messages) == 1 and "0x" not in messages.pop()


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("HEIC", b"\0\0\0\x18ftypheic\0\0\0\0mif1heic"),
        ("HEIC", b"\0\0\0\x18ftypmif1\0\0\0\0heicmif1"),
        ("JPEG XL", b"\xff\x0a" + bytes(20)),
        ("JPEG XL", b"\0\0\0\x0cJXL \r\n\x87\n"),
        ("EPS", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n(x) run\n"),
        ("EPS", b"\xc5\xd0\xd3\xc6" + bytes(30)),
        ("PDF", b"%PDF-1.7\n"),
        ("WMF", b"\xd7\xcd\xc6\x9a" + bytes(40)),
        ("EMF", b"\x01\0\0\0" + bytes(36) + b" EMF" + bytes(60)),
        ("XCF", b"gimp xcf v011\0"),
    ],
)
def test_known_formats_that_are_not_decoded_are_named(name: str, data: bytes) -> None:
    with pytest.raises(errors.UnsupportedMedium, match=name):
        image.decode(data, LIMIT)


def test_an_avif_whose_brand_is_that_of_heif_is_an_avif() -> None:
    data = encoded(photo(), "AVIF")
    assert headers.unsupported_format(data) is None
    renamed = data[:8] + b"mif1" + data[12:]
    assert b"avif" in renamed[8:32] and image.decode(renamed, LIMIT).mime == "image/avif"


def test_nothing_of_pillow_is_switched() -> None:
    before = (Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES)
    for data in (encoded(photo()), encoded(photo(), "JPEG")[:-400], b"junk", png(30_000, 30_000, b"")):
        try:
            image.decode(data, LIMIT)
        except errors.DecodeError:
            continue
    assert (Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES) == before == (89_478_485, False)
