"""MiniMax Sparse Attention in plain torch: the definition that every other implementation is tested against.

Owns selection, sparse and dense attention, and the index KL, for packed documents and any float dtype. It
scores one chunk of queries against all their keys, so its time is quadratic: no kernel for long documents.

Letters: T tokens of all documents, H query heads, R key-value heads (groups), G = H / R heads of a group,
D head width, E index width, n tokens of one document, C queries of one chunk, L keys up to the chunk's last
query, N key blocks, K blocks kept.
"""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

CHUNK_QUERIES = 128
RECOMPUTE_TOKENS = 4096
"""Documents longer than this recompute their probabilities in the backward pass instead of keeping them."""


class MSAOutput(NamedTuple):
    """What `msa_attention` returns; `block_ids` and `lse` carry no gradient."""

    out: Tensor
    """Attention output [T, H, D]."""
    index_kl: Tensor
    """KL of the groups' mean attention from the index distribution, in nats: mean over tokens and groups."""
    block_ids: Tensor
    """Blocks chosen by the index [T, R, K], int32: document-local numbers, ascending, -1 after the last."""
    lse: Tensor
    """Log-sum-exp of the scaled attention logits over the tokens attended [T, H]."""


def msa_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    index_q: Tensor,
    index_k: Tensor,
    cu_seqlens: Tensor,
    *,
    cu_seqlens_k: Tensor,
    block_size: int,
    top_k: int,
    phase: str,
    block_ids: Tensor | None,
) -> MSAOutput:
    """Attend within each document, one chunk of queries at a time; half precision is computed in float32."""
    dtype = torch.float64 if q.dtype == torch.float64 else torch.float32
    q_HTD, k_RTD, v_RTD, index_q_RTE = (x.to(dtype).transpose(0, 1) for x in (q, k, v, index_q))
    index_k_TE = index_k.to(dtype)
    q_HTD, index_q_RTE = q_HTD * q.shape[-1] ** -0.5, index_q_RTE * index_q.shape[-1] ** -0.5
    lengths, lengths_k = cu_seqlens.diff().tolist(), cu_seqlens_k.diff().tolist()
    # split, not slices: the gradient of a split is one concatenation.
    documents = zip(
        *(x.split(lengths, dim=1) for x in (q_HTD, index_q_RTE)),
        *(x.split(lengths_k, dim=1) for x in (k_RTD, v_RTD)),
        index_k_TE.split(lengths_k),
        [None] * len(lengths) if block_ids is None else block_ids.transpose(0, 1).split(lengths, dim=1),
        strict=True,
    )
    chunks = []
    with torch.autocast(q.device.type, enabled=False):
        for q_HnD, index_q_RnE, k_RnD, v_RnD, index_k_nE, ids_RnK in documents:
            k_RnD, v_RnD = k_RnD.contiguous(), v_RnD.contiguous()
            for first in range(0, q_HnD.shape[1], CHUNK_QUERIES):
                here = slice(first, first + CHUNK_QUERIES)
                last = len(index_k_nE) - q_HnD.shape[1] + min(here.stop, q_HnD.shape[1])
                inputs = (
                    q_HnD[:, here],
                    k_RnD[:, :last],
                    v_RnD[:, :last],
                    index_q_RnE[:, here],
                    index_k_nE[:last],
                    None if ids_RnK is None else ids_RnK[:, here],
                    block_size,
                    top_k,
                    phase,
                )
                if len(index_k_nE) > RECOMPUTE_TOKENS:
                    chunks.append(checkpoint(_attend, *inputs, use_reentrant=False, preserve_rng_state=False))
                else:
                    chunks.append(_attend(*inputs))
    out_HCD, kl_RC, block_ids_RCK, lse_HC = zip(*chunks, strict=True)
    out_THD, block_ids_TRK, lse_TH = (
        torch.cat(parts, dim=1).transpose(0, 1) for parts in (out_HCD, block_ids_RCK, lse_HC)
    )
    return MSAOutput(out_THD.to(q.dtype), torch.cat(kl_RC, dim=1).mean(), block_ids_TRK, lse_TH)


def select_blocks(scores_RCL: Tensor, block_size: int, top_k: int) -> tuple[Tensor, Tensor]:
    """Choose each query's blocks: its own, then the best by their highest score, the lower number on a tie.

    The queries are the last C of the L positions. An earlier block is visible as a whole and the own block is
    taken whatever its score, so token scores need no causal mask here.

    Returns:
        The numbers [R, C, K] as in `MSAOutput.block_ids`, and a mask of the chosen [R, C, N].
    """
    _, num_queries, num_keys = scores_RCL.shape
    num_blocks = -(-num_keys // block_size)
    block_N = torch.arange(num_blocks, device=scores_RCL.device)
    own_C1 = torch.arange(num_keys - num_queries, num_keys, device=scores_RCL.device)[:, None] // block_size
    visible_CN = block_N <= own_C1
    if num_blocks <= top_k:
        chosen_RCN = visible_CN.expand(scores_RCL.shape[0], -1, -1)
    else:
        padded_RCL = F.pad(scores_RCL, (0, num_blocks * block_size - num_keys), value=-torch.inf)
        best_RCN = padded_RCL.unflatten(-1, (num_blocks, block_size)).amax(-1)
        best_RCN = best_RCN.masked_fill(~visible_CN, -torch.inf).masked_fill(block_N == own_C1, torch.inf)
        limit_RC1 = best_RCN.topk(top_k, dim=-1).values[..., -1:]
        above_RCN, tied_RCN = best_RCN > limit_RC1, best_RCN == limit_RC1
        places_RC1 = top_k - above_RCN.sum(-1, keepdim=True)
        chosen_RCN = (above_RCN | (tied_RCN & (tied_RCN.cumsum(-1) <= places_RC1))) & visible_CN
    slot_RCN = torch.where(chosen_RCN, chosen_RCN.cumsum(-1) - 1, top_k)
    ids_RCK = torch.full((*chosen_RCN.shape[:-1], top_k + 1), -1, dtype=torch.int32, device=scores_RCL.device)
    ids_RCK.scatter_(-1, slot_RCN, block_N.int().expand_as(slot_RCN))
    return ids_RCK[..., :top_k], chosen_RCN


def blocks_of(ids_RCK: Tensor, num_blocks: int) -> Tensor:
    """Mask [R, C, N] of the blocks in a given choice, whose -1 name none."""
    chosen_RCN = ids_RCK.new_zeros(*ids_RCK.shape[:-1], num_blocks + 1, dtype=torch.bool)
    chosen_RCN.scatter_(-1, torch.where(ids_RCK < 0, num_blocks, ids_RCK).long(), True)
    return chosen_RCN[..., :num_blocks]


def _attend(
    q_HCD: Tensor,
    k_RLD: Tensor,
    v_RLD: Tensor,
    index_q_RCE: Tensor,
    index_k_LE: Tensor,
    block_ids_RCK: Tensor | None,
    block_size: int,
    top_k: int,
    phase: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Attend from the last C positions of a document's first L: output, KL, block ids, log-sum-exp."""
    (num_heads, num_queries, _), (num_groups, num_keys, _) = q_HCD.shape, k_RLD.shape
    scores_RCL = index_q_RCE @ index_k_LE.T
    if block_ids_RCK is None:
        block_ids_RCK, chosen_RCN = select_blocks(scores_RCL.detach(), block_size, top_k)
    else:
        chosen_RCN = blocks_of(block_ids_RCK, -(-num_keys // block_size))
    reads_nothing_RC = ~chosen_RCN.any(-1)  # only in a given choice; such a query gets any key, then zeros
    mask_RCL = q_HCD.new_ones(1, num_queries, num_keys, dtype=torch.bool).tril(num_keys - num_queries)
    if phase == "sparse":
        chosen_RCN = chosen_RCN | reads_nothing_RC[..., None]
        mask_RCL = mask_RCL & chosen_RCN.repeat_interleave(block_size, dim=-1)[..., :num_keys]
    bias_RCL = torch.where(mask_RCL, q_HCD.new_zeros(()), -torch.inf)

    q_RQD = q_HCD.reshape(num_groups, -1, q_HCD.shape[-1])  # Q = G x C: a group's heads share its keys
    logits_RGCL = (q_RQD @ k_RLD.mT).unflatten(1, (-1, num_queries)) + bias_RCL[:, None]
    probs_RGCL = logits_RGCL.softmax(-1)
    out_HCD = (probs_RGCL.flatten(1, 2) @ v_RLD).view(num_heads, num_queries, -1)
    with torch.no_grad():
        lse_RGC = logits_RGCL.amax(-1) - probs_RGCL.amax(-1).log()
        teacher_RCL = probs_RGCL.mean(1)
    kl_RC = _IndexKL.apply(scores_RCL, bias_RCL, teacher_RCL)
    empty_HC = reads_nothing_RC.repeat_interleave(num_heads // num_groups, dim=0)
    return (
        out_HCD.masked_fill(empty_HC[..., None], 0),
        kl_RC.masked_fill(reads_nothing_RC, 0),
        block_ids_RCK,
        lse_RGC.view(num_heads, num_queries).masked_fill(empty_HC, -torch.inf),
    )


class _IndexKL(torch.autograd.Function):
    """KL(teacher || softmax(scores + bias)) of each row; its gradient in scores is student minus teacher."""

    @staticmethod
    def forward(ctx: Any, scores_RCL: Tensor, bias_RCL: Tensor, teacher_RCL: Tensor) -> Tensor:
        logits_RCL = scores_RCL + bias_RCL
        student_RCL = logits_RCL.softmax(-1)
        # log student = scores - lse holds where the student underflows, and the teacher sums to 1.
        lse_RC = logits_RCL.amax(-1) - student_RCL.amax(-1).log()
        log_teacher_RCL = teacher_RCL.clamp(min=torch.finfo(teacher_RCL.dtype).tiny).log_()
        ctx.save_for_backward(student_RCL.sub_(teacher_RCL))
        return log_teacher_RCL.sub_(scores_RCL).mul_(teacher_RCL).sum(-1) + lse_RC

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_RC: Tensor) -> tuple[Tensor, None, None]:
        return ctx.saved_tensors[0] * grad_RC[..., None], None, None
