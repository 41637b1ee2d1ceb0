"""Decoder layers: norms, rotary positions, dense and sparse attention.

Owns the text side of the M3 architecture up to the last layer. The sparse attention itself is `kernels.msa`.

Letters: T tokens of all documents, M model width, H query heads, R key-value heads, D head width, E index
width, X experts.
"""

from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from kernels.msa import msa_attention
from trainer.model.config import ModelConfig
from trainer.model.experts import MLP, MixtureOfExperts

Phase = Literal["dense", "sparse"]
Rotary = tuple[Tensor, Tensor]
"""Cosine and sine [T, rotated pairs]."""


class RMSNormFunction(torch.autograd.Function):
    """x · rsqrt(mean(x²) + eps) · (1 + w) in float32; by hand: keeps only x and one number a row."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        mean_square = torch.linalg.vector_norm(wide, dim=-1, keepdim=True).square_() / x.shape[-1]
        inverse = (mean_square + eps).rsqrt_()
        ctx.save_for_backward(x, weight, inverse)
        ctx.set_materialize_grads(False)
        return (wide * inverse).mul_(1 + weight).to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor | None) -> tuple[Tensor | None, Tensor | None, None]:
        if grad is None:  # the index has no part in the language loss: that is no gradient, not one of zeros
            return None, None, None
        x, weight, inverse = ctx.saved_tensors
        normed, grad = x * inverse, grad.to(inverse.dtype)
        product = grad * normed
        grad_weight = product.flatten(0, -2).sum(0).to(weight.dtype)
        scale = 1 + weight
        mean = (product @ scale.to(product.dtype) / x.shape[-1])[..., None]
        grad_x = (grad * scale).sub_(normed.mul_(mean)).mul_(inverse)
        return grad_x.to(x.dtype), grad_weight, None


class RMSNorm(nn.Module):
    """RMS norm with weight 1 + w ("Gemma" style)."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return RMSNormFunction.apply(x, self.weight, self.eps)


def rotary_tables(positions_T: Tensor, rotary_dim: int, theta: float) -> Rotary:
    """Return cosine and sine of position times frequency; pair i turns at theta^(-2 i / rotary_dim)."""
    exponent = torch.arange(0, rotary_dim, 2, dtype=torch.float64, device=positions_T.device) / rotary_dim
    angle = positions_T[:, None] * theta**-exponent
    return angle.cos().float(), angle.sin().float()


def rotate(x: Tensor, rotary: Rotary) -> Tensor:
    """Rotate the leading dimensions of x [T, heads, width]; i pairs with i + pairs, the rest passes."""
    cos, sin = (table[:, None].to(x.dtype) for table in rotary)
    pairs = cos.shape[-1]
    first, second, rest = x.split([pairs, pairs, x.shape[-1] - 2 * pairs], dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin, rest], dim=-1)


def full_attention(q_THD: Tensor, k_TRD: Tensor, v_TRD: Tensor, cu_seqlens: Tensor) -> Tensor:
    """Causal attention [T, H, D] inside each document."""
    repeats = q_THD.shape[1] // k_TRD.shape[1]
    lengths = [length for length in cu_seqlens.diff().tolist() if length]
    q_HTD, k_HTD, v_HTD = (
        x.transpose(0, 1)
        for x in (q_THD, k_TRD.repeat_interleave(repeats, dim=1), v_TRD.repeat_interleave(repeats, dim=1))
    )
    documents = zip(*(x[None].split(lengths, dim=2) for x in (q_HTD, k_HTD, v_HTD)), strict=True)
    outputs = [F.scaled_dot_product_attention(q, k, v, is_causal=True)[0] for q, k, v in documents]
    return torch.cat(outputs, dim=1).transpose(0, 1)


class FullAttention(nn.Module):
    """Grouped-query attention over the whole document, for the first layers."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        heads, groups = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        self.q_proj = nn.Linear(config.hidden_size, heads, bias=False)
        self.k_proj = nn.Linear(config.hidden_size, groups, bias=False)
        self.v_proj = nn.Linear(config.hidden_size, groups, bias=False)
        self.o_proj = nn.Linear(heads, config.hidden_size, bias=False)
        self.q_norm = RMSNorm(config.head_dim, config.rms_norm_eps)
        self.k_norm = RMSNorm(config.head_dim, config.rms_norm_eps)

    def project(self, hidden_TM: Tensor, rotary: Rotary) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries and keys, normalised and rotated, and values."""
        q_THD, k_TRD, v_TRD = (
            project(hidden_TM).unflatten(-1, (-1, self.head_dim))
            for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        return rotate(self.q_norm(q_THD), rotary), rotate(self.k_norm(k_TRD), rotary), v_TRD

    def forward(
        self,
        hidden_TM: Tensor,
        rotary: Rotary,
        cu_seqlens: Tensor,
        phase: Phase,
    ) -> tuple[Tensor, Tensor | None]:
        """Return the output and the index KL, which a full layer does not have."""
        return self.o_proj(full_attention(*self.project(hidden_TM, rotary), cu_seqlens).flatten(1)), None


class SparseAttention(FullAttention):
    """Attention over the blocks that an index branch chooses; the branch sends no gradient to its input."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self.index_dim, self.block_size, self.top_k = config.index_dim, config.block_size, config.top_k_blocks
        self.index_q_proj = nn.Linear(config.hidden_size, config.num_kv_heads * config.index_dim, bias=False)
        self.index_k_proj = nn.Linear(config.hidden_size, config.index_dim, bias=False)
        self.index_q_norm = RMSNorm(config.index_dim, config.rms_norm_eps)
        self.index_k_norm = RMSNorm(config.index_dim, config.rms_norm_eps)

    def forward(
        self,
        hidden_TM: Tensor,
        rotary: Rotary,
        cu_seqlens: Tensor,
        phase: Phase,
    ) -> tuple[Tensor, Tensor | None]:
        """Return the output and the index KL."""
        index_q_TRE = self.index_q_proj(hidden_TM.detach()).unflatten(-1, (-1, self.index_dim))
        index_k_T1E = self.index_k_proj(hidden_TM.detach())[:, None]
        index_q_TRE = rotate(self.index_q_norm(index_q_TRE), rotary)
        index_k_TE = rotate(self.index_k_norm(index_k_T1E), rotary)[:, 0]
        attention = msa_attention(
            *self.project(hidden_TM, rotary),
            index_q_TRE,
            index_k_TE,
            cu_seqlens,
            block_size=self.block_size,
            top_k=self.top_k,
            phase=phase,
        )
        return self.o_proj(attention.out.flatten(1)), attention.index_kl


class DecoderLayer(nn.Module):
    """Attention and feed-forward, each behind a norm and beside a residual: dense ones first, then sparse."""

    def __init__(self, config: ModelConfig, sparse: bool) -> None:
        super().__init__()
        self.sparse = sparse
        self.attention_norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.attention = SparseAttention(config) if sparse else FullAttention(config)
        self.mlp_norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = MixtureOfExperts(config) if sparse else MLP(config, config.dense_intermediate_size)

    def forward(
        self,
        hidden_TM: Tensor,
        rotary: Rotary,
        cu_seqlens: Tensor,
        phase: Phase,
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Return the hidden states, and for a sparse layer the index KL and the experts' load [X]."""
        attention_TM, index_kl = self.attention(self.attention_norm(hidden_TM), rotary, cu_seqlens, phase)
        hidden_TM = hidden_TM + attention_TM
        if not self.sparse:
            return hidden_TM + self.mlp(self.mlp_norm(hidden_TM)), None, None
        mlp_TM, load_X = self.mlp(self.mlp_norm(hidden_TM))
        return hidden_TM + mlp_TM, index_kl, load_X
