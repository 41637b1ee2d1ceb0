"""Batches: targets, weights, pictures, random access."""

import io
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from transformers.models.minimax_m3_vl.image_processing_minimax_m3_vl import MiniMaxM3VLImageProcessor
from transformers.models.minimax_m3_vl.video_processing_minimax_m3_vl import MiniMaxM3VLVideoProcessor

from schemas.errors import ShardError
from tests import make
from tests.trainer import corpus
from trainer.batches import NO_LABEL, Batch, BatchReader, check_model_fits, micro_batches, patchify
from trainer.errors import DataError

ORACLE_SIZES: dict[str, Any] = {
    "patch_size": corpus.PATCH,
    "merge_size": corpus.MERGE,
    "temporal_patch_size": corpus.TEMPORAL,
}


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return corpus.write(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="module")
def reader(paths: dict[str, str]) -> BatchReader:
    return BatchReader(**paths)


def assert_same(left: Batch, right: Batch) -> None:
    assert left.spans == right.spans and left.sequences == right.sequences
    for name in ("labels", "loss_weight", "modality"):
        assert torch.equal(getattr(left, name), getattr(right, name)), name
    for field in fields(left.inputs):
        assert torch.equal(getattr(left.inputs, field.name), getattr(right.inputs, field.name)), field.name


def write_cut(root: Path, row: dict, start: int, end: int, **columns: object) -> BatchReader:
    """A reader of one planned span of one document."""
    corpus.write_tokens(root / "tokens", [row])
    planned = {**corpus.plan_rows([row])[0], "start": start, "end": end, **columns}
    corpus.write_plan(root / "plan", [planned], [], "tokens")
    return BatchReader(str(root / "plan"), str(root / "tokens"))


def test_a_label_is_the_next_token_of_the_same_document_and_never_crosses(reader: BatchReader) -> None:
    stored = {row["doc_id"]: row["input_ids"] for row in corpus.rows(64)}
    batch = reader.read(range(reader.num_sequences))
    edges = batch.inputs.cu_seqlens.tolist()
    assert len(batch.spans) == 64
    for (doc_id, start, end), first, stop in zip(batch.spans, edges[:-1], edges[1:], strict=True):
        assert batch.inputs.input_ids[first:stop].tolist() == stored[doc_id][start:end]
        assert batch.labels[first:stop].tolist() == [*stored[doc_id][start + 1 : end], NO_LABEL]
        assert batch.inputs.positions[first:stop].tolist() == list(range(end - start))
        assert batch.loss_weight[stop - 1] == 0


def test_weight_is_that_of_the_target_times_the_plans(tmp_path: Path) -> None:
    row = corpus.document("a").text(0, 1).text(2, weight=0.0).text(3).finished()
    batch = write_cut(tmp_path, row, 1, 6, weight=0.5).read(range(1))
    assert batch.labels.tolist()[:-1] == row["input_ids"][2:6]
    assert batch.loss_weight.tolist() == [0.5, 0.0, 0.5, 0.5, 0.0]


def test_modality_is_the_last_medium_before_the_target(tmp_path: Path) -> None:
    row = corpus.document("a").text(0).picture((1, 2, 2), 0).text(1).picture((2, 2, 2), 1).text(2).finished()
    # begin, word, <, image, >, word, <, video, >, <, video, >, word, end
    assert write_cut(tmp_path, row, 0, 14).read(range(1)).modality.tolist() == [0] * 3 + [1] * 4 + [2] * 7


def test_modality_counts_from_the_spans_own_start(tmp_path: Path) -> None:
    row = corpus.document("a").picture((1, 2, 2), 0).text(1, 2, 3).finished()
    assert write_cut(tmp_path, row, 4, 8).read(range(1)).modality.tolist() == [0] * 4


@pytest.mark.parametrize(("start", "end"), [(0, 6), (6, 9), (6, 7)])
def test_a_plan_that_cuts_a_picture_is_an_error(tmp_path: Path, start: int, end: int) -> None:
    row = corpus.document("a").text(0).picture((1, 4, 4), 0).finished()  # placeholders at 3 to 6
    reader = write_cut(tmp_path, row, start, end)
    with pytest.raises(AssertionError, match=f"plan cuts picture 0 of document {row['doc_id']}"):
        reader.read(range(1))


def test_pictures_outside_the_span_are_left_out(tmp_path: Path) -> None:
    row = corpus.document("a").picture((1, 2, 2), 0).text(0, 1).picture((1, 2, 4), 1).finished()
    batch = write_cut(tmp_path, row, 4, row["num_tokens"]).read(range(1))
    assert batch.inputs.grids.tolist() == [[1, 2, 4]]
    assert batch.inputs.is_placeholder.sum() == 2


def test_a_picture_is_cut_like_the_published_processor_does() -> None:
    image = Image.open(io.BytesIO(make.picture(32, 24)))
    oracle = MiniMaxM3VLImageProcessor(**ORACLE_SIZES, do_resize=False)(image, return_tensors="pt")
    patches, grid = patchify(np.asarray(image)[None], corpus.PATCH, corpus.TEMPORAL, corpus.MERGE)
    assert grid == tuple(oracle["image_grid_thw"][0].tolist()) == (1, 6, 8)
    np.testing.assert_allclose(patches, oracle["pixel_values"].numpy(), atol=1e-5)


def test_a_video_segment_is_cut_like_the_published_processor_does() -> None:
    grid = (3, 4, 6)
    stacked = np.asarray(Image.open(io.BytesIO(corpus.stacked_frames(grid, 1))))
    frames = stacked.reshape(-1, grid[1] * corpus.PATCH, grid[2] * corpus.PATCH, 3)
    oracle = MiniMaxM3VLVideoProcessor(**ORACLE_SIZES, do_resize=False, do_sample_frames=False)(
        videos=[torch.from_numpy(frames.copy()).permute(0, 3, 1, 2)], return_tensors="pt"
    )
    patches, found = patchify(frames, corpus.PATCH, corpus.TEMPORAL, corpus.MERGE)
    assert found == grid == tuple(oracle["video_grid_thw"][0].tolist())
    np.testing.assert_allclose(patches, oracle["pixel_values_videos"].numpy(), atol=1e-5)


def test_every_sequences_patches_are_those_of_its_own_pictures(reader: BatchReader) -> None:
    whole = reader.read(range(4))
    assert len(whole.inputs.grids) > 4
    parts = [reader.read(range(number, number + 1)) for number in range(4)]
    assert torch.equal(whole.inputs.patches, torch.cat([part.inputs.patches for part in parts]))


def test_an_exchanged_picture_shows_the_other_ones_pixels(reader: BatchReader) -> None:
    pictures = [picture for picture in reader.pictures(range(8)) if picture.grid == (1, 2, 4)]
    exchange = {pictures[0].key: pictures[1].key, pictures[1].key: pictures[0].key}
    plain, swapped = reader.read(range(8)), reader.read(range(8), exchange)
    sizes = plain.inputs.grids.prod(-1).tolist()
    places = [number for number, grid in enumerate(plain.inputs.grids.tolist()) if grid == [1, 2, 4]][:2]
    before, after = plain.inputs.patches.split(sizes), swapped.inputs.patches.split(sizes)
    assert torch.equal(before[places[0]], after[places[1]])
    assert torch.equal(before[places[1]], after[places[0]])
    assert not torch.equal(before[places[0]], before[places[1]])
    assert_same(plain, replace(swapped, inputs=replace(swapped.inputs, patches=plain.inputs.patches)))


def test_started_at_any_step_the_tail_is_the_same(reader: BatchReader) -> None:
    batch_sequences, num_steps = 2, reader.num_sequences // 2
    whole = list(micro_batches(reader, 0, num_steps, batch_sequences, 1))
    for step in range(num_steps + 1):
        tail = list(micro_batches(reader, step * batch_sequences, num_steps - step, batch_sequences, 1))
        assert len(tail) == num_steps - step
        for left, right in zip(whole[step:], tail, strict=True):
            for left_micro, right_micro in zip(left, right, strict=True):
                assert_same(left_micro, right_micro)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(first=st.integers(0, 21), length=st.integers(1, 6))
def test_a_range_is_its_sequences_one_after_the_other(reader: BatchReader, first: int, length: int) -> None:
    sequences = range(first, min(first + length, reader.num_sequences))
    parts = [reader.read(range(number, number + 1)) for number in sequences]
    whole = reader.read(sequences)
    assert whole.spans == [span for part in parts for span in part.spans]
    assert torch.equal(whole.inputs.input_ids, torch.cat([part.inputs.input_ids for part in parts]))
    assert torch.equal(whole.loss_weight, torch.cat([part.loss_weight for part in parts]))
    assert whole.inputs.cu_seqlens[-1] == whole.num_tokens


def test_a_plan_for_other_tokens_is_refused(tmp_path: Path) -> None:
    made = corpus.rows(4)
    corpus.write_tokens(tmp_path / "tokens", made)
    corpus.write_plan(tmp_path / "plan", corpus.plan_rows(made), [], "tokens-of-yesterday")
    with pytest.raises(DataError, match="made for other tokens"):
        BatchReader(str(tmp_path / "plan"), str(tmp_path / "tokens"))


def test_a_row_that_holds_another_document_is_refused(tmp_path: Path) -> None:
    row = corpus.document("a").text(0, 1).finished()
    reader = write_cut(tmp_path, row, 0, 4, doc_id="another")
    with pytest.raises(DataError, match="the plan expects another"):
        reader.read(range(1))


def test_a_missing_shard_is_named_before_anything_is_read(tmp_path: Path) -> None:
    paths = corpus.write(tmp_path)
    Path(paths["tokens_path"], "tokens-00003.arrow").unlink()
    with pytest.raises(ShardError, match=r"missing shard .*tokens-00003\.arrow"):
        BatchReader(**paths)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"vocab_size": 40}, "model.vocab_size: 40, but the tokenizer has 41 tokens"),
        ({"vision": corpus.MODEL.vision.model_copy(update={"patch_size": 8})}, "model.vision.patch_size: 8"),
        ({"vision": corpus.MODEL.vision.model_copy(update={"merge_size": 1})}, "model.vision.merge_size: 1"),
        (
            {"vision": corpus.MODEL.vision.model_copy(update={"temporal_patch_size": 1})},
            "temporal_patch_size: 1",
        ),
    ],
)
def test_a_model_of_other_sizes_is_refused(reader: BatchReader, changed: dict, message: str) -> None:
    check_model_fits(corpus.MODEL, reader)
    with pytest.raises(DataError, match=message):
        check_model_fits(corpus.MODEL.model_copy(update=changed), reader)
