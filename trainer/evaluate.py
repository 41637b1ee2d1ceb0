"""Held-out loss by modality, with the true pictures and with exchanged ones.

Owns the measure and the exchange. The difference between the two losses is what the pictures tell about the
text.
"""

import dataclasses
import math
import random
from collections.abc import Mapping
from typing import Any

import torch

from trainer import checkpoint
from trainer.batches import MODALITIES, BatchReader, Picture, PictureKey, check_model_fits
from trainer.loss import lm_loss, mean_nats
from trainer.model.model import OmniModel
from trainer.spec import EvaluateSpec

VERSION = "1"
SEQUENCES_PER_BATCH = 4


@dataclasses.dataclass(frozen=True)
class HeldOutLoss:
    """Mean cross entropy and number of targets by modality."""

    nats: dict[str, float | None]
    count: dict[str, int]


def evaluate(spec: EvaluateSpec, *, checkpoint_path: str, tokens_path: str, plan_path: str) -> dict[str, Any]:
    """Return a checkpoint's loss on the plan's held-out sequences.

    `checkpoint_path` is one checkpoint (`.../checkpoints/step-00000050`). Keys: `loss/<modality>_nats` and
    `bits_per_token/<modality>` for text, image, video and all, `tokens/<modality>_count`, and with
    `shuffle_images` `loss/<modality>_shuffled_nats` and `pictures/exchanged_frac`. A modality without targets
    has None.

    Raises:
        CheckpointError: the checkpoint is missing or damaged.
        DataError: model, tokens and plan do not fit together.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    reader = BatchReader(plan_path, tokens_path, "heldout")
    model = checkpoint.load_model(checkpoint_path).to(device).eval()
    check_model_fits(model.config, reader)
    sequences = range(min(spec.max_sequences, reader.num_sequences))

    measured = held_out_loss(model, reader, sequences, {})
    result: dict[str, Any] = {"sequences/held_out_count": len(sequences)}
    for name, nats in measured.nats.items():
        result[f"loss/{name}_nats"] = nats
        result[f"bits_per_token/{name}"] = None if nats is None else nats / math.log(2)
        result[f"tokens/{name}_count"] = measured.count[name]
    if spec.shuffle_images:
        pictures = reader.pictures(sequences)
        exchange = exchanged(pictures, spec.seed)
        shuffled = held_out_loss(model, reader, sequences, exchange)
        result |= {f"loss/{name}_shuffled_nats": shuffled.nats[name] for name in MODALITIES[1:]}
        result["pictures/exchanged_frac"] = len(exchange) / len(pictures) if pictures else None
    return result


@torch.no_grad()
def held_out_loss(
    model: OmniModel, reader: BatchReader, sequences: range, exchange: Mapping[PictureKey, PictureKey]
) -> HeldOutLoss:
    """Return the loss over sequences, each picture in `exchange` replaced by the one it names."""
    nats_M = torch.zeros(len(MODALITIES), dtype=torch.float64)
    weight_M, count_M = torch.zeros_like(nats_M), torch.zeros(len(MODALITIES), dtype=torch.int64)
    device = next(model.parameters()).device
    for start in range(0, len(sequences), SEQUENCES_PER_BATCH):
        batch = reader.read(sequences[start : start + SEQUENCES_PER_BATCH], exchange).to(device)
        hidden = model(batch.inputs, phase="sparse").hidden
        terms = lm_loss(hidden, batch, model.logits, normaliser=1.0, z_loss_weight=0.0)
        nats_M += terms.nats_M.cpu()
        weight_M += terms.weight_M.cpu()
        count_M += terms.count_M.cpu()
    total = float(nats_M.sum() / weight_M.sum()) if weight_M.sum() > 0 else None
    count = dict(zip(MODALITIES, count_M.tolist(), strict=True))
    return HeldOutLoss({**mean_nats(nats_M, weight_M), "all": total}, {**count, "all": int(count_M.sum())})


def exchanged(pictures: list[Picture], seed: int) -> dict[PictureKey, PictureKey]:
    """Return, for each picture, another one of the same modality and grid; those without a partner are left
    out.

    Partners are neighbours in a random order. A picture never stands for itself, nor for a copy of itself.
    """
    groups: dict[tuple[int, tuple[int, int, int]], list[Picture]] = {}
    for picture in pictures:
        groups.setdefault((picture.modality, picture.grid), []).append(picture)
    partners = {}
    for group in groups.values():
        order = random.Random(seed).sample(group, len(group))
        for place, picture in enumerate(order):
            others = [*order[place + 1 :], *order[:place]]
            partner = next((other for other in others if other.media_id != picture.media_id), None)
            if partner is not None:
                partners[picture.key] = partner.key
    return partners
