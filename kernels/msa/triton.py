"""MSA on a GPU: the call that joins the Triton kernels, autograd included.

Owns the order of kernels, what is kept for the backward pass, and the choice of loop order. Kernels and their
launches: triton_forward.py, triton_backward.py; tables: triton_tiles.py. Letters as in reference.py.
"""

from typing import Any, Literal

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from kernels.msa import triton_backward, triton_forward, triton_tiles
from kernels.msa.reference import MSAOutput
from kernels.msa.triton_tiles import Call

MAX_WIDTH = 256
"""Of a head and of the index: a tile of wider rows does not fit."""
MAX_BLOCK = 1024
MAX_TOP_K = 64
QUERY_MAJOR_HEADS = 8
"""Heads of a group from which a single query's rows fill a tile well enough: see README.md, "On a GPU"."""


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
    loop_order: Literal["queries", "blocks"] | None = None,
) -> MSAOutput:
    """Attend with the Triton kernels; the same bits in every run. `loop_order` forces one, to measure it."""
    if q.dtype == torch.float64:
        raise ValueError("q: dtype torch.float64, which impl 'triton' does not compute; use impl='reference'")
    limits = {
        "q": (q.shape[2], MAX_WIDTH),
        "index_q": (index_q.shape[2], MAX_WIDTH),
        "block_size": (block_size, MAX_BLOCK),
        "top_k": (top_k, MAX_TOP_K),
    }
    for name, (size, limit) in limits.items():
        if size > limit:
            raise ValueError(f"{name}: size {size}, must be at most {limit} with impl 'triton'")
    call = triton_tiles.describe(
        q, index_q, cu_seqlens, cu_seqlens_k, block_size=block_size, top_k=top_k, dense=phase == "dense"
    )
    by_blocks = (loop_order or _loop_order(call)) == "blocks"
    return MSAOutput(*_Attention.apply(q, k, v, index_q, index_k, call, block_ids, by_blocks))


def _loop_order(call: Call) -> str:
    """Which order attends faster; a dense tile of queries needs no other order."""
    return "queries" if call.dense or call.group_size >= QUERY_MAJOR_HEADS else "blocks"


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        index_q: Tensor,
        index_k: Tensor,
        call: Call,
        block_ids: Tensor | None,
        by_blocks: bool,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        q, k, v, index_q, index_k = (x.contiguous() for x in (q, k, v, index_q, index_k))
        if block_ids is None:
            chosen_TRK = triton_forward.choose(call, index_q, index_k)
        else:
            chosen_TRK = block_ids.contiguous()
        attend = triton_forward.attend_queries
        if by_blocks and not call.dense:
            attend = triton_forward.attend_blocks
        out, lse = attend(call, q, k, v, chosen_TRK)
        kl_TR, index_lse = triton_forward.index_kl(call, q, k, index_q, index_k, chosen_TRK, lse)
        ctx.call = call
        ctx.save_for_backward(q, k, v, index_q, index_k, chosen_TRK, out, lse, index_lse)
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(chosen_TRK, lse)
        return out, kl_TR.mean(dtype=torch.float64).float(), chosen_TRK, lse

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, grad_out: Tensor | None, grad_kl: Tensor | None, *_: Tensor
    ) -> tuple[Tensor | None, ...]:
        call: Call = ctx.call
        q, k, v, index_q, index_k, chosen_TRK, out, lse, index_lse = ctx.saved_tensors
        grads: list[Tensor | None] = [None] * 5
        if grad_out is not None and any(ctx.needs_input_grad[:3]):
            grad_out = grad_out.contiguous()
            grads[0], delta = triton_backward.grad_queries(call, q, k, v, chosen_TRK, out, lse, grad_out)
            grads[1:3] = triton_backward.grad_keys_values(call, q, k, v, chosen_TRK, lse, delta, grad_out)
        if grad_kl is not None and any(ctx.needs_input_grad[3:5]):
            inputs = (call, q, k, index_q, index_k, chosen_TRK, lse, index_lse, grad_kl)
            grads[3] = triton_backward.grad_index_queries(*inputs)
            grads[4] = triton_backward.grad_index_keys(*inputs)
        return *grads, None, None, None
