"""Masks on pictures: each reason, the limit of documents, and that a second run adds nothing."""

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datapipe.spec import MaskMediaSpec
from datapipe.stages import mask_media
from schemas import document, ids
from tests import make

SPEC = MaskMediaSpec(max_documents=2, min_side=32, max_aspect=4.0)
NONE_REPEATED = mask_media.REPEATED.empty_table()


def masks(segments: list[dict], media: pa.Table) -> list[tuple[int, str]]:
    batch = make.documents([make.document_row(segments)])
    marked = mask_media.mark(batch, media, NONE_REPEATED, SPEC)
    document.validate(marked)
    found = marked["masks"].to_pylist()[0]
    assert all(m["action"] == "drop" and m["start"] is m["end"] is m["box"] is None for m in found)
    return [(m["segment"], m["reason"]) for m in found]


def picture(width: int, height: int, **columns: object) -> dict:
    return make.media_row(make.picture(width, height, seed=width * 1000 + height), **columns)


@pytest.mark.parametrize(
    ("width", "height", "reason"),
    [
        (32, 32, None),
        (31, 40, "too_small"),
        (40, 31, "too_small"),
        (32, 128, None),
        (128, 32, None),
        (32, 129, "extreme_aspect"),
        (129, 32, "extreme_aspect"),
        (1, 1, "too_small"),
        (1, 600, "too_small"),
    ],
)
def test_pictures_leave_for_their_size_and_shape(width: int, height: int, reason: str | None) -> None:
    row = picture(width, height)
    found = masks([make.text("t"), make.picture_segment(row["media_id"])], make.media_table([row]))
    assert found == ([(1, reason)] if reason else [])


def test_what_could_not_be_had_or_decoded_leaves_as_media_error() -> None:
    broken = {**picture(64, 64), "pixels_id": None, "width": None, "height": None, "error": "Truncated: ends"}
    video = {**broken, "media_id": ids.content_id(b"v"), "bytes": b"v", "kind": "video", "mime": "video/webm"}
    media = make.media_table([broken, video])
    segments = [
        make.picture_segment(None),
        make.picture_segment(broken["media_id"]),
        make.picture_segment("elsewhere"),
        make.video_segment(video["media_id"], 0, 1),
        make.text("stays"),
    ]
    assert masks(segments, media) == [(i, "media_error") for i in range(4)]


def test_a_video_that_plays_stays_whatever_its_size() -> None:
    row = {**picture(16, 400), "kind": "video", "mime": "video/webm"}
    assert masks([make.video_segment(row["media_id"], 0, 1)], make.media_table([row])) == []


def test_a_picture_in_too_many_documents_leaves_from_all_by_its_pixels() -> None:
    logo, twin, rare = picture(64, 64), picture(65, 64), picture(66, 64)
    twin["pixels_id"] = logo["pixels_id"]  # the same pixels in another file
    media = make.media_table([logo, twin, rare])
    shown = [[logo, logo, rare], [twin], [logo, twin], [rare]]
    batch = make.documents(
        [
            make.document_row([make.picture_segment(m["media_id"]) for m in row], f"{i}.html")
            for i, row in enumerate(shown)
        ]
    )
    seen = pa.Table.from_batches([mask_media.occurrences(batch, media)])
    assert seen.num_rows == 5  # twice in one document counts once
    repeated = mask_media.repeated(seen, SPEC)
    assert repeated.to_pylist() == [{"pixels_id": logo["pixels_id"], "num_documents": 3}]
    assert mask_media.repeated(seen, MaskMediaSpec(max_documents=3)).num_rows == 0
    marked = mask_media.mark(batch, media, repeated, SPEC)
    found = [[(m["segment"], m["reason"]) for m in row] for row in marked["masks"].to_pylist()]
    gone = "repeated_image"
    assert found == [[(0, gone), (1, gone)], [(0, gone)], [(0, gone), (1, gone)], []]


def test_a_picture_already_dropped_keeps_its_reason() -> None:
    row = picture(16, 16)
    old = {
        "segment": 0,
        "start": None,
        "end": None,
        "box": None,
        "reason": "watermark",
        "action": "drop",
        "detector": "d",
    }
    batch = make.documents([make.document_row([make.picture_segment(row["media_id"])], masks=[old])])
    marked = mask_media.mark(batch, make.media_table([row]), NONE_REPEATED, SPEC)
    assert marked["masks"].to_pylist() == [[old]]


# ---- properties

MEDIA = [
    picture(64, 64),
    picture(65, 64),
    picture(16, 16),
    picture(40, 400),
    {**picture(67, 64), "pixels_id": None, "width": None, "height": None, "error": "Damaged: x"},
]
TABLE = make.media_table(MEDIA)
SEGMENTS = st.lists(
    st.one_of(
        st.just(make.text("t")),
        st.sampled_from([None, "elsewhere", *(m["media_id"] for m in MEDIA)]).map(make.picture_segment),
    ),
    max_size=4,
)


@settings(deadline=None, max_examples=25)
@given(st.lists(SEGMENTS, min_size=1, max_size=6), st.randoms(use_true_random=False), st.integers(1, 6))
def test_only_masks_change_and_neither_order_nor_split_nor_a_second_run_matters(
    all_segments: list, random: object, size: int
) -> None:
    rows = [make.document_row(s, f"{i}.html") for i, s in enumerate(all_segments)]
    batch = make.documents(rows)
    once = _run(batch, batch.num_rows)
    assert once.drop_columns(["masks"]) == batch.drop_columns(["masks"])
    assert _run(once, size) == once
    random.shuffle(rows)  # type: ignore[attr-defined]
    shuffled = {row["doc_id"]: row for row in _run(make.documents(rows), size).to_pylist()}
    assert [shuffled[row["doc_id"]] for row in once.to_pylist()] == once.to_pylist()


def _run(batch: pa.RecordBatch, size: int) -> pa.RecordBatch:
    parts = [batch.slice(start, size) for start in range(0, batch.num_rows, size)]
    seen = pa.Table.from_batches([mask_media.occurrences(part, TABLE) for part in parts])
    common = mask_media.repeated(seen, SPEC)
    marked = [mask_media.mark(part, TABLE, common, SPEC) for part in parts]
    return pa.Table.from_batches(marked, document.SCHEMA).combine_chunks().to_batches()[0]
