"""Faces in pictures, by MTCNN: three small networks whose weights a package carries.

Optional: without `facenet-pytorch`, `available` is False and `find` cannot be called. It pins an old
torch and works with new ones, so it is installed without its dependencies. Finds upright faces from about 20
pixels on; profiles and covered faces often stay unfound, so a corpus is not free of faces afterwards.

Source: Zhang et al., Joint Face Detection and Alignment using Multi-task Cascaded Convolutional Networks
(2016).
"""

import functools
import importlib.util
from typing import Any

import numpy as np
from PIL import Image

PACKAGE = "facenet_pytorch"
INSTALL = "pip install --no-deps facenet-pytorch"
MIN_CONFIDENCE = 0.95  # of the last network; below it, foliage and prints of cloth pass for faces
MIN_SIDE_PIXELS = 24  # pictures with a shorter side hold no face that the networks can find


def available() -> bool:
    """Return whether the package is installed."""
    return importlib.util.find_spec(PACKAGE) is not None


def find(pixels: Image.Image) -> list[tuple[float, float, float, float]]:
    """Return the faces in an RGB picture as (left, top, right, bottom), fractions of its width and height."""
    if min(pixels.size) < MIN_SIDE_PIXELS:
        return []
    boxes, confidences = _detector().detect(pixels)
    if boxes is None:
        return []
    return sorted(
        _fractions(box, pixels.size)
        for box, confidence in zip(boxes, confidences, strict=True)
        if confidence >= MIN_CONFIDENCE
    )


@functools.cache
def _detector() -> Any:
    from facenet_pytorch import MTCNN

    return MTCNN(keep_all=True, device="cpu")


def _fractions(box: Any, size: tuple[int, int]) -> tuple[float, float, float, float]:
    """Return a box of pixels (left, top, right, bottom) as fractions inside the picture."""
    edges = np.asarray(box, dtype=float) / (*size, *size)
    left, top, right, bottom = edges.clip(0, 1).tolist()
    return left, top, right, bottom
