"""Box masks on regions of pictures: lines of text by an OCR package's detector, and faces."""

import io

import pytest
from PIL import Image, ImageDraw

from datapipe.detect import faces, text_regions
from datapipe.errors import DetectorMissing
from datapipe.spec import MaskRegionsSpec
from datapipe.stages.mask_regions import check_available, mask_regions
from tests import make

TEXT = MaskRegionsSpec(detectors=("text",))
needs_ocr = pytest.mark.skipif(not text_regions.available(), reason="the optional OCR package is not there")


def written(text: str) -> bytes:
    """A white picture, 320 x 120, with a line of text from (40, 50) to about (280, 80)."""
    picture = Image.new("RGB", (320, 120), "white")
    ImageDraw.Draw(picture).text((40, 50), text, fill="black", font_size=28)
    buffer = io.BytesIO()
    picture.save(buffer, "PNG")
    return buffer.getvalue()


def masks_of(segments, media, spec=TEXT, **columns):
    batch = make.documents([make.document_row(segments, **columns)])
    marked = mask_regions(batch, make.media_table(media), spec)
    assert mask_regions(marked, make.media_table(media), spec) == marked
    return marked["masks"].to_pylist()[0]


@needs_ocr
def test_a_line_of_text_gets_a_box_and_a_picture_without_text_none() -> None:
    media = [make.media_row(written("Jane Doe, Berlin")), make.media_row(make.picture(seed=3))]
    segments = [make.text("Look:"), *(make.picture_segment(row["media_id"]) for row in media)]
    masks = masks_of(segments, media)
    assert {(m["segment"], m["start"], m["end"], m["reason"], m["action"]) for m in masks} == {
        (1, None, None, "text_region", "drop")
    }
    lefts, tops, rights, bottoms = zip(*(mask["box"] for mask in masks), strict=True)  # a box a word or line
    left, top, right, bottom = min(lefts), min(tops), max(rights), max(bottoms)
    assert 0.05 < left < 0.16 and 0.3 < top < 0.5 and 0.6 < right < 1 and 0.6 < bottom < 0.9


@needs_ocr
def test_a_box_in_a_video_holds_from_its_frame_to_the_next() -> None:
    video = {**make.media_row(b"video"[:0] + make.picture()), "kind": "video", "duration_s": 6.0}
    pictures = [make.picture(320, 120, seed=1), written("a sign here"), make.picture(320, 120, seed=2)]
    frames = [
        {**make.media_row(data), "kind": "frame", "parent_id": video["media_id"], "t_s": 2.0 * i}
        for i, data in enumerate(pictures)
    ]
    segments = [
        make.video_segment(video["media_id"], 0.0, 4.0),
        make.video_segment(video["media_id"], 4.0, 6.0),
    ]
    masks = masks_of(segments, [video, *frames])
    assert [(m["segment"], m["start"], m["end"]) for m in masks] == [(0, 2000, 4000)]


@needs_ocr
def test_pictures_that_leave_or_could_not_be_had_are_not_looked_at() -> None:
    row = make.media_row(written("Jane Doe, Berlin"))
    gone = {
        "segment": 0,
        "start": None,
        "end": None,
        "box": None,
        "reason": "too_small",
        "action": "drop",
        "detector": "rules",
    }
    segments = [make.picture_segment(row["media_id"]), make.picture_segment(None)]
    assert masks_of(segments, [row], masks=[gone]) == [gone]
    broken = {**row, "error": "DamagedMedium: x"}
    assert masks_of(segments, [broken]) == []


def test_a_detector_that_is_not_installed_is_named_with_the_command_that_brings_it(monkeypatch) -> None:
    monkeypatch.setattr(faces, "PACKAGE", "no_such_package")
    with pytest.raises(DetectorMissing, match=r"'faces' needs .*pip install --no-deps facenet-pytorch"):
        check_available(MaskRegionsSpec())


@pytest.mark.slow
@pytest.mark.skipif(not faces.available(), reason="the optional face package is not there")
def test_a_face_is_found_and_a_cup_of_coffee_is_none() -> None:
    from jobs.fetch import fetch

    folder = fetch("debian:python3-skimage")[0] / "usr/lib/python3/dist-packages/skimage/data"
    ((left, top, right, bottom),) = faces.find(Image.open(folder / "astronaut.png").convert("RGB"))
    assert 0.3 < left < 0.4 and 0.1 < top < 0.2 and 0.5 < right < 0.6 and 0.3 < bottom < 0.4
    assert faces.find(Image.open(folder / "coffee.png").convert("RGB")) == []
