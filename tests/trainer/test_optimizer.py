"""Optimiser: groups, schedule and clipping by component."""

import math

import pytest
import torch
from torch import nn

from tests.trainer import corpus
from trainer.model.model import OmniModel
from trainer.optimizer import (
    build_optimizer,
    clip_gradients,
    learning_rate_frac,
    set_learning_rate,
    trained_components,
)
from trainer.spec import OptimizerSpec


def test_only_matrices_decay_and_every_parameter_is_in_one_group() -> None:
    model = OmniModel(corpus.MODEL)
    optimizer = build_optimizer(model, model.components(), OptimizerSpec(weight_decay=0.1))
    decay = {id(p): group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
    assert len(decay) == sum(len(group["params"]) for group in optimizer.param_groups)
    for name, parameter in model.named_parameters():
        is_matrix = parameter.ndim >= 2 and "embed_tokens" not in name
        assert decay[id(parameter)] == (0.1 if is_matrix else 0.0), name


def test_first_step_moves_each_component_by_its_own_step_size() -> None:
    model = OmniModel(corpus.MODEL)
    spec = OptimizerSpec(learning_rate=0.5, weight_decay=0, learning_rate_scale={"vision": 0.1, "index": 2.0})
    optimizer = build_optimizer(model, model.components(), spec)
    before = [p.detach().clone() for p in model.parameters()]
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    set_learning_rate(optimizer, 0.5)
    optimizer.step()
    moved = {id(p): (old - p).mean().item() for p, old in zip(model.parameters(), before, strict=True)}
    scales = {"vision": 0.1, "projector": 1, "decoder": 1, "index": 2}
    for name, parameters in model.components().items():  # Adam's first step is the step size itself
        expected = [0.5 * scales[name]] * len(parameters)
        assert [moved[id(p)] for p in parameters] == pytest.approx(expected, rel=1e-4)


def test_a_scale_of_zero_freezes_the_component() -> None:
    model = OmniModel(corpus.MODEL)
    spec = OptimizerSpec(learning_rate_scale={"vision": 0})
    components = trained_components(model.components(), spec)
    assert set(components) == {"projector", "decoder", "index"}
    assert not any(p.requires_grad for p in model.components()["vision"])
    with pytest.raises(ValueError, match="nothing would train"):
        trained_components({"vision": [nn.Parameter(torch.ones(1))]}, spec)


def test_wsd_rises_stays_and_falls() -> None:
    spec = OptimizerSpec(warmup_frac=0.2, decay_frac=0.4, final_frac=0.1)
    found = [learning_rate_frac(step, 10, spec) for step in range(10)]
    assert found == pytest.approx([0.5, 1, 1, 1, 1, 1, 0.775, 0.55, 0.325, 0.1])


def test_cosine_rises_and_falls_to_its_end() -> None:
    spec = OptimizerSpec(schedule="cosine", warmup_frac=0.2, final_frac=0.0)
    found = [learning_rate_frac(step, 10, spec) for step in range(10)]
    assert found == pytest.approx([0.5, 1, *((1 + math.cos(math.pi * k / 8)) / 2 for k in range(1, 9))])


def test_each_component_is_clipped_on_its_own() -> None:
    large, small, bare = (nn.Parameter(torch.zeros(2)) for _ in range(3))
    large.grad, small.grad = torch.tensor([30.0, 40.0]), torch.tensor([0.3, 0.4])
    norms = clip_gradients({"vision": [large], "decoder": [small], "projector": [bare]}, 1.0)
    assert norms == pytest.approx({"vision": 50.0, "decoder": 0.5, "projector": 0.0})
    torch.testing.assert_close(large.grad, torch.tensor([0.6, 0.8]))
    assert torch.equal(small.grad, torch.tensor([0.3, 0.4])) and bare.grad is None


def test_gradients_that_are_not_finite_are_reported() -> None:
    parameter = nn.Parameter(torch.zeros(2))
    parameter.grad = torch.tensor([math.nan, 1.0])
    assert math.isnan(clip_gradients({"vision": [parameter]}, 1.0)["vision"])
