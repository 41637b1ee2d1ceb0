"""Feed-forward layers: the gated MLP, the router and the mixture of experts.

Owns routing and the experts' matrix products. Experts are computed where the tokens are; spreading them over
ranks is not done here.

Letters: T tokens, M model width, F feed-forward width, X experts, K experts of a token, A = T x K assignments
of a token to an expert.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from trainer.model.config import ModelConfig


class SwiGLU(torch.autograd.Function):
    """(up + 1) · gate · sigmoid(alpha · gate) of clamped halves; gate stands first ("swigluoai").

    Written by hand because it is bound by memory: only the input is kept, and temporaries are reused.
    """

    @staticmethod
    def forward(ctx: Any, gate_up: Tensor, alpha: float, limit: float) -> Tensor:
        ctx.save_for_backward(gate_up)
        ctx.alpha, ctx.limit = alpha, limit
        gate, up = gate_up.chunk(2, dim=-1)
        gate = gate.clamp(max=limit)
        return (gate * alpha).sigmoid_().mul_(gate).mul_(up.clamp(-limit, limit).add_(1))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (gate_up,) = ctx.saved_tensors
        alpha, limit = ctx.alpha, ctx.limit
        gate_raw, up_raw = gate_up.chunk(2, dim=-1)
        gate = gate_raw.clamp(max=limit)
        sigmoid = (gate * alpha).sigmoid_()
        grad_gate_up = torch.empty_like(gate_up)
        grad_gate, grad_up = grad_gate_up.chunk(2, dim=-1)
        torch.mul(grad, sigmoid, out=grad_gate)
        torch.mul(grad_gate, gate, out=grad_up).mul_(up_raw.abs() <= limit)
        # d(g · sigmoid(a g)) = sigmoid · (1 + a g (1 - sigmoid))
        slope = sigmoid.neg_().add_(1).mul_(gate).mul_(alpha).add_(1)
        grad_gate.mul_(slope).mul_(up_raw.clamp(-limit, limit).add_(1)).mul_(gate_raw <= limit)
        return grad_gate_up, None, None


def swiglu(gate_up: Tensor, alpha: float, limit: float) -> Tensor:
    """Apply `SwiGLU` to [..., 2 F]; returns [..., F]."""
    return SwiGLU.apply(gate_up, alpha, limit)


class MLP(nn.Module):
    """The gated MLP of dense layers and of the shared expert."""

    def __init__(self, config: ModelConfig, width: int) -> None:
        super().__init__()
        self.gate_up_proj = nn.Linear(config.hidden_size, 2 * width, bias=False)
        self.down_proj = nn.Linear(width, config.hidden_size, bias=False)
        self.alpha, self.limit = config.swiglu_alpha, config.swiglu_limit

    def forward(self, hidden_TM: Tensor) -> Tensor:
        return self.down_proj(swiglu(self.gate_up_proj(hidden_TM), self.alpha, self.limit))


class Router(nn.Module):
    """Chooses experts by sigmoid score plus a balancing bias; the bias does not enter the weights."""

    bias: Tensor

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(config.num_experts, config.hidden_size))
        self.register_buffer("bias", torch.zeros(config.num_experts))
        self.num_chosen = config.num_experts_per_token

    def forward(self, hidden_TM: Tensor) -> tuple[Tensor, Tensor]:
        """Return the chosen experts [T, K] and their weights [T, K] in float32 or wider, which sum to one."""
        dtype = torch.promote_types(self.weight.dtype, torch.float32)
        with torch.autocast(hidden_TM.device.type, enabled=False):
            score_TX = torch.sigmoid(F.linear(hidden_TM.to(dtype), self.weight.to(dtype)))
        chosen_TK = (score_TX.detach() + self.bias).topk(self.num_chosen, dim=-1, sorted=False).indices
        weight_TK = score_TX.gather(-1, chosen_TK)
        return chosen_TK, weight_TK / weight_TK.sum(-1, keepdim=True)


class Experts(nn.Module):
    """All routed experts of a layer, their weights stacked."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        shape = (config.num_experts, config.hidden_size, config.intermediate_size)
        self.gate_up_proj = nn.Parameter(torch.empty(shape[0], 2 * shape[2], shape[1]))
        self.down_proj = nn.Parameter(torch.empty(shape))
        self.alpha, self.limit = config.swiglu_alpha, config.swiglu_limit

    def forward(self, hidden_AM: Tensor, weight_A: Tensor, load: list[int]) -> Tensor:
        """Apply the experts to assignments sorted by expert, `load[x]` for expert x, and weigh them."""
        slices = zip(hidden_AM.split(load), self.gate_up_proj.unbind(0), strict=True)
        gate_up_AF = torch.cat([F.linear(part, weight) for part, weight in slices])
        inner_AF = swiglu(gate_up_AF, self.alpha, self.limit) * weight_A[:, None].to(gate_up_AF.dtype)
        slices = zip(inner_AF.split(load), self.down_proj.unbind(0), strict=True)
        return torch.cat([F.linear(part, weight) for part, weight in slices])


class MixtureOfExperts(nn.Module):
    """Routed experts plus a shared one that sees every token."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.router = Router(config)
        self.experts = Experts(config)
        self.shared_expert = MLP(config, config.shared_intermediate_size)
        self.num_experts, self.scale = config.num_experts, config.routed_scaling_factor

    def forward(self, hidden_TM: Tensor) -> tuple[Tensor, Tensor]:
        """Return the layer's output [T, M] and how many tokens chose each expert [X]."""
        chosen_TK, weight_TK = self.router(hidden_TM)
        load_X = torch.bincount(chosen_TK.flatten(), minlength=self.num_experts)
        order_A = chosen_TK.flatten().argsort(stable=True)
        token_A = order_A // chosen_TK.shape[1]
        weight_A = self.scale * weight_TK.flatten().index_select(0, order_A)
        # index_select, not indexing: its gradient is a plain addition of rows.
        output_AM = self.experts(hidden_TM.index_select(0, token_A), weight_A, load_X.tolist())
        shared_TM = self.shared_expert(hidden_TM)
        return shared_TM.index_add(0, token_A, output_AM.to(shared_TM.dtype)), load_X
