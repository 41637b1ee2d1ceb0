"""Who is compared with whom: pictures and videos that may be copies, by what was noted of them at ingest.

Owns the choice of pairs, and where two videos may fit over each other. Reads no pixels. Works over the nodes
of `dedupe_media`, which are in order of preference, so that a pair's earlier node is the one to keep.

- A picture is compared with the nearest nodes before it whose perceptual hashes and shapes are near; flat
  pictures have no hash, and of pictures below 24 pixels nothing can be told.
- A video is compared with those before it that are nearly as long and share the most with it at nearly the
  same time: frames by hash, and the rhythm of their cuts, which tells where hashes do not: two videos trimmed
  differently are sampled at other moments.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from datapipe import hamming
from datapipe.decode import compare, compare_video
from datapipe.spec import DedupeMediaSpec

_MIN_SHARED_FRAMES = 0.1  # of the shorter video; fewer are no reason to compare
_EARLIER_FRAMES = 64  # frames of other videos that one frame votes for at most
_MIN_SHARED_SHOTS = 0.2  # pairs of shots, likewise
_EARLIER_SHOTS = 16
_RHYTHM_S = 0.16  # in which lengths of shots are counted; cuts are found to a frame
_CUT_TOLERANCE_S = 0.1
_MIN_CUTS = 3

PAIRS = pa.schema(
    [
        pa.field("earlier", pa.int32(), nullable=False),  # numbers of nodes
        pa.field("later", pa.int32(), nullable=False),
        pa.field(
            "offsets_s", pa.list_(pa.float64()), nullable=False
        ),  # where videos may fit: later - earlier
    ]
)

Array = npt.NDArray[Any]


def candidates(nodes: pa.Table, frames: pa.Table, spec: DedupeMediaSpec) -> tuple[pa.Table, dict[str, int]]:
    """Return the pairs of nodes to compare (`PAIRS`), ordered by the earlier one, and how many pictures and
    frames stand in crowds, so that only some of those before them were looked at (`hamming.MAX_MET`).

    Memory: some hundred bytes for each node and pair.
    """
    earlier, later, pictures_cut = _picture_pairs(nodes, spec)
    by_video, frames_cut = _video_pairs(nodes, frames, spec)
    pairs = [*zip(earlier.tolist(), later.tolist(), strict=True), *by_video]
    counts = {"pictures_in_crowds": pictures_cut, "frames_in_crowds": frames_cut}
    return with_offsets(pairs, nodes, frames, spec), counts


def _picture_pairs(nodes: pa.Table, spec: DedupeMediaSpec) -> tuple[Array, Array, int]:
    is_picture = pc.and_(pc.equal(nodes["kind"], "image"), pc.is_valid(nodes["perceptual_hash"]))
    widths, heights = (nodes[name].to_numpy().astype(np.int64) for name in ("width", "height"))
    is_told = np.minimum(widths, heights) >= compare.MIN_SIDE
    numbers = np.flatnonzero(is_picture.to_numpy() & is_told)
    widths, heights = widths[numbers], heights[numbers]

    def compatible(earlier: Array, later: Array) -> Array:
        return compare.same_shape(widths[earlier], heights[earlier], widths[later], heights[later])

    chosen = nodes["perceptual_hash"].take(pa.array(numbers)).to_numpy().astype(np.uint64)
    found = hamming.near_pairs(chosen, spec.max_distance, spec.max_candidates, compatible)
    return numbers[found.earlier], numbers[found.later], found.num_cut


def _video_pairs(
    nodes: pa.Table, frames: pa.Table, spec: DedupeMediaSpec
) -> tuple[list[tuple[int, int]], int]:
    """Return for each video those before it, of nearly its length, that share the most with it; and how many
    frames stand in crowds.

    What is shared is frames, by their hashes, and rhythm: two shots of the same lengths one after the other.
    """
    length_s = nodes["time_s"].to_numpy(zero_copy_only=False)
    by_frames, num_cut = _shared_frames(frames, length_s, spec)
    by_rhythm = _shared_rhythm(nodes, length_s, spec)
    shared = np.concatenate([by_frames, by_rhythm], axis=1)
    pairs, place = np.unique(shared[:2], axis=1, return_inverse=True)
    count = np.bincount(place.ravel(), weights=shared[2], minlength=pairs.shape[1])
    second, first = pairs
    order = np.lexsort((first, -count, second))
    first, second = first[order], second[order]
    nearest = np.arange(len(second)) - np.searchsorted(second, second) < spec.max_candidates
    return list(zip(first[nearest].tolist(), second[nearest].tolist(), strict=True)), num_cut


def _may_overlap(
    lengths_s: tuple[Array, Array], times_s: tuple[Array, Array], spec: DedupeMediaSpec
) -> Array:
    """Return which moments of two videos, of these lengths, may be the same one."""
    long, short = np.maximum(*lengths_s), np.minimum(*lengths_s)
    slack_s = (1 - spec.min_overlap) * long + compare_video.REACH_S
    near = np.abs(times_s[0] - times_s[1]) <= slack_s
    return np.asarray((short >= spec.min_overlap * long) & near)


def _shared_frames(frames: pa.Table, length_s: Array, spec: DedupeMediaSpec) -> tuple[Array, int]:
    """Return later node, earlier node and number of shared frames of pairs that share enough: [3, pairs]; and
    how many frames stand in crowds.
    """
    hashed = frames.filter(pc.is_valid(frames["perceptual_hash"]))
    node, time_s = hashed["node"].to_numpy(), hashed["time_s"].to_numpy()

    def compatible(earlier: Array, later: Array) -> Array:
        one, two = node[earlier], node[later]
        times_s = (time_s[earlier], time_s[later])
        return (one != two) & _may_overlap((length_s[one], length_s[two]), times_s, spec)

    chosen = hashed["perceptual_hash"].to_numpy().astype(np.uint64)
    found = hamming.near_pairs(chosen, spec.max_distance, _EARLIER_FRAMES, compatible)
    num_frames, earlier, later = np.bincount(node, minlength=len(length_s)), found.earlier, found.later
    shared = _counted(node[later], node[earlier], later, num_frames, _MIN_SHARED_FRAMES, 1)
    return shared, found.num_cut


def _shared_rhythm(nodes: pa.Table, length_s: Array, spec: DedupeMediaSpec) -> Array:
    """As the first of `_shared_frames`, of pairs of shots. Each is looked up by its two lengths, rounded two
    ways each, so that lengths half a rounding apart meet.
    """
    rows = []
    for number, cuts in enumerate(nodes["cuts_s"].to_pylist()):
        for start, middle, end in zip(cuts or [], (cuts or [])[1:], (cuts or [])[2:], strict=False):
            steps = (middle - start) / _RHYTHM_S, (end - middle) / _RHYTHM_S
            for shift in ((0.0, 0.0), (0.0, 0.5), (0.5, 0.0), (0.5, 0.5)):
                one, two = (int(step + half) for step, half in zip(steps, shift, strict=True))
                rows.append((one, two, int(2 * shift[0] + 4 * shift[1]), number, start))
    if not rows:
        return np.empty((3, 0), np.int64)
    columns = np.array(sorted(rows))
    node, time_s = columns[:, 3].astype(np.int64), columns[:, 4]
    found = [np.empty((3, 0), np.int64)]
    for back in range(1, _EARLIER_SHOTS + 1):
        earlier, later = np.arange(len(rows) - back), np.arange(back, len(rows))
        same = (columns[earlier, :3] == columns[later, :3]).all(axis=1) & (node[earlier] != node[later])
        earlier, later = earlier[same], later[same]
        lengths_s = (length_s[node[earlier]], length_s[node[later]])
        kept = _may_overlap(lengths_s, (time_s[earlier], time_s[later]), spec)
        earlier, later = earlier[kept], later[kept]
        shots = np.unique(np.stack([node, (time_s * 1000).astype(np.int64)]), axis=1, return_inverse=True)[1]
        found.append(np.stack([node[later], node[earlier], shots.ravel()[later]]))
    votes = np.concatenate(found, axis=1)
    num_shots = np.bincount(
        np.unique(np.stack([node, time_s]), axis=1)[0].astype(int), minlength=len(length_s)
    )
    return _counted(votes[0], votes[1], votes[2], num_shots, _MIN_SHARED_SHOTS, 2)


def _counted(
    later: Array, earlier: Array, vote: Array, num_parts: Array, min_share: float, min_count: int
) -> Array:
    """Return later node, earlier node and number of different votes, where there are enough: [3, pairs]."""
    votes = np.unique(np.stack([later, earlier, vote]), axis=1)
    pairs, count = np.unique(votes[:2], axis=1, return_counts=True)
    least = np.maximum(min_share * np.minimum(num_parts[pairs[0]], num_parts[pairs[1]]), min_count)
    return np.concatenate([pairs, count[None]])[:, count >= least]


def with_offsets(
    pairs: list[tuple[int, int]], nodes: pa.Table, frames: pa.Table, spec: DedupeMediaSpec
) -> pa.Table:
    """Return pairs of nodes as a table (`PAIRS`), in order, those of videos with the offsets at which they
    may fit.
    """
    pairs = sorted(pairs)
    is_video = pc.equal(nodes["kind"], "video").to_pylist()
    rows = [
        {"earlier": first, "later": second, "offsets_s": _offsets(first, second, nodes, frames, spec)}
        if is_video[first]
        else {"earlier": first, "later": second, "offsets_s": []}
        for first, second in pairs
    ]
    return pa.Table.from_pylist(rows, schema=PAIRS)


def _offsets(
    first: int, second: int, nodes: pa.Table, frames: pa.Table, spec: DedupeMediaSpec
) -> list[float]:
    """Return by how much later the second video may show what the first does: by frames, and by cuts."""
    (one_s, one), (two_s, two) = (_hashes_of(number, frames) for number in (first, second))
    near = np.bitwise_count(one[:, None] ^ two[None]) <= spec.max_distance
    by_frames = (two_s[None] - one_s[:, None])[near]
    found = [round(float(np.median(by_frames)), 3)] if by_frames.size else []
    cuts = [np.array(nodes["cuts_s"][number].as_py() or []) for number in (first, second)]
    steps = np.sort((cuts[1][None] - cuts[0][:, None]).ravel())
    if steps.size:
        counts = np.searchsorted(steps, steps + _CUT_TOLERANCE_S, side="right") - np.arange(steps.size)
        best = int(np.argmax(counts))
        if counts[best] >= _MIN_CUTS:
            found.append(round(float(steps[best : best + counts[best]].mean()), 3))
    return found


def _hashes_of(number: int, frames: pa.Table) -> tuple[Array, Array]:
    """Return the times and hashes of a video's frames that have one."""
    mine = frames_of(number, frames)
    mine = mine.filter(pc.is_valid(mine["perceptual_hash"]))
    return mine["time_s"].to_numpy(), mine["perceptual_hash"].to_numpy().astype(np.uint64)


def frames_of(number: int, frames: pa.Table) -> pa.Table:
    """Return the frames of a node."""
    start, end = np.searchsorted(frames["node"].to_numpy(), [number, number + 1])
    return frames.slice(start, end - start)
