"""Lines of text in pictures, by the detector of an OCR package (extra `ocr`); nothing is read.

Optional: without the package, `available` is False and `find` cannot be called.
"""

import functools
import importlib.util
from typing import Any

import numpy as np
from PIL import Image

PACKAGE = "rapidocr_onnxruntime"
INSTALL = "pip install 'omniloom[ocr]'"
MIN_SIDE_PIXELS = 16


def available() -> bool:
    """Return whether the package is installed."""
    return importlib.util.find_spec(PACKAGE) is not None


def find(pixels: Image.Image) -> list[tuple[float, float, float, float]]:
    """Return the text lines of an RGB picture as (left, top, right, bottom), fractions of its sides."""
    if min(pixels.size) < MIN_SIDE_PIXELS:
        return []
    found, _ = _detector()(np.asarray(pixels)[:, :, ::-1], use_det=True, use_cls=False, use_rec=False)
    return sorted(_fractions(corners, pixels.size) for corners in found or [])


@functools.cache
def _detector() -> Any:
    from rapidocr_onnxruntime import RapidOCR

    return RapidOCR(intra_op_num_threads=1, inter_op_num_threads=1)


def _fractions(corners: Any, size: tuple[int, int]) -> tuple[float, float, float, float]:
    """Return the upright box around four corners in pixels as fractions inside the picture."""
    places = np.asarray(corners, dtype=float).reshape(-1, 2) / size
    (left, top), (right, bottom) = places.min(axis=0).clip(0, 1), places.max(axis=0).clip(0, 1)
    return float(left), float(top), float(right), float(bottom)
