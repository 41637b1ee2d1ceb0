"""Loss: hand-computed values, and no dependence on how a batch is split."""

import math
from pathlib import Path

import pytest
import torch

from tests.trainer import corpus
from trainer.batches import NO_LABEL, Batch, BatchReader
from trainer.loss import lm_loss, mean_nats, total_weight
from trainer.model.model import ModelInputs


def batch_of(labels: list[int], weights: list[float], modality: list[int], edges: list[int]) -> Batch:
    empty = torch.zeros(0)
    inputs = ModelInputs(
        input_ids=torch.zeros(len(labels), dtype=torch.int64),
        positions=empty,
        cu_seqlens=torch.tensor(edges, dtype=torch.int32),
        patches=empty,
        grids=empty,
        is_placeholder=empty,
    )
    return Batch(
        inputs,
        torch.tensor(labels),
        torch.tensor(weights),
        torch.tensor(modality, dtype=torch.int8),
        [("doc", 0, 0)] * (len(edges) - 1),
        range(1),
    )


def same(hidden: torch.Tensor) -> torch.Tensor:
    """Logits that are the hidden states themselves."""
    return hidden


def test_loss_is_the_hand_computed_one() -> None:
    # Probabilities of two words: 3/4 and 1/4, then 1/2 and 1/2, with log Z = 0; the third has log Z = 1.
    hidden = torch.tensor(
        [[math.log(3 / 4), math.log(1 / 4)], [math.log(1 / 2)] * 2, [math.log(math.e / 2)] * 2, [9.0, -9.0]]
    )
    batch = batch_of([0, 1, 0, NO_LABEL], [1.0, 0.5, 2.0, 0.0], [0, 1, 1, 1], [0, 2, 4])
    terms = lm_loss(hidden, batch, same, normaliser=total_weight([batch]), z_loss_weight=0.1)
    nats = [math.log(4 / 3), 0.5 * math.log(2), 2 * math.log(2)]
    assert terms.total.item() == pytest.approx((sum(nats) + 0.1 * 2 * 1) / 3.5, rel=1e-6)
    assert terms.nats_M.tolist() == pytest.approx([nats[0], nats[1] + nats[2], 0], rel=1e-6)
    assert terms.weight_M.tolist() == [1, 2.5, 0] and terms.count_M.tolist() == [1, 2, 0]
    assert terms.nats_D.tolist() == pytest.approx([nats[0] + nats[1], nats[2]], rel=1e-6)
    assert terms.weight_D.tolist() == [1.5, 2] and terms.log_z_squared.item() == pytest.approx(2, rel=1e-6)
    means = mean_nats(terms.nats_M, terms.weight_M)
    assert means["image"] == pytest.approx(math.log(2), rel=1e-6) and means["video"] is None


def test_gradient_is_probability_minus_target_over_the_normaliser() -> None:
    hidden = torch.tensor([[0.0, 0.0], [1.0, 2.0]], requires_grad=True)
    batch = batch_of([1, 0], [1.0, 0.0], [0, 0], [0, 2])
    lm_loss(hidden, batch, same, normaliser=4.0, z_loss_weight=0).total.backward()
    assert hidden.grad is not None and torch.equal(hidden.grad, torch.tensor([[0.125, -0.125], [0.0, 0.0]]))


def test_logits_are_made_for_targets_with_weight_only() -> None:
    rows = []

    def counted(hidden: torch.Tensor) -> torch.Tensor:
        rows.append(len(hidden))
        return hidden

    batch = batch_of([0, 1, 1, NO_LABEL], [0.0, 1.0, 0.0, 0.0], [0] * 4, [0, 4])
    lm_loss(torch.randn(4, 2), batch, counted, normaliser=1, z_loss_weight=0)
    assert rows == [1]


def test_a_batch_without_targets_has_loss_zero_and_a_gradient() -> None:
    hidden = torch.randn(2, 3, requires_grad=True)
    terms = lm_loss(hidden, batch_of([0, 1], [0.0, 0.0], [0, 0], [0, 2]), same, normaliser=0, z_loss_weight=1)
    terms.total.backward()
    assert terms.total.item() == 0
    assert hidden.grad is not None and torch.equal(hidden.grad, torch.zeros(2, 3))


@pytest.mark.parametrize("size", [1, 2, 3, 6])
def test_any_micro_batch_split_gives_the_same_loss(tmp_path: Path, size: int) -> None:
    reader = BatchReader(**corpus.write(tmp_path))
    generator = torch.Generator().manual_seed(0)
    table = torch.randn(reader.vocab_size, reader.vocab_size, generator=generator).double()

    def total(batches: list[Batch]) -> torch.Tensor:
        normaliser = total_weight(batches)
        return torch.stack(
            [
                lm_loss(table[b.inputs.input_ids], b, same, normaliser=normaliser, z_loss_weight=1e-2).total
                for b in batches
            ]
        ).sum()

    split = [reader.read(range(at, at + size)) for at in range(0, 6, size)]
    torch.testing.assert_close(total(split), total([reader.read(range(6))]), rtol=1e-6, atol=0)
