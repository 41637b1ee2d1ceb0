"""Hashes of canonical pixels: one that only equal pictures share, and one that similar pictures nearly share.

Owns how `pixels_id` and `perceptual_hash` are made from RGB pixels. Decodes nothing, compares nothing. Both
are computed in whole numbers, so a picture has the same hashes on every machine.
"""

import functools

import numpy as np
import numpy.typing as npt
from blake3 import blake3
from PIL import Image

from schemas import ids

HASH_SIDE = 8
_GRID_SIDE = 32
_GREY_STEPS = 16  # a grey level of the grid is in sixteenths, so that pale pictures keep their structure
_FLAT_DEVIATION = 1.0  # grey levels; below it a picture has no structure to hash
_LUMA = np.array([299.0, 587.0, 114.0])  # thousandths; ITU-R BT.601, section 2.5.1
_COSINE_SCALE = 1 << 20

Pixels = npt.NDArray[np.uint8]  # [height, width, 3], RGB


def as_array(pixels: Image.Image | Pixels) -> Pixels:
    """Return a picture as [height, width, 3] bytes."""
    return np.asarray(pixels.convert("RGB")) if isinstance(pixels, Image.Image) else pixels


def pixels_id(pixels: Image.Image | Pixels) -> str:
    """Return the hash of a picture's size and RGB pixels: 32 hexadecimal characters of BLAKE3.

    BLAKE3 because a decoded picture is ten times its file: it reads 4 bytes in the time BLAKE2b reads one.
    """
    array = as_array(pixels)
    height, width = array.shape[:2]
    digest = blake3(f"{width}x{height}:".encode())
    digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest(length=ids.CONTENT_ID_BYTES)


def perceptual_hash(pixels: Image.Image | Pixels) -> int | None:
    """Return a 64-bit hash that similar pictures share but for a few bits; None for flat pictures.

    A bit says whether one of the 63 lowest frequencies of the grey picture, 32 x 32 means of its areas, is
    above their median; the first bit, of the mean level, is 0. A picture of one colour has no frequencies,
    so any hash of it would be noise that merges black with white.

    Source: Zauner, "Implementation and Benchmarking of Perceptual Image Hash Functions" (2010), section
    3.2.1; the mean level is left out.
    """
    levels = _grid(as_array(pixels))
    if levels.std() < _FLAT_DEVIATION * _GREY_STEPS:
        return None
    basis = _cosines()
    low = (basis @ levels @ basis.T).ravel()
    bits = low > np.sort(low[1:])[len(low) // 2 - 1]
    bits[0] = False
    return int(np.packbits(bits).view(">u8")[0])


def _grid(array: Pixels) -> npt.NDArray[np.int64]:
    """Return the mean grey levels of 32 x 32 equal areas, in sixteenths, rounded down: [32, 32].

    Sums are of whole numbers below 2^53, so the floats that multiply them fast hold them exactly.
    """
    height, width = array.shape[:2]
    if height < min(width, _GRID_SIDE):  # the long side first, so that what is repeated below is small
        return _grid(array.transpose(1, 0, 2)).T
    if height < _GRID_SIDE:
        return _grid(np.repeat(array, _GRID_SIDE, axis=0))
    rows = _row_sums(array.reshape(height, width * 3))
    grey = (rows.reshape(-1, 3) @ _LUMA).reshape(_GRID_SIDE, width)
    if width < _GRID_SIDE:
        grey, width = np.repeat(grey, _GRID_SIDE, axis=1), width * _GRID_SIDE
    cells = _column_sums(grey)
    return cells.astype(np.int64) * _GREY_STEPS // (1000 * height * width)


def _row_sums(lines: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint32]:
    """Return the sums over 32 equal parts of the lines, in 1/32 of a line: [32, length of a line].

    An edge between two parts cuts a line in whole 1/32. A part is the whole lines from the one that its first
    edge cuts, less what of that lies before the edge, and what lies before its last edge of the line there.
    """
    whole, cut = _edges(len(lines))
    sums = np.empty((_GRID_SIDE, lines.shape[1]), np.uint32)
    for part in range(_GRID_SIDE):
        np.add.reduce(lines[whole[part] : whole[part + 1]], axis=0, dtype=np.uint32, out=sums[part])
    sums *= np.uint32(_GRID_SIDE)
    before = lines[whole[1:-1]] * cut[1:-1, None].astype(np.uint32)
    sums[:-1] += before
    sums[1:] -= before
    return sums


def _column_sums(lines: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return the sums over 32 equal parts of each line, in 1/32, as `_row_sums` does: [lines, 32]."""
    whole, cut = _edges(lines.shape[1])
    sums = np.add.reduceat(lines, whole[:-1], axis=1) * _GRID_SIDE
    before = lines[:, whole[1:-1]] * cut[1:-1]
    sums[:, :-1] += before
    sums[:, 1:] -= before
    return sums


def _edges(length: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return where the edges of 32 equal parts lie, [33]: whole pixels, and 1/32 pixels beyond these."""
    return np.divmod(np.arange(_GRID_SIDE + 1) * length, _GRID_SIDE)


@functools.cache
def _cosines() -> npt.NDArray[np.int64]:
    """Return the first rows of the orthogonal DCT-II matrix in millionths (2^-20), [8, 32]."""
    frequency, place = np.mgrid[0:HASH_SIDE, 0:_GRID_SIDE]
    basis = np.cos(np.pi * frequency * (2 * place + 1) / (2 * _GRID_SIDE))
    basis[0] /= np.sqrt(2)
    return np.rint(basis * _COSINE_SCALE).astype(np.int64)
