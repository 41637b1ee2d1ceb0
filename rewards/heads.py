"""Heads: linear maps that bring picture features and text to a shared space, where what belongs together is
close.

Owns the small text-and-picture model of the alignment scorer. Texts become weighted counts of hashed n-grams,
reduced by a singular value decomposition; picture features are standardised and reduced likewise. These
encoders look at texts and pictures apart from each other and are shared. What pairs teach is in the heads,
one pair of heads for each fold: they start from regularised canonical correlation, which a small corpus
cannot overfit much, and are then trained with the symmetric contrastive loss. Source: H. Hotelling,
"Relations between two sets of variates", 1936; A. Radford et al., "Learning transferable visual models from
natural language supervision", 2021, figure 3.

Dimension letters: N pairs, F picture features, B buckets, E encoded size, D shared size.
"""

import dataclasses

import numpy as np
import torch
from torch.nn import functional as F

from rewards import ngrams

ENCODED_SIZE = 256
_SHRINKAGE = 3.0  # of the covariances, in units of their mean variance; best held-out AUC in 0.3 to 10
_DROPOUT = 0.3
_BATCH_SIZE = 256
_START_SCALE = 10.0  # of the cosines in the contrastive loss
_MAX_SCALE = 100.0
_WEIGHT_DECAY = 0.1

Head = tuple[torch.Tensor, torch.Tensor]  # weight [E, D] and offset [D]


@dataclasses.dataclass(frozen=True)
class Encoders:
    """What turns picture features and texts into vectors of the same small size, without knowing of pairs."""

    picture_mean_F: np.ndarray
    picture_map_FE: np.ndarray
    text_weight_B: np.ndarray  # inverse document frequency; 0 for buckets seen in one text only
    text_map_BE: np.ndarray

    def pictures(self, features_NF: np.ndarray) -> np.ndarray:
        """Return the encoded pictures, [N, E]."""
        return (features_NF - self.picture_mean_F) @ self.picture_map_FE

    def text(self, text: str) -> np.ndarray:
        """Return one encoded text, [E]; zeros for a text that shares nothing with those known."""
        rows, values = _weighted_counts(_counts(text, len(self.text_weight_B)), self.text_weight_B)
        return values @ self.text_map_BE[rows].astype(np.float32)


def fit_encoders(features_NF: np.ndarray, texts: list[str], num_buckets: int, seed: int) -> Encoders:
    """Return encoders for these pictures and texts."""
    size = min(ENCODED_SIZE, len(texts) - 1, features_NF.shape[1])
    mean_F, deviation_F = features_NF.mean(0), features_NF.std(0) + 1e-3
    standard_NF = torch.from_numpy((features_NF - mean_F) / deviation_F)
    picture_map_FE = _directions(standard_NF, size, seed) / deviation_F[:, None]
    counts = [_counts(text, num_buckets) for text in texts]
    seen_in_B = np.bincount(np.concatenate([rows for rows, _ in counts]), minlength=num_buckets)
    weight_B = np.where(seen_in_B > 1, np.log((1 + len(texts)) / (1 + seen_in_B)), 0).astype(np.float32)
    weighted = [_weighted_counts(count, weight_B) for count in counts]
    index = np.stack(
        [
            np.repeat(np.arange(len(texts)), [len(rows) for rows, _ in weighted]),
            np.concatenate([rows for rows, _ in weighted]),
        ]
    )
    values = np.concatenate([values for _, values in weighted])
    text_NB = torch.sparse_coo_tensor(
        torch.from_numpy(index), torch.from_numpy(values), (len(texts), num_buckets), check_invariants=True
    )
    text_NB = text_NB.coalesce()  # or each product sorts its entries again
    text_map_BE = _directions(text_NB, size, seed)
    text_std = (text_NB @ torch.from_numpy(text_map_BE)).std(0).mean().item()
    picture_std = (standard_NF @ torch.from_numpy(picture_map_FE * deviation_F[:, None])).std(0).mean().item()
    return Encoders(
        mean_F,
        picture_map_FE / max(picture_std, 1e-6),
        weight_B,
        (text_map_BE / max(text_std, 1e-6)).astype(np.float16),
    )


def fit_heads(
    pictures_NE: np.ndarray,
    texts_NE: np.ndarray,
    groups_N: list[tuple[str, str]],
    *,
    size: int,
    num_epochs: int,
    learning_rate: float,
    seed: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the heads of pictures and of texts, each [E + 1, D] with the offset as last row.

    Args:
        groups_N: picture and text of each pair by identity; pairs that share one of them are no negatives of
            each other.
    """
    pictures, texts = torch.from_numpy(pictures_NE), torch.from_numpy(texts_NE)
    heads = _canonical_correlation(pictures, texts, min(size, pictures.shape[1]))
    parameters = [part.clone().requires_grad_() for head in heads for part in head]
    log_scale = torch.tensor(np.log(_START_SCALE), dtype=torch.float32, requires_grad=True)
    optimizer = torch.optim.AdamW([*parameters, log_scale], lr=learning_rate, weight_decay=_WEIGHT_DECAY)
    picture_ids, text_ids = (torch.tensor(_numbered([group[side] for group in groups_N])) for side in (0, 1))
    generator = torch.Generator().manual_seed(seed)
    batches = [
        batch
        for _ in range(num_epochs)
        for batch in torch.randperm(len(pictures), generator=generator).split(_BATCH_SIZE)
        if len(batch) > 1
    ]
    for step, batch in enumerate(batches):
        optimizer.param_groups[0]["lr"] = learning_rate * (1 - step / len(batches))
        shown = _projected(_dropped(pictures[batch], generator), (parameters[0], parameters[1]))
        said = _projected(_dropped(texts[batch], generator), (parameters[2], parameters[3]))
        loss = _contrastive(
            shown @ said.T * log_scale.exp().clamp(max=_MAX_SCALE), picture_ids[batch], text_ids[batch]
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    done = [part.detach().numpy() for part in parameters]
    return np.vstack([done[0], done[1]]), np.vstack([done[2], done[3]])


def project(encoded_NE: np.ndarray, head: np.ndarray) -> np.ndarray:
    """Return encoded pictures or texts in the shared space, with length 1; [..., E] to [..., D]."""
    projected = encoded_NE @ head[:-1] + head[-1]
    return projected / np.maximum(np.linalg.norm(projected, axis=-1, keepdims=True), 1e-6)


def _counts(text: str, num_buckets: int) -> tuple[np.ndarray, np.ndarray]:
    return np.unique(ngrams.buckets(ngrams.normalised(text), num_buckets), return_counts=True)


def _weighted_counts(
    counts: tuple[np.ndarray, np.ndarray], weight_B: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows of a text's n-grams and their weighted log counts, of length 1 together."""
    rows, number = counts
    values = (1 + np.log(number)).astype(np.float32) * weight_B[rows]
    return rows, values / max(float(np.linalg.norm(values)), 1e-6)


def _directions(values: torch.Tensor, size: int, seed: int) -> np.ndarray:
    """Return the `size` leading right singular vectors of a dense or sparse matrix, one a column."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return torch.svd_lowrank(values, q=size, niter=3)[2].numpy()


def _canonical_correlation(pictures_NE: torch.Tensor, texts_NE: torch.Tensor, size: int) -> tuple[Head, Head]:
    """Return the maps under which pictures and texts correlate most, each direction weighted by its
    correlation.
    """
    means = pictures_NE.mean(0), texts_NE.mean(0)
    centered = [(values - mean).double() for values, mean in zip((pictures_NE, texts_NE), means, strict=True)]
    whiteners = [_whitener(values) for values in centered]
    across = whiteners[0] @ (centered[0].T @ centered[1] / len(pictures_NE)) @ whiteners[1]
    left, correlations, right = torch.linalg.svd(across)
    scale = correlations[:size].sqrt()
    maps = [(whiteners[0] @ left[:, :size] * scale).float(), (whiteners[1] @ right[:size].T * scale).float()]
    return (maps[0], -(means[0] @ maps[0])[None]), (maps[1], -(means[1] @ maps[1])[None])


def _whitener(centered: torch.Tensor) -> torch.Tensor:
    covariance = centered.T @ centered / len(centered)
    shrunk = (
        covariance
        + _SHRINKAGE * covariance.diag().mean().clamp(min=1e-9) * torch.eye(len(covariance)).double()
    )
    values, vectors = torch.linalg.eigh(shrunk)
    return vectors @ torch.diag(values**-0.5) @ vectors.T


def _projected(encoded: torch.Tensor, head: Head) -> torch.Tensor:
    return F.normalize(encoded @ head[0] + head[1], dim=-1)


def _dropped(values: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    kept = torch.rand(values.shape, generator=generator) >= _DROPOUT
    return values * kept / (1 - _DROPOUT)


def _contrastive(
    similarity_NN: torch.Tensor, picture_ids: torch.Tensor, text_ids: torch.Tensor
) -> torch.Tensor:
    """Return the symmetric contrastive loss over a batch, pairs with the same picture or text not set against
    each other.
    """
    same = (picture_ids[:, None] == picture_ids) | (text_ids[:, None] == text_ids)
    masked = similarity_NN.masked_fill(same & ~torch.eye(len(same), dtype=torch.bool), float("-inf"))
    target = torch.arange(len(same))
    return (F.cross_entropy(masked, target) + F.cross_entropy(masked.T, target)) / 2


def _numbered(values: list[str]) -> list[int]:
    numbers: dict[str, int] = {}
    return [numbers.setdefault(value, len(numbers)) for value in values]
