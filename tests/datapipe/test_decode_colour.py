"""Depth, profiles, inks and transparency, against values worked out by hand or by the formulas of sRGB."""

import io
import struct

import numpy as np
import pytest
from PIL import Image, ImageCms

from datapipe.decode import image
from tests.datapipe.test_decode_image import LIMIT, chunk, encoded, photo, png

DISPLAY_P3 = (
    (0.51512, 0.24120, -0.00105),
    (0.29198, 0.69225, 0.04189),
    (0.15710, 0.06657, 0.78407),
)  # columns of its matrix to XYZ under D50 (ICC registry)


def fixed(*numbers: float) -> bytes:
    return b"".join(struct.pack(">i", round(number * 65536)) for number in numbers)


def profile(space: bytes, tags: dict[bytes, bytes], pcs: bytes = b"XYZ ") -> bytes:
    """An ICC profile of version 2 with these tags (ICC.1:2001-04, sections 6.1 and 6.2)."""
    tags = {b"wtpt": b"XYZ " + bytes(4) + fixed(0.9642, 1.0, 0.8249), **tags}
    table, body = struct.pack(">I", len(tags)), b""
    for name, data in tags.items():
        table += name + struct.pack(">II", 128 + 4 + 12 * len(tags) + len(body), len(data))
        body += data + bytes(-len(data) % 4)
    head = bytes(4) + b"lcms\x02\x10\0\0" + (b"prtr" if space == b"CMYK" else b"mntr") + space + pcs
    head += bytes(12) + b"acsp" + bytes(28) + fixed(0.9642, 1.0, 0.8249) + bytes(48)
    return struct.pack(">I", 128 + len(table) + len(body)) + head[4:] + table + body


def gamma(exponent: float) -> bytes:
    return b"curv" + bytes(4) + struct.pack(">IH", 1, round(exponent * 256)) + bytes(2)


def rgb_profile(columns: tuple[tuple[float, float, float], ...], exponent: float) -> bytes:
    colours = {
        name: b"XYZ " + bytes(4) + fixed(*xyz) for name, xyz in zip((b"rXYZ", b"gXYZ", b"bXYZ"), columns)
    }
    return profile(b"RGB ", {**colours, **dict.fromkeys((b"rTRC", b"gTRC", b"bTRC"), gamma(exponent))})


def ink_profile() -> bytes:
    """CMYK to Lab by a table of its 16 corners: darker with each ink, and cyan is far from screens' cyan."""
    corners = b""
    for inks in range(16):
        cyan, magenta, yellow, black = (inks >> 3 & 1, inks >> 2 & 1, inks >> 1 & 1, inks & 1)
        light = max(0, 100 - 40 * cyan - 45 * magenta - 10 * yellow - 85 * black)
        fade = 0 if black else 1
        a, b = fade * (-35 * cyan + 70 * magenta), fade * (-45 * cyan + 85 * yellow)
        corners += bytes([round(light * 2.55), np.clip(128 + a, 0, 255), np.clip(128 + b, 0, 255)])
    identity = bytes(range(256))
    table = b"mft1" + bytes(4) + bytes([4, 3, 2, 0]) + fixed(1, 0, 0, 0, 1, 0, 0, 0, 1)
    return profile(b"CMYK", {b"A2B0": table + identity * 4 + corners + identity * 3}, b"Lab ")


def level(linear: float) -> int:
    """The sRGB level of a linear share (IEC 61966-2-1)."""
    return round(255 * (12.92 * linear if linear <= 0.0031308 else 1.055 * linear ** (1 / 2.4) - 0.055))


def middle(data: bytes) -> tuple[int, ...]:
    decoded = image.decode(data, LIMIT)
    return tuple(int(v) for v in decoded.array[decoded.height // 2, decoded.width // 2])


# ---- depth


@pytest.mark.parametrize(("bits", "note"), [(16, "16"), (14, "14"), (12, "12"), (10, "10"), (8, "8")])
@pytest.mark.parametrize("format", ["PNG", "TIFF", "PPM"])
def test_deep_greys_are_scaled_by_the_bits_they_use(bits: int, note: str, format: str) -> None:
    ramp = np.linspace(0, 2**bits - 1, 64).astype(np.uint16).reshape(8, 8)
    decoded = image.decode(encoded(Image.fromarray(ramp), format), LIMIT)
    assert decoded.policy == f"depth={note}"
    assert decoded.array[..., 0].tolist() == (ramp >> (bits - 8)).tolist()


def test_a_mid_grey_of_sixteen_bits_is_a_mid_grey() -> None:
    grey = np.full((8, 8), 32768, np.uint16)
    grey[0, 0] = 65535
    assert middle(encoded(Image.fromarray(grey))) == (128, 128, 128)


def test_wide_and_negative_whole_numbers_are_stretched() -> None:
    values = np.array([[-100, 0], [50, 100]], np.int32)
    decoded = image.decode(encoded(Image.fromarray(values), "TIFF"), LIMIT)
    assert (decoded.array[..., 0].tolist(), decoded.policy) == ([[0, 127], [191, 255]], "depth=32 -100..100")
    large = image.decode(encoded(Image.fromarray(np.array([[0, 10**6]], np.int32)), "TIFF"), LIMIT)
    assert (large.array[..., 0].tolist(), large.policy) == ([[0, 255]], "depth=32 0..1000000")


def test_floats_are_taken_as_shares_as_levels_or_stretched() -> None:
    ramp = np.linspace(0, 1, 64, dtype=np.float32).reshape(8, 8)
    expected = (ramp * 255).round().astype(int)
    for scale, note in ((1, "0..1"), (255, "0..255")):
        decoded = image.decode(encoded(Image.fromarray(ramp * np.float32(scale)), "TIFF"), LIMIT)
        assert decoded.policy == f"depth=float {note}"
        assert abs(decoded.array[..., 0].astype(int) - expected).max() <= 1


def test_one_wild_float_does_not_blacken_the_rest() -> None:
    values = np.random.default_rng(0).uniform(-1, 1, (100, 100)).astype(np.float32)
    values[0, :3] = (1e30, np.nan, -np.inf)
    decoded = image.decode(encoded(Image.fromarray(values), "TIFF"), LIMIT)
    assert decoded.policy.startswith("depth=float -") and 110 < decoded.array.mean() < 145
    assert decoded.array[0, :3, 0].tolist() == [255, 0, 0]


def test_one_bit_and_palette_pictures_keep_their_colours() -> None:
    bits = Image.fromarray(np.array([[0, 255], [255, 0]], np.uint8)).convert("1")
    for format in ("PNG", "TIFF", "BMP", "GIF"):
        decoded = image.decode(encoded(bits, format), LIMIT)
        assert decoded.array[..., 0].tolist() == [[0, 255], [255, 0]], format
    coloured = photo().quantize(16)
    for format in ("PNG", "GIF", "BMP", "TIFF"):
        decoded = image.decode(encoded(coloured, format), LIMIT)
        assert decoded.pixels.tobytes() == coloured.convert("RGB").tobytes(), format


# ---- profiles


def test_an_srgb_profile_changes_nothing_and_a_damaged_one_is_ignored() -> None:
    srgb = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    for format in ("PNG", "JPEG"):
        plain = image.decode(encoded(photo(), format), LIMIT)
        same = image.decode(encoded(photo(), format, icc_profile=srgb), LIMIT)
        damaged = image.decode(encoded(photo(), format, icc_profile=b"no profile at all"), LIMIT)
        assert (same.policy, same.pixels_id) == ("icc=srgb", plain.pixels_id), format
        assert (damaged.policy, damaged.pixels_id) == ("icc=damaged", plain.pixels_id), format


@pytest.mark.parametrize("format", ["PNG", "TIFF", "JPEG"])
def test_wide_gamut_colours_are_brought_to_srgb(format: str) -> None:
    wide = rgb_profile(DISPLAY_P3, 2.2)
    colour = Image.new("RGB", (16, 16), (120, 200, 80))
    options: dict[str, object] = {"quality": 100, "subsampling": 0} if format == "JPEG" else {}
    data = encoded(colour, format, icc_profile=wide, **options)
    assert image.decode(data, LIMIT).policy == "icc=to-srgb"
    linear = np.array([(v / 255) ** 2.2 for v in (120, 200, 80)])
    p3_to_srgb = np.array([[1.2249, -0.2247, 0], [-0.0420, 1.0419, 0], [-0.0197, -0.0786, 1.0979]])
    expected = [level(max(0.0, v)) for v in p3_to_srgb @ linear]
    assert np.abs(np.array(middle(data)) - expected).max() <= 3


@pytest.mark.parametrize("mode", ["L", "LA"])
def test_grey_profiles_are_applied_to_grey_pictures(mode: str) -> None:
    linear = profile(b"GRAY", {b"kTRC": gamma(1.0)})
    data = encoded(Image.new(mode, (8, 8), 128 if mode == "L" else (128, 255)), icc_profile=linear)
    assert np.abs(np.array(middle(data)) - level(128 / 255)).max() <= 1


def test_a_profile_for_other_colours_is_ignored_but_one_for_rgb_fits_greys() -> None:
    grey = profile(b"GRAY", {b"kTRC": gamma(1.0)})
    decoded = image.decode(encoded(photo(), icc_profile=grey), LIMIT)
    assert (decoded.policy, decoded.array.tobytes()) == ("icc=unfitting", photo().tobytes())
    linear = rgb_profile(
        ((0.43607, 0.22249, 0.01392), (0.38515, 0.71687, 0.09708), (0.14307, 0.06061, 0.71410)), 1.0
    )
    data = encoded(Image.new("L", (8, 8), 128), icc_profile=linear)
    assert np.abs(np.array(middle(data)) - level(128 / 255)).max() <= 2


# ---- inks


@pytest.mark.parametrize("format", ["TIFF", "JPEG"])
def test_inks_without_a_profile_are_subtracted(format: str) -> None:
    options = {"quality": 100} if format == "JPEG" else {}
    for inks, expected in (
        ((0, 255, 255, 0), (255, 0, 0)),
        ((0, 0, 0, 128), (127, 127, 127)),
        ((0,) * 4, (255,) * 3),
    ):
        data = encoded(Image.new("CMYK", (16, 16), inks), format, **options)
        assert image.decode(data, LIMIT).policy == "mode=CMYK"
        assert np.abs(np.array(middle(data)) - expected).max() <= 3, inks


@pytest.mark.parametrize("format", ["TIFF", "JPEG"])
def test_inks_with_a_profile_become_what_it_says(format: str) -> None:
    options: dict[str, object] = {"quality": 100} if format == "JPEG" else {}
    data = encoded(Image.new("CMYK", (16, 16), (255, 0, 0, 0)), format, icc_profile=ink_profile(), **options)
    assert image.decode(data, LIMIT).policy == "mode=CMYK icc=to-srgb"
    red, green, blue = middle(data)  # L* 60, a* -35, b* -45 is a blue that a screen can show
    assert red < 60 and 140 < green < 180 and 200 < blue < 245
    white = encoded(Image.new("CMYK", (16, 16), (0, 0, 0, 0)), format, icc_profile=ink_profile(), **options)
    assert min(middle(white)) >= 253


def test_lab_pictures_are_converted() -> None:
    buffer = io.BytesIO()
    Image.new("LAB", (8, 8), (128, 128, 128)).save(buffer, "TIFF")
    assert np.ptp(middle(buffer.getvalue())) <= 3


# ---- transparency


def clear_but_for_a_corner(colour: tuple[int, int, int]) -> Image.Image:
    clear = Image.new("RGBA", (8, 8), (0, 0, 0, 0))
    clear.putpixel((0, 0), (*colour, 255))
    return clear


@pytest.mark.parametrize("format", ["PNG", "WEBP", "TIFF", "AVIF", "JPEG2000", "GIF", "ICO", "TGA"])
def test_transparency_is_laid_on_white(format: str) -> None:
    options: dict[str, dict[str, object]] = {
        "WEBP": {"lossless": True},
        "AVIF": {"quality": 100},
        "ICO": {"sizes": [(8, 8)]},
    }
    decoded = image.decode(
        encoded(clear_but_for_a_corner((10, 20, 30)), format, **options.get(format, {})), LIMIT
    )
    assert "alpha=white" in decoded.policy
    assert decoded.pixels.getpixel((5, 5)) == (255, 255, 255)
    assert np.abs(np.array(decoded.pixels.getpixel((0, 0))) - (10, 20, 30)).max() <= 12


def test_palette_and_key_colours_can_be_transparent() -> None:
    palette = clear_but_for_a_corner((10, 20, 30)).quantize()
    by_number = encoded(palette, transparency=palette.getpixel((5, 5)))
    greys = Image.new("L", (8, 8), 7)
    greys.putpixel((0, 0), 90)
    key = encoded(greys, transparency=7)
    two_channels = greys.copy()
    two_channels.putalpha(Image.eval(greys, lambda v: 0 if v == 7 else 255))
    for data, corner in (
        (by_number, (10, 20, 30)),
        (key, (90, 90, 90)),
        (encoded(two_channels), (90, 90, 90)),
    ):
        decoded = image.decode(data, LIMIT)
        assert decoded.policy == "alpha=white"
        assert (
            decoded.array[5, 5].tolist() == [255, 255, 255] and tuple(decoded.array[0, 0].tolist()) == corner
        )


@pytest.mark.parametrize("channels", [1, 3])
def test_a_transparent_level_of_sixteen_bits_is_found(channels: int) -> None:
    levels = [v for x in range(8) for v in ((5000 * x,) if channels == 1 else (5000 * x, 40_000, 300))]
    clear = (0,) if channels == 1 else (0, 40_000, 300)
    pixels = struct.pack(f">{len(levels)}H", *levels) * 8
    key = chunk(b"tRNS", struct.pack(f">{channels}H", *clear))
    decoded = image.decode(png(8, 8, pixels, 16, 0 if channels == 1 else 2, key), LIMIT)
    assert decoded.array[3, 0].tolist() == [255, 255, 255]
    assert decoded.array[3, 7].tolist() == ([136] * 3 if channels == 1 else [136, 156, 1])


def test_half_transparent_colours_are_mixed_with_white() -> None:
    assert middle(encoded(Image.new("RGBA", (8, 8), (0, 100, 200, 51)))) == (204, 224, 244)


def test_a_white_drawing_on_nothing_is_laid_on_black() -> None:
    decoded = image.decode(encoded(clear_but_for_a_corner((255, 255, 255))), LIMIT)
    assert (decoded.policy, decoded.array[0, 0, 0], decoded.array[5, 5, 0]) == ("alpha=black", 255, 0)


def test_an_opaque_alpha_channel_is_no_policy_and_an_empty_one_of_a_tga_is_unused() -> None:
    assert image.decode(encoded(photo().convert("RGBA")), LIMIT).policy == ""
    unused = image.decode(encoded(Image.new("RGBA", (8, 8), (9, 8, 7, 0)), "TGA"), LIMIT)
    assert (unused.policy, unused.array[0, 0].tolist()) == ("alpha=unused", [9, 8, 7])
    clear = image.decode(encoded(Image.new("RGBA", (8, 8), (9, 8, 7, 0))), LIMIT)
    assert (clear.policy, clear.array[0, 0].tolist()) == ("alpha=white", [255, 255, 255])
