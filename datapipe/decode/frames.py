"""Frames of a video by time: the right ones or none.

Owns the choice of a decoder and what is done where a file breaks off in the middle.

PyAV decodes by timestamp. It seeks to the keyframe before a wanted frame, skips on the way what no other
frame needs, and takes the frame of exactly the wanted timestamp; where a seek does not lead there, it reads
the file from its start. From a fault in the stream until the next keyframe no frame is trusted, nor are those
that the decoder marks as patched up: they are left out and counted.

decord decodes where most frames of a sound, plain video are wanted, front to back, for only then is it
faster and right. Its random access is not used: on a busy machine `get_batch` of decord2 3.4.0 returned the
wrong picture for 25 of 64 frames of a ten-minute H.264 file, other ones each time, with the right timestamps.
It is never called where the header announces other frames than there are, for then it may never return.
"""

import bisect
import dataclasses
import io
import itertools
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import av
import numpy as np
from PIL import Image

from datapipe.decode.frame_pixels import Painter
from datapipe.decode.video import Video, guarded, nearest_frames, open_container, video_stream
from datapipe.errors import DamagedMedium

MIN_DENSITY = 0.5  # of the frames up to the last wanted one, for decord
MIN_DECODED_FRAC = 0.5  # of the wanted frames; a file with fewer is no video to learn from
# Decoders that leave out frames nobody refers to when told so between two packets.
SKIPPING = frozenset(("h264", "hevc", "mpeg1video", "mpeg2video", "mpeg4"))
_ALPHA_DECODERS = {"vp8": "libvpx", "vp9": "libvpx-vp9"}  # FFmpeg's own leave transparency out


def _import_decord() -> Any:
    """Return decord, or None where it has no wheel; PyAV alone reads everything.

    decord loads every library below the `nvidia` package into the global namespace. Among those that torch
    brings is NVBLAS, which then stands in for torch's CPU BLAS and crashes the first matrix product. Decoding
    needs none of them, so the package is hidden while decord is imported.
    """
    hidden = sys.modules.get("nvidia")
    sys.modules["nvidia"] = None  # type: ignore[assignment]  # None makes it count as not installed
    try:
        import decord
    except ImportError:
        return None
    finally:
        if hidden is None:
            del sys.modules["nvidia"]
        else:
            sys.modules["nvidia"] = hidden
    decord.logging.set_level(decord.logging.QUIET)
    return decord


decord = _import_decord()


@dataclasses.dataclass(frozen=True)
class Frame:
    """A decoded frame as shown, RGB, from `t_s` on; `policy` says what was applied."""

    t_s: float
    pixels: Image.Image
    policy: str = ""


@dataclasses.dataclass(frozen=True)
class Sample:
    """The frames that could be had, in order, and how many of the wanted ones the file has damaged."""

    frames: tuple[Frame, ...]
    num_damaged: int


def sample(
    data: bytes,
    video: Video,
    times_s: Sequence[float],
    max_side: int | None = None,
    is_sound: bool = False,
    threads: int = 1,
) -> Sample:
    """Return the frame that begins at or first after each time (the last one past the end), each frame once.

    Args:
        max_side: frames are shrunk to this longer side; None leaves their size.
        is_sound: a look at all frames (`decode.shots`) met no fault; only then decord may be used.
        threads: decoding threads. The frames do not depend on it.

    Raises:
        DamagedMedium: more than half of the wanted frames cannot be decoded.
    """

    def work() -> Sample:
        wanted = nearest_frames(video, times_s)
        frames = _by_decord(data, video, wanted, max_side) if is_sound else None
        if frames is None:
            collector = Collector(video, times_s, max_side)
            for timestamp, frame in _exact(data, video, sorted(collector.wanted), threads):
                collector.take(timestamp, frame)
            return collector.sample()
        return Sample(tuple(frames), len(wanted) - len(frames))

    return guarded(work)


class Collector:
    """Makes pictures of wanted frames while a file is decoded. Pictures come in the order of the frames."""

    def __init__(self, video: Video, times_s: Sequence[float], max_side: int | None = None) -> None:
        self._times_s = {video.timestamps[i]: float(video.times_s[i]) for i in nearest_frames(video, times_s)}
        self.wanted = frozenset(self._times_s)
        self._painter, self._max_side = Painter(video.geometry), max_side
        self._frames: dict[int, Frame] = {}

    def take(self, timestamp: int, frame: Any) -> None:
        """Keep what a viewer sees of a decoded frame."""
        pixels, policy = self._painter.picture(frame)
        shown = Frame(self._times_s[timestamp], pixels, policy)
        self._frames[timestamp] = _shrunk(shown, self._max_side)

    def sample(self) -> Sample:
        """Return the frames that came.

        Raises:
            DamagedMedium: fewer than half of the wanted ones did.
        """
        num_damaged = len(self.wanted) - len(self._frames)
        if len(self._frames) < MIN_DECODED_FRAC * len(self.wanted):
            raise DamagedMedium(f"{num_damaged} of {len(self.wanted)} frames cannot be decoded")
        return Sample(tuple(self._frames[t] for t in sorted(self._frames)), num_damaged)


def open_decoder(container: Any, threads: int = 1, options: dict[str, str] | None = None) -> tuple[Any, Any]:
    """Return the video stream of a container and the decoder for it, which reports faults as errors."""
    stream = video_stream(container)
    decoder = stream.codec_context
    name = _ALPHA_DECODERS.get(decoder.name)
    tags = {key.lower(): value for key, value in stream.metadata.items()}
    if name is not None and tags.get("alpha_mode") == "1":
        decoder = av.CodecContext.create(name, "r")
        decoder.extradata = stream.codec_context.extradata
    decoder.options = {"err_detect": "explode", **(options or {})}
    decoder.thread_count = threads
    decoder.thread_type = "FRAME" if threads > 1 else "SLICE"
    return stream, decoder


def _shrunk(frame: Frame, max_side: int | None) -> Frame:
    side = max(frame.pixels.size)
    if max_side is None or side <= max_side:
        return frame
    width, height = (max(1, round(n * max_side / side)) for n in frame.pixels.size)
    return dataclasses.replace(
        frame, pixels=frame.pixels.resize((width, height), Image.Resampling.LANCZOS, reducing_gap=2.0)
    )


# ---- decord


def suits_decord(video: Video, wanted: Sequence[int]) -> bool:
    """Return whether decord may decode these frames of a video, if it is sound, and is faster."""
    is_dense = len(wanted) >= MIN_DENSITY * (wanted[-1] + 1)
    agrees = video.announced_frames in (0, video.num_frames)
    return decord is not None and is_dense and agrees and video.is_plain


def _by_decord(data: bytes, video: Video, wanted: list[int], max_side: int | None) -> list[Frame] | None:
    """Decode front to back with decord; None where it might not give the frames the packets have."""
    if not suits_decord(video, wanted):
        return None
    try:
        reader = decord.VideoReader(io.BytesIO(data), num_threads=1)
        if len(reader) != video.num_frames or not _same_times(reader, video):
            return None
        frames, left = [], set(wanted)
        for number in range(wanted[-1] + 1):
            pixels = reader.next()
            if number in left:
                picture = pixels.asnumpy()
                if picture.shape != (video.height, video.width, 3):
                    return None
                frame = Frame(float(video.times_s[number]), Image.fromarray(picture))
                frames.append(_shrunk(frame, max_side))
    except Exception:  # decord raises many kinds; PyAV decides whether the file is bad
        return None
    return frames


def _same_times(reader: Any, video: Video) -> bool:
    starts_s = np.asarray(reader.get_frame_timestamp(list(range(len(reader)))))[:, 0]
    steps = np.diff(video.times_s)
    tolerance_s = 0.5 * float(steps.min()) if len(steps) else 0.5
    return bool(np.abs(starts_s - starts_s[0] - (video.times_s - video.times_s[0])).max() <= tolerance_s)


# ---- PyAV


def _exact(data: bytes, video: Video, wanted: list[int], threads: int) -> Iterator[tuple[int, Any]]:
    """Yield (timestamp, frame) of the wanted timestamps, sorted, that can be trusted.

    The wanted frames between two keyframes are decoded in one go.
    """
    groups: dict[int, list[int]] = {}
    for timestamp in wanted:
        place = bisect.bisect_right(video.keyframes, timestamp) - 1
        groups.setdefault(video.keyframes[place] if place >= 0 else video.timestamps[0], []).append(timestamp)
    with open_container(data) as container:
        stream, decoder = open_decoder(container, threads)
        read = _Reader(container, stream, decoder)
        for key, group in groups.items():
            found = read.from_keyframe(key, group, video.packet_bytes)
            if found is None:  # the seek went elsewhere: from here on front to back
                yield from _front_to_back(data, [t for t in wanted if t >= group[0]], threads)
                return
            yield from found.items()


def _front_to_back(data: bytes, wanted: list[int], threads: int) -> Iterator[tuple[int, Any]]:
    with open_container(data) as container:
        stream, decoder = open_decoder(container, threads)
        yield from _Reader(container, stream, decoder).until(wanted)


class _Reader:
    """Reads packets of an open container and decodes them, in order, from where it was sent to."""

    def __init__(self, container: Any, stream: Any, decoder: Any) -> None:
        self._container, self._stream, self._decoder = container, stream, decoder
        self._skips = decoder.name in SKIPPING

    def from_keyframe(
        self, key: int, wanted: list[int], packet_bytes: Mapping[int, int]
    ) -> dict[int, Any] | None:
        """Return the frames of `wanted`, all from keyframe `key` on; None where they are not found there.

        After a seek some containers count time anew, and would give another frame for a timestamp: the
        packets must have the sizes that they had when the file was probed.
        """
        try:
            self._container.seek(key, stream=self._stream)
        except av.error.FFmpegError:  # Flash, pipes: formats that only go forward
            return None
        self._decoder.flush_buffers()
        packets = self._container.demux(self._stream)
        first = next((p for p in packets if p.size and p.is_keyframe), None)
        if first is None or first.pts is None or first.pts > key:
            return None
        found: dict[int, Any] = {}
        left = set(wanted)
        read = self._checked(itertools.chain([first], packets), packet_bytes)
        for timestamp, frame in trusted(read, self._decoder, self._skip(left)):
            if timestamp in left:
                found[timestamp] = frame
            if timestamp >= wanted[-1]:
                break
        return found if len(found) == len(wanted) else None

    @staticmethod
    def _checked(packets: Iterator[Any], packet_bytes: Mapping[int, int]) -> Iterator[Any]:
        """Yield packets up to the first that the file does not have at its time."""
        for packet in packets:
            if packet.size and packet_bytes.get(packet.pts) != packet.size:
                return
            yield packet

    def until(self, wanted: list[int]) -> Iterator[tuple[int, Any]]:
        """Yield the frames of `wanted` from the start of the file on, as far as they can be trusted."""
        left = set(wanted)
        packets = self._container.demux(self._stream)
        for timestamp, frame in trusted(packets, self._decoder, self._skip(left)):
            if timestamp in left:
                yield timestamp, frame
            if timestamp >= wanted[-1]:
                return

    def _skip(self, left: set[int]) -> Any:
        """Return which packets may be left out, or None where the decoder cannot leave out any."""
        return (lambda timestamp: timestamp not in left) if self._skips else None


def trusted(
    packets: Iterator[Any],
    decoder: Any,
    may_skip: Callable[[int | None], bool] | None = None,
    health: dict[str, int] | None = None,
) -> Iterator[tuple[int, Any]]:
    """Yield (timestamp, frame) of what a decoder makes of packets, without what a fault may have spoilt.

    Args:
        may_skip: whether the frame of a timestamp may be left out where nothing refers to it; None decodes
            all.
        health: counts the `faults`.
    """
    distrust = _Distrust()
    health = {} if health is None else health
    for packet in packets:
        distrust.note(packet)
        if may_skip is not None:
            decoder.skip_frame = "NONREF" if packet.size and may_skip(packet.pts) else "DEFAULT"
        try:
            made = [] if packet.is_corrupt else decoder.decode(packet)
            is_faulty = packet.is_corrupt
        except av.error.EOFError:
            made, is_faulty = [], False
        except av.error.FFmpegError:
            made, is_faulty = [], True
        if is_faulty:
            health["faults"] = health.get("faults", 0) + 1
            distrust.fault(packet)
        for frame in made:
            if frame.pts is not None and not frame.is_corrupt and frame.pts not in distrust.spoilt:
                yield frame.pts, frame


class _Distrust:
    """Which timestamps a fault may have spoilt, as packets come in the order of decoding.

    All from the faulty packet to the next keyframe, and after that those shown before it, for they may refer
    to what came earlier. A fault in one of these spoils nothing else.
    """

    def __init__(self) -> None:
        self.spoilt: set[int] = set()
        self._is_broken = self._was_broken = False
        self._key: float = -math.inf

    def note(self, packet: Any) -> None:
        if packet.pts is None:
            return
        if packet.is_keyframe:
            self._was_broken, self._is_broken, self._key = self._is_broken, False, packet.pts
        elif self._is_broken or (self._was_broken and packet.pts < self._key):
            self.spoilt.add(packet.pts)

    def fault(self, packet: Any) -> None:
        if packet.pts is None:
            return
        self.spoilt.add(packet.pts)
        if packet.pts >= self._key:
            self._is_broken = True
