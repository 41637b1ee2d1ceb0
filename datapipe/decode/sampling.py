"""Which frames of a video are taken.

Owns the times to sample, at a fixed rate (`times_at_rate`) or by what there is to see (`times_by_change`),
and the order of looking (`decode.shots`) and taking (`decode.frames`).
"""

import numpy as np

from datapipe.decode.frames import Collector, Sample, sample, suits_decord
from datapipe.decode.shots import Scan, cuts, is_full, scan
from datapipe.decode.video import Video, nearest_frames
from datapipe.spec import VideoSpec

MIN_NEWS = 4.0  # grey levels: a frame with less to show is like one that was chosen


def scan_and_sample(data: bytes, video: Video, spec: VideoSpec) -> tuple[Scan, Sample]:
    """Look at a video and take the frames that the spec asks for, in one pass where that is possible.

    Raises:
        DamagedMedium: no frame can be decoded, or fewer than half of the wanted ones.
    """
    times_s = times_at_rate(video.duration_s, spec.frames_per_second, spec.max_frames)
    side, threads = spec.max_frame_side, spec.decode_threads
    by_decord = suits_decord(video, nearest_frames(video, times_s))
    if spec.sampling == "fixed" and is_full(video) and not by_decord:
        collector = Collector(video, times_s, side)
        seen = scan(data, video, threads, collector)
        return seen, collector.sample()
    seen = scan(data, video, threads)
    if spec.sampling == "change":
        times_s = times_by_change(seen, spec.frames_per_second, spec.max_frames)
    return seen, sample(data, video, times_s, side, seen.is_sound, threads)


def times_at_rate(duration_s: float, frames_per_second: float, max_frames: int) -> list[float]:
    """Return the times to sample: at `frames_per_second`, or `max_frames` evenly over longer videos."""
    num_frames = max(1, int(np.ceil(duration_s * frames_per_second - 1e-6)))
    if num_frames <= max_frames:
        return [i / frames_per_second for i in range(num_frames)]
    return [i * duration_s / max_frames for i in range(max_frames)]


def times_by_change(seen: Scan, frames_per_second: float, max_frames: int) -> list[float]:
    """Return the times of frames that show each shot, then whatever else is new, until `max_frames`.

    Of each shot the steadiest frame of its middle half comes first. Then, again and again, the frame that
    differs most from all chosen of its shot, at least `1 / frames_per_second` from each, until none is new.
    With more shots than frames, shots are chosen the same way: each the most unlike all before it.
    """
    shot = np.searchsorted(cuts(seen), seen.times_s, side="right")
    first = [_steadiest(seen, np.flatnonzero(shot == number)) for number in np.unique(shot)]
    if len(first) > max_frames:
        chosen = _most_unlike(seen.small[first], max_frames)
        return sorted(float(seen.times_s[first[i]]) for i in chosen)
    distance = np.full(len(shot), np.inf, np.float32)
    taken = list(first)
    for i in first:
        _approach(seen, shot, distance, i, frames_per_second)
    while len(taken) < max_frames:
        best = int(np.argmax(distance))
        if distance[best] < MIN_NEWS:
            break
        taken.append(best)
        _approach(seen, shot, distance, best, frames_per_second)
    return sorted(float(seen.times_s[i]) for i in taken)


def _steadiest(seen: Scan, frames: np.ndarray) -> int:
    """Return the frame of the middle half of a shot that differs least from its neighbours."""
    middle = frames[len(frames) // 4 : max(len(frames) // 4 + 1, 3 * len(frames) // 4)]
    after = np.append(seen.change[1:], 0)[middle]
    return int(middle[np.argmin(seen.change[middle] + after)])


def _approach(seen: Scan, shot: np.ndarray, distance: np.ndarray, i: int, frames_per_second: float) -> None:
    """Lower, in place, the distance of a shot's frames to the nearest chosen one, now that `i` is chosen."""
    same = np.flatnonzero(shot == shot[i])
    distance[same] = np.minimum(distance[same], _news(seen.small[same], seen.small[i]))
    near = np.abs(seen.times_s[same] - seen.times_s[i]) < 1 / frames_per_second - 1e-6
    distance[same[near]] = 0


def _news(pictures: np.ndarray, known: np.ndarray) -> np.ndarray:
    """Return how much pictures [n, 224] differ from a known one, in grey levels.

    That is the mean over all blocks, or a quarter of the largest block's, so that a line of text that appears
    on a still screen counts.
    """
    apart = np.abs(pictures.astype(np.int16) - known).astype(np.float32)
    return np.maximum(apart.mean(1), apart.max(1) / 4)


def _most_unlike(pictures: np.ndarray, number: int) -> list[int]:
    """Return the first picture and then, until there are `number`, each the farthest from all before it."""
    chosen, distance = [0], _news(pictures, pictures[0])
    while len(chosen) < number:
        best = int(np.argmax(distance))
        chosen.append(best)
        distance = np.minimum(distance, _news(pictures, pictures[best]))
        distance[chosen] = -1
    return chosen
