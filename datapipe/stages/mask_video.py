"""Mask video: stretches that show nothing leave the stream, with a reason.

Owns the reasons `black_interval`, `static_interval` and `logo_interval`. Judges the frames that ingest
stored, for only they can reach the stream: a stretch reaches from its first frame to the next frame that
differs. Words spoken over it stay. A video whose medium cannot be had is the business of `mask_media`.

    black   no block of 8 x 8 pixels is brighter than `MAX_BLACK_LEVEL` on average
    static  no block differs from the first frame of the stretch by more than `MAX_STILL_LEVELS` on average;
            that frame stays, so a slide is shown once. A letter typed on a screen changes its block, and ends
            it
    logo    at the start or end of the video, with no words over it: a plain colour but for one compact mark
            in its middle that is no line of text, standing still

Source: the black limit is that of FFmpeg's `blackdetect` (a pixel below a tenth of the range), asked of every
block instead of 98 % of the pixels, so that credits stay. The others are set on made videos and on the
screencasts of gnome-user-docs and forensics-samples-files, of which nothing that is seen leaves.
"""

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from datapipe.decode import image as images
from datapipe.spec import MaskVideoSpec
from schemas import document

VERSION = "1"
DETECTOR = "mask_video"

MAX_BLACK_LEVEL = 20.0  # grey levels
MAX_STILL_LEVELS = 10.0
MAX_PLAIN_DEVIATION = 12.0  # grey levels: a pixel nearer to the commonest colour is background
MAX_LOGO_ASPECT = 3.0
MIN_LOGO_HEIGHT_FRAC = 0.08  # of the picture's height
MAX_OFF_CENTRE_FRAC = 0.2
MAX_INK_RUNS = 6  # marks met along the median row of a logo; a line of text has more
_BLOCK = 8
_LUMA = np.array([0.299, 0.587, 0.114], np.float32)

Row = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Interval:
    """A stretch of a video to leave out, in seconds; `end_s` may be infinite."""

    start_s: float
    end_s: float
    reason: str


def mask_video(batch: pa.RecordBatch, media: pa.Table, spec: MaskVideoSpec) -> pa.RecordBatch:
    """Return the documents with a drop mask on each stretch of their videos that shows nothing.

    Args:
        media: the media that the documents show, frames with their bytes.
    """
    rows = batch.select(["segments", "masks"]).to_pylist()
    shown = {s["media_id"] for row in rows for s in row["segments"] if s["kind"] == "video"} - {None}
    intervals = {
        video_id: _intervals(frames, end_s, spec) for video_id, frames, end_s in _videos(media, shown)
    }
    column = [row["masks"] + list(_masks(row["segments"], row["masks"], intervals)) for row in rows]
    index, field = document.SCHEMA.get_field_index("masks"), document.SCHEMA.field("masks")
    return batch.set_column(index, field, pa.array(column, type=field.type))


def _videos(media: pa.Table, shown: set[str]) -> Iterator[tuple[str, list[Row], float]]:
    """Yield the id, the frames in order of time, and the end of each video that is shown."""
    wanted = pa.array(sorted(shown), pa.string())
    usable = pc.is_null(media["error"])
    videos = media.filter(pc.and_(usable, pc.is_in(media["media_id"], wanted)))
    ends = dict(zip(videos["media_id"].to_pylist(), videos["duration_s"].to_pylist(), strict=True))
    of_video = pc.and_(pc.equal(media["kind"], "frame"), pc.is_in(media["parent_id"], wanted))
    frames = media.filter(pc.and_(usable, of_video)).select(
        ["media_id", "parent_id", "t_s", "bytes", "width", "height"]
    )
    for video_id in sorted(shown & ends.keys()):
        own = frames.filter(pc.equal(frames["parent_id"], video_id)).sort_by([("t_s", "ascending")])
        if own.num_rows:
            unique = {row["t_s"]: row for row in own.to_pylist()}
            yield video_id, list(unique.values()), ends[video_id] or np.inf


def _masks(segments: list[Row], masks: list[Row], intervals: dict[str, list[Interval]]) -> Iterator[Row]:
    """Yield the masks that a document's videos get and do not have yet."""
    gone = {m["segment"] for m in masks if m["action"] == "drop" and m["start"] is None and m["box"] is None}
    spoken = [
        (s["t_start_s"], s["t_end_s"])
        for s in segments
        if s["kind"] == "text" and s["t_start_s"] is not None and s["t_end_s"] is not None
    ]
    for number, segment in enumerate(segments):
        if segment["kind"] != "video" or number in gone:
            continue
        start_s, end_s = segment["t_start_s"] or 0.0, segment["t_end_s"]
        for interval in intervals.get(segment["media_id"], []):
            low, high = max(start_s, interval.start_s), min(end_s or np.inf, interval.end_s)
            if low >= high or (interval.reason == "logo_interval" and _overlaps(spoken, interval)):
                continue
            is_whole = low <= start_s and high >= (end_s or np.inf)
            mask = {
                "segment": number,
                "start": None if is_whole else round(low * 1000),
                "end": None if is_whole or high == np.inf else round(high * 1000),
                "box": None,
                "reason": interval.reason,
                "action": "drop",
                "detector": DETECTOR,
            }
            if mask not in masks:
                yield mask


def _overlaps(spoken: list[tuple[float, float]], interval: Interval) -> bool:
    return any(start < interval.end_s and end > interval.start_s for start, end in spoken)


# ---- what the frames show


def _intervals(frames: list[Row], video_end_s: float, spec: MaskVideoSpec) -> list[Interval]:
    """Return the stretches of a video that show nothing, in order; no two overlap."""
    times_s = [frame["t_s"] for frame in frames]
    starts = [*times_s, max(video_end_s, times_s[-1] + 1e-3)]
    looks = [_look(frame) for frame in frames]
    found: list[Interval] = []
    for kind, first, last in _runs(looks, spec):
        length_s = starts[last + 1] - starts[first]
        at_edge = first == 0 or last == len(frames) - 1
        if kind == "black" and length_s >= spec.min_black_s:
            found.append(Interval(starts[first], starts[last + 1], "black_interval"))
        elif kind == "logo" and at_edge and last > first and length_s >= spec.min_logo_s:
            found.append(Interval(starts[first], starts[last + 1], "logo_interval"))
        elif kind != "black" and last > first and length_s >= spec.min_static_s:
            found.append(Interval(starts[first + 1], starts[last + 1], "static_interval"))
    if found and found[-1].end_s >= starts[-1]:  # up to the very end, whatever the container rounds it to
        found[-1] = dataclasses.replace(found[-1], end_s=np.inf)
    return found


@dataclasses.dataclass(frozen=True)
class _Look:
    """What is compared of a frame."""

    grey: np.ndarray  # [height, width], cut to whole blocks
    is_black: bool
    pixels: np.ndarray  # [height, width, 3]


def _look(frame: Row) -> _Look:
    decoded = images.decode(frame["bytes"], frame["width"] * frame["height"]).pixels
    pixels = np.asarray(decoded)
    grey = pixels @ _LUMA
    height, width = (max(_BLOCK, side // _BLOCK * _BLOCK) for side in grey.shape)
    grey = np.pad(
        grey, [(0, max(0, n - m)) for n, m in zip((height, width), grey.shape, strict=True)], mode="edge"
    )
    grey = grey[:height, :width]
    return _Look(grey, float(_blocks(grey).max()) <= MAX_BLACK_LEVEL, pixels)


def _blocks(plane: np.ndarray) -> np.ndarray:
    """Return the mean of each block of 8 x 8 pixels."""
    height, width = plane.shape
    return plane.reshape(height // _BLOCK, _BLOCK, width // _BLOCK, _BLOCK).mean((1, 3))


def _runs(looks: list[_Look], spec: MaskVideoSpec) -> Iterator[tuple[str, int, int]]:
    """Yield the kind, first and last frame of each run: black, a logo, or any picture that stands still."""
    first = 0
    for number in range(1, len(looks) + 1):
        if number < len(looks) and _continues(looks[first], looks[number]):
            continue
        kind = "black" if looks[first].is_black else "picture"
        if kind == "picture" and _is_logo(looks[first].pixels, spec.max_logo_area_frac):
            kind = "logo"
        yield kind, first, number - 1
        first = number


def _continues(first: _Look, other: _Look) -> bool:
    if first.is_black or other.is_black:
        return first.is_black and other.is_black
    if first.grey.shape != other.grey.shape:
        return False
    return float(_blocks(np.abs(first.grey - other.grey)).max()) <= MAX_STILL_LEVELS


def _is_logo(pixels: np.ndarray, max_area_frac: float) -> bool:
    """Return whether a picture is one colour but for a compact mark that is no line of text."""
    coarse = (pixels >> 4).reshape(-1, 3).astype(np.int32)
    codes = coarse[:, 0] * 256 + coarse[:, 1] * 16 + coarse[:, 2]
    commonest = np.bincount(codes, minlength=4096).argmax()
    background = pixels.reshape(-1, 3)[codes == commonest].mean(0)
    ink = np.abs(pixels.astype(np.float32) - background).max(2) > MAX_PLAIN_DEVIATION * 2
    rows, columns = np.flatnonzero(ink.any(1)), np.flatnonzero(ink.any(0))
    if not len(rows):
        return False  # a plain colour: static, if it lasts
    box = ink[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
    height, width = box.shape
    if height * width > max_area_frac * ink.size or width > MAX_LOGO_ASPECT * height:
        return False
    centre = ((rows[0] + rows[-1]) / 2 / len(ink), (columns[0] + columns[-1]) / 2 / ink.shape[1])
    if height < MIN_LOGO_HEIGHT_FRAC * len(ink) or max(abs(c - 0.5) for c in centre) > MAX_OFF_CENTRE_FRAC:
        return False  # a prompt, a cursor, a page number
    runs = np.diff(np.pad(box.astype(np.int8), ((0, 0), (1, 1))), axis=1) == 1
    return bool(np.median(runs.sum(1)) <= MAX_INK_RUNS)
