"""MSA for one new token of each sequence against a cache of keys, values and index keys, in plain torch.

Owns the choice and the attention of a decoding step. Reads all index keys but only the chosen blocks of keys
and values. Letters as in reference.py; S sequences, P pages of a sequence, L tokens of one sequence, B tokens
of a block, J = K x B tokens that a query may read.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from kernels.msa.reference import select_blocks

CHUNK_KEYS = 65536
"""Index keys widened at once."""


class DecodeOutput(NamedTuple):
    """What `msa_decode` returns."""

    out: Tensor
    """Attention output [S, H, D]."""
    block_ids: Tensor
    """Blocks chosen [S, R, K], int32: numbers within the sequence, ascending, -1 after the last."""
    lse: Tensor
    """Log-sum-exp of the scaled attention logits [S, H]."""


@torch.no_grad()
def msa_decode(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    index_q: Tensor,
    index_k_cache: Tensor,
    lengths: Tensor,
    *,
    block_table: Tensor | None = None,
    block_size: int = 128,
    top_k: int = 16,
) -> DecodeOutput:
    """Attend from the newest token of each sequence, which is in the caches already; no gradients.

    Chooses as `msa_attention` does, so that decoding continues what a prefill began. With `block_table` the
    caches are paged: token t of sequence s lies in page `block_table[s, t // page]` at place `t % page`, and
    entries of the table beyond a sequence's length are not read.

    Shapes:
        q [S, H, D]; index_q [S, Hkv, E]; lengths [S] int32, tokens of each sequence with the newest.
        Contiguous: k_cache and v_cache [S, room, Hkv, D], index_k_cache [S, room, E]. Paged: [pages, page,
        Hkv, D] and [pages, page, E], with block_table [S, P] int32.

    Raises:
        ValueError: for shapes, dtypes, lengths or pages that do not fit.
    """
    _check(q, k_cache, v_cache, index_q, index_k_cache, lengths, block_table, block_size, top_k)
    dtype = torch.float64 if q.dtype == torch.float64 else torch.float32
    num_sequences, _, head_dim = q.shape
    num_groups = index_q.shape[1]
    chosen = []
    for sequence, length in enumerate(lengths.tolist()):
        pieces = _index_keys(index_k_cache, block_table, sequence, length).split(CHUNK_KEYS)
        scores_RL = torch.cat([index_q[sequence].to(dtype) @ piece.to(dtype).T for piece in pieces], dim=-1)
        chosen.append(select_blocks(scores_RL[:, None], block_size, top_k)[0][:, 0])
    block_ids_SRK = torch.stack(chosen)

    offset_B = torch.arange(block_size, device=q.device)
    token_SRK = block_ids_SRK.long()[..., None] * block_size + offset_B
    read_SRK = ((block_ids_SRK >= 0)[..., None] & (token_SRK < lengths[:, None, None, None])).flatten(2)
    token_SRK = token_SRK.flatten(2).clamp(min=0).minimum(lengths[:, None, None].long() - 1)
    place = torch.arange(num_sequences, device=q.device)[:, None, None].expand_as(token_SRK), token_SRK
    if block_table is not None:
        page_size = k_cache.shape[1]
        place = block_table[place[0], token_SRK // page_size].long(), token_SRK % page_size
    group_R1 = torch.arange(num_groups, device=q.device)[:, None].expand_as(token_SRK)
    keys_SRJD, values_SRJD = (cache[(*place, group_R1)].to(dtype) for cache in (k_cache, v_cache))

    q_SRGD = q.to(dtype).unflatten(1, (num_groups, -1)) * head_dim**-0.5
    logits_SRGJ = (q_SRGD @ keys_SRJD.mT).masked_fill(~read_SRK[:, :, None], -torch.inf)
    lse_SRG = logits_SRGJ.logsumexp(-1)
    out_SRGD = logits_SRGJ.softmax(-1) @ values_SRJD
    return DecodeOutput(out_SRGD.flatten(1, 2).to(q.dtype), block_ids_SRK, lse_SRG.flatten(1))


def _index_keys(cache: Tensor, block_table: Tensor | None, sequence: int, length: int) -> Tensor:
    """Those of one sequence [length, E]."""
    if block_table is None:
        return cache[sequence, :length]
    return cache[block_table[sequence, : -(-length // cache.shape[1])].long()].flatten(0, 1)[:length]


def _check(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    index_q: Tensor,
    index_k_cache: Tensor,
    lengths: Tensor,
    block_table: Tensor | None,
    block_size: int,
    top_k: int,
) -> None:
    for name, count in (("block_size", block_size), ("top_k", top_k)):
        if count < 1:
            raise ValueError(f"{name}: {count}, must be at least 1")
    if q.ndim != 3 or 0 in q.shape:
        raise ValueError(f"q: shape {tuple(q.shape)}, must be [S, H, D] without an empty dimension")
    if k_cache.ndim != 4 or 0 in k_cache.shape or q.shape[1] % k_cache.shape[2]:
        raise ValueError(
            f"k_cache: shape {tuple(k_cache.shape)}, must be [S or pages, tokens, Hkv, D] with Hkv dividing "
            f"the {q.shape[1]} heads of q"
        )
    if index_k_cache.ndim != 3 or 0 in index_k_cache.shape:
        raise ValueError(
            f"index_k_cache: shape {tuple(index_k_cache.shape)}, must be [S or pages, tokens, E]"
        )
    places = tuple(k_cache.shape[:2]) if block_table is not None else (len(q), k_cache.shape[1])
    groups, head_dim, index_dim = k_cache.shape[2], q.shape[2], index_k_cache.shape[2]
    shapes = {
        "k_cache": (k_cache, (*places, groups, head_dim)),
        "v_cache": (v_cache, (*places, groups, head_dim)),
        "index_q": (index_q, (len(q), groups, index_dim)),
        "index_k_cache": (index_k_cache, (*places, index_dim)),
    }
    for name, (tensor, shape) in shapes.items():
        if tensor.shape != shape:
            raise ValueError(f"{name}: shape {tuple(tensor.shape)}, must be {shape}")
        if tensor.dtype != q.dtype or not q.dtype.is_floating_point:
            raise ValueError(f"{name}: dtype {tensor.dtype}, must be floating and that of q, {q.dtype}")
        if tensor.device != q.device:
            raise ValueError(f"{name}: on {tensor.device}, must be on {q.device} like q")
    if lengths.dtype != torch.int32 or lengths.shape != (len(q),):
        raise ValueError(
            f"lengths: {lengths.dtype} of shape {tuple(lengths.shape)}, must be int32 ({len(q)},)"
        )
    room = places[1]
    if block_table is not None:
        if block_table.dtype != torch.int32 or block_table.ndim != 2 or len(block_table) != len(q):
            raise ValueError(
                f"block_table: {block_table.dtype} of shape {tuple(block_table.shape)}, "
                f"must be int32 ({len(q)}, pages of a sequence)"
            )
        room *= block_table.shape[1]
    if lengths.min() < 1 or lengths.max() > room:
        raise ValueError(f"lengths: {lengths.tolist()}, each must be from 1 to {room}, the room of the cache")
    if block_table is not None:
        used = torch.arange(block_table.shape[1], device=q.device) * places[1] < lengths[:, None]
        wrong = (used & ((block_table < 0) | (block_table >= places[0]))).nonzero().tolist()
        if wrong:
            sequence, page = wrong[0]
            raise ValueError(
                f"block_table: {int(block_table[sequence, page])} for page {page} of sequence {sequence}, "
                f"must be from 0 to {places[0] - 1}"
            )
