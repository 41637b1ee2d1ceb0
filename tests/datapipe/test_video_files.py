"""Real video files: one clip in 21 containers, and what packages carry besides."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from datapipe import errors
from datapipe.decode import rows
from datapipe.spec import IngestSpec, VideoSpec
from jobs.fetch import fetch
from schemas import ids

pytestmark = pytest.mark.slow

SIZES = {"3g2": (352, 288), "3gp": (352, 288)}
SUFFIXES = "3g2 3gp asf avi f4v flv m1v m4v mkv mov mp4 mpeg mpg ogg ogv rm swf vob webm wmv"
# Theora: FFmpeg's decoder stops in the middle of most groups of frames of this file.
DAMAGED = {"ogg": "damaged=15/61", "ogv": "damaged=15/61"}
CUTS_S = (7.7, 10.2, 15.3, 16.5, 20.2, 23.0, 29.5, 30.9, 36.0, 40.0, 42.7, 46.7, 48.5, 49.5, 57.1, 59.7)


def read(path: Path, **fields: Any) -> list[dict[str, Any]]:
    data = path.read_bytes()
    return rows.media_rows(ids.content_id(data), data, "video", IngestSpec(video=VideoSpec(**fields)))


@pytest.fixture(scope="module")
def containers() -> dict[str, Path]:
    (folder,) = fetch("sdist:iscc-samples")
    return {path.suffix[1:]: path for path in folder.rglob("video/demo.*")}


@pytest.fixture(scope="module")
def reference(containers: dict[str, Path]) -> dict[int, int | None]:
    return {round(f["t_s"]): f["perceptual_hash"] for f in read(containers["mp4"])[1:]}


@pytest.mark.parametrize("suffix", SUFFIXES.split())
def test_one_clip_gives_the_same_frames_and_cuts_in_every_container(
    suffix: str, containers: dict[str, Path], reference: dict[int, int | None]
) -> None:
    original, *frames = read(containers[suffix])
    assert (original["width"], original["height"]) == SIZES.get(suffix, (176, 144))
    assert original["num_frames"] in (1440, 1441)
    assert original["duration_s"] == pytest.approx(60.08, abs=0.06)
    assert original["policy"] == DAMAGED.get(suffix, "")
    pairs = [(f["perceptual_hash"], reference[round(f["t_s"])]) for f in frames]
    apart = np.array([(a ^ b).bit_count() for a, b in pairs if a is not None and b is not None])
    assert len(apart) >= 40
    assert np.median(apart) <= 2
    assert (apart <= 8).mean() >= 0.85  # clocks differ by a frame, so next to a cut another shot is right
    if suffix not in DAMAGED:
        assert len(frames) == 61
        nearest = [min(abs(cut - found) for found in original["cuts_s"]) for cut in CUTS_S]
        assert max(nearest) <= 0.25 and len(original["cuts_s"]) <= len(CUTS_S) + 2


def test_an_animated_picture_is_a_video_where_it_is_asked_for_one(containers: dict[str, Path]) -> None:
    original, *frames = read(containers["gif"])
    assert (original["num_frames"], original["duration_s"], len(frames)) == (120, 5.0, 5)


def test_a_trailer_is_sampled_by_change_within_its_budget() -> None:
    film = next(fetch("demo-pip")[0].rglob("trailer_bbb.mp4"))
    original, *frames = read(film, sampling="change", max_frames=24)
    assert 10 <= len(original["cuts_s"]) <= 14 and len(frames) == 24
    edges = [0.0, *original["cuts_s"], original["duration_s"]]
    times_s = [f["t_s"] for f in frames]
    assert all(np.histogram(times_s, edges)[0] > 0)


def test_what_is_no_video_is_refused_with_its_reason() -> None:
    (folder,) = fetch("sdist:python-pptx")
    for path in folder.rglob("dummy.mp4"):
        with pytest.raises((errors.UnknownMedium, errors.DamagedMedium)):
            read(path)
