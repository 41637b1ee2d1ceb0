"""Evaluation: losses by modality, and pictures exchanged."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.trainer import corpus
from trainer import checkpoint
from trainer.batches import BatchReader, Picture, PictureKey
from trainer.evaluate import evaluate, exchanged
from trainer.loss import lm_loss, mean_nats
from trainer.model.model import OmniModel
from trainer.optimizer import build_optimizer
from trainer.spec import EvaluateSpec, OptimizerSpec

SQUARE, WIDE = (1, 2, 2), (1, 2, 4)


def picture(number: int, media_id: str, grid: tuple[int, int, int] = SQUARE, modality: int = 1) -> Picture:
    return Picture(PictureKey("tokens-00000.arrow", 0, number), media_id, modality, grid)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, str], OmniModel]:
    """A checkpoint of a model with a strong projector, so that pictures matter."""
    root = tmp_path_factory.mktemp("evaluate")
    model = OmniModel(corpus.MODEL, seed=3)
    with torch.no_grad():
        for parameter in model.components()["projector"]:
            parameter.normal_(std=0.5)
    optimizer = build_optimizer(model, model.components(), OptimizerSpec())
    path = checkpoint.save(str(root / "checkpoints"), 1, model=model, optimizer=optimizer, loop={}, keep=1)
    return path, corpus.write(root), model


def test_a_picture_is_exchanged_for_another_of_its_modality_and_grid() -> None:
    kinds = [(SQUARE, 1), (WIDE, 1), (SQUARE, 2)]
    pictures = [picture(n, f"medium{n}", *kinds[n % 3]) for n in range(15)]
    partners = exchanged(pictures, seed=1)
    by_key = {p.key: p for p in pictures}
    assert set(partners) == set(by_key) == set(partners.values())
    for key, partner in partners.items():
        assert key != partner
        assert (by_key[key].grid, by_key[key].modality) == (by_key[partner].grid, by_key[partner].modality)
    assert exchanged(pictures, seed=1) == partners != exchanged(pictures, seed=2)


def test_a_picture_is_never_exchanged_for_its_copy_and_one_without_partner_stays() -> None:
    copies = [
        picture(0, "same"),
        picture(1, "same"),
        picture(2, "same"),
        picture(3, "other"),
        picture(4, "alone", WIDE),
    ]
    partners = exchanged(copies, seed=1)
    assert {number: partners[copies[number].key].number for number in range(3)} == {0: 3, 1: 3, 2: 3}
    assert copies[4].key not in partners
    assert exchanged([replace(p, media_id="same") for p in copies[:3]], seed=1) == {}


def test_losses_are_those_of_the_held_out_sequences(saved: tuple[str, dict[str, str], OmniModel]) -> None:
    path, paths, model = saved
    result = evaluate(EvaluateSpec(max_sequences=3, shuffle_images=False), checkpoint_path=path, **paths)
    reader = BatchReader(**paths, table="heldout")
    assert reader.num_sequences == 4
    batch = reader.read(range(3))
    with torch.no_grad():
        terms = lm_loss(model(batch.inputs).hidden, batch, model.logits, normaliser=1, z_loss_weight=0)
    for name, nats in mean_nats(terms.nats_M, terms.weight_M).items():
        assert result[f"loss/{name}_nats"] == pytest.approx(nats, rel=1e-5)
        assert result[f"bits_per_token/{name}"] == pytest.approx(result[f"loss/{name}_nats"] / math.log(2))
    assert result["tokens/all_count"] == int((batch.loss_weight > 0).sum())
    assert not any("shuffled" in name for name in result)


def test_exchanged_pictures_change_the_loss_after_pictures(
    saved: tuple[str, dict[str, str], OmniModel],
) -> None:
    path, paths, _ = saved
    result = evaluate(EvaluateSpec(), checkpoint_path=path, **paths)
    assert result["pictures/exchanged_frac"] > 0.5
    for name in ("image", "video"):
        assert abs(result[f"loss/{name}_shuffled_nats"] - result[f"loss/{name}_nats"]) > 1e-4
    assert result == evaluate(EvaluateSpec(), checkpoint_path=path, **paths)


def test_an_empty_held_out_set_has_no_losses(
    saved: tuple[str, dict[str, str], OmniModel], tmp_path: Path
) -> None:
    path, paths, _ = saved
    corpus.write_plan(tmp_path / "plan", corpus.plan_rows(corpus.rows(8)), [], "tokens-0")
    result = evaluate(
        EvaluateSpec(),
        checkpoint_path=path,
        tokens_path=paths["tokens_path"],
        plan_path=str(tmp_path / "plan"),
    )
    assert result["tokens/all_count"] == 0 and result["loss/all_nats"] is None
    assert result["pictures/exchanged_frac"] is None
