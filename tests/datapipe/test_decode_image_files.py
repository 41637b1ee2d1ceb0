"""Real picture files: the test images of Pillow's source distribution, decoded in processes of their own.

Every file has its outcome in `golden/pillow_images.json`: the class of the error, or size and policy. What
can be judged is judged: copies in other formats are equal, colours and orientations are what they must be.
Rewrite the table with `python -m tests.datapipe.test_decode_image_files`, and look at what changed.
"""

import json
from concurrent.futures import TimeoutError
from pathlib import Path

import numpy as np
import pytest
from pebble import ProcessExpired, ProcessPool

from datapipe import errors
from datapipe.decode import image
from jobs.fetch import fetch

pytestmark = pytest.mark.slow

GOLDEN = Path(__file__).parents[1] / "golden" / "pillow_images.json"
LIMIT_S = 60
MAX_PIXELS = 89_478_485
KEPT_PIXELS = 1_000_000

Outcome = tuple[str, np.ndarray | None]


def outcome(path: str) -> Outcome:
    """What becomes of a file, and the pixels of a small picture."""
    try:
        decoded = image.decode(Path(path).read_bytes(), MAX_PIXELS)
    except errors.DecodeError as error:
        return type(error).__name__, None
    told = f"{decoded.width}x{decoded.height} {decoded.policy}".strip()
    return told, decoded.array if decoded.array.size <= 3 * KEPT_PIXELS else None


def all_outcomes() -> dict[str, Outcome]:
    folder = fetch("sdist:pillow")[0] / "Tests" / "images"
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    found: dict[str, Outcome] = {}
    with ProcessPool(max_workers=2) as pool:
        running = [pool.schedule(outcome, args=[str(path)], timeout=LIMIT_S) for path in files]
        for path, future in zip(files, running, strict=True):
            try:
                result = future.result()
            except TimeoutError:
                result = (f"no end within {LIMIT_S} s", None)
            except ProcessExpired as error:
                result = (f"the process died: {error}", None)
            found[path.relative_to(folder).as_posix()] = result
    return found


@pytest.fixture(scope="module")
def outcomes() -> dict[str, Outcome]:
    return all_outcomes()


@pytest.fixture(scope="module")
def pictures(outcomes: dict[str, Outcome]) -> dict[str, np.ndarray]:
    return {name: array for name, (_, array) in outcomes.items() if array is not None}


def apart(one: np.ndarray, two: np.ndarray) -> float:
    """The mean difference of two pictures in levels; pictures of different sizes are 255 apart."""
    return float(np.abs(one.astype(int) - two).mean()) if one.shape == two.shape else 255.0


def test_every_file_has_the_outcome_written_down(outcomes: dict[str, Outcome]) -> None:
    expected = json.loads(GOLDEN.read_text())
    assert len(outcomes) > 1000 and expected.keys() <= outcomes.keys()
    wrong = {n: (o, outcomes[n][0]) for n, o in expected.items() if outcomes[n][0] != o}
    assert not wrong
    crashed = [name for name, (told, _) in outcomes.items() if told.startswith(("no end", "the process"))]
    assert not crashed


@pytest.mark.parametrize(
    ("start", "allowed"),
    [
        ("crash-", {"DamagedMedium", "TruncatedMedium"}),
        ("timeout-", {"DamagedMedium", "TruncatedMedium"}),
        ("oom-", {"DamagedMedium", "TooManyPixels"}),
        ("eps/timeout-", {"UnsupportedMedium"}),
        ("truncated_image", {"TruncatedMedium"}),
        ("truncated_jpeg", {"TruncatedMedium"}),
        ("decompression_bomb.", {"TooManyPixels"}),
        ("bmp/b/reallybig", {"TooManyPixels"}),
        ("bmp/b/shortfile", {"TruncatedMedium"}),
        ("zero_height", {"DamagedMedium"}),
        ("zero_width", {"DamagedMedium"}),
        ("hopper_bad_exif.jpg", {"DamagedMedium"}),
        ("avif/hopper.heif", {"UnsupportedMedium"}),
        ("drawing.", {"UnsupportedMedium"}),
    ],
)
def test_bombs_and_broken_files_are_refused_with_the_right_reason(
    start: str, allowed: set[str], outcomes: dict[str, Outcome]
) -> None:
    found = {name: told for name, (told, _) in outcomes.items() if name.startswith(start)}
    assert found and set(found.values()) <= allowed, found


def test_no_eps_is_drawn(outcomes: dict[str, Outcome]) -> None:
    told = [told for name, (told, _) in outcomes.items() if name.endswith(".eps")]
    assert len(told) > 10 and set(told) == {"UnsupportedMedium"}


def test_all_orientations_show_the_same_picture(pictures: dict[str, np.ndarray]) -> None:
    for suffix in ("jpg", "webp"):
        first = pictures[f"hopper_orientation_2.{suffix}"]
        assert apart(first, pictures["hopper.jpg"]) < 6
        for number in range(3, 9):
            assert apart(first, pictures[f"hopper_orientation_{number}.{suffix}"]) < 5, number
    for number in range(2, 9):
        assert apart(pictures["g4_orientation_1.tif"], pictures[f"g4_orientation_{number}.tif"]) < 1
    roads = [array for name, array in pictures.items() if name.startswith("avif/rot")]
    assert len(roads) == 8 and all(array.shape == (427, 640, 3) for array in roads)
    for array in roads:
        assert apart(roads[0], array) < 10
        assert all(apart(roads[0][:60, x : x + 60], array[:60, x : x + 60]) < 2 for x in (0, 560))  # the sky


COLOUR_COPIES = (
    *(
        "bmp",
        "dds",
        "dcx",
        "fli",
        "gif",
        "jpg",
        "ppm",
        "pnm",
        "psd",
        "qoi",
        "ras",
        "rgb",
        "sgi",
        "tif",
        "webp",
    ),
    *("xpm", "Lab.tif", "iccprofile.tif"),
)


@pytest.mark.parametrize("suffix", COLOUR_COPIES)
def test_one_picture_is_the_same_in_every_format(suffix: str, pictures: dict[str, np.ndarray]) -> None:
    limit = {"dds": 8, "gif": 8, "fli": 8, "xpm": 8, "webp": 4, "jpg": 4, "Lab.tif": 4}.get(suffix, 2)
    assert apart(pictures[f"hopper.{suffix}"], pictures["hopper.png"]) <= limit


@pytest.mark.parametrize(
    "name", ["hopper_16bit.pgm", "hopper_16bit_plain.pgm", "hopper.pfm", "hopper_be.pfm"]
)
def test_deep_greys_are_as_light_as_the_picture(name: str, pictures: dict[str, np.ndarray]) -> None:
    grey = pictures["hopper.png"] @ np.array([0.299, 0.587, 0.114])
    assert np.abs(pictures[name][..., 0] - grey).mean() < 3


@pytest.mark.parametrize(
    "name", ["16bit.cropped.tif", "16bit.cropped.jp2", "16bit.MM.deflate.tif", "ifd_tag_type.tiff"]
)
def test_pictures_that_use_few_of_their_bits_are_not_black(
    name: str, pictures: dict[str, np.ndarray]
) -> None:
    assert 60 < pictures[name].mean() < 200 and pictures[name].max() >= 128


def test_inks_look_like_the_same_picture_in_rgb(pictures: dict[str, np.ndarray]) -> None:
    for name in ("pil_sample_cmyk.jpg", "tiff_strip_cmyk_jpeg.tif", "tiff_tiled_cmyk_jpeg.tif"):
        assert apart(pictures[name], pictures["pil_sample_rgb.jpg"]) < 12, name


PAIRS = {
    "dxt3-argb-8bbp-explicitalpha_MipMaps-1": ("dds", "png"),
    "argb-32bpp_MipMaps-1": ("dds", "png"),
    "uncompressed_la": ("dds", "png"),
    "transparent": ("gif", "png"),
    "tiff_16bit_RGBa": ("tiff", "png"),
    "pil123rgba": ("qoi", "png"),
    "pil136": ("tiff", "png"),
    "gbr": ("gbr", "png"),
    "p_16": ("tga", "png"),
    "copyleft": ("tiff", "png"),
    "avif/star": ("avifs", "png"),
    "ftex_dxt1": ("ftc", "png"),
}


@pytest.mark.parametrize("name", PAIRS)
def test_files_beside_their_reference_are_equal(name: str, pictures: dict[str, np.ndarray]) -> None:
    one, two = PAIRS[name]
    second = f"{name}_target.{two}" if name == "tiff_16bit_RGBa" else f"{name}.{two}"
    assert apart(pictures[f"{name}.{one}"], pictures[second]) < 3


def test_tga_of_all_layouts_is_the_picture_beside_it(pictures: dict[str, np.ndarray]) -> None:
    compared = 0
    for name, array in pictures.items():
        if name.startswith("tga/common/") and name.endswith(".tga"):
            reference = pictures[name.rsplit("_", 2)[0] + ".png"]
            assert apart(array, reference) < 1, name
            compared += 1
    assert compared > 15


def test_transparency_is_white_and_white_on_nothing_is_seen(pictures: dict[str, np.ndarray]) -> None:
    for name in ("transparent.png", "transparent.gif", "transparent.webp", "transparent.sgi", "pillow.ico"):
        assert pictures[name][0, 0].tolist() == [255, 255, 255], name
    assert pictures["transparent_background_text.png"].std() > 5
    assert pictures["rgb32bf-abgr.bmp"].std() > 50


if __name__ == "__main__":
    table = {name: told for name, (told, _) in all_outcomes().items()}
    GOLDEN.write_text(json.dumps(table, indent=0, sort_keys=True, ensure_ascii=False) + "\n")
