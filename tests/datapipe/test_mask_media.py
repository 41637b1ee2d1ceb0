"""Masks on pictures: each reason, what is icon, furniture and content, and that a second run adds nothing."""

from collections.abc import Mapping, Sequence

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datapipe.spec import MaskMediaSpec
from datapipe.stages import dedupe_media, mask_media
from schemas import document, ids
from tests import make

SPEC = MaskMediaSpec(max_documents=2, min_side=32, max_aspect=4.0, min_content_side=100)
NONE_REPEATED = mask_media.REPEATED.empty_table()
NO_CLUSTERS = dedupe_media.CLUSTERS.empty_table()
GONE = "repeated_image"


def masks(segments: list[dict], media: pa.Table) -> list[tuple[int, str]]:
    batch = make.documents([make.document_row(segments)])
    marked = mask_media.mark(batch, media, NO_CLUSTERS, NONE_REPEATED, SPEC)
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


def cluster_of(*media: dict) -> pa.Table:
    """A cluster led by the first of the media."""
    rows = [
        {
            "media_id": row["media_id"],
            "kind": "image",
            "cluster_id": media[0]["media_id"],
            "cluster_size": len(media),
        }
        for row in media
    ]
    return pa.Table.from_pylist(rows, schema=dedupe_media.CLUSTERS)


def leaves(
    pages: Mapping[str, Sequence[dict | None]], clusters: pa.Table = NO_CLUSTERS, spec: MaskMediaSpec = SPEC
) -> dict[str, list[int]]:
    """The segments that leave each page as repeated; a page is its uri and its media, None being a text."""
    media = make.media_table(
        list({m["media_id"]: m for shown in pages.values() for m in shown if m}.values())
    )
    rows = [
        make.document_row([make.picture_segment(m["media_id"]) if m else CAPTION for m in shown], uri)
        for uri, shown in pages.items()
    ]
    batch = make.documents(rows)
    seen = pa.Table.from_batches([mask_media.occurrences(batch, media, clusters, spec)])
    marked = mask_media.mark(batch, media, clusters, mask_media.repeated(seen, spec), spec)
    assert {m["reason"] for row in marked["masks"].to_pylist() for m in row} <= {GONE}
    found = [[m["segment"] for m in row] for row in marked["masks"].to_pylist()]
    return {uri: segments for uri, segments in zip(pages, found, strict=True) if segments}


CAPTION = make.text("The picture", "caption")


def test_an_icon_in_too_many_documents_leaves_from_all() -> None:
    icon, rare = picture(64, 64), picture(66, 64)
    pages = {"0": [icon, icon, rare], "1": [icon], "2": [icon], "3": [rare]}
    assert leaves(pages) == {"0": [0, 1], "1": [0], "2": [0]}
    assert leaves({"0": [icon, icon, icon], "1": [icon]}) == {}  # twice in one document counts once


def test_a_logo_that_was_saved_anew_for_each_page_is_one_picture() -> None:
    logos = [picture(64 + n, 64) for n in range(3)]
    pages = {str(n): [logo] for n, logo in enumerate(logos)}
    assert leaves(pages) == {}
    assert leaves(pages, cluster_of(*logos)) == {"0": [0], "1": [0], "2": [0]}


def test_a_large_picture_on_many_pages_of_a_site_is_its_furniture_and_leaves_there() -> None:
    banner, other = picture(200, 120), picture(201, 120)
    near = {f"crawl#https://www.near.org/{n}": [banner] for n in range(4)}
    far = {f"crawl#https://far.org/{n}": [banner if n == 0 else other] for n in range(2)}
    assert leaves({**near, **far}) == {uri: [0] for uri in near}


def test_a_photo_that_a_manual_uses_again_stays() -> None:
    photo, others = picture(300, 200), [picture(301, 100 + n) for n in range(12)]
    pages = {str(n): [photo, None, others[n]] if n < 4 else [others[n]] for n in range(16 - 4)}
    spec = SPEC.model_copy(update={"max_site_frac": 0.5})
    assert leaves(pages, spec=spec) == {}
    thumbnail = picture(60, 40)
    small = {**pages, "13": [thumbnail]}
    assert leaves(small, cluster_of(photo, thumbnail), spec) == {"13": [0]}


def test_content_stays_in_so_many_documents_first_where_it_has_a_caption() -> None:
    photo = picture(300, 200)
    fillers = {f"filler {n}": [picture(300, 110 + n)] for n in range(30)}
    pages = {str(n): [photo, None] if n % 3 == 0 else [photo] for n in range(9)}
    spec = SPEC.model_copy(update={"max_content_documents": 4})
    gone = leaves({**pages, **fillers}, spec=spec)
    assert len(gone) == 5 and not {"0", "3", "6"} & gone.keys()
    reordered = dict(reversed({**fillers, **pages}.items()))
    assert leaves(reordered, spec=spec) == gone


def test_pictures_that_a_mask_dropped_before_do_not_count() -> None:
    icon = picture(64, 64)
    media = make.media_table([icon])
    old = mask_media._mask(0, "navigation")
    rows = [
        make.document_row([make.picture_segment(icon["media_id"])], str(n), masks=[old] if n else [])
        for n in range(3)
    ]
    seen = mask_media.occurrences(make.documents(rows), media, NO_CLUSTERS, SPEC)
    assert seen["picture"].to_pylist() == [None, icon["media_id"], None, None]


def test_the_site_is_the_host_of_an_address_or_the_collection() -> None:
    addresses = ("crawl.warc.gz#https://www.Example.org/a.html?b", "http://example.org", "pages/index.html")
    assert [mask_media.site(uri, "manual") for uri in addresses] == ["example.org", "example.org", "manual"]


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
    marked = mask_media.mark(batch, make.media_table([row]), NO_CLUSTERS, NONE_REPEATED, SPEC)
    assert marked["masks"].to_pylist() == [[old]]


# ---- properties

MEDIA = [
    picture(64, 64),
    picture(65, 64),
    picture(128, 110),
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


@settings(max_examples=25)
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


CLUSTERS = cluster_of(MEDIA[0], MEDIA[1])


def _run(batch: pa.RecordBatch, size: int) -> pa.RecordBatch:
    parts = [batch.slice(start, size) for start in range(0, batch.num_rows, size)]
    spec = SPEC.model_copy(update={"max_site_frac": 0.7, "max_content_documents": 3})
    seen = pa.Table.from_batches([mask_media.occurrences(part, TABLE, CLUSTERS, spec) for part in parts])
    common = mask_media.repeated(seen, spec)
    marked = [mask_media.mark(part, TABLE, CLUSTERS, common, spec) for part in parts]
    return pa.Table.from_batches(marked, document.SCHEMA).combine_chunks().to_batches()[0]
