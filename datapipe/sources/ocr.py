"""Text in pictures of pages, read by RapidOCR where it is installed (extra `ocr`).

Owns the engine, and what of its output is believed. Without the package pages stay pictures.
"""

import functools
import importlib.util
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

MIN_SCORE = 0.5  # RapidOCR's own default for text that is worth keeping
THREADS = 1  # as workers share the machine's cores


class OcrLine(NamedTuple):
    """A line of text with its box in pixels."""

    text: str
    x0: float
    y0: float
    x1: float
    y1: float


def is_available() -> bool:
    """Return whether text in pictures can be read here."""
    return importlib.util.find_spec("rapidocr_onnxruntime") is not None


def read_lines(pixels: Image.Image) -> list[OcrLine]:
    """Return the lines of text in a picture, in the order of the engine."""
    result, _ = _engine()(np.asarray(pixels.convert("RGB"))[:, :, ::-1])
    lines = []
    for corners, text, score in result or []:
        if float(score) >= MIN_SCORE and text.strip():
            xs, ys = [float(x) for x, _ in corners], [float(y) for _, y in corners]
            lines.append(OcrLine(text.strip(), min(xs), min(ys), max(xs), max(ys)))
    return lines


@functools.cache
def _engine() -> Any:
    from rapidocr_onnxruntime import RapidOCR  # loads its models; optional

    return RapidOCR(intra_op_num_threads=THREADS, inter_op_num_threads=1)
