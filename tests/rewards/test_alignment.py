import functools
import io
import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import open_clip
import pyarrow as pa
import pytest
import torch
from PIL import Image, ImageDraw

from rewards import alignment, towers
from rewards.errors import CheckpointError, StateError
from rewards.pairs import pairs
from rewards.spec import AlignmentSpec
from schemas import document, ids, scores
from tests import make

SPEC = AlignmentSpec(num_buckets=2**12)
COLOURS = {
    "red": (220, 30, 30),
    "green": (20, 160, 40),
    "blue": (30, 60, 220),
    "yellow": (240, 220, 40),
    "black": (10, 10, 10),
}
SHAPES = ("circle", "square", "triangle")
PHRASES = ("A {} {} on a plain ground", "This figure shows one {} {}", "The {} {} of the example")

Row = dict[str, Any]


def drawing(colour: str, shape: str, rng: np.random.Generator) -> bytes:
    image = Image.new("RGB", (96, 96), tuple(int(v) for v in rng.integers(180, 256, 3)))
    size, left, top = (int(v) for v in (rng.integers(40, 60), rng.integers(5, 30), rng.integers(5, 30)))
    box, pen = (left, top, left + size, top + size), ImageDraw.Draw(image)
    if shape == "circle":
        pen.ellipse(box, fill=COLOURS[colour])
    elif shape == "square":
        pen.rectangle(box, fill=COLOURS[colour])
    else:
        pen.polygon(
            [(left, top + size), (left + size, top + size), (left + size // 2, top)], fill=COLOURS[colour]
        )
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()


def illustrated(num_documents: int, first: int = 0) -> pa.RecordBatch:
    """Documents of two drawings each; the captions name colour and shape."""
    rows, media = [], []
    for number in range(first, first + num_documents):
        rng = np.random.default_rng(number)
        segments: list[Row] = [make.text("What we draw", "heading")]
        for _ in range(2):
            colour, shape = str(rng.choice(list(COLOURS))), str(rng.choice(SHAPES))
            media.append(make.media_row(drawing(colour, shape, rng)))
            caption = str(rng.choice(PHRASES)).format(colour, shape)
            segments += [
                make.picture_segment(media[-1]["media_id"]),
                make.text(caption, "caption"),
                make.text("Some words that follow."),
            ]
        rows.append(make.document_row(segments, uri=f"page-{number}.html"))
    return document.with_media(make.documents(rows), make.media_table(media))


@functools.cache
def seen() -> pa.RecordBatch:
    return alignment.features(illustrated(75), SPEC)


@functools.cache
def fitted() -> alignment.Fitted:
    return alignment.fit(pa.Table.from_batches([seen()]), SPEC)


def scored(features: pa.RecordBatch, state: bytes, spec: AlignmentSpec = SPEC) -> list[Row]:
    result = alignment.score(features, state, spec)
    scores.validate(result)
    return result.to_pylist()


def one_document(segments: list[Row], media: list[Row]) -> pa.RecordBatch:
    return document.with_media(make.documents([make.document_row(segments)]), make.media_table(media))


def found(segments: list[Row], media: list[Row]) -> list[tuple[str | None, str | None]]:
    row = one_document(segments, media).to_pylist()[0]
    return [(pair.text, pair.text_from) for pair in pairs(row["segments"], row["media"])]


def test_captions_that_name_what_is_drawn_are_told_from_others() -> None:
    report = fitted().report
    assert report["trained"] and report["num_pairs"] == 150
    assert report["auc"] > 0.8
    assert 0 < report["recall_at_1"] <= report["recall_at_10"] <= 1
    assert list(report["auc_by_text"]) == ["caption"]


def test_each_picture_and_each_document_has_a_probability() -> None:
    rows = scored(seen(), fitted().state)
    assert all(0 <= row["score"] <= 1 for row in rows)
    of_first = [row for row in rows if row["doc_id"] == seen()["doc_id"][0].as_py()]
    assert [row["segment"] for row in of_first] == [1, 4, None]
    values = [row["score"] for row in of_first]
    assert values[2] == pytest.approx(np.mean(values[:2])) and of_first[2]["uncertainty"] is not None


def test_a_wrong_caption_scores_lower_on_new_documents() -> None:
    right = illustrated(25, first=1000)
    rows = right.to_pylist()
    for row in rows:
        for segment in row["segments"]:
            if segment["role"] == "caption":
                colour = next(name for name in COLOURS if name in segment["text"])
                wrong = {
                    "black": "yellow",
                    "yellow": "blue",
                    "blue": "red",
                    "red": "green",
                    "green": "black",
                }[colour]
                segment["text"] = segment["text"].replace(colour, wrong)
    swapped = pa.RecordBatch.from_pylist(rows, schema=document.SCHEMA_WITH_MEDIA)
    before, after = (
        np.array(
            [
                row["score"]
                for row in scored(alignment.features(batch, SPEC), fitted().state)
                if row["segment"] is None
            ]
        )
        for batch in (right, swapped)
    )
    assert after.mean() < before.mean()
    assert (after < before).mean() > 0.7


def test_training_gives_the_same_bytes_whatever_the_order_of_documents() -> None:
    shuffled = seen().take(pa.array(np.random.default_rng(0).permutation(seen().num_rows)))
    assert alignment.fit(pa.Table.from_batches([shuffled]), SPEC).state == fitted().state


def test_scores_do_not_depend_on_how_batches_are_split() -> None:
    documents, whole = illustrated(6), alignment.features(illustrated(6), SPEC)
    for edges in ((0, 1, 4, 6), (0, 0, 6, 6)):
        cuts = [(start, end - start) for start, end in itertools.pairwise(edges)]
        parts = [alignment.features(documents.slice(*cut), SPEC) for cut in cuts]
        assert [row for part in parts for row in part.to_pylist()] == whole.to_pylist()
        assert [row for cut in cuts for row in scored(whole.slice(*cut), fitted().state)] == scored(
            whole, fitted().state
        )


def test_what_cannot_be_scored_is_null_with_its_reason() -> None:
    good, broken = make.picture(), make.picture(seed=1)[:200]
    media = [
        make.media_row(good),
        make.media_row(good) | {"media_id": ids.content_id(broken), "bytes": broken},
    ]
    picture, damaged = (make.picture_segment(row["media_id"]) for row in media)
    cases = {
        "no_picture": [make.text("Only words.")],
        "no_text": [picture],
        "no_medium": [make.picture_segment(None), make.text("A caption", "caption")],
        "decode_failed": [damaged, make.text("A caption", "caption")],
        "no_pair": [make.picture_segment(None), make.text("A caption", "caption"), damaged],
    }
    for error, segments in cases.items():
        rows = scored(alignment.features(one_document(segments, media), SPEC), fitted().state)
        assert rows[-1]["segment"] is None and rows[-1]["error"] == error
        assert {row["score"] for row in rows} == {None}


def test_a_folder_without_pictures_or_with_few_is_left_unscored() -> None:
    few = alignment.features(illustrated(5), SPEC)
    small = alignment.fit(pa.Table.from_batches([few]), SPEC)
    assert not small.report["trained"] and small.report["reason"] == "too_few_pairs"
    assert {row["error"] for row in scored(few, small.state)} == {"too_few_pairs"}
    text_only = alignment.features(one_document([make.text("Only words.")], []), SPEC)
    nothing = alignment.fit(pa.Table.from_batches([text_only]), SPEC)
    assert {row["error"] for row in scored(text_only, nothing.state)} == {"no_picture"}


def test_many_pairs_of_one_document_are_left_unscored() -> None:
    rows = seen().to_pylist()
    merged = [
        {
            "doc_id": "one",
            "pairs": [
                {**pair, "segment": 10 * number + pair["segment"]}
                for number, row in enumerate(rows)
                for pair in row["pairs"]
            ],
        }
    ]
    single = pa.RecordBatch.from_pylist(merged, schema=alignment.FEATURES)
    small = alignment.fit(pa.Table.from_batches([single]), SPEC)
    assert small.report["reason"] == "too_few_pairs"
    assert {row["error"] for row in scored(single, small.state)} == {"too_few_pairs"}


def test_a_state_of_another_spec_is_refused() -> None:
    with pytest.raises(StateError, match="this spec makes"):
        alignment.score(seen(), fitted().state, AlignmentSpec(num_buckets=2**10))
    with pytest.raises(StateError, match="no saved alignment"):
        alignment.score(seen(), b"not a state", SPEC)


def test_a_picture_has_its_captions_without_figure_numbers() -> None:
    media = [make.media_row(make.picture(seed=seed)) for seed in range(3)]
    first, second, third = (make.picture_segment(row["media_id"]) for row in media)
    title = make.text("Figure 3.1. Blur filter", "caption")
    segments = [
        title,
        first,
        make.text("Original image", "caption"),
        second,
        make.text("Blurred", "caption"),
        make.text("Figure 3.2. Options", "caption"),
        third,
        make.text("More words."),
    ]
    assert found(segments, media) == [
        ("Blur filter Original image", "caption"),
        ("Blur filter Blurred", "caption"),
        ("Options", "caption"),
    ]


def test_without_caption_the_alternative_text_counts_and_then_the_nearest_text() -> None:
    media = [make.media_row(make.picture())]
    picture = make.picture_segment(media[0]["media_id"])
    near, far = make.text("Just before."), make.text("Far away.")
    assert found([near, picture, make.text("A dialog", "alt")], media) == [("A dialog", "alt")]
    assert found([far, near, picture, make.text("After.")], media) == [("Just before.", "nearby")]
    assert found([far, picture], media) == [("Far away.", "nearby")]


def test_a_video_stretch_has_its_transcript_and_its_middle_frame() -> None:
    video = make.media_row(make.picture(seed=9), kind="video")
    frames = [
        make.media_row(make.picture(seed=seed), kind="frame", parent_id=video["media_id"], t_s=float(seed))
        for seed in range(6)
    ]
    segments = [
        make.video_segment(video["media_id"], 0.0, 2.0),
        make.text("It opens.", "transcript"),
        make.video_segment(video["media_id"], 2.0, 6.0),
        make.text("It closes.", "transcript"),
    ]
    row = one_document(segments, [video, *frames]).to_pylist()[0]
    result = pairs(row["segments"], row["media"])
    assert [(pair.text, pair.text_from) for pair in result] == [
        ("It opens.", "transcript"),
        ("It closes.", "transcript"),
    ]
    assert [pair.media_id for pair in result] == [frames[1]["media_id"], frames[4]["media_id"]]


def test_the_image_network_knows_what_it_was_trained_on() -> None:
    """Its features of one drawing moved a little are nearer than those of another drawing."""

    def feature(colour: str, seed: int) -> np.ndarray:
        vector = towers.efficientnet(towers.decode(drawing(colour, "circle", np.random.default_rng(seed))))
        return vector / np.linalg.norm(vector)

    assert feature("red", 1) @ feature("red", 2) > feature("red", 1) @ feature("black", 2)


def test_transparent_pictures_stand_on_white() -> None:
    buffer = io.BytesIO()
    Image.new("RGBA", (4, 4), (255, 0, 0, 0)).save(buffer, "PNG")
    assert towers.decode(buffer.getvalue()).getpixel((0, 0)) == (255, 255, 255)


@functools.cache
def tiny_clip(folder: str) -> AlignmentSpec:
    """A CLIP of random weights, its architecture known to open_clip and its checkpoint in a file."""
    config = {
        "embed_dim": 32,
        "vision_cfg": {"image_size": 32, "layers": 1, "width": 64, "patch_size": 16},
        "text_cfg": {"context_length": 77, "vocab_size": 49408, "width": 32, "heads": 2, "layers": 1},
    }
    architecture = Path(folder) / "tiny-for-tests.json"
    architecture.write_text(json.dumps(config))
    open_clip.add_model_config(architecture)
    torch.manual_seed(0)
    checkpoint = Path(folder) / "tiny.pt"
    torch.save(open_clip.create_model("tiny-for-tests").state_dict(), checkpoint)
    return AlignmentSpec(clip_model="tiny-for-tests", clip_checkpoint=str(checkpoint))


def test_a_clip_from_a_file_embeds_pictures_and_texts_and_is_calibrated(tmp_path_factory: Any) -> None:
    spec = tiny_clip(str(tmp_path_factory.mktemp("clip")))
    features = alignment.features(illustrated(30), spec)
    pair = features["pairs"][0].as_py()[0]
    assert np.linalg.norm(pair["feature"]) == pytest.approx(1, abs=1e-4) and len(pair["text_feature"]) == 32
    model = open_clip.create_model(spec.clip_model, pretrained=spec.clip_checkpoint)
    with torch.inference_mode():
        expected = model.eval().encode_text(
            open_clip.get_tokenizer(spec.clip_model)([pair["text"]]), normalize=True
        )
    assert np.allclose(expected[0], pair["text_feature"], atol=1e-5)
    result = alignment.fit(pa.Table.from_batches([features]), spec)
    assert result.report["num_models"] == 0 and result.report["num_held_out"] == 60
    assert all(0 <= row["score"] <= 1 for row in scored(features, result.state, spec))


def test_a_checkpoint_that_is_missing_damaged_or_of_another_model_is_named(tmp_path: Path) -> None:
    batch, damaged = illustrated(1), tmp_path / "damaged.pt"
    damaged.write_bytes(b"no weights")
    cases = {
        ("no-such-model", str(damaged)): "no architecture 'no-such-model'",
        ("RN50", str(tmp_path / "missing.pt")): "no file .*missing.pt",
        ("RN50", str(damaged)): "damaged.pt does not load as RN50",
    }
    for (model, checkpoint), message in cases.items():
        with pytest.raises(CheckpointError, match=message):
            alignment.features(batch, AlignmentSpec(clip_model=model, clip_checkpoint=checkpoint))
