"""Whether two pictures are copies of one: the same but for size and the marks of compression.

Owns the measure and its limits. Perceptual hashes find who may be a copy (`datapipe.hamming`); they are too
coarse to tell, for slides that differ in a word, or a picture before and after an effect, share theirs.

Both pictures are brought to the same size and compared place by place. In each window of 8 x 8 the mean
squared difference of the luma must be within what compression explains: a base, and more where there are
edges to smear. Once the pictures are at most 256 pixels long, where marks of compression are averaged out,
and once at most 512, where small letters are still told apart. Colours are compared by the means of wider
windows, for JPEG keeps less of them. The worst window counts: a changed word is in few. Over the whole
picture no compression changes the mean of luma or colours by much, but an effect does.

Limits, from copies of 90 pictures out of six manuals, and from the pairs of different pictures in them whose
hashes are near (`tests/bench/image_hash.py` measures both anew):

- Pictures of one size: JPEG at quality 30 stays below 1 on 95 of 100, at quality 50 on all.
- Of different sizes: nothing but resampling and compression of fewer pixels has to be explained, and detail
  is compared at 0.6 of the smaller, where resampling filters agree: 0.7 of the limits.
- Of one size and both in lossless files: only another palette has to be explained: 0.6 of the limits.

Where the compared size is below 24 pixels nothing can be told, so small icons are copies only when their
pixels are equal. Mirrored, turned, cropped and recoloured pictures are other pictures.
"""

import dataclasses
import math

import numpy as np
import numpy.typing as npt
from PIL import Image

from datapipe.decode.hashing import Pixels

KEPT_SIDE = 1024
MIN_SIDE = 24
_GRIDS = ((256, 10.0), (512, 12.0))  # longer side in pixels; base, in grey levels
_EDGE_SHARE = 0.3  # of the deviation in a window, on top of the base
_COLOUR_LEVELS = 16.0  # of the means of a window
_TONE_LEVELS = 4.0  # of the means of the whole pictures
_WINDOW = 8
_RESIZED_DETAIL = 0.6
_RESIZED_LIMIT, _LOSSLESS_LIMIT = 0.7, 0.6
_ASPECT = 0.02
_LOSSLESS = ("image/png", "image/bmp", "image/tiff", "image/svg+xml", "image/x-portable-anymap")

Plane = npt.NDArray[np.float64]


@dataclasses.dataclass(frozen=True)
class Thumbnail:
    """A picture small enough to keep many of them, and what it was made from."""

    pixels: Image.Image  # mode YCbCr, longer side at most `KEPT_SIDE`
    width: int  # of the picture itself
    height: int
    is_lossless: bool


def thumbnail(array: Pixels, mime: str) -> Thumbnail:
    """Return what is kept of a picture to compare it."""
    picture = Image.fromarray(array).convert("YCbCr")
    scale = min(1.0, KEPT_SIDE / max(picture.size))
    size = (max(1, round(picture.width * scale)), max(1, round(picture.height * scale)))
    return Thumbnail(_resized(picture, size), picture.width, picture.height, mime in _LOSSLESS)


def same_shape(
    widths: npt.NDArray[np.int64],
    heights: npt.NDArray[np.int64],
    other_widths: npt.NDArray[np.int64],
    other_heights: npt.NDArray[np.int64],
) -> npt.NDArray[np.bool_]:
    """Return where sizes are those of one picture at two scales, each side rounded to whole pixels."""
    difference = np.abs(np.log(widths * other_heights / (heights * other_widths)))
    shortest = np.minimum(np.minimum(widths, heights), np.minimum(other_widths, other_heights))
    return np.asarray(difference <= _ASPECT + 1.0 / shortest, dtype=bool)


def difference(one: Thumbnail, two: Thumbnail) -> float:
    """Return how far two pictures are apart: up to 1 for copies, infinite where nothing can be told.

    The order does not matter. Pictures that the smaller size tells apart are not compared at the larger one.
    """
    sizes = [np.array([n]) for n in (one.width, one.height, two.width, two.height)]
    if not same_shape(*sizes).all():
        return math.inf
    is_one_size = (one.width, one.height) == (two.width, two.height)
    width, height = min(
        (one.width, one.height), (two.width, two.height), key=lambda size: (math.prod(size), size)
    )
    largest = max(width, height) * (1.0 if is_one_size else _RESIZED_DETAIL)
    limit = _RESIZED_LIMIT
    if is_one_size:
        limit = _LOSSLESS_LIMIT if one.is_lossless and two.is_lossless else 1.0
    worst = 0.0
    for side, base in _GRIDS:
        scale = min(side, largest) / max(width, height)
        size = (max(1, round(width * scale)), max(1, round(height * scale)))
        if min(size) < MIN_SIDE:
            return math.inf
        left, right = planes(one.pixels, size), planes(two.pixels, size)
        ratios, _ = window_differences(left[0], right[0], base)
        worst = max(worst, float(ratios.max()) / limit, _colour_difference(left, right) / limit)
        if largest <= side or worst > 1:
            break
    return worst


def planes(picture: Image.Image, size: tuple[int, int]) -> tuple[Plane, Plane, Plane]:
    """Return luma and the two colour differences of a picture in mode YCbCr, brought to a size."""
    planes = np.asarray(_resized(picture, size), dtype=np.float64)
    return planes[..., 0], planes[..., 1], planes[..., 2]


def _resized(picture: Image.Image, size: tuple[int, int]) -> Image.Image:
    return picture if picture.size == size else picture.resize(size, Image.Resampling.HAMMING)


def window_differences(one: Plane, two: Plane, base: float) -> tuple[Plane, Plane]:
    """Return for each window its root mean squared difference, as a share of what is allowed there, and the
    larger of both deviations in it.
    """
    one, two = _smooth(one), _smooth(two)
    square = _window_means((one - two) ** 2, _WINDOW)
    variances = [_window_means(p * p, _WINDOW) - _window_means(p, _WINDOW) ** 2 for p in (one, two)]
    allowed = base + _EDGE_SHARE * np.sqrt(np.minimum(*variances).clip(0))
    return np.sqrt(square.clip(0)) / allowed, np.sqrt(np.maximum(*variances).clip(0))


def _colour_difference(one: tuple[Plane, Plane, Plane], two: tuple[Plane, Plane, Plane]) -> float:
    """Return the largest difference of means, as a share of what is allowed: of windows, and of the whole."""
    size = min(2 * _WINDOW, *one[0].shape)
    worst = max(
        float(np.abs(_window_means(a - b, size)).max()) for a, b in zip(one[1:], two[1:], strict=True)
    )
    tone = max(abs(float((a - b).mean())) for a, b in zip(one, two, strict=True))
    return max(worst / _COLOUR_LEVELS, tone / _TONE_LEVELS)


def _smooth(plane: Plane) -> Plane:
    """Return a plane smoothed by [1 2 1] / 4 both ways, one pixel smaller on each side."""
    rows = plane[:-2] + 2 * plane[1:-1] + plane[2:]
    return (rows[:, :-2] + 2 * rows[:, 1:-1] + rows[:, 2:]) / 16


def _window_means(plane: Plane, size: int) -> Plane:
    """Return the means of all windows of `size` x `size`."""
    sums = np.pad(plane, ((1, 0), (1, 0))).cumsum(0).cumsum(1)
    inner = sums[size:, size:] - sums[:-size, size:] - sums[size:, :-size] + sums[:-size, :-size]
    return np.asarray(inner / (size * size))
