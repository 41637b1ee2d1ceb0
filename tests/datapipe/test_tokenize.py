"""Tokenizing: text round-trips, masks reach their tokens, pictures and video take the model's form."""

import io
import json
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from datapipe.spec import TokenizeSpec
from datapipe.stages import tokenize as stage
from datapipe.stages.tokenize import smart_resize, tokenize, train_tokenizer
from schemas import tokens, vocabulary
from tests.make import (
    document_row,
    documents,
    media_row,
    media_table,
    picture,
    picture_segment,
    text,
    video_segment,
)

CORPUS = [
    "the quick brown fox jumps over the lazy dog",
    "write to anna@example.org or call 555-1234 today",
    "ein größerer Text mit Umlauten, 漢字 and \U0001f600 emoji",
] * 4
SPEC = TokenizeSpec(vocab_size=360)
TOKENIZER = train_tokenizer(CORPUS, SPEC)
SMALL = TokenizeSpec(vocab_size=360, min_pixels=784, max_pixels=56 * 56)
NO_MEDIA = media_table([])
AWKWARD = st.text("ab 1\n\t\r漢字e\u0301\U0001f468\u200d\U0001f469\U0001f600]<>[~b", max_size=20)


def decoder() -> tokenizers.Tokenizer:
    return tokenizers.Tokenizer.from_str(TOKENIZER)


def special(token: str) -> int:
    return vocabulary.SPECIAL_TOKENS.index(token)


def tokenized(
    segments: list[dict[str, Any]],
    masks: list[dict[str, Any]] | None = None,
    media: pa.Table = NO_MEDIA,
    spec: TokenizeSpec = SPEC,
) -> dict[str, Any]:
    batch = tokenize(documents([document_row(segments, masks=masks or [])]), media, TOKENIZER, spec)
    tokens.validate(batch)
    return batch.to_pylist()[0]


def no_loss(
    segment: int, start: int | None = None, end: int | None = None, reason: str = "email"
) -> dict[str, Any]:
    return {
        "segment": segment,
        "start": start,
        "end": end,
        "box": None,
        "reason": reason,
        "action": "no_loss",
        "detector": "test",
    }


def video(num_frames: int, frames_per_second: float = 1.0) -> tuple[str, pa.Table]:
    whole = media_row(picture(seed=99), kind="video", mime="video/mp4")
    frames = [
        media_row(picture(seed=i), kind="frame", parent_id=whole["media_id"], t_s=i / frames_per_second)
        for i in range(num_frames)
    ]
    return whole["media_id"], media_table([whole, *reversed(frames)])


def pixels(data: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(data)))


# ---- tokenizer


def test_special_tokens_have_the_first_ids_in_order() -> None:
    for number, token in enumerate(vocabulary.SPECIAL_TOKENS):
        assert decoder().token_to_id(token) == number
    assert decoder().get_vocab_size() == SPEC.vocab_size


def test_training_gives_the_same_tokenizer_in_any_order_of_texts() -> None:
    assert train_tokenizer(reversed(CORPUS), SPEC) == TOKENIZER


def test_special_tokens_all_over_the_corpus_are_not_learned_from_text() -> None:
    corpus = [between.join(vocabulary.SPECIAL_TOKENS) * 50 for between in ("", "x", " ")]
    trained = train_tokenizer(corpus, SPEC)
    batch = documents([document_row([text("".join(vocabulary.SPECIAL_TOKENS))])])
    (row,) = tokenize(batch, NO_MEDIA, trained, SPEC).to_pylist()
    assert min(row["input_ids"][1:-1]) >= len(vocabulary.SPECIAL_TOKENS)


def test_a_tokenizer_without_the_needed_special_tokens_is_refused() -> None:
    bare = tokenizers.Tokenizer(tokenizers.models.BPE()).to_str()
    with pytest.raises(ValueError, match="lacks the special tokens"):
        tokenize(documents([document_row([text("hi")])]), NO_MEDIA, bare, SPEC)


def test_a_given_tokenizer_adds_nothing_and_cuts_nothing_whatever_its_settings() -> None:
    value = json.loads(TOKENIZER)
    for token in value["added_tokens"]:
        token["special"] = False
    value["truncation"] = {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}
    value["post_processor"] = {
        "type": "ByteLevel",
        "add_prefix_space": True,
        "trim_offsets": True,
        "use_regex": True,
    }
    batch = documents([document_row([text("the quick brown fox says <think>")])])
    plain = tokenize(batch, NO_MEDIA, TOKENIZER, SPEC)
    assert tokenize(batch, NO_MEDIA, json.dumps(value), SPEC).equals(plain)


def test_a_vocabulary_size_beside_a_given_tokenizer_is_refused_and_a_resolved_spec_is_not() -> None:
    with pytest.raises(ValueError, match="vocab_size: has no effect"):
        TokenizeSpec(tokenizer="tokenizer.json", vocab_size=5000)
    spec = TokenizeSpec(tokenizer="tokenizer.json")
    assert TokenizeSpec.model_validate(spec.model_dump()) == spec


# ---- text


@settings(max_examples=40)
@given(st.one_of(st.text(max_size=30), AWKWARD))
def test_text_comes_back_from_its_tokens(content: str) -> None:
    row = tokenized([text(content)])
    assert decoder().decode(row["input_ids"][1:-1], skip_special_tokens=False) == content


def test_a_document_has_its_begin_and_end_and_an_empty_line_between_texts_only() -> None:
    data = picture()
    media = media_table([media_row(data)])
    shown = picture_segment(media["media_id"][0].as_py())
    row = tokenized([text("one"), text("two"), shown, text("three")], media=media)
    whole = decoder().decode(row["input_ids"], skip_special_tokens=False)
    before, after = whole.split(vocabulary.START_OF_IMAGE)
    assert before == vocabulary.BEGIN_OF_DOCUMENT + "one\n\ntwo"
    assert after.endswith(vocabulary.END_OF_IMAGE + "three" + vocabulary.END_OF_DOCUMENT)
    size = row["num_tokens"]
    outer = {"kind": "special", "segment": -1, "reason": None}
    assert row["spans"][0] == {**outer, "start": 0, "end": 1, "loss_weight": 0.0}
    assert row["spans"][-1] == {**outer, "start": size - 1, "end": size, "loss_weight": 1.0}


def test_text_that_spells_a_special_token_is_plain_text() -> None:
    content = "literally " + " ".join(vocabulary.SPECIAL_TOKENS)
    row = tokenized([text(content)])
    assert min(row["input_ids"][1:-1]) >= len(vocabulary.SPECIAL_TOKENS)
    assert decoder().decode(row["input_ids"][1:-1]) == content


@settings(max_examples=60)
@given(AWKWARD, AWKWARD, st.integers(0, 20), st.integers(1, 12))
def test_a_no_loss_mask_reaches_exactly_the_tokens_with_a_byte_of_its_characters(
    first: str, content: str, start: int, length: int
) -> None:
    row = tokenized([text(first), text(content)], [no_loss(1, start, start + length)])
    spans = [span for span in row["spans"] if span["segment"] == 1]
    masked = [span["reason"] for span in spans for _ in range(span["start"], span["end"])]
    ids = [i for span in spans for i in row["input_ids"][span["start"] : span["end"]]]
    # The bytes of each token, found without the encoder's offsets: byte-level tokens spell one letter a byte.
    character = [number for number, letter in enumerate(content) for _ in letter.encode()]
    at = 0
    for token, reason in zip(ids, masked, strict=True):
        num_bytes = len(decoder().id_to_token(token) or "")
        touched = {character[i] for i in range(at, at + num_bytes)}
        at += num_bytes
        assert (reason == "email") == bool(touched & set(range(start, start + length)))
    assert at == len(character)


def test_masked_tokens_train_nothing_and_others_do() -> None:
    content = "write to anna@example.org today"
    start = content.index("anna")
    row = tokenized([text(content)], [no_loss(0, start, start + len("anna@example.org"))])
    parts = [
        (decoder().decode(row["input_ids"][s["start"] : s["end"]]), s["loss_weight"], s["reason"])
        for s in row["spans"]
        if s["kind"] == "text"
    ]
    assert parts == [("write to", 1.0, None), (" anna@example.org", 0.0, "email"), (" today", 1.0, None)]


def test_a_whole_segment_mask_takes_every_token_and_the_first_mask_names_the_reason() -> None:
    row = tokenized([text("call 555-1234")], [no_loss(0, 5, 13, "phone"), no_loss(0, reason="boilerplate")])
    assert [s["reason"] for s in row["spans"] if s["kind"] == "text"] == ["boilerplate", "phone"]


@settings(max_examples=25)
@given(st.lists(st.lists(AWKWARD, max_size=3), min_size=1, max_size=5))
def test_rows_are_conserved_and_do_not_depend_on_how_batches_are_split(made: list[list[str]]) -> None:
    batch = documents([document_row([text(t) for t in texts], uri=str(i)) for i, texts in enumerate(made)])
    whole = tokenize(batch, NO_MEDIA, TOKENIZER, SPEC)
    tokens.validate(whole)
    assert whole["doc_id"].equals(batch["doc_id"])
    parts = [tokenize(batch.slice(i, 1), NO_MEDIA, TOKENIZER, SPEC) for i in range(batch.num_rows)]
    assert pa.Table.from_batches(parts).combine_chunks().equals(pa.Table.from_batches([whole]))


# ---- pictures


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        ((672, 672), (672, 672)),
        ((1, 1), (56, 56)),
        ((28, 28), (56, 56)),
        ((42, 42), (56, 56)),
        ((41, 43), (56, 84)),
        ((70, 98), (56, 112)),
        ((600, 800), (560, 756)),
        ((1080, 1920), (504, 896)),
        ((4000, 3000), (756, 560)),
        ((500, 100), (504, 112)),
        ((3, 500), (28, 728)),
        ((2000, 10), (812, 28)),
    ],
)
def test_pictures_take_the_size_that_transformers_processor_of_m3_gives_them(
    size: tuple[int, int], expected: tuple[int, int]
) -> None:
    assert smart_resize(*size, TokenizeSpec()) == expected


@settings(max_examples=200)
@given(
    st.tuples(st.integers(1, 20_000), st.integers(1, 20_000)),
    st.integers(1, 40),
    st.integers(0, 40),
    st.integers(1, 3),
)
def test_sizes_are_whole_patches_within_the_area(
    size: tuple[int, int], low: int, room: int, merge: int
) -> None:
    factor = 14 * merge
    spec = TokenizeSpec(
        merge_size=merge, min_pixels=low * 1000, max_pixels=max((low + room) * 1000, factor**2)
    )
    new_height, new_width = smart_resize(*size, spec)
    assert new_height % factor == 0 and new_width % factor == 0
    assert factor**2 <= new_height * new_width <= spec.max_pixels


def test_a_picture_is_stored_at_model_size_with_a_placeholder_for_every_merged_patch() -> None:
    data = picture(100, 60)
    media = media_table([media_row(data)])
    (media_id,) = media["media_id"].to_pylist()
    row = tokenized([text("see"), picture_segment(media_id)], media=media)
    (image,) = row["images"]
    assert image["media_id"] == media_id
    assert (image["grid_t"], image["grid_h"], image["grid_w"]) == (1, 4, 8)
    expected = Image.open(io.BytesIO(data)).resize((112, 56), Image.Resampling.BICUBIC)
    assert (pixels(image["bytes"]) == np.asarray(expected)).all()
    (span,) = [s for s in row["spans"] if s["kind"] == "image"]
    placeholders = [special(vocabulary.IMAGE)] * (4 * 8 // 4)
    assert row["input_ids"][span["start"] : span["end"]] == [
        special(vocabulary.START_OF_IMAGE),
        *placeholders,
        special(vocabulary.END_OF_IMAGE),
    ]
    assert (image["token_start"], span["loss_weight"], span["segment"]) == (span["start"] + 1, 0.0, 1)


def test_a_masked_region_of_a_picture_is_blank_and_the_rest_is_not() -> None:
    media = media_table([media_row(picture(56, 56))])
    segment = picture_segment(media["media_id"][0].as_py())
    mask = {**no_loss(0), "action": "drop", "box": [0.5, 0.0, 1.0, 1.0], "reason": "face"}
    plain = pixels(tokenized([segment], media=media)["images"][0]["bytes"])
    masked = pixels(tokenized([segment], [mask], media)["images"][0]["bytes"])
    assert (masked[:, 28:] == stage.BLANK_COLOR).all()
    assert (masked[:, :28] == plain[:, :28]).all()


def test_a_missing_medium_is_named() -> None:
    failed = media_table([media_row(picture(), error="DamagedMedium")])
    with pytest.raises(ValueError, match=r"medium .* is not in the media table or has an error"):
        tokenized([picture_segment(failed["media_id"][0].as_py())], media=failed)


# ---- video


def test_each_temporal_patch_of_a_video_says_its_time() -> None:
    media_id, media = video(5, frames_per_second=0.5)
    row = tokenized([video_segment(media_id, 0.0, 100.0)], media=media, spec=SMALL)
    patch = vocabulary.START_OF_IMAGE + vocabulary.VIDEO * 4 + vocabulary.END_OF_IMAGE
    assert decoder().decode(row["input_ids"][1:-1], skip_special_tokens=False) == "".join(
        f"]<]{t} seconds[>[{patch}" for t in ("0.0", "4.0", "8.0")
    )
    (image,) = row["images"]
    assert row["input_ids"].index(special(vocabulary.VIDEO)) == image["token_start"]


def test_an_odd_last_frame_is_repeated_and_long_videos_are_parted_into_segments() -> None:
    media_id, media = video(11)
    row = tokenized([video_segment(media_id, 0.0, 100.0)], media=media, spec=SMALL)
    assert [image["grid_t"] for image in row["images"]] == [4, 2]
    last = row["images"][1]
    frames = pixels(last["bytes"]).reshape(4, last["grid_h"] * 14, last["grid_w"] * 14, 3)
    assert (frames[2] == frames[3]).all() and (frames[1] != frames[2]).any()
    spans = [span for span in row["spans"] if span["kind"] == "video"]
    for span, image in zip(spans, row["images"], strict=True):
        ids = row["input_ids"][span["start"] : span["end"]]
        assert span["start"] < image["token_start"] < span["end"]
        num_patches = image["grid_t"] * image["grid_h"] * image["grid_w"]
        assert ids.count(special(vocabulary.VIDEO)) == num_patches // 4


def test_a_stretch_shows_the_frames_from_its_start_to_before_its_end() -> None:
    media_id, media = video(9)
    frames = {row["t_s"]: row["bytes"] for row in media.to_pylist() if row["kind"] == "frame"}
    segments = [video_segment(media_id, 2, 4), text("hi", "transcript"), video_segment(media_id, 4.5, 4.9)]
    (image,) = tokenized(segments, media=media, spec=SMALL)["images"]
    expected = [
        np.asarray(Image.open(io.BytesIO(frames[t_s])).resize((56, 56), Image.Resampling.BICUBIC))
        for t_s in (2, 3)
    ]
    assert (pixels(image["bytes"]) == np.concatenate(expected)).all()


def test_masked_seconds_mark_the_video_segments_they_touch() -> None:
    media_id, media = video(16)
    masks = [no_loss(0, 9000, 10_000, "static")]
    row = tokenized([video_segment(media_id, 0.0, 100.0)], masks, media, SMALL)
    assert [s["reason"] for s in row["spans"] if s["kind"] == "video"] == [None, "static"]
