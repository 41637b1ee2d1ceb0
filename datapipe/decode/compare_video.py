"""Whether two videos show one clip: in another codec, container, size or rate, or with a little cut off.

Owns how two clips are laid over each other and compared. Whoever calls says which are worth it.

One clip is laid over the other at an offset. Of the first, up to `NUM_PROBES` of the frames that were sampled
when it was ingested are taken, spread over what both show; of the second, the frames at the same moments are
decoded. These are compared as pictures are (`datapipe.decode.compare`), but more kindly: the tenth worst of a
hundred windows with something in them counts, and sides need not be in proportion, for pixels of some formats
are not square. Frames of one colour tell nothing and do not count.

The offset is looked for: each hint is tried, and the best one made exact to a frame by looking at all frames
near some probes, where one step in a fast movement already makes another picture.
"""

import dataclasses
import functools

import numpy as np
import numpy.typing as npt
from PIL import Image

from datapipe.decode import video as videos
from datapipe.decode.compare import planes, window_differences
from datapipe.decode.frames import sample
from datapipe.errors import DecodeError

NUM_PROBES = 16
MIN_TOLD = 3  # probes with something to see; clips with fewer frames need all of them
_NUM_TRIALS = 6  # probes that rate an offset
_NUM_DENSE = 3  # of these, those around which all frames are looked at
_GOOD_RATING = 0.5  # an offset that fits so well is exact
REACH_S, _STEP_S = 1.5, 0.04
_SIDE = 256
_BASE = 10.0
_WORST_SHARE = 0.1
_STRUCTURE = 8.0  # grey levels of deviation that make a window count
_FLAT = 4.0  # grey levels of deviation; a frame with less tells nothing
_LATE_S = 0.5  # a frame that begins so much later than asked for is not the one
_WORST = 4.0  # a difference counts at most this much in the rating of an offset

Moment = tuple[float, Image.Image]  # seconds, frame in mode YCbCr


@dataclasses.dataclass
class Clip:
    """A video to compare, with the frames sampled from it; what is decoded is kept."""

    data: bytes
    duration_s: float
    sampled: list[Moment]
    _seen: dict[float, Image.Image | None] = dataclasses.field(default_factory=dict)

    @functools.cached_property
    def _video(self) -> videos.Video:
        return videos.probe(self.data, 2**31)

    def at(self, times_s: list[float]) -> list[Image.Image | None]:
        """Return the frames shown at these times, shrunk, mode YCbCr; None where the file has none.

        Raises:
            DecodeError: most of them cannot be decoded.
        """
        times_s = [round(min(max(t, 0.0), self.duration_s), 3) for t in times_s]
        wanted = sorted(set(times_s) - self._seen.keys())
        if wanted:
            found = sample(self.data, self._video, wanted, _SIDE).frames
            starts = np.array([frame.t_s for frame in found])
            pictures = [frame.pixels.convert("YCbCr") for frame in found]
            for t in wanted:
                at = min(int(np.searchsorted(starts, t - 1e-4)), len(found) - 1)
                self._seen[t] = None if starts[at] > t + _LATE_S else pictures[at]
        return [self._seen[t] for t in times_s]


def shrunk(pixels: Image.Image) -> Image.Image:
    """Return a frame as small as frames are compared, mode YCbCr."""
    scale = min(1.0, _SIDE / max(pixels.size))
    size = (max(1, round(pixels.width * scale)), max(1, round(pixels.height * scale)))
    return pixels.convert("YCbCr").resize(size, Image.Resampling.HAMMING)


def matched_share(one: Clip, two: Clip, hints_s: list[float], min_overlap: float) -> float:
    """Return the share of probes at which two clips show the same, laid over each other as fits best.

    0 where what both show is less than `min_overlap` of the longer one, or too little of it tells anything.

    Args:
        hints_s: offsets to try: seconds into `two` less those into `one` for the same frame.

    Raises:
        DecodeError: neither clip can be decoded.
    """
    try:
        return _matched_share(one, two, hints_s, min_overlap)
    except DecodeError:  # the frames sampled from a damaged video may still be found in a sound one
        return _matched_share(two, one, [-hint for hint in hints_s], min_overlap)


def _matched_share(one: Clip, two: Clip, hints_s: list[float], min_overlap: float) -> float:
    offsets = sorted({0.0, round(two.duration_s - one.duration_s, 2), *(round(h, 2) for h in hints_s)})
    laid = [(offset, _probes(one, two, offset, min_overlap)) for offset in offsets]
    laid = [(offset, probes) for offset, probes in laid if probes]
    if not laid:
        return 0.0
    ratings = [_rating(_some(probes, _NUM_TRIALS), two, offset) for offset, probes in laid]
    best, probes = laid[int(np.argmin(ratings))]
    if min(ratings) > _GOOD_RATING:
        best = _refined(_some(probes, _NUM_DENSE), two, best)
        probes = _probes(one, two, best, min_overlap) or probes
    differences = _differences(_some(probes, NUM_PROBES), two, best)
    told = [d for d in differences if d is not None]
    return sum(d <= 1 for d in told) / len(told) if len(told) >= min(MIN_TOLD, len(probes)) and told else 0.0


# ---- laying one over the other


def _probes(one: Clip, two: Clip, offset_s: float, min_overlap: float) -> list[Moment]:
    """Return the sampled frames of `one` that `two` shows too at an offset; none where that is too little."""
    start, end = max(0.0, -offset_s), min(one.duration_s, two.duration_s - offset_s)
    if end - start < min_overlap * max(one.duration_s, two.duration_s) - 1e-6:
        return []
    return [(t, frame) for t, frame in one.sampled if start <= t <= end]


def _some(probes: list[Moment], count: int) -> list[Moment]:
    """Return up to `count` of the probes, evenly chosen, and not the first where there are more."""
    if len(probes) <= count:
        return probes
    return [probes[int((i + 0.5) * len(probes) / count)] for i in range(count)]


def _rating(probes: list[Moment], two: Clip, offset_s: float) -> float:
    """Return the mean difference at some probes; lower is better."""
    told = [d for d in _differences(probes, two, offset_s) if d is not None]
    return float(np.mean(np.minimum(told, _WORST))) if told else _WORST


def _refined(probes: list[Moment], two: Clip, offset_s: float) -> float:
    """Return the offset near `offset_s` at which the frames around some probes fit best."""
    shifts = np.arange(-REACH_S, REACH_S + _STEP_S / 2, _STEP_S)
    ratings = np.zeros(len(shifts))
    frames = two.at([t + offset_s + shift for t, _ in probes for shift in shifts])  # neighbours together
    for number, (_, probe) in enumerate(probes):
        around = frames[number * len(shifts) : (number + 1) * len(shifts)]
        known = {id(frame): frame_difference(probe, frame) for frame in {id(f): f for f in around}.values()}
        found = [known[id(frame)] for frame in around]
        ratings += [_WORST if d is None else min(d, _WORST) for d in found]
    return offset_s + float(shifts[_middle_of_best(ratings)])


def _middle_of_best(ratings: npt.NDArray[np.float64]) -> int:
    """Return the middle of the first run of the best rating: a frame is shown for more than one step."""
    best = int(np.argmin(ratings))
    end = best
    while end + 1 < len(ratings) and ratings[end + 1] <= ratings[best] + 1e-9:
        end += 1
    return (best + end) // 2


# ---- frames


def _differences(probes: list[Moment], two: Clip, offset_s: float) -> list[float | None]:
    others = two.at([t + offset_s for t, _ in probes])
    return [frame_difference(a, b) for (_, a), b in zip(probes, others, strict=True)]


def frame_difference(one: Image.Image, two: Image.Image | None) -> float | None:
    """Return how far two frames are apart, up to 1 for the same; None where both tell nothing."""
    if two is None:
        return _WORST
    size = min(one.size, two.size, key=lambda s: (s[0] * s[1], s))
    left, right = planes(one, size), planes(two, size)
    if max(left[0].std(), right[0].std()) < _FLAT:
        return None
    ratios, deviations = window_differences(left[0], right[0], _BASE)
    counted = ratios[(deviations >= _STRUCTURE) | (ratios > 1)]
    return float(np.quantile(counted if counted.size else ratios, 1 - _WORST_SHARE))
