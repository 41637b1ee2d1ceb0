"""CISPO: advantages within a group, and the policy loss with a clipped, detached importance ratio.

Owns the two formulas. Does not run the model. Tensors of answer tokens are flat: one entry a sampled token.

Dimensions: G groups (prompts), S samples in a group, N answer tokens of a micro-batch.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class PolicyLoss:
    """The loss of a micro-batch, and how many of its tokens had their ratio cut."""

    loss: Tensor
    num_clipped: int


def group_advantages(rewards_GS: Tensor) -> Tensor:
    """Return (reward - mean) / standard deviation within each group.

    A missing reward is NaN: it takes no part in mean and deviation, and its advantage is 0. A group whose
    rewards are all equal has advantage 0 throughout: it says nothing about which answer is better. The
    deviation is that of the group itself (divided by the number of rewards).

    Source: MiniMax-M1 (arXiv 2506.13585) section 3.1, after GRPO (arXiv 2402.03300) section 4.1.
    """
    known_GS = ~rewards_GS.isnan()
    count_G1 = known_GS.sum(-1, keepdim=True).clamp(min=1)
    values_GS = rewards_GS.nan_to_num(nan=0.0)
    centred_GS = torch.where(known_GS, values_GS - values_GS.sum(-1, keepdim=True) / count_G1, 0.0)
    deviation_G1 = (centred_GS.square().sum(-1, keepdim=True) / count_G1).sqrt()
    scale_G1 = values_GS.abs().amax(-1, keepdim=True)
    says_something_G1 = deviation_G1 > 1e-6 * scale_G1
    return torch.where(says_something_G1, centred_GS / deviation_G1.clamp(min=1e-30), 0.0)


def cispo(
    logprobs_N: Tensor, sampling_logprobs_N: Tensor, advantages_N: Tensor, ratio_max: float, num_tokens: int
) -> PolicyLoss:
    """Return -sum(stop_gradient(min(ratio, ratio_max)) * advantage * logprob) / num_tokens.

    `ratio` is exp(logprob - sampling_logprob). `ratio_max` bounds it absolutely (not as 1 + epsilon), and
    nothing bounds it from below. A clipped token keeps its gradient; only its weight is cut. `num_tokens`
    counts the answer tokens of the whole batch, so the gradients of micro-batches add up to that of the
    batch.

    Source: MiniMax-M1 (arXiv 2506.13585) eq. 4-5.
    """
    ratio_N = (logprobs_N.detach() - sampling_logprobs_N).exp()
    weight_N = ratio_N.clamp(max=ratio_max)
    loss = -(weight_N * advantages_N * logprobs_N).sum() / num_tokens
    return PolicyLoss(loss, int((ratio_N > ratio_max).sum()))
