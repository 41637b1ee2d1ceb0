"""A tiny tokens step and plan on disk, made by code: text, pictures and video segments in some 40 words."""

import dataclasses
import io
from pathlib import Path

import numpy as np
import pyarrow as pa
from PIL import Image
from tokenizers import Tokenizer, models

from schemas import ids, plan, shard, tokens
from schemas.vocabulary import (
    BEGIN_OF_DOCUMENT,
    END_OF_DOCUMENT,
    END_OF_IMAGE,
    IMAGE,
    SPECIAL_TOKENS,
    START_OF_IMAGE,
    VIDEO,
)
from tests import make
from trainer.model.config import ModelConfig, VisionConfig
from trainer.spec import OptimizerSpec, PretrainSpec

PATCH, MERGE, TEMPORAL = 4, 2, 2
WORDS = [f"word{number}" for number in range(24)]
VOCABULARY = {token: number for number, token in enumerate([*SPECIAL_TOKENS, *WORDS])}
MODEL = ModelConfig(
    vocab_size=len(VOCABULARY),
    hidden_size=32,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    rotary_dim=4,
    num_dense_layers=1,
    dense_intermediate_size=32,
    intermediate_size=16,
    shared_intermediate_size=16,
    num_experts=4,
    num_experts_per_token=2,
    index_dim=8,
    block_size=8,
    top_k_blocks=2,
    projector_hidden_size=32,
    vision=VisionConfig(
        hidden_size=24,
        intermediate_size=32,
        num_layers=1,
        num_heads=2,
        patch_size=PATCH,
        temporal_patch_size=TEMPORAL,
        merge_size=MERGE,
    ),
)


@dataclasses.dataclass
class Row:
    """A token row under construction."""

    uri: str
    ids: list[int] = dataclasses.field(default_factory=list)
    spans: list[dict] = dataclasses.field(default_factory=list)
    images: list[dict] = dataclasses.field(default_factory=list)

    def add(self, names: list[str], kind: str, weight: float, reason: str | None = None) -> "Row":
        """Append tokens as one span."""
        start = len(self.ids)
        self.ids += [VOCABULARY[name] for name in names]
        self.spans.append(
            {
                "start": start,
                "end": len(self.ids),
                "kind": kind,
                "segment": 0,
                "loss_weight": weight,
                "reason": reason,
            }
        )
        return self

    def text(self, *numbers: int, weight: float = 1.0) -> "Row":
        """Append words by number."""
        reason = None if weight == 1 else "email"
        return self.add([WORDS[number] for number in numbers], "text", weight, reason)

    def picture(self, grid: tuple[int, int, int], seed: int) -> "Row":
        """Append an image (grid_t 1) or a video segment of frames that differ."""
        grid_t, grid_h, grid_w = grid
        is_video = grid_t > 1
        data = stacked_frames(grid, seed) if is_video else make.picture(grid_w * PATCH, grid_h * PATCH, seed)
        self.images.append(
            {
                "media_id": ids.content_id(data),
                "token_start": len(self.ids) + 1,
                "grid_t": grid_t,
                "grid_h": grid_h,
                "grid_w": grid_w,
                "bytes": data,
            }
        )
        for _ in range(grid_t):
            placeholders = [VIDEO if is_video else IMAGE] * (grid_h * grid_w // MERGE**2)
            self.add([START_OF_IMAGE, *placeholders, END_OF_IMAGE], "video" if is_video else "image", 0.0)
        return self

    def finished(self) -> dict:
        """The row, document end included."""
        self.add([END_OF_DOCUMENT], "special", 1.0)
        return {
            "doc_id": ids.document_id("test", self.uri, ""),
            "num_tokens": len(self.ids),
            "input_ids": self.ids,
            "spans": self.spans,
            "images": self.images,
        }


def stacked_frames(grid: tuple[int, int, int], seed: int) -> bytes:
    """A PNG of a video segment: frames from top to bottom."""
    pictures = [
        make.picture(grid[2] * PATCH, grid[1] * PATCH, seed * 100 + number)
        for number in range(grid[0] * TEMPORAL)
    ]
    frames = [np.asarray(Image.open(io.BytesIO(data))) for data in pictures]
    buffer = io.BytesIO()
    Image.fromarray(np.concatenate(frames)).save(buffer, "PNG")
    return buffer.getvalue()


def document(uri: str) -> Row:
    """A row with its begin token."""
    return Row(uri).add([BEGIN_OF_DOCUMENT], "special", 0.0)


def rows(num_documents: int) -> list[dict]:
    """Documents of four kinds in turn: text with a masked word, picture first, picture inside, video."""
    made = []
    for number in range(num_documents):
        row, at = document(f"page{number}.html"), number % 20
        if number % 4 == 0:
            row.text(at, at + 1).text(at + 2, weight=0.0).text(at + 3, at, at + 1, at + 2, at + 3)
        elif number % 4 == 1:
            row.picture((1, 2, 4), seed=number).text(at, at + 1, at + 2, at + 3)
        elif number % 4 == 2:
            row.text(at, at + 1).picture((1, 2, 2), number)
            row.text(at + 2).picture((1, 2, 4), number + 1).text(at + 3)
        else:
            row.text(at).picture((2, 2, 2), seed=number).text(at + 1, at + 2)
        made.append(row.finished())
    return made


def write_tokens(path: Path, made: list[dict], rows_per_shard: int = 10) -> None:
    """Write a finished tokens step of some shards."""
    spec = {"patch_size": PATCH, "merge_size": MERGE, "temporal_patch_size": TEMPORAL}
    files = []
    for number, first in enumerate(range(0, len(made), rows_per_shard)):
        table = pa.Table.from_pylist(made[first : first + rows_per_shard], schema=tokens.SCHEMA)
        files.append(shard.write_table(str(path / shard.shard_name("tokens", number)), table))
    tokenizer = Tokenizer(models.WordLevel(VOCABULARY, unk_token=WORDS[0]))
    tokenizer.add_special_tokens(list(SPECIAL_TOKENS))
    tokenizer.save(str(path / "tokenizer.json"))
    manifest = shard.Manifest(path.name, "1", spec, [], len(made), len(made), {}, {}, files)
    shard.write_manifest(str(path), manifest)


def plan_rows(made: list[dict], context_length: int = 40, rows_per_shard: int = 10) -> list[dict]:
    """Whole documents in order, next-fit."""
    planned: list[dict] = []
    sequence, position = 0, 0
    for number, row in enumerate(made):
        if position + row["num_tokens"] > context_length and position:
            sequence, position = sequence + 1, 0
        planned.append(
            {
                "sequence": sequence,
                "position": position,
                "doc_id": row["doc_id"],
                "shard": shard.shard_name("tokens", number // rows_per_shard),
                "row": number % rows_per_shard,
                "start": 0,
                "end": row["num_tokens"],
                "weight": 1.0,
                "stratum": "test",
            }
        )
        position += row["num_tokens"]
    return planned


def write_plan(path: Path, planned: list[dict], held_out: list[dict], tokens_step: str) -> None:
    """Write a finished plan step."""
    tables = {"plan": planned, "heldout": held_out}
    files = [
        shard.write_table(str(path / shard.shard_name(name, 0)), pa.Table.from_pylist(part, plan.SCHEMA))
        for name, part in tables.items()
    ]
    shard.write_manifest(str(path), shard.Manifest(path.name, "1", {}, [tokens_step], 0, 0, {}, {}, files))


def write(root: Path, num_documents: int = 64) -> dict[str, str]:
    """Write tokens and plan below `root`; return their paths as `pretrain` takes them."""
    made = rows(num_documents)
    write_tokens(root / "tokens-0", made)
    planned = plan_rows(made)
    write_plan(root / "plan-0", planned, [row for row in planned if row["sequence"] < 4], "tokens-0")
    return {"tokens_path": str(root / "tokens-0"), "plan_path": str(root / "plan-0")}


def spec(**fields: object) -> PretrainSpec:
    """A spec of 8 steps for the tiny corpus."""
    defaults = {
        "model": MODEL,
        "num_steps": 8,
        "batch_sequences": 2,
        "save_every": 3,
        "index_warmup_frac": 0.25,
        "optimizer": OptimizerSpec(learning_rate=1e-2),
    }
    return PretrainSpec(**{**defaults, **fields})
