"""Made videos whose frames say their number, in any codec and container that PyAV's FFmpeg writes.

Owns the coding of the number: 4 x 2 cells, white for a bit that is set, so that neither colours nor strong
compression hide it. Nothing here decodes.
"""

import io
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import av
import numpy as np
from PIL import Image

BITS = 8
COLUMNS, ROWS = 4, 2
OPTIONS = {
    "libx264": {"preset": "ultrafast", "bf": "2", "crf": "18"},
    "libx265": {"preset": "ultrafast", "x265-params": "log-level=none:bframes=2"},
    "libsvtav1": {"preset": "10", "crf": "20"},
    "libvpx-vp9": {"deadline": "realtime", "cpu-used": "8"},
    "libvpx": {"deadline": "realtime", "cpu-used": "8"},
    "mpeg4": {"qscale": "3"},
}

Draw = Callable[[int], np.ndarray]  # frame number -> [height, width, 3]


def coded(number: int, width: int = 128, height: int = 96) -> np.ndarray:
    """Return the picture of a frame number, [height, width, 3]."""
    cells = [(number >> bit) & 1 for bit in range(BITS)]
    grid = np.array(cells, np.uint8).reshape(ROWS, COLUMNS) * 200 + 30
    image = Image.fromarray(grid).resize((width, height), Image.Resampling.NEAREST)
    return np.asarray(image.convert("RGB"))


def number_of(picture: Image.Image) -> int:
    """Return the number that a picture codes, at any size."""
    grey = np.asarray(picture.convert("L"), dtype=float)
    height, width = grey.shape
    number = 0
    for bit in range(BITS):
        row, column = divmod(bit, COLUMNS)
        y, x = int((row + 0.5) / ROWS * height), int((column + 0.5) / COLUMNS * width)
        dy, dx = max(1, height // ROWS // 4), max(1, width // COLUMNS // 4)
        number |= int(grey[y - dy : y + dy, x - dx : x + dx].mean() > 128) << bit
    return number


def clip(
    num_frames: int = 60,
    codec: str = "libx264",
    container: str = "mp4",
    rate: int = 10,
    size: tuple[int, int] = (128, 96),
    draw: Draw | None = None,
    times_ms: Sequence[int] | None = None,
    pix_fmt: str = "yuv420p",
    key_every: int = 12,
    options: dict[str, str] | None = None,
    prepare: Callable[[Any], None] = lambda stream: None,
    tag: Callable[[av.VideoFrame], None] = lambda frame: None,
) -> bytes:
    """Return an encoded video. `prepare` sets what it likes on the stream, `tag` on each frame."""
    width, height = size
    draw = draw or (lambda number: coded(number, width, height))
    buffer = io.BytesIO()
    with av.open(buffer, "w", format=container) as output:
        stream: Any = output.add_stream(
            codec, rate=rate, options={**OPTIONS.get(codec, {}), **(options or {})}
        )
        stream.width, stream.height, stream.pix_fmt, stream.gop_size = width, height, pix_fmt, key_every
        stream.codec_context.thread_count = 1
        if times_ms is not None:
            stream.codec_context.time_base = Fraction(1, 1000)
        if codec.startswith(("libvpx", "mpeg")):
            stream.bit_rate = 2_000_000
        prepare(stream)
        for number in range(num_frames):
            frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(draw(number)), format="rgb24")
            if times_ms is not None:
                frame.pts, frame.time_base = times_ms[number], Fraction(1, 1000)
            else:
                frame.pts, frame.time_base = number, Fraction(1, rate)
            tag(frame)
            output.mux(stream.encode(frame))
        output.mux(stream.encode())
    return buffer.getvalue()


def trimmed(data: bytes, start_s: float) -> bytes:
    """Return the video cut at `start_s` without decoding: an edit list hides the frames before it."""
    buffer = io.BytesIO()
    source: Any
    with av.open(io.BytesIO(data)) as source, av.open(buffer, "w", format="mp4") as output:
        stream = source.streams.video[0]
        copy = output.add_stream_from_template(stream)
        packets = [p for p in source.demux(stream) if p.size]
        offset = round(start_s / stream.time_base)
        first = max(i for i, p in enumerate(packets) if p.is_keyframe and p.pts <= offset)
        for packet in packets[first:]:
            packet.pts, packet.dts, packet.stream = packet.pts - offset, packet.dts - offset, copy
            output.mux(packet)
    return buffer.getvalue()


def shots(
    scenes: Sequence[tuple[float, Callable[[float], np.ndarray]]], rate: int = 12, **fields: Any
) -> bytes:
    """Return a video of scenes one after the other: (seconds, time within the scene -> [72, 128, 3])."""
    pictures = [draw(i / rate) for seconds, draw in scenes for i in range(round(seconds * rate))]
    return clip(len(pictures), rate=rate, size=(128, 72), draw=pictures.__getitem__, key_every=250, **fields)


def scene(seed: int, drift: float = 0.0) -> Callable[[float], np.ndarray]:
    """Return a scene: a picture of smooth noise that moves to the left by `drift` widths a second."""
    rng = np.random.default_rng(seed)
    small = rng.integers(0, 256, (5, 16, 3), dtype=np.uint8)
    wide = np.asarray(Image.fromarray(small).resize((512, 72), Image.Resampling.BICUBIC))

    def draw(time_s: float) -> np.ndarray:
        return np.roll(wide, -round(drift * time_s * 128), axis=1)[:, :128]

    return draw
