"""CISPO: hand-computed values, micro-batches, and TRL's loss on the same tensors."""

import math
from types import SimpleNamespace

import pytest
import torch

from trainer.rl.loss import cispo, group_advantages

NAN = math.nan


def test_advantages_are_rewards_centred_and_scaled_within_their_group() -> None:
    rewards = torch.tensor([[1.0, 0.0, 0.0, 1.0], [3.0, 1.0, 1.0, 1.0]])
    root = math.sqrt(3)
    expected = torch.tensor([[1.0, -1.0, -1.0, 1.0], [root, -1 / root, -1 / root, -1 / root]])
    torch.testing.assert_close(group_advantages(rewards), expected)


@pytest.mark.parametrize("value", [0.0, 1.0, 0.1, -1e5, 1e-8])
def test_a_group_of_equal_rewards_has_no_advantage(value: float) -> None:
    assert group_advantages(torch.full((2, 7), value)).tolist() == [[0.0] * 7] * 2


def test_a_missing_reward_has_no_advantage_and_moves_no_other() -> None:
    with_missing = group_advantages(torch.tensor([[1.0, NAN, 0.0], [NAN, NAN, NAN], [NAN, 1.0, NAN]]))
    torch.testing.assert_close(with_missing, torch.tensor([[1.0, 0.0, -1.0], [0.0] * 3, [0.0] * 3]))


def test_the_loss_is_the_hand_computed_one() -> None:
    logprobs = torch.tensor([-1.0, -2.0, -0.5], requires_grad=True)
    sampling = torch.tensor([-1.0, -2.0 - math.log(8), -0.5 + math.log(4)])  # ratios 1, 8, 1/4
    result = cispo(logprobs, sampling, torch.tensor([1.0, 1.0, -2.0]), ratio_max=5.0, num_tokens=4)
    assert result.loss.item() == pytest.approx(-(1 * 1 * -1.0 + 5 * 1 * -2.0 + 0.25 * -2 * -0.5) / 4)
    assert result.num_clipped == 1
    result.loss.backward()
    torch.testing.assert_close(
        logprobs.grad, torch.tensor([-0.25, -1.25, 0.125])
    )  # a clipped token still trains


def random_batch(seed: int = 0) -> dict[str, torch.Tensor]:
    """Four samples of up to 12 tokens whose sampling policy differs a lot from the trained one."""
    generator = torch.Generator().manual_seed(seed)
    logprobs = -3 * torch.rand(4, 12, generator=generator, dtype=torch.float64)
    noise = torch.randn(4, 12, generator=generator, dtype=torch.float64)
    lengths = torch.tensor([12, 5, 1, 9])
    return {
        "logprobs": logprobs,
        "sampling": logprobs - noise,
        "advantages": torch.randn(4, generator=generator, dtype=torch.float64),
        "mask": torch.arange(12) < lengths[:, None],
    }


def ours(
    batch: dict[str, torch.Tensor], logprobs: torch.Tensor, rows: slice, ratio_max: float
) -> torch.Tensor:
    mask = batch["mask"][rows]
    advantages = batch["advantages"][rows, None].expand(mask.shape)
    return cispo(
        logprobs[rows][mask],
        batch["sampling"][rows][mask],
        advantages[mask],
        ratio_max,
        int(batch["mask"].sum()),
    ).loss


def test_micro_batches_add_up_to_the_whole_batch() -> None:
    batch = random_batch()
    whole, parts = (batch["logprobs"].clone().requires_grad_() for _ in range(2))
    whole_loss = ours(batch, whole, slice(0, 4), 2.0)
    whole_loss.backward()
    part_losses = [ours(batch, parts, rows, 2.0) for rows in (slice(0, 1), slice(1, 4))]
    for loss in part_losses:
        loss.backward()
    torch.testing.assert_close(sum(part_losses), whole_loss)
    torch.testing.assert_close(parts.grad, whole.grad)


@pytest.mark.parametrize("ratio_max", [5.0, 1.5])
def test_loss_and_gradient_are_those_of_trl(ratio_max: float) -> None:
    from trl import GRPOTrainer

    batch = random_batch(seed=1)
    mine, theirs = (batch["logprobs"].clone().requires_grad_() for _ in range(2))
    trainer = trl_trainer_around(theirs, ratio_max)
    mask = batch["mask"].long()
    inputs = {
        "prompt_ids": mask,
        "prompt_mask": mask,
        "completion_ids": mask,
        "completion_mask": mask,
        "advantages": batch["advantages"],
        "old_per_token_logps": batch["sampling"],
        "num_items_in_batch": mask.sum(),
    }
    their_loss = GRPOTrainer._compute_loss(trainer, trainer.model, inputs)
    my_loss = ours(batch, mine, slice(0, 4), ratio_max)
    their_loss.backward()
    my_loss.backward()
    torch.testing.assert_close(my_loss, their_loss, rtol=1e-12, atol=0)
    torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-12, atol=0)


def trl_trainer_around(logprobs: torch.Tensor, ratio_max: float) -> SimpleNamespace:
    """What TRL's loss reads of its trainer, with the given log-probabilities in place of a model's."""
    from collections import defaultdict

    return SimpleNamespace(
        model=torch.nn.Linear(1, 1),
        loss_type="cispo",
        epsilon_low=0.2,
        epsilon_high=ratio_max,
        beta=0.0,
        importance_sampling_level="token",
        top_entropy_quantile=1.0,
        off_policy_mask_threshold=None,
        use_vllm=False,
        aux_loss_enabled=False,
        _entropy_bonus_enabled=False,
        current_gradient_accumulation_steps=1,
        args=SimpleNamespace(delta=None, steps_per_generation=1),
        accelerator=SimpleNamespace(num_processes=1, gather=lambda t: t, reduce=lambda t, reduction: t),
        _metrics={"train": defaultdict(list), "eval": defaultdict(list)},
        _get_per_token_logps_and_entropies=lambda *a, **k: (logprobs, torch.zeros_like(logprobs), None),
    )
