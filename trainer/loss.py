"""Language-model loss of a batch, with sums by modality.

Owns cross entropy, z-loss and their normalisation. Losses are sums over tokens divided by one number that the
caller takes over the whole batch (all micro-batches, later all ranks), so no split changes them.

Shapes: T tokens, N tokens with a loss, V vocabulary, D spans, M modalities.
"""

import dataclasses
from collections.abc import Callable, Sequence

import torch

from trainer.batches import MODALITIES, NO_LABEL, Batch


@dataclasses.dataclass(frozen=True)
class LossTerms:
    """Loss of a (micro-)batch. `total` carries the gradient; the rest are detached sums to be added up."""

    total: torch.Tensor  # cross entropy and weighted z-loss, divided by the normaliser
    nats_M: torch.Tensor  # weighted sum of cross entropy by modality, fp64
    weight_M: torch.Tensor  # sum of weights by modality, fp64
    count_M: torch.Tensor  # targets by modality, int64
    log_z_squared: torch.Tensor  # weighted sum of log²Z, fp64
    nats_D: torch.Tensor  # weighted sum of cross entropy by span, fp64
    weight_D: torch.Tensor  # sum of weights by span, fp64


def total_weight(batches: Sequence[Batch]) -> float:
    """Return the sum of loss weights over batches: the normaliser of `lm_loss`."""
    return float(sum(batch.loss_weight.double().sum() for batch in batches))


def lm_loss(
    hidden_TH: torch.Tensor,
    batch: Batch,
    logits: Callable[[torch.Tensor], torch.Tensor],
    *,
    normaliser: float,
    z_loss_weight: float,
) -> LossTerms:
    """Return the next-token loss: (sum of w·CE + z_loss_weight · sum of w·log²Z) / normaliser.

    Logits are made for tokens with a positive weight only. A normaliser of 0 means no target at all: the loss
    is 0.

    Source: z-loss, PaLM (arXiv 2204.02311) section 5; its weight, Chameleon (arXiv 2405.09818) section 2.3.
    """
    chosen_N = torch.nonzero((batch.loss_weight > 0) & (batch.labels != NO_LABEL)).squeeze(1)
    weight_N = batch.loss_weight[chosen_N]
    logits_NV = logits(hidden_TH[chosen_N]).float()
    log_z_N = torch.logsumexp(logits_NV, dim=-1)
    nats_N = log_z_N - logits_NV.gather(1, batch.labels[chosen_N].unsqueeze(1)).squeeze(1)
    total = (weight_N * (nats_N + z_loss_weight * log_z_N.square())).sum() / (normaliser or 1.0)

    cu_seqlens = batch.inputs.cu_seqlens.long()
    span_N = torch.searchsorted(cu_seqlens, chosen_N, right=True) - 1
    modality_N = batch.modality[chosen_N].long()
    weight, nats = weight_N.double(), (weight_N * nats_N.detach()).double()
    return LossTerms(
        total=total,
        nats_M=_sums(modality_N, nats, len(MODALITIES)),
        weight_M=_sums(modality_N, weight, len(MODALITIES)),
        count_M=torch.bincount(modality_N, minlength=len(MODALITIES)),
        log_z_squared=(weight * log_z_N.detach().double().square()).sum(),
        nats_D=_sums(span_N, nats, len(cu_seqlens) - 1),
        weight_D=_sums(span_N, weight, len(cu_seqlens) - 1),
    )


def _sums(group: torch.Tensor, values: torch.Tensor, num_groups: int) -> torch.Tensor:
    return values.new_zeros(num_groups).index_add(0, group, values)


def mean_nats(nats_M: torch.Tensor, weight_M: torch.Tensor) -> dict[str, float | None]:
    """Return the mean cross entropy by modality, in nats per target; None where a modality has no target."""
    pairs = zip(MODALITIES, nats_M.tolist(), weight_M.tolist(), strict=True)
    return {name: nats / weight if weight > 0 else None for name, nats, weight in pairs}
