"""MiniMax Sparse Attention (MSA): a small index branch chooses blocks of keys, the heads attend to them.

Owns the public call, its argument checks and the choice of implementation. README.md has the derivation.
"""

from importlib.util import find_spec
from typing import Any, Literal

import torch
from torch import Tensor

from kernels.msa import cpu, reference
from kernels.msa.decode import msa_decode
from kernels.msa.reference import MSAOutput

__all__ = ["IMPLEMENTATIONS", "MSAOutput", "msa_attention", "msa_decode"]


def _triton_attention(*tensors: Tensor, **options: Any) -> MSAOutput:
    """Imports Triton when it is used: it does not exist for every system, and takes a second."""
    from kernels.msa import triton

    return triton.msa_attention(*tensors, **options)


IMPLEMENTATIONS = {
    "reference": reference.msa_attention,
    "cpu": cpu.msa_attention,
    "triton": _triton_attention,
}


def msa_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    index_q: Tensor,
    index_k: Tensor,
    cu_seqlens: Tensor,
    *,
    cu_seqlens_k: Tensor | None = None,
    block_size: int = 128,
    top_k: int = 16,
    phase: Literal["dense", "sparse"] = "sparse",
    block_ids: Tensor | None = None,
    impl: str | None = None,
) -> MSAOutput:
    """Attend from every token to its own block and the `top_k - 1` best earlier blocks of its document.

    Queries and keys come normalised and rotated; both scales (1/√D and 1/√E) are applied here. The index
    chooses for each token and KV head. `index_kl` sends gradient to `index_q` and `index_k` only, `out` to
    the other three only. In the dense phase every earlier token is attended and is in the KL; `block_ids`
    still tells what the index chose.

    With `cu_seqlens_k` a document may have more keys than queries: the queries are its last tokens, as in a
    prefill that continues a cache. With `block_ids` (sparse phase only) the index does not choose but these
    blocks are read, in any order, doubles once; a token that is given none gets zeros.

    `impl` is `reference` (any device, quadratic time, also float64), `cpu` (a C file built on first use) or
    `triton` (a GPU); None takes the fast one where it can run. `cpu` and `triton` give the same bits in every
    run, on a CPU for any number of threads.

    Shapes:
        q [T, H, D]; k and v [T, Hkv, D]; index_q [T, Hkv, E]; index_k [T, E]; cu_seqlens [documents + 1]
        int32, the tokens of document i being cu_seqlens[i] up to cu_seqlens[i + 1]. With cu_seqlens_k
        [documents + 1] int32, k, v and index_k have cu_seqlens_k[-1] tokens instead of T. block_ids [T, Hkv,
        top_k] int32, as in the result. Results: see `MSAOutput`.

    Raises:
        ValueError: for shapes, dtypes, `cu_seqlens` or options that do not fit, or values not finite.

    Source:
        arXiv:2606.13392, sections 2 and 3.
    """
    edges_k = cu_seqlens if cu_seqlens_k is None else cu_seqlens_k
    for name, count in (("block_size", block_size), ("top_k", top_k)):
        if count < 1:
            raise ValueError(f"{name}: {count}, must be at least 1")
    if phase not in ("dense", "sparse"):
        raise ValueError(f"phase: {phase!r}, must be 'dense' or 'sparse'")
    if impl is not None and impl not in IMPLEMENTATIONS:
        raise ValueError(f"impl: {impl!r}, must be one of {sorted(IMPLEMENTATIONS)} or None")
    tensors = {"q": q, "k": k, "v": v, "index_q": index_q, "index_k": index_k}
    _check_tensors(q, k, v, index_q, index_k, same_length=cu_seqlens_k is None)
    _check_edges("cu_seqlens", cu_seqlens, "q", len(q))
    if cu_seqlens_k is not None:
        _check_edges("cu_seqlens_k", cu_seqlens_k, "k", len(k))
        _check_suffixes(cu_seqlens, cu_seqlens_k)
    if block_ids is not None:
        if phase == "dense":
            raise ValueError(
                "block_ids: given, but phase 'dense' reads every earlier token; use phase='sparse'"
            )
        shape = (len(q), k.shape[1], top_k)
        block_ids = _check_block_ids(block_ids, shape, cu_seqlens, edges_k, block_size)
        _check_finite(tensors)  # what no token reads would not show in the results
    result = IMPLEMENTATIONS[impl or _by_device(q)](
        q,
        k,
        v,
        index_q,
        index_k,
        cu_seqlens,
        cu_seqlens_k=edges_k,
        block_size=block_size,
        top_k=top_k,
        phase=phase,
        block_ids=block_ids,
    )
    # Every token reads its own block, so that anything not finite in q, k or the index shows in these.
    if not torch.isfinite(result.index_kl) or result.lse.isnan().any() or not v.isfinite().all():
        _check_finite(tensors)
        raise ValueError(f"q, k, index_q, index_k: their products exceed the range of {result.lse.dtype}")
    return result


def _by_device(q: Tensor) -> str:
    """The fastest implementation that computes this tensor here."""
    if q.device.type == "cuda" and q.dtype != torch.float64 and find_spec("triton") is not None:
        return "triton"
    if q.device.type == "cpu" and q.dtype != torch.float64 and cpu.library(bf16=False) is not None:
        return "cpu"
    return "reference"


def _check_tensors(
    q: Tensor, k: Tensor, v: Tensor, index_q: Tensor, index_k: Tensor, same_length: bool
) -> None:
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
    num_keys = num_tokens if same_length else len(k)
    shapes = {
        "k": (k, (num_keys, num_groups, head_dim)),
        "v": (v, (num_keys, num_groups, head_dim)),
        "index_q": (index_q, (num_tokens, num_groups, index_dim)),
        "index_k": (index_k, (num_keys, index_dim)),
    }
    for name, (tensor, shape) in shapes.items():
        if tensor.shape != shape:
            raise ValueError(f"{name}: shape {tuple(tensor.shape)}, must be {shape}")
        if tensor.dtype != q.dtype:
            raise ValueError(f"{name}: dtype {tensor.dtype}, must be that of q, {q.dtype}")
        if tensor.device != q.device:
            raise ValueError(f"{name}: on {tensor.device}, must be on {q.device} like q")


def _check_edges(name: str, edges: Tensor, of: str, num_tokens: int) -> None:
    if edges.dtype != torch.int32 or edges.ndim != 1 or len(edges) < 2:
        raise ValueError(
            f"{name}: {edges.dtype} of shape {tuple(edges.shape)}, must be int32 [documents + 1]"
        )
    if edges[0] != 0 or edges[-1] != num_tokens or (edges.diff() < 0).any():
        raise ValueError(f"{name}: {edges.tolist()}, must rise from 0 to {num_tokens}, the tokens of {of}")


def _check_suffixes(cu_seqlens: Tensor, cu_seqlens_k: Tensor) -> None:
    if len(cu_seqlens) != len(cu_seqlens_k):
        raise ValueError(
            f"cu_seqlens_k: {len(cu_seqlens_k) - 1} documents, must be {len(cu_seqlens) - 1} as in cu_seqlens"
        )
    short = (cu_seqlens_k.diff() < cu_seqlens.diff()).nonzero().flatten().tolist()
    if short:
        raise ValueError(
            f"cu_seqlens_k: document {short[0]} has fewer keys than queries, which are its last tokens"
        )


def _check_block_ids(
    block_ids: Tensor, shape: tuple[int, ...], cu_seqlens: Tensor, cu_seqlens_k: Tensor, block_size: int
) -> Tensor:
    """Return the choice as an index would have made it: ascending, each block once, -1 after the last."""
    if block_ids.dtype != torch.int32 or block_ids.shape != shape:
        raise ValueError(
            f"block_ids: {block_ids.dtype} of shape {tuple(block_ids.shape)}, must be int32 {shape}"
        )
    lengths = cu_seqlens.diff().long()
    shift = (cu_seqlens_k[1:] - cu_seqlens[1:]).repeat_interleave(lengths)
    first = cu_seqlens_k[:-1].repeat_interleave(lengths)
    own_T11 = ((torch.arange(shape[0], device=block_ids.device) + shift - first) // block_size)[:, None, None]
    wrong = ((block_ids < -1) | (block_ids > own_T11)).nonzero()
    if len(wrong):
        token, group, slot = wrong[0].tolist()
        raise ValueError(
            f"block_ids: {int(block_ids[token, group, slot])} for token {token} of KV head {group}, must be "
            f"-1 or a block of its document up to its own, {int(own_T11[token])}"
        )
    past_all = torch.iinfo(torch.int32).max
    ids_TRK = torch.where(block_ids < 0, past_all, block_ids).sort(-1).values
    ids_TRK[..., 1:] = torch.where(ids_TRK[..., 1:] == ids_TRK[..., :-1], past_all, ids_TRK[..., 1:])
    ids_TRK = ids_TRK.sort(-1).values
    return torch.where(ids_TRK == past_all, -1, ids_TRK)


def _check_finite(tensors: dict[str, Tensor]) -> None:
    for name, tensor in tensors.items():
        finite = tensor.isfinite()
        if not finite.all():
            at = (~finite).nonzero()[0].tolist()
            raise ValueError(f"{name}: {float(tensor[tuple(at)])} at {at}, must be finite")
