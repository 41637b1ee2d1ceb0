"""Shot cuts of a video.

Owns one pass over a video at a small size (`scan`), and what a cut is (`cuts`). Which frames are taken, says
`decode.sampling`; they are decoded by `decode.frames`.

The pass leaves out frames that no other frame refers to: it looks at about half of those of common files. It
also leaves out the decoder's deblocking, unless frames are collected on the way. Of videos of more than
`MAX_FULL_SCAN_PIXELS` it looks at the keyframes alone, which encoders put at most cuts: an hour of film takes
seconds then, and on Big Buck Bunny six of ten cuts are found and three of four are true.

How a cut is found, from frames of 48 x 28 pixels:

    hard      the change from one frame to the next stands out: it is above `MIN_CHANGE` grey levels,
              `MIN_CONTRAST_FRAC` of the contrast of the pictures (the mean of their standard deviations), and
              `MIN_RATIO` times the median change of the second around it. Change is the mean over the pixels
              of the smallest luma difference to any of the nine pixels around the same place in the other
              frame, the larger of both directions, which forgives motion; plus the mean difference of colour.
              A change that is undone within half a second is a flash, no cut.
    fade      one cut in the middle of a short stretch of one colour (black, white) between two pictures; one
              at either end of a stretch of a second and more
    dissolve  over half a second to two, frames are mixtures of those at both ends, in growing shares, and the
              picture is steady on both sides

Source: the first rule is that of adaptive content detection (PySceneDetect's `AdaptiveDetector`: a ratio to a
rolling average and a minimal change), the last the linear model of a dissolve (Lienhart, "Reliable Transition
Detection in Videos: A Survey and Practitioner's Guide", 2001, section 4.2). The thresholds lie in the gap
between true and false cuts of Big Buck Bunny, and hold on its trailer and on made clips. Against TransNetV2
on the film: 128 of its 134 transitions within 0.25 s, 8 others of ours, most of them whip pans.
"""

import dataclasses
from collections.abc import Iterator

import numpy as np
from av.video.reformatter import VideoReformatter

from datapipe.decode.frames import SKIPPING, Collector, open_decoder, trusted
from datapipe.decode.video import Video, guarded, open_container

MIN_CHANGE = 8.0  # grey levels
MIN_RATIO = 3.0
MIN_CONTRAST_FRAC = 0.6
MIN_CONTRAST = 8.0  # grey levels
FLASH_S = 0.5
FLAT_DEVIATION = 4.0  # grey levels: below it a frame is of one colour
LONG_FLAT_S = 1.0
MIN_DISSOLVE = 12.0  # grey levels between both ends
MAX_MIXTURE_ERROR = 0.22  # of that
MAX_LIKENESS = 0.8  # correlation of both ends of a dissolve; above, one picture brightens or moves
DISSOLVE_S = (0.5, 1.0, 2.0)
MIN_SHOT_S = 0.3
MAX_LOOKS_PER_S = 13.0
MAX_FULL_SCAN_PIXELS = 20_000_000_000  # over all frames; half as much again as ten minutes of 720p
MIN_RATE_TO_SKIP = 20.0  # frames/s: slower videos are looked at frame by frame
_WIDTH, _HEIGHT = 48, 28
_BATCH = 256


@dataclasses.dataclass(frozen=True)
class Scan:
    """What one pass over a video saw: n frames, in order."""

    times_s: np.ndarray  # [n] float64
    change: np.ndarray  # [n] float32: grey levels from the frame before; 0 for the first
    level: np.ndarray  # [n] float32: mean luma, 0 to 255
    deviation: np.ndarray  # [n] float32: standard deviation of luma
    small: np.ndarray  # [n, 224] uint8: 16 x 7 blocks of luma, then 8 x 7 of each colour difference
    is_sound: bool  # all was looked at, and no fault met


def scan(data: bytes, video: Video, threads: int = 1, collector: Collector | None = None) -> Scan:
    """Look at the frames of a video, small, in one pass.

    Args:
        collector: gets the frames that it wants, decoded as they should be, which saves a second pass.

    Raises:
        DamagedMedium: no frame can be decoded.
    """
    return guarded(lambda: _scan(data, video, threads, collector))


def is_full(video: Video) -> bool:
    """Return whether a scan looks at more than the keyframes."""
    return video.num_frames * video.width * video.height <= MAX_FULL_SCAN_PIXELS


def _scan(data: bytes, video: Video, threads: int, collector: Collector | None) -> Scan:
    times_s: list[float] = []
    parts: list[tuple[np.ndarray, ...]] = []
    planes: list[np.ndarray] = []
    health = {"faults": 0}
    for time_s, small in _looks(data, video, threads, health, collector):
        times_s.append(time_s)
        planes.append(small)
        if len(planes) == _BATCH:
            parts.append(_measured(np.stack(planes), is_first=not parts))
            planes = planes[-1:]
    if len(planes) > 1 or not parts:
        if not planes:
            raise ValueError("no frame can be decoded")
        parts.append(_measured(np.stack(planes), is_first=not parts))
    change, level, deviation, small = (np.concatenate(part) for part in zip(*parts, strict=True))
    return Scan(np.array(times_s), change, level, deviation, small, is_full(video) and not health["faults"])


def _looks(
    data: bytes, video: Video, threads: int, health: dict[str, int], collector: Collector | None
) -> Iterator[tuple[float, np.ndarray]]:
    """Yield the time and planes [42, 48] of frames, as dense as they are to be looked at; counts faults."""
    reformatter = VideoReformatter()
    index = {timestamp: number for number, timestamp in enumerate(video.timestamps)}
    last_s = -np.inf
    with open_container(data) as container:
        rough = {"skip_loop_filter": "all"} if collector is None else None
        wanted = frozenset() if collector is None else collector.wanted
        stream, decoder = open_decoder(container, threads, rough)
        skips = decoder.name in SKIPPING and video.frames_per_second >= MIN_RATE_TO_SKIP
        may_skip = (lambda timestamp: timestamp not in wanted) if skips else None
        packets = container.demux(stream)
        if not is_full(video):
            packets = (p for p in packets if p.is_keyframe or not p.size)
        for timestamp, frame in trusted(packets, decoder, may_skip, health):
            if collector is not None and timestamp in wanted:
                collector.take(timestamp, frame)
            number = index.get(timestamp)
            if number is None:
                continue
            time_s = float(video.times_s[number])
            if time_s - last_s < 1 / MAX_LOOKS_PER_S:
                continue
            last_s = time_s
            small = reformatter.reformat(
                frame, _WIDTH, _HEIGHT, format="yuv420p", interpolation="AREA", threads=1
            )
            yield time_s, small.to_ndarray()


def _measured(planes: np.ndarray, is_first: bool) -> tuple[np.ndarray, ...]:
    """Return change, level, deviation and small pictures; later batches begin with one measured before."""
    luma = planes[:, :_HEIGHT]
    colour = planes[:, _HEIGHT:].reshape(len(planes), 2, _HEIGHT // 2, _WIDTH // 2)
    change = np.zeros(len(planes), np.float32)
    if len(planes) > 1:
        change[1:] = np.maximum(_moved(luma[:-1], luma[1:]), _moved(luma[1:], luma[:-1]))
        change[1:] += _difference(colour[:-1], colour[1:]).mean((1, 2, 3), dtype=np.float32)
    blocks = luma.reshape(-1, 7, 4, 16, 3).mean((2, 4)).reshape(len(planes), -1)
    tints = colour.reshape(-1, 2, 7, 2, 8, 3).mean((3, 5)).reshape(len(planes), -1)
    small = np.concatenate([blocks, tints], axis=1).round().astype(np.uint8)
    flat = luma.reshape(len(planes), -1)
    result = (change, flat.mean(1, dtype=np.float32), flat.std(1, dtype=np.float32), small)
    return result if is_first else tuple(array[1:] for array in result)


def _difference(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.maximum(a, b) - np.minimum(a, b)


def _moved(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return the mean over pixels of `b` [n, h, w] of the least difference to the nine around it in `a`."""
    height, width = b.shape[1:]
    padded = np.pad(a, ((0, 0), (1, 1), (1, 1)), mode="edge")
    smallest = np.full(b.shape, 255, np.uint8)
    for down in range(3):
        for right in range(3):
            shifted = padded[:, down : down + height, right : right + width]
            np.minimum(smallest, _difference(shifted, b), out=smallest)
    return smallest.mean((1, 2), dtype=np.float32)


# ---- cuts


def cuts(scan: Scan) -> list[float]:
    """Return the times, in seconds, at which a new shot begins; the first shot begins before them all.

    Two cuts are at least `MIN_SHOT_S` apart: of a group the first stays.
    """
    fades, covered = _fades(scan)
    found = sorted([*fades, *_hard(scan, covered), *_dissolves(scan, covered)])
    kept: list[float] = []
    for time_s in found:
        if time_s > scan.times_s[0] and (not kept or time_s - kept[-1] >= MIN_SHOT_S):
            kept.append(time_s)
    return kept


def _hard(scan: Scan, covered: np.ndarray) -> list[float]:
    found = []
    for i in map(int, np.flatnonzero((scan.change >= MIN_CHANGE) & ~covered)):
        around = scan.change[_window(scan, i, 0.5)]
        usual = (
            np.median(np.delete(around, np.flatnonzero(around == scan.change[i])[:1]))
            if len(around) > 1
            else 0
        )
        is_peak = scan.change[i] >= scan.change[_window(scan, i, MIN_SHOT_S)].max()
        contrast = max(MIN_CONTRAST, float(scan.deviation[i - 1] + scan.deviation[i]) / 2)
        stands_out = scan.change[i] >= max(MIN_RATIO * usual, MIN_CONTRAST_FRAC * contrast)
        if is_peak and stands_out and not _is_flash(scan, i):
            found.append(float(scan.times_s[i]))
    return found


def _window(scan: Scan, i: int, half_s: float) -> slice:
    """Return the frames around frame `i`, which is one of them."""
    low, high = np.searchsorted(scan.times_s, [scan.times_s[i] - half_s, scan.times_s[i] + half_s])
    return slice(max(1, low), high)


def _is_flash(scan: Scan, i: int) -> bool:
    """Return whether the picture before change `i` comes back in `FLASH_S`, or was there shortly before."""
    small = scan.small
    jump = _apart(small[i - 1], small[i])
    low, high = np.searchsorted(scan.times_s, [scan.times_s[i] - FLASH_S, scan.times_s[i] + FLASH_S])
    after = [_apart(small[i - 1], small[j]) for j in range(i + 1, high)]
    before = [_apart(small[j], small[i]) for j in range(max(low, 0), i - 1)]
    return min([*after, *before, np.inf]) < 0.35 * jump


def _apart(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.abs(a.astype(np.int16) - b).mean())


def _fades(scan: Scan) -> tuple[list[float], np.ndarray]:
    """Return cuts in and around stretches of one colour, and which frames those have explained."""
    flat = scan.deviation < FLAT_DEVIATION
    covered = np.zeros(len(flat), bool)
    edges = np.flatnonzero(np.diff(np.concatenate([[False], flat, [False]]).astype(np.int8)))
    found: list[float] = []
    for start, end in zip(edges[::2], edges[1::2], strict=True):
        at_start, at_end = start == 0, end == len(flat)
        start_s, last_s = scan.times_s[start], scan.times_s[end - 1]
        end_s = last_s if at_end else scan.times_s[end]
        covered[start : min(end + 1, len(flat))] = True
        if end_s - start_s >= LONG_FLAT_S:
            found += [] if at_start else [float(start_s)]
            found += [] if at_end else [float(end_s)]
        elif not (at_start or at_end) and not _comes_back(scan, start, end):
            found.append(float((start_s + end_s) / 2))
    return found, covered


def _comes_back(scan: Scan, start: int, end: int) -> bool:
    """Return whether a short flat stretch has the same picture on both sides, faded or not."""
    if scan.times_s[end] - scan.times_s[start - 1] > FLASH_S:
        return False
    a, b = (scan.small[i, : 7 * 16].astype(np.float64) for i in (start - 1, end))
    return bool(np.corrcoef(a, b)[0, 1] > 0.9) if a.std() > 1 and b.std() > 1 else False


def _alike(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return the correlation of the luma of pictures [n, 224]; brightness and contrast do not count."""
    a, b = (pictures[:, : 7 * 16] - pictures[:, : 7 * 16].mean(1, keepdims=True) for pictures in (a, b))
    return (a * b).sum(1) / np.maximum(np.sqrt((a**2).sum(1) * (b**2).sum(1)), 1e-6)


def _dissolves(scan: Scan, covered: np.ndarray) -> list[float]:
    """Return the middles of stretches in which one steady picture mixes into another."""
    found: list[tuple[float, float]] = []  # (error, time)
    times_s, small = scan.times_s, scan.small.astype(np.float32)
    for length_s in DISSOLVE_S:
        at = [
            np.searchsorted(times_s, times_s + share * length_s) for share in (-1, -0.5, -0.25, 0.25, 0.5, 1)
        ]
        far_a, a, m1, m3, b, far_b = (np.clip(places, 0, len(times_s) - 1) for places in at)
        step = small[b] - small[a]
        size = np.abs(step).mean(1)
        error = np.stack(
            [
                np.abs(small[m] - small[a] - share * step).mean(1)
                for m, share in ((m1, 0.25), (np.arange(len(times_s)), 0.5), (m3, 0.75))
            ]
        ).max(0) / np.maximum(size, 1e-6)
        steady = (
            np.maximum(np.abs(small[far_a] - small[a]).mean(1), np.abs(small[far_b] - small[b]).mean(1))
            < 0.35 * size
        )
        inside = (times_s - times_s[0] >= length_s / 2) & (times_s[-1] - times_s >= length_s / 2)
        largest = np.array([scan.change[i + 1 : j + 1].max(initial=0) for i, j in zip(a, b, strict=True)])
        is_gradual = largest < 0.5 * size
        good = (size >= MIN_DISSOLVE) & (error <= MAX_MIXTURE_ERROR) & steady & inside & is_gradual
        flats = np.concatenate([[0], np.cumsum(covered)])
        good &= flats[far_b + 1] == flats[far_a]  # else it is a fade
        good &= _alike(small[a], small[b]) < MAX_LIKENESS
        found += [(float(error[i]), float(times_s[i])) for i in np.flatnonzero(good)]
    best: list[float] = []
    for _, time_s in sorted(found):
        if all(abs(time_s - other) >= 1.0 for other in best):
            best.append(time_s)
    return best
