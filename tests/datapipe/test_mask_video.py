"""Stretches of video that show nothing, on rows as ingest writes them from made and real videos."""

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datapipe.decode import rows
from datapipe.spec import IngestSpec, InterleaveSpec, MaskVideoSpec
from datapipe.stages.interleave import interleave
from datapipe.stages.mask_video import mask_video
from jobs.fetch import CACHE
from schemas import document, ids, media
from tests import clips, make

SPEC = MaskVideoSpec()
BLACK = np.zeros((72, 128, 3), np.uint8)
Draw = Callable[[float], np.ndarray]


def still(picture: np.ndarray) -> Draw:
    return lambda time_s: picture


def logo() -> np.ndarray:
    picture = np.full((72, 128, 3), 250, np.uint8)
    y, x = np.mgrid[:72, :128]
    disc = (y - 36) ** 2 + (x - 64) ** 2 < 12**2
    picture[disc] = (200, 30, 40)
    return picture


def title() -> np.ndarray:
    """A line of text on one colour."""
    picture = np.full((72, 128, 3), 250, np.uint8)
    for letter in range(12):
        picture[32:40, 34 + 5 * letter : 36 + 5 * letter] = 20
    return picture


def screen(letters: int) -> np.ndarray:
    """A terminal in which so many letters have been typed."""
    picture = np.full((72, 128, 3), 30, np.uint8)
    for letter in range(letters):
        row, column = divmod(letter, 20)
        picture[6 + 8 * row : 12 + 8 * row, 4 + 6 * column : 8 + 6 * column] = 220
    return picture


def table(data: bytes) -> pa.Table:
    """The media rows of a video, as ingest makes them."""
    media_id = ids.content_id(data)
    original, *frames = rows.media_rows(media_id, data, "video", IngestSpec())
    columns = {**dict.fromkeys(media.SCHEMA.names), "media_id": media_id, "kind": "video", "bytes": data}
    return make.media_table([columns | original, *frames])


def masked(
    data: bytes, texts: Sequence[dict[str, Any]] = (), spec: MaskVideoSpec = SPEC
) -> tuple[list[tuple[str, int | None, int | None]], list[float]]:
    """The masks of a document of one video, and the times of the frames that are left in the stream."""
    found = table(data)
    media_id, duration_s = found["media_id"][0].as_py(), found["duration_s"][0].as_py()
    segments = [make.video_segment(media_id, 0.0, duration_s), *texts]
    marked = mask_video(make.documents([make.document_row(segments)]), found, spec)
    document.validate(marked)
    masks = [(m["reason"], m["start"], m["end"]) for m in marked["masks"][0].as_py()]
    return masks, shown(marked, found)


def shown(marked: pa.RecordBatch, found: pa.Table) -> list[float]:
    stream = interleave(marked, InterleaveSpec())
    times_s = sorted(t for t in found["t_s"].to_pylist() if t is not None)
    stretches = [s for row in stream["segments"].to_pylist() for s in row if s["kind"] == "video"]
    if stream["drop_reason"][0].is_valid:
        return []
    return [t for t in times_s if any(s["t_start_s"] <= t < (s["t_end_s"] or 1e9) for s in stretches)]


def test_black_stretches_leave_and_the_rest_stays() -> None:
    data = clips.shots([(3, clips.scene(1, 0.2)), (3, still(BLACK)), (3, clips.scene(2, 0.2))])
    assert masked(data) == ([("black_interval", 3000, 6000)], [0, 1, 2, 6, 7, 8])


def test_a_short_black_pause_stays_where_the_spec_asks_for_longer_ones() -> None:
    data = clips.shots([(3, clips.scene(1, 0.2)), (1, still(BLACK)), (3, clips.scene(2, 0.2))])
    assert masked(data, spec=MaskVideoSpec(min_black_s=2))[0] == []


def test_white_letters_on_black_are_no_black() -> None:
    credits_ = BLACK.copy()
    credits_[30:38, 40:90:3] = 255
    assert masked(clips.shots([(3, still(credits_)), (3, clips.scene(1, 0.2))]))[0] == []


def test_what_stands_still_is_shown_once() -> None:
    slides = [clips.scene(seed)(0) for seed in (1, 2)]
    data = clips.shots([(8, still(slides[0])), (7, still(slides[1])), (3, clips.scene(3, 0.2))])
    masks, left = masked(data)
    assert masks == [("static_interval", 1000, 8000), ("static_interval", 9000, 15000)]
    assert left == [0, 8, 15, 16, 17]


def test_a_screencast_keeps_every_change_of_its_text() -> None:
    typed = [(2.0, still(screen(letters))) for letters in range(1, 9)]
    masks, left = masked(clips.shots([*typed, (10, still(screen(9)))]))
    assert masks == [("static_interval", 17000, 26000)]
    assert {int(t // 2) for t in left} == set(range(9))


def test_a_logo_at_either_end_leaves_and_a_title_stays() -> None:
    middle = (4, clips.scene(1, 0.2))
    masks, left = masked(clips.shots([(3, still(logo())), middle, (3, still(logo()))]))
    assert masks == [("logo_interval", 0, 3000), ("logo_interval", 7000, 10000)]
    assert left == [3, 4, 5, 6]
    assert masked(clips.shots([(3, still(title())), middle]))[0] == []
    assert masked(clips.shots([middle, (3, still(logo())), middle]))[0] == []


def test_a_logo_that_somebody_speaks_over_stays() -> None:
    data = clips.shots([(3, still(logo())), (4, clips.scene(1, 0.2))])
    assert masked(data, [make.text("Welcome", "transcript", 1.0, 2.0)])[0] == []


def test_words_over_a_masked_stretch_stay() -> None:
    data = clips.shots([(3, clips.scene(1, 0.2)), (3, still(BLACK))])
    found = table(data)
    media_id = found["media_id"][0].as_py()
    segments = [
        make.video_segment(media_id, 0.0, 3.0),
        make.text("seen", "transcript", 0.0, 3.0),
        make.video_segment(media_id, 3.0, 6.0),
        make.text("heard", "transcript", 3.0, 6.0),
    ]
    marked = mask_video(make.documents([make.document_row(segments)]), found, SPEC)
    assert [(m["segment"], m["reason"], m["start"]) for m in marked["masks"][0].as_py()] == [
        (2, "black_interval", None)
    ]
    stream = interleave(marked, InterleaveSpec())["segments"][0].as_py()
    assert [s["text"] for s in stream if s["kind"] == "text"] == ["seen", "heard"]


def test_media_that_cannot_be_had_and_segments_that_are_gone_get_no_mask() -> None:
    data = clips.shots([(3, still(BLACK))])
    found = table(data)
    media_id = found["media_id"][0].as_py()
    gone = {
        **dict.fromkeys(document.MASK.names),
        **{"segment": 0, "reason": "media_error", "action": "drop", "detector": "rules"},
    }
    segments = [make.video_segment(media_id, 0.0, 3.0), make.video_segment("other", 0.0, 3.0)]
    marked = mask_video(make.documents([make.document_row(segments, masks=[gone])]), found, SPEC)
    assert len(marked["masks"][0].as_py()) == 1


DATA = clips.shots([(3, still(BLACK)), (6, still(logo())), (2, clips.scene(1, 0.2)), (2, still(logo()))])


@settings(max_examples=8)
@given(st.lists(st.floats(0, 13), min_size=1, max_size=4), st.integers(1, 3))
def test_rows_are_kept_whatever_the_batches_and_a_second_run_changes_nothing(
    edges: list[float], num_documents: int
) -> None:
    found = TABLE
    media_id = found["media_id"][0].as_py()
    ends = sorted({0.0, *edges, 13.0})
    segments = [make.video_segment(media_id, a, b) for a, b in itertools.pairwise(ends)]
    batch = make.documents([make.document_row(segments, uri=f"{n}.html") for n in range(num_documents)])
    once = mask_video(batch, found, SPEC)
    assert once.drop_columns(["masks"]) == batch.drop_columns(["masks"])
    assert mask_video(once, found, SPEC) == once
    parts = [mask_video(batch.slice(n, 1), found, SPEC) for n in range(num_documents)]
    assert [row for part in parts for row in part.to_pylist()] == once.to_pylist()
    assert shown(once, found)[:3] == [3.0, 9.0, 10.0]


TABLE = table(DATA)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pattern", "num_frames"),
    [
        ("gnome-user-docs/**/display-dual-monitors.webm", 38),
        ("debian-forensics-samples-files/**/movie-hello.mp4", 9),
    ],
)
def test_nothing_of_a_real_screencast_leaves(pattern: str, num_frames: int) -> None:
    paths = sorted(Path(CACHE).glob(pattern))
    if not paths:
        pytest.skip(
            f"{pattern} is not in the cache; `omniloom fetch demo` and debian:forensics-samples-files"
        )
    masks, left = masked(paths[0].read_bytes())
    assert (masks, len(left)) == ([], num_frames)
