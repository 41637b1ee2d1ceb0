"""AdamW by component, its step size over time, and clipping by component.

Owns parameter groups, schedule and clipping. Components are those of `OmniModel.components()`.
"""

import math
from collections.abc import Mapping, Sequence

import torch
from torch import nn

from trainer.spec import OptimizerSpec


def trained_components(
    components: Mapping[str, Sequence[nn.Parameter]], spec: OptimizerSpec
) -> dict[str, list[nn.Parameter]]:
    """Return the components whose step size is not 0; the parameters of the others stop taking gradients.

    Raises:
        ValueError: everything is frozen.
    """
    trained = {}
    for name, parameters in components.items():
        if spec.learning_rate_scale.get(name, 1.0) == 0:  # type: ignore[call-overload]
            for parameter in parameters:
                parameter.requires_grad_(False)
        elif parameters:
            trained[name] = list(parameters)
    if not trained:
        raise ValueError("optimizer.learning_rate_scale: every component is 0, so nothing would train")
    return trained


def build_optimizer(
    model: nn.Module, components: Mapping[str, Sequence[nn.Parameter]], spec: OptimizerSpec
) -> torch.optim.AdamW:
    """Return AdamW with two groups a component: matrices with weight decay, and norms, biases and embeddings
    without.

    Moments exist from the start, so a parameter that has had no gradient yet (a vision tower before the first
    picture) is saved and restored like any other.
    """
    embeddings = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    groups = []
    for name, parameters in components.items():
        matrices = [p for p in parameters if p.ndim >= 2 and id(p) not in embeddings]
        others = [p for p in parameters if p.ndim < 2 or id(p) in embeddings]
        scale = spec.learning_rate_scale.get(name, 1.0)  # type: ignore[call-overload]
        groups += [
            {"params": chosen, "component": name, "scale": scale, "weight_decay": decay}
            for chosen, decay in ((matrices, spec.weight_decay), (others, 0.0))
            if chosen
        ]
    optimizer = torch.optim.AdamW(groups, lr=spec.learning_rate, betas=spec.betas, eps=spec.eps)
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            optimizer.state[parameter] = {
                "step": torch.tensor(0.0),
                "exp_avg": torch.zeros_like(parameter),
                "exp_avg_sq": torch.zeros_like(parameter),
            }
    return optimizer


def learning_rate_frac(step: int, num_steps: int, spec: OptimizerSpec) -> float:
    """Return the step size of step `step` (0 is the first) as a fraction of the peak.

    It rises linearly over `warmup_frac` of the steps. WSD then stays at 1 and falls linearly to `final_frac`
    over the last `decay_frac`; cosine falls from the end of the warm-up on.
    """
    warmup = round(spec.warmup_frac * num_steps)
    if step < warmup:
        return (step + 1) / warmup
    decay = round(spec.decay_frac * num_steps) if spec.schedule == "wsd" else num_steps - warmup
    done = max(0.0, (step + 1 - (num_steps - decay)) / decay) if decay else 0.0
    shape = 1 - done if spec.schedule == "wsd" else (1 + math.cos(math.pi * done)) / 2
    return spec.final_frac + (1 - spec.final_frac) * shape


def set_learning_rate(optimizer: torch.optim.Optimizer, learning_rate: float) -> None:
    """Set the step size of every group: `learning_rate` times its component's scale."""
    for group in optimizer.param_groups:
        group["lr"] = learning_rate * group["scale"]


def clip_gradients(components: Mapping[str, Sequence[nn.Parameter]], max_norm: float) -> dict[str, float]:
    """Clip each component's gradients to `max_norm` on its own and return the norms before clipping.

    A component without gradients has norm 0. Gradients that are not finite stay as they are: the step is
    skipped.
    """
    norms = {}
    for name, parameters in components.items():
        gradients = [p.grad for p in parameters if p.grad is not None]
        norm = float(torch.nn.utils.get_total_norm(gradients)) if gradients else 0.0
        if math.isfinite(norm) and norm > max_norm:
            for gradient in gradients:
                gradient.mul_(max_norm / norm)
        norms[name] = norm
    return norms
