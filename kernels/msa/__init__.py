"""MiniMax Sparse Attention (MSA): a small index branch chooses blocks of keys, the heads attend to them.

Owns the public call, its argument checks and the choice of implementation. README.md has the derivation.
"""

from typing import Literal

import torch
from torch import Tensor

from kernels.msa import reference
from kernels.msa.reference import MSAOutput

__all__ = ["IMPLEMENTATIONS", "MSAOutput", "msa_attention"]

IMPLEMENTATIONS = {"reference": reference.msa_attention}


def msa_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    index_q: Tensor,
    index_k: Tensor,
    cu_seqlens: Tensor,
    *,
    block_size: int = 128,
    top_k: int = 16,
    phase: Literal["dense", "sparse"] = "sparse",
    impl: str | None = None,
) -> MSAOutput:
    """Attend from every token to its own block and the `top_k - 1` best earlier blocks of its document.

    Queries and keys come normalised and rotated; both scales (1/√D and 1/√E) are applied here. The index
    chooses for each token and KV head. `index_kl` sends gradient to `index_q` and `index_k` only, `out` to
    the other three only. In the dense phase every earlier token is attended and is in the KL; `block_ids`
    still tells what the index chose.

    Shapes:
        q [T, H, D]; k and v [T, Hkv, D]; index_q [T, Hkv, E]; index_k [T, E]; cu_seqlens [documents + 1]
        int32, the tokens of document i being cu_seqlens[i] up to cu_seqlens[i + 1]. Results: see `MSAOutput`.

    Raises:
        ValueError: for shapes, dtypes, `cu_seqlens` or options that do not fit.

    Source:
        arXiv:2606.13392, sections 2 and 3.
    """
    _check_tensors(q, k, v, index_q, index_k)
    _check_cu_seqlens(cu_seqlens, len(q))
    for name, count in (("block_size", block_size), ("top_k", top_k)):
        if count < 1:
            raise ValueError(f"{name}: {count}, must be at least 1")
    if phase not in ("dense", "sparse"):
        raise ValueError(f"phase: {phase!r}, must be 'dense' or 'sparse'")
    if impl is not None and impl not in IMPLEMENTATIONS:
        raise ValueError(f"impl: {impl!r}, must be one of {sorted(IMPLEMENTATIONS)} or None")
    return IMPLEMENTATIONS[impl or "reference"](
        q, k, v, index_q, index_k, cu_seqlens, block_size=block_size, top_k=top_k, phase=phase
    )


def _check_tensors(q: Tensor, k: Tensor, v: Tensor, index_q: Tensor, index_k: Tensor) -> None:
    if q.ndim != 3 or 0 in q.shape:
        raise ValueError(f"q: shape {tuple(q.shape)}, must be [T, H, D] without an empty dimension")
    if not q.dtype.is_floating_point:
        raise ValueError(f"q: dtype {q.dtype}, must be a floating type")
    num_tokens, num_heads, head_dim = q.shape
    if k.ndim != 3 or 0 in k.shape or num_heads % k.shape[1]:
        raise ValueError(
            f"k: shape {tuple(k.shape)}, must be [T, Hkv, D] with Hkv dividing the {num_heads} heads of q"
        )
    if index_k.ndim != 2 or 0 in index_k.shape:
        raise ValueError(f"index_k: shape {tuple(index_k.shape)}, must be [T, E] without an empty dimension")
    num_groups, index_dim = k.shape[1], index_k.shape[1]
    shapes = {
        "k": (k, (num_tokens, num_groups, head_dim)),
        "v": (v, (num_tokens, num_groups, head_dim)),
        "index_q": (index_q, (num_tokens, num_groups, index_dim)),
        "index_k": (index_k, (num_tokens, index_dim)),
    }
    for name, (tensor, shape) in shapes.items():
        if tensor.shape != shape:
            raise ValueError(f"{name}: shape {tuple(tensor.shape)}, must be {shape}")
        if tensor.dtype != q.dtype:
            raise ValueError(f"{name}: dtype {tensor.dtype}, must be that of q, {q.dtype}")
        if tensor.device != q.device:
            raise ValueError(f"{name}: on {tensor.device}, must be on {q.device} like q")


def _check_cu_seqlens(cu_seqlens: Tensor, num_tokens: int) -> None:
    if cu_seqlens.dtype != torch.int32 or cu_seqlens.ndim != 1 or len(cu_seqlens) < 2:
        raise ValueError(
            f"cu_seqlens: {cu_seqlens.dtype} of shape {tuple(cu_seqlens.shape)}, "
            "must be int32 [documents + 1]"
        )
    if cu_seqlens[0] != 0 or cu_seqlens[-1] != num_tokens or (cu_seqlens.diff() < 0).any():
        raise ValueError(
            f"cu_seqlens: {cu_seqlens.tolist()}, must rise from 0 to {num_tokens}, the tokens of q"
        )
