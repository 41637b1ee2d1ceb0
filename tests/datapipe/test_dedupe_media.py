"""Clusters of media: which copies meet, which pictures stay apart; neither order nor split matters."""

import functools
import io
import itertools
import random
from fractions import Fraction
from typing import Any

import av
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageDraw, ImageFont

from datapipe.decode import compare, image, rows
from datapipe.decode.svg import _fonts
from datapipe.spec import DedupeMediaSpec, IngestSpec, VideoSpec
from datapipe.stages import dedupe_media, media_candidates
from schemas import ids, media

SPEC = DedupeMediaSpec()
VIDEO_SPEC = IngestSpec(video=VideoSpec(max_frame_side=64))
WORDS = ("method", "system", "value", "energy", "result", "theory", "river", "model", "growth", "field")

Row = dict[str, Any]


# ---- pictures and videos


@functools.cache
def scene(seed: int, width: int = 320, height: int = 240) -> Image.Image:
    """A picture with large and small structure, another one for each seed."""
    rng = np.random.default_rng(seed)
    small = Image.fromarray(rng.integers(0, 256, (6, 8, 3), dtype=np.uint8))
    picture = small.resize((width, height), Image.Resampling.BICUBIC)
    draw = ImageDraw.Draw(picture)
    for _ in range(25):
        x, y, size = (int(v) for v in rng.integers(0, width, 3))
        fill = tuple(int(v) for v in rng.integers(0, 256, 3))
        draw.ellipse((x, y * height // width, x + size // 8, y * height // width + size // 8), fill=fill)
    return picture


@functools.cache
def slide(seed: int, changed: int | None = None, size: int = 22) -> Image.Image:
    """A slide of seven lines of text; `changed` puts another word into that line."""
    chooser = random.Random(seed)
    lines = [[chooser.choice(WORDS) for _ in range(6)] for _ in range(7)]
    if changed is not None:
        lines[changed][3] = next(
            w for w in WORDS if w != lines[changed][3] and abs(len(w) - len(lines[changed][3])) < 2
        )
    picture = Image.new("RGB", (640, 360), "white")
    draw, font = ImageDraw.Draw(picture), ImageFont.truetype(_fonts()[0], size)
    draw.rectangle((0, 0, 640, 40), fill=(30, 60, 140))
    for number, line in enumerate(lines):
        draw.text((30, 60 + 40 * number), " ".join(line), font=font, fill=(20, 20, 20))
    return picture


def encoded(picture: Image.Image, format: str = "PNG", **options: Any) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, format, **options)
    return buffer.getvalue()


def resized(picture: Image.Image, scale: float) -> Image.Image:
    return picture.resize(
        (round(picture.width * scale), round(picture.height * scale)), Image.Resampling.LANCZOS
    )


def filmed(
    pictures: list[Image.Image],
    codec: str,
    container: str,
    rate: int = 8,
    bit_rate: int = 900_000,
    width: int = 128,
) -> bytes:
    buffer = io.BytesIO()
    height = pictures[0].height * width // pictures[0].width // 2 * 2
    with av.open(buffer, "w", format=container) as output:
        stream: Any = output.add_stream(codec, rate=rate)
        stream.width, stream.height, stream.pix_fmt, stream.bit_rate = width, height, "yuv420p", bit_rate
        stream.codec_context.time_base = Fraction(1, rate)
        for number, picture in enumerate(pictures):
            frame = av.VideoFrame.from_image(picture.resize((width, height)))
            frame.pts, frame.time_base = number, Fraction(1, rate)
            output.mux(stream.encode(frame))
        output.mux(stream.encode())
    return buffer.getvalue()


@functools.cache
def film(seed: int, num_shots: int = 6, shot_frames: int = 8) -> tuple[Image.Image, ...]:
    """Shots of a scene that moves to the left, one second each at eight frames a second."""
    shots = [scene(100 * seed + number, 200, 96) for number in range(num_shots)]
    return tuple(shot.crop((3 * i, 0, 3 * i + 128, 96)) for shot in shots for i in range(shot_frames))


def picture_row(data: bytes) -> Row:
    decoded = image.describe(data, 10**8)
    names = [name for name in vars(decoded) if name in media.SCHEMA.names]
    blank = dict.fromkeys(media.SCHEMA.names)
    own = {"media_id": ids.content_id(data), "kind": "image", "bytes": data}
    return {**blank, **own, **{name: getattr(decoded, name) for name in names}}


@functools.cache
def _video_rows(data: bytes) -> tuple[Row, ...]:
    own = {"media_id": ids.content_id(data), "kind": "video", "bytes": data}
    first, *frames = rows.media_rows(ids.content_id(data), data, "video", VIDEO_SPEC)
    return ({**dict.fromkeys(media.SCHEMA.names), **own, **first}, *frames)


def video_rows(data: bytes) -> list[Row]:
    return list(_video_rows(data))


# ---- the steps without an engine


def clusters(
    partitions: list[list[Row]], spec: DedupeMediaSpec = SPEC, pairs_per_task: int = 100
) -> pa.Table:
    tables = [pa.Table.from_pylist(rows, schema=media.SCHEMA) for rows in partitions]
    batches = [table.to_batches(max_chunksize=3) for table in tables]
    found = [
        dedupe_media.hashes(batch, index, number)
        for index, parts in enumerate(batches)
        for number, batch in enumerate(parts)
    ]
    hashes = pa.Table.from_batches(found, schema=dedupe_media.HASHES)
    nodes = dedupe_media.nodes(hashes)
    frames = dedupe_media.frames(hashes, nodes)

    def load(partition: int, batch: int, row: int) -> bytes:
        return batches[partition][batch]["bytes"][row].as_py()

    def compared(pairs: pa.Table) -> list[pa.Table]:
        parts = [pairs.slice(start, pairs_per_task) for start in range(0, pairs.num_rows, pairs_per_task)]
        return [dedupe_media.same(part, nodes, frames, load, spec) for part in parts]

    same = pa.concat_tables(
        [dedupe_media.SAME.empty_table(), *compared(media_candidates.candidates(nodes, frames, spec)[0])]
    )
    checked = compared(dedupe_media.leaders(nodes, frames, same, spec))
    return dedupe_media.cluster(hashes, nodes, pa.concat_tables([same, *checked]))


def groups(*data: bytes, spec: DedupeMediaSpec = SPEC) -> list[list[int]]:
    """The clusters of pictures, by their places in `data`."""
    table = clusters([[picture_row(d) for d in data]], spec)
    places = {ids.content_id(d): number for number, d in enumerate(data)}
    found: dict[str, list[int]] = {}
    for row in table.to_pylist():
        found.setdefault(row["cluster_id"], []).append(places[row["media_id"]])
    return sorted(sorted(members) for members in found.values())


# ---- pictures


COPIES = {
    "JPEG 30": lambda p: encoded(p, "JPEG", quality=30),
    "JPEG 90": lambda p: encoded(p, "JPEG", quality=90),
    "WebP": lambda p: encoded(p, "WEBP", quality=60),
    "AVIF": lambda p: encoded(p, "AVIF", quality=60),
    "TIFF": lambda p: encoded(p, "TIFF"),
    "half": lambda p: encoded(resized(p, 0.5)),
    "a third, JPEG": lambda p: encoded(resized(p, 0.34), "JPEG", quality=70),
    "larger": lambda p: encoded(resized(p, 1.5)),
    "inks": lambda p: encoded(p.convert("CMYK"), "JPEG", quality=90),
    "turned by EXIF": lambda p: encoded(p.transpose(Image.Transpose.ROTATE_90), exif=_orientation(6)),
    "opaque alpha": lambda p: encoded(p.convert("RGBA")),
}


def _orientation(value: int) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = value
    return exif.tobytes()


@pytest.mark.parametrize("name", COPIES)
def test_copies_meet(name: str) -> None:
    pictures = [scene(1), slide(1)]
    data = [*map(encoded, pictures), *map(COPIES[name], pictures)]
    assert groups(*data) == [[0, 2], [1, 3]]


def test_a_slide_in_a_palette_meets() -> None:
    assert groups(encoded(slide(1)), encoded(slide(1).quantize(64), "GIF")) == [[0, 1]]


def test_all_copies_form_one_cluster_led_by_the_largest_picture() -> None:
    data = [copy(scene(1)) for copy in COPIES.values()] + [encoded(scene(1))]
    assert groups(*data, encoded(scene(2))) == [list(range(len(data)))]
    table = clusters([[picture_row(d) for d in data]])
    assert set(table["cluster_size"].to_pylist()) == {len(data)}
    assert set(table["cluster_id"].to_pylist()) == {ids.content_id(COPIES["larger"](scene(1)))}


OTHERS = {
    "mirrored": lambda p: p.transpose(Image.Transpose.FLIP_LEFT_RIGHT),
    "turned": lambda p: p.transpose(Image.Transpose.ROTATE_180),
    "grey": lambda p: p.convert("L").convert("RGB"),
    "other colours": lambda p: Image.merge("RGB", p.split()[::-1]),
    "a box added": lambda p: _with_box(p),
    "brighter": lambda p: Image.eval(p, lambda v: min(255, v + 30)),
    "stretched": lambda p: p.resize((p.width, p.height * 3 // 4)),
}


def _with_box(picture: Image.Image) -> Image.Image:
    changed = picture.copy()
    ImageDraw.Draw(changed).rectangle((100, 100, 118, 112), fill=(250, 250, 0), outline=(0, 0, 0))
    return changed


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("format", ["PNG", "JPEG"])
def test_changed_pictures_stay_apart(name: str, format: str) -> None:
    assert groups(encoded(scene(1)), encoded(OTHERS[name](scene(1)), format)) == []


@pytest.mark.parametrize("changed", [0, 3, 6])
@pytest.mark.parametrize("as_copy", [encoded, COPIES["JPEG 90"], COPIES["half"]], ids=["PNG", "JPEG", "half"])
def test_slides_that_differ_in_a_word_stay_apart(changed: int, as_copy: Any) -> None:
    one, other = image.decode(encoded(slide(1)), 10**8), image.decode(encoded(slide(1, changed)), 10**8)
    assert one.perceptual_hash is not None and other.perceptual_hash is not None
    assert (one.perceptual_hash ^ other.perceptual_hash).bit_count() <= SPEC.max_distance
    assert groups(encoded(slide(1)), as_copy(slide(1, changed))) == []


def test_flat_pictures_never_meet_unless_their_pixels_are_equal() -> None:
    flat = [
        encoded(Image.new("RGB", size, colour))
        for size in ((64, 64), (80, 80))
        for colour in ("white", "black", "#eee")
    ]
    assert groups(*flat, encoded(Image.new("RGB", (64, 64), "white"), "BMP")) == [[0, 6]]


def test_small_icons_meet_only_when_their_pixels_are_equal() -> None:
    icon = resized(scene(1, 64, 64), 0.25)
    assert groups(encoded(icon), encoded(icon, "JPEG", quality=95), encoded(icon, "BMP")) == [[0, 2]]


def lighter(levels: int) -> bytes:
    raised = scene(1, 160, 120).point([min(255, level + levels) for level in range(256)] * 3)
    return encoded(raised, "JPEG", quality=95)


def test_a_chain_of_small_steps_is_cut_where_it_leaves_the_representative() -> None:
    steps = [lighter(3 * number) for number in range(5)]
    decoded = [image.decode(data, 10**8) for data in steps]
    small = [compare.thumbnail(d.array, d.mime) for d in decoded]
    assert all(compare.difference(one, other) <= 1 for one, other in itertools.pairwise(small))
    assert compare.difference(small[0], small[-1]) > 1
    table = clusters([[picture_row(data) for data in steps]])
    place = {ids.content_id(data): number for number, data in enumerate(steps)}
    assert len(set(table["cluster_id"].to_pylist())) > 1
    for row in table.to_pylist():
        member, first = small[place[row["media_id"]]], small[place[row["cluster_id"]]]
        assert compare.difference(member, first) <= 1


def test_media_that_cannot_be_used_are_in_no_cluster() -> None:
    broken = {**picture_row(encoded(scene(1))), "pixels_id": None, "error": "Truncated: ends"}
    table = clusters(
        [[broken, {**broken, "media_id": "x", "bytes": None}, picture_row(encoded(scene(1), "BMP"))]]
    )
    assert table.num_rows == 0 and table.schema == dedupe_media.CLUSTERS
    assert clusters([[]]).num_rows == clusters([[], []]).num_rows == 0


def test_each_picture_is_compared_with_few_where_very_many_are_alike() -> None:
    alike = [picture_row(encoded(slide(1, None, 20 + n // 11).crop((0, 0, 640, 360 - n)))) for n in range(8)]
    hashes = pa.Table.from_batches(
        [dedupe_media.hashes(pa.RecordBatch.from_pylist(alike, schema=media.SCHEMA), 0, 0)]
    )
    nodes = dedupe_media.nodes(hashes)
    pairs, counts = media_candidates.candidates(
        nodes, dedupe_media.frames(hashes, nodes), DedupeMediaSpec(max_candidates=3)
    )
    later = pairs["later"].to_pylist()
    assert later and max(later.count(node) for node in later) <= 3
    assert counts == {"pictures_in_crowds": 0, "frames_in_crowds": 0}


# ---- videos


def meet(one: bytes, two: bytes, spec: DedupeMediaSpec = SPEC) -> bool:
    table = clusters([[*video_rows(one), *video_rows(two)]], spec)
    assert set(table["kind"].to_pylist()) <= {"video"}
    return table.num_rows == 2


@functools.cache
def original() -> bytes:
    return filmed(list(film(1)), "libx264", "mp4")


@pytest.mark.parametrize(
    ("codec", "container", "width", "bit_rate"),
    [
        ("libx264", "matroska", 128, 900_000),
        ("libvpx", "webm", 128, 300_000),
        ("mpeg4", "avi", 96, 900_000),
        ("libx264", "mp4", 240, 150_000),
    ],
)
def test_the_same_clip_meets_in_another_codec_container_and_size(
    codec: str, container: str, width: int, bit_rate: int
) -> None:
    assert meet(original(), filmed(list(film(1)), codec, container, 8, bit_rate, width))


@pytest.mark.parametrize(("start", "end"), [(0, -5), (5, None), (2, -3)])
def test_a_trimmed_clip_meets_the_whole_one(start: int, end: int | None) -> None:
    assert meet(original(), filmed(list(film(1))[start:end], "libvpx", "webm"))


def test_a_clip_at_another_rate_meets() -> None:
    assert meet(original(), filmed(list(film(1))[::2], "libx264", "mp4", rate=4))


def test_clips_with_the_same_opening_stay_apart() -> None:
    same_start = [*film(1)[:32], *film(2)[32:]]  # two thirds are equal
    assert not meet(original(), filmed(same_start, "libx264", "mp4"))
    assert meet(original(), filmed(same_start, "libx264", "mp4"), DedupeMediaSpec(min_matched_frames=0.5))


def test_other_clips_and_much_shorter_parts_stay_apart() -> None:
    assert not meet(original(), filmed(list(film(2)), "libx264", "mp4"))
    assert not meet(original(), filmed(list(film(1))[:26], "libx264", "mp4"))
    mirrored = [frame.transpose(Image.Transpose.FLIP_LEFT_RIGHT) for frame in film(1)]
    assert not meet(original(), filmed(mirrored, "libx264", "mp4"))


def test_black_clips_meet_only_when_their_frames_are_equal() -> None:
    black = [Image.new("RGB", (128, 96), "black")] * 40
    dark = [Image.new("RGB", (128, 96), (9, 9, 9))] * 40
    assert not meet(filmed(black, "libx264", "mp4"), filmed(dark, "libx264", "mp4"))
    assert meet(filmed(black, "libx264", "mp4"), filmed(black, "libx264", "matroska"))


# ---- properties

POOL = [
    [picture_row(encoded(scene(1)))],
    [picture_row(COPIES["half"](scene(1)))],
    [picture_row(COPIES["JPEG 30"](scene(1)))],
    [picture_row(encoded(scene(1), "BMP"))],
    [picture_row(encoded(scene(2)))],
    [picture_row(COPIES["JPEG 90"](scene(2)))],
    [picture_row(encoded(Image.new("RGB", (64, 64), "white")))],
    [{**picture_row(encoded(scene(3))), "error": "Damaged: x", "pixels_id": None}],
    video_rows(filmed(list(film(1, 2)), "libx264", "mp4")),
    video_rows(filmed(list(film(1, 2)), "mpeg4", "avi")),
]


@settings(max_examples=10)
@given(st.data())
def test_neither_order_nor_split_nor_repetition_matters(data: Any) -> None:
    order = data.draw(st.permutations(range(len(POOL))))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(POOL)), max_size=3)))
    parts = [order[start:end] for start, end in zip([0, *cuts], [*cuts, len(order)], strict=True)]
    again = data.draw(st.sampled_from(range(len(POOL))))
    partitions = [[row for number in part for row in POOL[number]] for part in parts]
    if again not in parts[-1]:
        partitions[-1] += POOL[again]
    size = data.draw(st.integers(1, 5))
    assert clusters(partitions, pairs_per_task=size).equals(_expected())


@functools.cache
def _expected() -> pa.Table:
    table = clusters([[row for rows in POOL for row in rows]])
    sizes = sorted(table["cluster_size"].to_pylist())
    assert sizes == [2, 2, 2, 2, 4, 4, 4, 4]
    return table
