"""Contamination: what a benchmark holds is masked to the word, in text and pictures, and nothing else is."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datapipe.decode import image
from datapipe.spec import ContaminationSpec, SourceSpec
from datapipe.stages import contamination
from tests import make

SPEC = ContaminationSpec(sources=(SourceSpec(path="benchmark"),), ngram_words=5, min_ngram_words=3)
QUESTION = "Which of these planets has the largest number of moons?"
NO_MEDIA = make.media_table([])


def index_of(*texts: str, media: pa.Table = NO_MEDIA, segments: tuple = ()) -> pa.Table:
    row = make.document_row([*(make.text(text) for text in texts), *segments])
    part = pa.Table.from_batches([contamination.index(make.documents([row]), media, SPEC)])
    return contamination.joined(pa.concat_tables([part, part]))


def hits(text: str, index: pa.Table, spec: ContaminationSpec = SPEC) -> list[str]:
    batch = make.documents([make.document_row([make.text(text)])])
    masks = contamination.mark(batch, NO_MEDIA, index, spec)["masks"].to_pylist()[0]
    assert {(m["reason"], m["action"]) for m in masks} <= {("contamination", "drop")}
    return [text[m["start"] : m["end"]] for m in masks]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"Long before: {QUESTION} And after it.", [QUESTION[:-1]]),
        ("They asked, “WHICH of these planets -- has”", ["WHICH of these planets -- has"]),
        ("Which of these planets", []),
        (
            "of these planets has the biggest; the largest number of moons",
            ["of these planets has the", "the largest number of moons"],
        ),
        ("the largest number of moonshine", []),
        ("It is Jupiter's moon Io.", ["Jupiter's moon Io"]),
        ("Io", []),
    ],
)
def test_runs_of_words_are_found_whatever_case_and_punctuation(text: str, expected: list[str]) -> None:
    assert hits(text, index_of(QUESTION, "Jupiter's moon Io", "Io")) == expected


def test_a_document_that_consists_of_a_benchmark_is_dropped() -> None:
    rows = [
        make.document_row([make.text(f"{QUESTION} Saturn.")], uri="a"),
        make.document_row([make.text(QUESTION), make.text("Other words. " * 20)], uri="b"),
    ]
    marked = contamination.mark(make.documents(rows), NO_MEDIA, index_of(QUESTION), SPEC)
    assert marked["drop_reason"].to_pylist() == ["contamination", None]


def test_pictures_and_the_stretches_of_video_that_show_one_are_masked() -> None:
    data = [make.picture(seed=seed) for seed in range(3)]
    hashes = [image.decode(d, 10_000).perceptual_hash for d in data]
    rows = [make.media_row(d, perceptual_hash=h) for d, h in zip(data, hashes, strict=True)]
    benchmark = make.media_table(rows[:1])
    index = index_of(media=benchmark, segments=(make.picture_segment(rows[0]["media_id"]),))
    near = make.media_row(make.picture(width=80, height=60), perceptual_hash=hashes[0] ^ 0b101)
    frame = {**make.media_row(make.picture(width=90), perceptual_hash=hashes[0]), "kind": "frame", "t_s": 4.0}
    video = {**rows[2], "kind": "video", "duration_s": 9.0, "perceptual_hash": None}
    media = make.media_table([near, rows[1], video, {**frame, "parent_id": video["media_id"]}])
    segments = [
        make.picture_segment(near["media_id"]),
        make.picture_segment(rows[1]["media_id"]),
        make.picture_segment(None),
        make.video_segment(video["media_id"], 0.0, 4.0),
        make.video_segment(video["media_id"], 4.0, 9.0),
    ]
    marked = contamination.mark(make.documents([make.document_row(segments)]), media, index, SPEC)
    masks = marked["masks"].to_pylist()[0]
    assert [(m["segment"], m["start"], m["detector"]) for m in masks] == [
        (0, None, "perceptual_hash"),
        (4, None, "perceptual_hash"),
    ]
    assert contamination.mark(marked, media, index, SPEC) == marked


def test_only_media_of_the_benchmark_documents_enter_the_index() -> None:
    other = make.media_table([make.media_row(make.picture(seed=7), perceptual_hash=123)])
    assert index_of(QUESTION, media=other)["num_words"].to_pylist() == [5] * 6


WORDS = st.lists(st.sampled_from(["a", "b", "c", "d"]), max_size=30)


@settings(max_examples=60)
@given(WORDS, WORDS)
def test_a_word_is_masked_exactly_when_it_stands_in_a_shared_run(
    benchmark: list[str], words: list[str]
) -> None:
    length = SPEC.ngram_words
    known = {tuple(benchmark[i : i + length]) for i in range(len(benchmark) - length + 1)}
    if SPEC.min_ngram_words <= len(benchmark) < length:
        known, length = {tuple(benchmark)}, len(benchmark)
    expected = np.zeros(len(words), bool)
    for start in range(len(words) - length + 1):
        if tuple(words[start : start + length]) in known:
            expected[start : start + length] = True
    found = hits(" ".join(words), index_of(" ".join(benchmark)))
    assert sum(len(hit.split()) for hit in found) == expected.sum()
