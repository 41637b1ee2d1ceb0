"""Plan rows to packed batches.

Owns reading a plan's spans from the token shards, decoding and cutting their pictures into patches, and the
labels, weights and modalities of the targets. Any sequence can be read on its own, so a trainer's place in
the data is one integer. Does not know about steps, losses or ranks.

Shapes: T tokens of the batch, D spans (each is a document to attention), S pictures and video segments, P
patches.
"""

import dataclasses
import io
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import torch
from PIL import Image
from tokenizers import Tokenizer

from schemas import shard, vocabulary
from trainer.errors import DataError
from trainer.model.config import ModelConfig
from trainer.model.model import ModelInputs

NO_LABEL = -100
MODALITIES = ("text", "image", "video")

# CLIP's means and deviations of the three colours, which M3's processor uses.
PIXEL_MEAN = np.array([0.48145466, 0.4578275, 0.40821073], np.float32)
PIXEL_STD = np.array([0.26862954, 0.26130258, 0.27577711], np.float32)


@dataclasses.dataclass(frozen=True)
class Batch:
    """Some sequences of a plan, packed into one stream of tokens."""

    inputs: ModelInputs
    labels: torch.Tensor  # [T] int64: the next token of the same span, NO_LABEL at a span's end
    loss_weight: torch.Tensor  # [T] float32: weight of the target, its span's weight times the plan's
    modality: torch.Tensor  # [T] int8, into MODALITIES: the last medium before the target in its span
    spans: list[tuple[str, int, int]]  # (doc_id, start, end), in the order of cu_seqlens
    sequences: range

    @property
    def num_tokens(self) -> int:
        """Return T."""
        return len(self.labels)

    def to(self, device: torch.device) -> "Batch":
        """Return the batch with its tensors on `device`."""
        return dataclasses.replace(
            self,
            inputs=self.inputs.to(device),
            labels=self.labels.to(device),
            loss_weight=self.loss_weight.to(device),
            modality=self.modality.to(device),
        )


class PictureKey(NamedTuple):
    """Where a picture stands: shard, row and number in that row's `images`."""

    shard: str
    row: int
    number: int


@dataclasses.dataclass(frozen=True)
class Picture:
    """A picture or video segment of a token row, not yet decoded."""

    key: PictureKey
    media_id: str
    modality: int  # index into MODALITIES
    grid: tuple[int, int, int]  # temporal patches, rows and columns of patches


@dataclasses.dataclass(frozen=True)
class _Span:
    """One span of the plan, read."""

    name: tuple[str, int, int]
    input_ids: np.ndarray
    is_placeholder: np.ndarray
    labels: np.ndarray
    loss_weight: np.ndarray
    modality: np.ndarray
    pictures: list[Picture]


def patchify(
    frames: np.ndarray, patch_size: int, temporal_patch_size: int, merge_size: int
) -> tuple[np.ndarray, tuple[int, int, int]]:
    """Cut frames into normalised patches in the order of M3's processor.

    One frame alone is a picture and is repeated to a whole temporal patch. Patches that merge into one token
    follow each other: the order is (time, merged row, merged column, row in merge, column in merge).

    Shapes: frames [F, H, W, 3] uint8 -> [P, 3 * temporal * patch * patch] float32 and the grid (t, h, w).
    """
    if len(frames) == 1:
        frames = np.repeat(frames, temporal_patch_size, axis=0)
    num_frames, height, width, _ = frames.shape
    grid = (num_frames // temporal_patch_size, height // patch_size, width // patch_size)
    assert (grid[0] * temporal_patch_size, grid[1] * patch_size, grid[2] * patch_size) == frames.shape[:3]
    assert not grid[1] % merge_size and not grid[2] % merge_size, f"grid {grid}, merged by {merge_size}"
    pixels = (frames.astype(np.float32) / 255 - PIXEL_MEAN) / PIXEL_STD
    blocks = pixels.reshape(
        grid[0],
        temporal_patch_size,
        grid[1] // merge_size,
        merge_size,
        patch_size,
        grid[2] // merge_size,
        merge_size,
        patch_size,
        3,
    )
    rows = blocks.transpose(0, 2, 5, 3, 6, 8, 1, 4, 7)
    return rows.reshape(grid[0] * grid[1] * grid[2], -1), grid


class BatchReader:
    """Random access to a plan's sequences; shards are memory-mapped.

    `plan_path` and `tokens_path` are finished steps, `table` is `plan` or `heldout`.

    Raises:
        DataError: the plan was made for other tokens, or names a shard they do not have.
        ShardError: a shard is missing or damaged.
    """

    def __init__(self, plan_path: str, tokens_path: str, table: str = "plan") -> None:
        manifest, tokens = shard.read_manifest(plan_path), shard.read_manifest(tokens_path)
        if tokens.step not in manifest.inputs:
            raise DataError(
                f"plan {plan_path} was made for other tokens than {tokens_path}: it names "
                f"{manifest.inputs}, not {tokens.step}; plan again, or give the tokens it names"
            )
        self._plan = shard.read_step_table(plan_path, table)
        self._sequence = self._plan["sequence"].to_numpy()
        self.num_sequences = int(self._sequence[-1]) + 1 if len(self._sequence) else 0
        self._shards = _open_shards(tokens_path, tokens, self._plan)
        self.patch_size = int(tokens.spec["patch_size"])
        self.merge_size = int(tokens.spec["merge_size"])
        self.temporal_patch_size = int(tokens.spec["temporal_patch_size"])
        tokenizer = Tokenizer.from_file(shard.join(tokens_path, "tokenizer.json"))
        self.vocab_size = tokenizer.get_vocab_size(with_added_tokens=True)
        self._image_id = _special_id(tokenizer, vocabulary.IMAGE, tokens_path)
        self._video_id = _special_id(tokenizer, vocabulary.VIDEO, tokens_path)

    def read(self, sequences: range, exchange: Mapping[PictureKey, PictureKey] | None = None) -> Batch:
        """Return the sequences packed into one batch.

        `exchange` shows, in the place of each picture it names, another one of the same grid.
        """
        spans = [self._read_span(row) for row in self._rows(sequences)]
        pictures = [picture for span in spans for picture in span.pictures]
        shown = [(exchange or {}).get(picture.key, picture.key) for picture in pictures]
        patches = [self._patches(key, picture.grid) for key, picture in zip(shown, pictures, strict=True)]
        return self._collate(spans, pictures, patches, sequences)

    def pictures(self, sequences: range) -> list[Picture]:
        """Return the pictures and video segments of the sequences, in stream order, without decoding them."""
        return [picture for row in self._rows(sequences) for picture in self._read_span(row).pictures]

    def _rows(self, sequences: range) -> list[dict[str, Any]]:
        if sequences.start < 0 or sequences.stop > self.num_sequences:
            raise IndexError(f"sequences {sequences} of a plan with {self.num_sequences}")
        first, stop = np.searchsorted(self._sequence, [sequences.start, sequences.stop])
        return self._plan.slice(first, stop - first).to_pylist()

    def _read_span(self, row: dict[str, Any]) -> _Span:
        table = self._shards[row["shard"]]
        start, end = row["start"], row["end"]
        doc_id = table["doc_id"][row["row"]].as_py() if row["row"] < table.num_rows else None
        if doc_id != row["doc_id"]:
            raise DataError(
                f"plan was made for other tokens: row {row['row']} of {row['shard']} holds "
                f"document {doc_id}, the plan expects {row['doc_id']}"
            )
        all_ids = table["input_ids"][row["row"]].values.to_numpy()
        weights = _weight_per_token(table["spans"][row["row"]].values)
        is_placeholder = (all_ids == self._image_id) | (all_ids == self._video_id)
        pictures = self._pictures_inside(row, all_ids, np.flatnonzero(is_placeholder))
        ids = all_ids[start:end].astype(np.int64)
        return _Span(
            name=(row["doc_id"], start, end),
            input_ids=ids,
            is_placeholder=is_placeholder[start:end],
            labels=np.append(ids[1:], NO_LABEL),
            loss_weight=np.append(weights[start + 1 : end] * np.float32(row["weight"]), np.float32(0)),
            modality=_last_medium(ids, self._image_id, self._video_id),
            pictures=pictures,
        )

    def _pictures_inside(
        self, row: dict[str, Any], ids: np.ndarray, placeholders: np.ndarray
    ) -> list[Picture]:
        entries = self._shards[row["shard"]]["images"][row["row"]].values
        grids = np.stack([entries.field(name).to_numpy() for name in ("grid_t", "grid_h", "grid_w")], axis=1)
        stops = np.cumsum(grids.prod(axis=1) // self.merge_size**2)
        if (stops[-1] if len(stops) else 0) != len(placeholders):
            raise DataError(
                f"tokens of document {row['doc_id']}: {len(placeholders)} placeholder tokens, "
                f"but its pictures have {stops[-1] if len(stops) else 0}"
            )
        inside = []
        for number, (grid, stop) in enumerate(zip(grids.tolist(), stops, strict=True)):
            first = int(placeholders[stops[number - 1] if number else 0])
            last = int(placeholders[stop - 1])
            if last < row["start"] or first >= row["end"]:
                continue
            assert row["start"] <= first and last < row["end"], (
                f"plan cuts picture {number} of document {row['doc_id']} at [{row['start']}, {row['end']})"
            )
            key = PictureKey(row["shard"], row["row"], number)
            modality = 1 if ids[first] == self._image_id else 2
            inside.append(Picture(key, entries.field("media_id")[number].as_py(), modality, tuple(grid)))
        return inside

    def _patches(self, key: PictureKey, grid: tuple[int, int, int]) -> np.ndarray:
        entries = self._shards[key.shard]["images"][key.row].values
        data = memoryview(entries.field("bytes")[key.number].as_buffer())
        pixels = np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))
        height = grid[1] * self.patch_size
        frames = pixels.reshape(-1, height, grid[2] * self.patch_size, 3)
        patches, shown = patchify(frames, self.patch_size, self.temporal_patch_size, self.merge_size)
        assert shown == grid, f"picture {key} has grid {shown}, its row says {grid}"
        return patches

    def _collate(
        self, spans: list[_Span], pictures: list[Picture], patches: list[np.ndarray], sequences: range
    ) -> Batch:
        lengths = [len(span.input_ids) for span in spans]
        width = 3 * self.temporal_patch_size * self.patch_size**2
        inputs = ModelInputs(
            input_ids=_joined([span.input_ids for span in spans], np.int64),
            positions=_joined([np.arange(length) for length in lengths], np.int64),
            cu_seqlens=torch.from_numpy(np.cumsum([0, *lengths], dtype=np.int32)),
            patches=torch.from_numpy(np.concatenate([np.zeros((0, width), np.float32), *patches])),
            grids=torch.tensor([picture.grid for picture in pictures], dtype=torch.int64).reshape(-1, 3),
            is_placeholder=_joined([span.is_placeholder for span in spans], np.bool_),
        )
        return Batch(
            inputs,
            _joined([span.labels for span in spans], np.int64),
            _joined([span.loss_weight for span in spans], np.float32),
            _joined([span.modality for span in spans], np.int8),
            [span.name for span in spans],
            sequences,
        )


def micro_batches(
    reader: BatchReader, first: int, num_steps: int, batch_sequences: int, micro_sequences: int | None
) -> Iterator[list[Batch]]:
    """Yield the micro-batches of each step, `num_steps` times, from sequence `first` on.

    The next step is read by a background thread while the present one is used; what is yielded depends on the
    sequence numbers alone.
    """
    size = micro_sequences or batch_sequences

    def read(step: int) -> list[Batch]:
        start = first + step * batch_sequences
        return [reader.read(range(at, at + size)) for at in range(start, start + batch_sequences, size)]

    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="batches") as pool:
        upcoming = pool.submit(read, 0) if num_steps else None
        for step in range(num_steps):
            assert upcoming is not None
            ready = upcoming.result()
            upcoming = pool.submit(read, step + 1) if step + 1 < num_steps else None
            yield ready


def check_model_fits(config: ModelConfig, reader: BatchReader) -> None:
    """Check that a model was shaped for a reader's tokens.

    Raises:
        DataError: naming the field, its value and the one that would be right.
    """
    if config.vocab_size < reader.vocab_size:  # more is fine: the rest is never seen, only softmaxed over
        raise DataError(
            f"model.vocab_size: {config.vocab_size}, but the tokenizer has {reader.vocab_size} tokens"
        )
    for name in ("patch_size", "merge_size", "temporal_patch_size"):
        given, made_with = getattr(config.vision, name), getattr(reader, name)
        if given != made_with:
            raise DataError(f"model.vision.{name}: {given}, but the tokens were made with {made_with}")


def _open_shards(tokens_path: str, manifest: shard.Manifest, plan: pa.Table) -> dict[str, pa.Table]:
    sizes = {file.name: file.num_rows for file in manifest.files}
    tables = {}
    for name in plan["shard"].unique().to_pylist():
        if name not in sizes:
            raise DataError(
                f"plan.shard: {name} is no shard of {tokens_path}, which has {manifest.shards('tokens')}"
            )
        tables[name] = shard.read_table(shard.join(tokens_path, name))
        if tables[name].num_rows != sizes[name]:
            raise DataError(
                f"{shard.join(tokens_path, name)}: {tables[name].num_rows} rows, its manifest "
                f"says {sizes[name]}"
            )
    return tables


def _special_id(tokenizer: Tokenizer, token: str, tokens_path: str) -> int:
    found = tokenizer.token_to_id(token)
    if found is None:
        raise DataError(f"tokenizer.json of {tokens_path} has no token {token!r}")
    return found


def _weight_per_token(spans: pa.StructArray) -> np.ndarray:
    lengths = spans.field("end").to_numpy() - spans.field("start").to_numpy()
    return np.repeat(spans.field("loss_weight").to_numpy(), lengths)


def _last_medium(ids: np.ndarray, image_id: int, video_id: int) -> np.ndarray:
    """Return each token's modality: that of the last placeholder at or before it, 0 where there is none."""
    kind = np.where(ids == image_id, 1, np.where(ids == video_id, 2, 0))
    latest = np.maximum.accumulate(np.where(kind > 0, np.arange(len(ids)), -1))
    return np.where(latest >= 0, kind[latest], 0).astype(np.int8)


def _joined(parts: list[np.ndarray], dtype: type) -> torch.Tensor:
    return torch.from_numpy(np.concatenate([np.zeros(0, dtype), *parts]))
