"""Interleaving: what stays, where it stands, and where masks point afterwards."""

from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from datapipe.spec import InterleaveSpec
from datapipe.stages.interleave import departures, interleave
from schemas import document
from tests.make import document_row, documents, picture_segment, text, video_segment

SPEC = InterleaveSpec()


def mask(
    segment: int,
    action: str,
    start: int | None = None,
    end: int | None = None,
    reason: str = "email",
    box: list[float] | None = None,
) -> dict[str, Any]:
    return {
        "segment": segment,
        "start": start,
        "end": end,
        "box": box,
        "reason": reason,
        "action": action,
        "detector": "test",
    }


def stream(
    segments: list[dict[str, Any]], masks: list[dict[str, Any]] | None = None, spec: InterleaveSpec = SPEC
) -> dict[str, Any]:
    batch = interleave(documents([document_row(segments, masks=masks or [])]), spec)
    document.validate(batch)
    return batch.to_pylist()[0]


def numbered(segments: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The segments as a document has them, each with its number as origin."""
    return [{**segment, "origin": number} for number, segment in enumerate(segments)]


def test_a_segment_keeps_the_number_it_had_when_it_was_read() -> None:
    row = stream([text(" "), text("kept"), picture_segment(None), text("kept too")])
    assert [segment["origin"] for segment in row["segments"]] == [1, 3]


def shown(row: dict[str, Any]) -> list[tuple[str, str]]:
    return [(s["role"], s["text"] if s["kind"] == "text" else s["media_id"]) for s in row["segments"]]


def test_a_picture_keeps_its_place_and_its_caption() -> None:
    segments = [text("Before."), picture_segment("a"), text("Figure 1", "caption"), text("After.")]
    assert stream(segments)["segments"] == numbered(segments)


def test_alternative_text_stays_only_without_a_caption() -> None:
    row = stream(
        [
            picture_segment("a"),
            text("alt a", "alt"),
            text("Figure 1", "caption"),
            picture_segment("b"),
            text("alt b", "alt"),
            text("After."),
        ]
    )
    assert shown(row) == [
        ("figure", "a"),
        ("caption", "Figure 1"),
        ("figure", "b"),
        ("alt", "alt b"),
        ("paragraph", "After."),
    ]


def test_alternative_text_stays_when_a_mask_drops_the_caption() -> None:
    segments = [picture_segment("a"), text("alt a", "alt"), text("Stock photo", "caption")]
    row = stream(segments, [mask(2, "drop")])
    assert shown(row) == [("figure", "a"), ("alt", "alt a")]


def test_no_alternative_text_stays_when_the_spec_keeps_none() -> None:
    segments = [text("Hi."), picture_segment("a"), text("alt a", "alt")]
    row = stream(segments, spec=InterleaveSpec(keep_alt=False))
    assert shown(row) == [("paragraph", "Hi."), ("figure", "a")]


def test_alternative_text_stands_in_for_a_picture_that_could_not_be_had() -> None:
    row = stream([text("See:"), picture_segment(None), text("A red button", "alt")])
    assert shown(row) == [("paragraph", "See:"), ("paragraph", "A red button")]


def test_the_caption_of_a_missing_picture_does_not_pass_to_the_one_before() -> None:
    row = stream(
        [picture_segment("a"), text("alt a", "alt"), picture_segment(None), text("Figure 2", "caption")]
    )
    assert shown(row) == [("figure", "a"), ("alt", "alt a"), ("paragraph", "Figure 2")]


def test_alternative_text_of_a_masked_picture_leaves_and_its_caption_becomes_a_paragraph() -> None:
    segments = [text("Hi."), picture_segment("logo"), text("logo", "alt"), text("Our sign", "caption")]
    masks = [mask(1, "drop", reason="repeated_image")]
    assert shown(stream(segments, masks)) == [("paragraph", "Hi."), ("paragraph", "Our sign")]
    assert departures(segments, masks, SPEC) == [None, "repeated_image", "no_picture", None]


def test_pictures_above_the_limit_leave_with_their_alternative_text() -> None:
    spec = InterleaveSpec(max_images=1)
    segments = [picture_segment("logo"), picture_segment("a"), picture_segment("b"), text("alt b", "alt")]
    masks = [mask(0, "drop", reason="repeated_image")]
    assert shown(stream(segments, masks, spec)) == [("figure", "a")]
    assert departures(segments, masks, spec) == ["repeated_image", None, "max_images", "no_picture"]


def test_a_caption_without_a_picture_stays_a_caption() -> None:
    row = stream([text("Table 1", "caption"), text("a b", "table")])
    assert shown(row) == [("caption", "Table 1"), ("table", "a b")]


def test_transcript_stays_behind_its_stretch_of_video() -> None:
    segments = [
        video_segment("v", 0, 5),
        text("Hello.", "transcript", 0, 5),
        video_segment("v", 5, 9),
        text("Bye.", "transcript", 5, 9),
    ]
    assert stream(segments)["segments"] == numbered(segments)


def test_dropped_characters_leave_and_later_masks_move_with_their_text() -> None:
    content = "Call 555-1234 or write me@a.org today."
    at = content.index("me@a.org")
    row = stream(
        [text("gone"), text(content)],
        [mask(0, "drop"), mask(1, "drop", 5, 17), mask(1, "no_loss", at, at + 8)],
    )
    (segment,), (moved,) = row["segments"], row["masks"]
    assert segment["text"] == "Call write me@a.org today."
    assert moved["segment"] == 0
    assert segment["text"][moved["start"] : moved["end"]] == "me@a.org"


def test_a_no_loss_mask_shrinks_by_what_is_dropped_inside_it_and_vanishes_when_nothing_is_left() -> None:
    masks = [
        mask(0, "drop", 2, 4),
        mask(0, "drop", 3, 5),
        mask(0, "no_loss", 1, 6),
        mask(0, "no_loss", 2, 5, reason="phone"),
    ]
    row = stream([text("0123456789")], masks)
    assert row["segments"][0]["text"] == "0156789"
    assert [(m["start"], m["end"], m["reason"]) for m in row["masks"]] == [(1, 3, "email")]


def test_dropped_seconds_part_a_stretch_of_video_and_masks_follow_the_parts_they_touch() -> None:
    masks = [
        mask(0, "drop", 4000, 6000, reason="black"),
        mask(0, "drop", 9000, None),
        mask(0, "no_loss", 5000, 7000, reason="static"),
        mask(0, "no_loss"),
    ]
    row = stream([video_segment("v", 1.5, 10)], masks)
    assert [(s["t_start_s"], s["t_end_s"]) for s in row["segments"]] == [(1.5, 4), (6, 9)]
    assert [(m["segment"], m["reason"], m["start"]) for m in row["masks"]] == [
        (1, "static", 5000),
        (0, "email", None),
        (1, "email", None),
    ]


def test_masks_of_a_region_move_with_their_picture() -> None:
    row = stream([text(" "), picture_segment("a")], [mask(1, "drop", box=[0, 0, 0.5, 0.5], reason="face")])
    assert [(m["segment"], m["action"], m["box"]) for m in row["masks"]] == [(0, "drop", [0, 0, 0.5, 0.5])]


def test_a_document_of_which_nothing_is_left_is_dropped_as_empty_and_keeps_its_segments() -> None:
    segments = [text("  \n"), picture_segment(None), picture_segment("logo"), text("secret")]
    masks = [mask(2, "drop", reason="repeated_image"), mask(3, "drop", 0, 6)]
    row = stream(segments, masks)
    assert row["drop_reason"] == "empty"
    assert row["segments"] == numbered(segments)
    assert departures(segments, masks, SPEC) == ["empty", "no_medium", "repeated_image", "empty"]


TEXTS = st.builds(
    text,
    st.text("ab \U0001f600é", max_size=12),
    st.sampled_from(["paragraph", "alt", "alt", "caption", "caption", "transcript"]),
)
SEGMENTS = st.one_of(
    TEXTS,
    TEXTS,
    st.builds(picture_segment, st.sampled_from([None, "p", "q"])),
    st.builds(video_segment, st.just("v"), st.integers(0, 3), st.integers(4, 9)),
)


@st.composite
def rows(draw: st.DrawFn) -> dict[str, Any]:
    segments = draw(st.lists(SEGMENTS, max_size=8))
    ranges = st.one_of(st.none(), st.tuples(st.integers(0, 8), st.integers(0, 9)))
    masks = []
    for _ in range(draw(st.integers(0, 5)) if segments else 0):
        number, span = draw(st.integers(0, len(segments) - 1)), draw(ranges)
        scale = 1000 if segments[number]["kind"] == "video" else 1
        start, end = (None, None) if span is None else (span[0] * scale, (span[0] + span[1]) * scale)
        masks.append(mask(number, draw(st.sampled_from(["drop", "no_loss"])), start, end))
    return document_row(segments, uri=draw(st.uuids()).hex, masks=masks)


@st.composite
def specs(draw: st.DrawFn) -> InterleaveSpec:
    return InterleaveSpec(max_images=draw(st.integers(1, 4)), keep_alt=draw(st.booleans()))


@settings(max_examples=40)
@given(st.lists(rows(), max_size=4), specs())
def test_rows_are_conserved_and_only_segments_masks_and_drop_reason_change(
    made: list[dict], spec: InterleaveSpec
) -> None:
    batch = documents(made)
    after = interleave(batch, spec)
    document.validate(after)
    changing = ["segments", "masks", "drop_reason"]
    assert after.drop_columns(changing).equals(batch.drop_columns(changing))


@settings(max_examples=50)
@given(rows(), specs())
def test_interleaving_twice_changes_nothing_more(row: dict, spec: InterleaveSpec) -> None:
    once = interleave(documents([row]), spec)
    assert interleave(once, spec).equals(once)


@settings(max_examples=25)
@given(st.lists(rows(), min_size=1, max_size=5), specs())
def test_the_result_does_not_depend_on_how_batches_are_split(made: list[dict], spec: InterleaveSpec) -> None:
    batch = documents(made)
    whole = pa.Table.from_batches([interleave(batch, spec)])
    parts = [interleave(batch.slice(i, 1), spec) for i in range(batch.num_rows)]
    assert pa.Table.from_batches(parts).combine_chunks().equals(whole)


@settings(max_examples=40)
@given(rows(), specs())
def test_every_segment_stays_in_order_or_has_a_reason_to_leave(row: dict, spec: InterleaveSpec) -> None:
    reasons = departures(row["segments"], row["masks"], spec)
    after = interleave(documents([row]), spec).to_pylist()[0]
    if after["drop_reason"] is None:
        staying = [s for s, reason in zip(row["segments"], reasons, strict=True) if reason is None]
        # A video may be parted; any other segment stays one segment.
        before, now = (
            [s["media_id"] for s in segments if s["kind"] != "video"]
            for segments in (staying, after["segments"])
        )
        assert before == now
    else:
        assert None not in reasons


@settings(max_examples=40)
@given(
    st.text("abcdef", min_size=1, max_size=20),
    st.lists(st.tuples(st.integers(0, 20), st.integers(0, 6)), max_size=4),
    st.integers(0, 19),
    st.integers(1, 20),
)
def test_a_moved_mask_covers_the_characters_it_covered_that_are_left(
    content: str, drops: list[tuple[int, int]], start: int, length: int
) -> None:
    gone = {i for at, n in drops for i in range(at, at + n)}
    row = stream(
        [text("x"), text(content)],
        [*(mask(1, "drop", at, at + n) for at, n in drops), mask(1, "no_loss", start, start + length)],
    )
    left = [i for i in range(len(content)) if i not in gone]
    covered = [i for i in left if start <= i < start + length]
    if covered:
        (moved,) = row["masks"]
        kept = row["segments"][1]["text"]
        assert kept == "".join(content[i] for i in left)
        assert kept[moved["start"] : moved["end"]] == "".join(content[i] for i in covered)
    else:
        assert row["masks"] == []
