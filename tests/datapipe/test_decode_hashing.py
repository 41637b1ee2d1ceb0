"""Hashes of pixels: equal pictures, similar ones, flat ones; and the sums against a plain computation."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from datapipe.decode import hashing, image
from tests.datapipe.test_decode_image import LIMIT, encoded, photo


def distance(one: bytes, two: bytes) -> int:
    first, second = (image.decode(data, LIMIT).perceptual_hash for data in (one, two))
    assert first is not None and second is not None
    return (first ^ second).bit_count()


def test_perceptual_hash_joins_copies_and_parts_others() -> None:
    original = photo(1, 300, 200)
    assert distance(encoded(original), encoded(original, "JPEG", quality=40)) <= 4
    assert distance(encoded(original), encoded(original.resize((120, 80)))) <= 4
    assert distance(encoded(original), encoded(photo(2, 300, 200))) > 16
    assert distance(encoded(original), encoded(original.transpose(Image.Transpose.FLIP_LEFT_RIGHT))) > 16


def test_flat_pictures_have_no_perceptual_hash() -> None:
    for colour in ("white", "black", (30, 60, 90)):
        assert image.decode(encoded(Image.new("RGB", (50, 40), colour)), LIMIT).perceptual_hash is None


def test_pale_structure_is_enough_for_a_hash() -> None:
    pale = Image.eval(photo(1, 300, 200), lambda v: 245 + v // 25)
    assert image.decode(encoded(pale), LIMIT).perceptual_hash is not None


def test_pixels_id_is_of_the_pixels_and_their_shape() -> None:
    one, same = (image.decode(encoded(photo(), format), LIMIT).pixels_id for format in ("PNG", "BMP"))
    assert one == same and len(one) == 32
    wide, tall = (image.decode(encoded(Image.new("RGB", size)), LIMIT).pixels_id for size in ((8, 4), (4, 8)))
    assert wide != tall
    assert hashing.pixels_id(photo()) == one


@settings(max_examples=40)
@given(st.integers(1, 90), st.integers(1, 90), st.integers(0, 2**32 - 1))
@pytest.mark.filterwarnings("ignore")
def test_the_grid_holds_the_exact_means_of_equal_areas(height: int, width: int, seed: int) -> None:
    array = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    shares = []
    for length in (height, width):
        cell, pixel = np.arange(32)[:, None] * length / 32, np.arange(length)[None]
        overlap = np.minimum(cell + length / 32, pixel + 1) - np.maximum(cell, pixel)
        shares.append(overlap.clip(0) * 32 / length)
    means = shares[0] @ (array @ np.array([0.299, 0.587, 0.114])) @ shares[1].T
    error = means - hashing._grid(array) / 16
    assert error.min() > -1e-6 and error.max() < 1 / 16 + 1e-6
