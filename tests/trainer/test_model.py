"""The model: its parts, its inputs and what reaches which parameter."""

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from trainer.model.config import ModelConfig, VisionConfig
from trainer.model.decoder import RMSNorm, full_attention, rotary_tables, rotate
from trainer.model.experts import MixtureOfExperts, Router, swiglu
from trainer.model.model import ModelInputs, ModelOutput, OmniModel
from trainer.model.vision import patch_positions

CONFIG = ModelConfig(
    vocab_size=64,
    hidden_size=32,
    num_layers=3,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    rotary_dim=4,
    num_dense_layers=1,
    dense_intermediate_size=48,
    intermediate_size=16,
    shared_intermediate_size=16,
    num_experts=4,
    num_experts_per_token=2,
    index_dim=8,
    block_size=4,
    top_k_blocks=3,
    projector_hidden_size=24,
    vision=VisionConfig(hidden_size=24, intermediate_size=32, num_layers=2, num_heads=2, patch_size=4),
)
PLACEHOLDER = 63


def pack(*documents: ModelInputs) -> ModelInputs:
    """Several inputs as one packed batch."""
    lengths = [len(document.input_ids) for document in documents]
    joined = {
        name: torch.cat([getattr(document, name) for document in documents])
        for name in ("input_ids", "positions", "patches", "grids", "is_placeholder")
    }
    return ModelInputs(cu_seqlens=torch.tensor([0, *lengths]).cumsum(0).int(), **joined)


def document(num_tokens: int, grids: list[list[int]] | None = None, seed: int = 0) -> ModelInputs:
    """One document of random text whose pictures stand one token apart from its beginning on."""
    generator = torch.Generator().manual_seed(seed)
    ids, start = torch.randint(0, PLACEHOLDER, (num_tokens,), generator=generator), 1
    for t, h, w in grids or []:
        ids[start : start + t * h * w // 4] = PLACEHOLDER
        start += t * h * w // 4 + 1
    num_patches = sum(t * h * w for t, h, w in grids or [])
    return ModelInputs(
        ids,
        torch.arange(num_tokens),
        torch.tensor([0, num_tokens]).int(),
        torch.randn(num_patches, CONFIG.vision.patch_width, generator=generator),
        torch.tensor(grids or []).long().reshape(-1, 3),
        ids == PLACEHOLDER,
    )


def language_loss(model: OmniModel, inputs: ModelInputs, output: ModelOutput) -> Tensor:
    return F.cross_entropy(model.logits(output.hidden[:-1]), inputs.input_ids[1:])


def gradient_norms(model: OmniModel) -> dict[str, float]:
    """Norm of each component's gradient; NaN where a parameter has none at all."""
    norms = {}
    for name, parameters in model.components().items():
        grads = [parameter.grad for parameter in parameters]
        norms[name] = sum(float("nan") if grad is None else float(grad.norm()) for grad in grads)
    return norms


def test_the_default_model_has_five_to_ten_million_parameters() -> None:
    assert 5e6 < sum(parameter.numel() for parameter in OmniModel(ModelConfig()).parameters()) < 10e6


def test_components_hold_every_parameter_once() -> None:
    model = OmniModel(CONFIG)
    listed = [parameter for parameters in model.components().values() for parameter in parameters]
    assert len(listed) == len({id(parameter) for parameter in listed})
    assert {id(parameter) for parameter in listed} == {id(parameter) for parameter in model.parameters()}
    # Two projections and two norms in each of the two sparse layers.
    assert len(model.components()["index"]) == 2 * 4


def test_equal_seeds_give_equal_weights() -> None:
    weights = [OmniModel(CONFIG, seed=seed).state_dict() for seed in (1, 1, 2)]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    assert not torch.equal(weights[0]["lm_head.weight"], weights[2]["lm_head.weight"])


def test_weights_that_write_into_the_residual_stream_start_smaller() -> None:
    model = OmniModel(CONFIG)
    assert model.layers[0].attention.q_proj.weight.std().item() == pytest.approx(0.02, rel=0.1)
    assert model.layers[1].mlp.experts.down_proj.std().item() == pytest.approx(0.02 / 6**0.5, rel=0.1)
    assert model.vision_tower.patch_norm.weight.eq(1).all() and model.norm.weight.eq(0).all()


def test_language_loss_reaches_all_but_the_index_and_the_kl_only_the_index() -> None:
    model, inputs = OmniModel(CONFIG), pack(document(40, [[1, 4, 4], [2, 2, 4]]), document(30))
    output = model(inputs)
    language_loss(model, inputs, output).backward(retain_graph=True)
    norms = gradient_norms(model)
    assert math.isnan(norms.pop("index")) and all(norm > 0 for norm in norms.values())
    before = [parameter.grad.clone() for name, parameter in model.named_parameters() if ".index_" not in name]
    output.index_kl.backward()
    after = [parameter.grad for name, parameter in model.named_parameters() if ".index_" not in name]
    assert all(torch.equal(old, new) for old, new in zip(before, after, strict=True))
    assert gradient_norms(model)["index"] > 0


@pytest.mark.parametrize("phase", ["sparse", "dense"])
def test_a_text_batch_gives_vision_a_gradient_of_zero(phase: str) -> None:
    model, inputs = OmniModel(CONFIG), document(40)
    output = model(inputs, phase=phase)
    (language_loss(model, inputs, output) + output.index_kl).backward()
    norms = gradient_norms(model)
    assert norms["vision"] == norms["projector"] == 0
    assert norms["decoder"] > 0 and norms["index"] > 0


def test_packed_documents_do_not_see_each_other() -> None:
    model = OmniModel(CONFIG).eval()
    first, second = document(40, [[1, 4, 4]], seed=1), document(21, seed=2)
    third = document(50, [[2, 2, 2], [1, 2, 6]], seed=3)
    with torch.no_grad():
        packed = model(pack(first, second, third)).hidden.split([40, 21, 50])
        for part, alone in zip(packed, (first, second, third), strict=True):
            torch.testing.assert_close(part, model(alone).hidden, rtol=1e-5, atol=1e-6)


def test_a_later_token_and_a_later_picture_change_nothing_before() -> None:
    model, inputs = OmniModel(CONFIG).eval(), document(40, [[1, 4, 4], [1, 4, 4]])
    with torch.no_grad():
        before = model(inputs).hidden
        inputs.patches[16:] += 1
        after = model(inputs).hidden
    assert torch.equal(before[:6], after[:6]) and not torch.equal(before[6:], after[6:])


def test_the_model_runs_in_float64_and_under_autocast() -> None:
    inputs = document(40, [[1, 4, 4]])
    model = OmniModel(CONFIG).eval()
    with torch.no_grad():
        expected = model.logits(model(inputs).hidden)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            narrow = model.logits(model(inputs).hidden)
        inputs.patches = inputs.patches.double()
        wide = model.double()(inputs).hidden
    assert narrow.dtype == torch.float32 and wide.dtype == torch.float64
    assert (narrow - expected).norm() < 0.03 * expected.norm()


def test_balancing_moves_load_to_experts_that_had_little() -> None:
    model, inputs = OmniModel(CONFIG), document(400)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, Router):
                module.bias[:] = torch.tensor([0.3, 0.0, 0.0, -0.3])
        start = model(inputs).expert_load
        for _ in range(40):
            model.update_router_bias(model(inputs).expert_load, rate=0.02)
        end = model(inputs).expert_load
    assert start.sum(-1).tolist() == end.sum(-1).tolist() == [800, 800]
    assert (start.max(-1).values == 400).all() and (start.min(-1).values == 0).all()
    assert (end.max(-1).values < 320).all() and (end.min(-1).values > 80).all()


def test_experts_equal_the_sum_over_chosen_experts_token_by_token() -> None:
    layer = MixtureOfExperts(CONFIG).double()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
        layer.router.bias[:] = torch.tensor([0.0, 0.5, -0.5, 0.0])
        hidden = torch.randn(9, CONFIG.hidden_size, generator=generator, dtype=torch.float64)
        output, load = layer(hidden)
        scores = torch.sigmoid(hidden @ layer.router.weight.T)
        for token in range(9):
            chosen = (scores[token] + layer.router.bias).argsort(descending=True)[:2]
            expected = layer.shared_expert(hidden[token])
            for expert in chosen:
                gate_up = layer.experts.gate_up_proj[expert] @ hidden[token]
                inner = swiglu(gate_up, CONFIG.swiglu_alpha, CONFIG.swiglu_limit)
                weight = CONFIG.routed_scaling_factor * scores[token, expert] / scores[token, chosen].sum()
                expected = expected + weight * (layer.experts.down_proj[expert] @ inner)
            torch.testing.assert_close(output[token], expected)
    assert load.sum() == 18


def test_swiglu_has_the_value_and_gradient_of_its_formula() -> None:
    generator = torch.Generator().manual_seed(0)
    x = (torch.randn(5, 12, generator=generator, dtype=torch.float64) * 6).requires_grad_()
    gate, up = x[:, :6].clamp(max=7), x[:, 6:].clamp(-7, 7)
    plain = (up + 1) * gate * torch.sigmoid(1.702 * gate)
    weight = torch.linspace(-1, 1, 30, dtype=torch.float64).view(5, 6)
    assert (x.abs() > 7).any()
    torch.testing.assert_close(swiglu(x, 1.702, 7.0), plain)
    ours, expected = (torch.autograd.grad((y * weight).sum(), x)[0] for y in (swiglu(x, 1.702, 7.0), plain))
    torch.testing.assert_close(ours, expected)


def test_rms_norm_has_the_value_and_gradient_of_its_formula() -> None:
    norm, generator = RMSNorm(6, eps=1e-6).double(), torch.Generator().manual_seed(0)
    x = torch.randn(3, 4, 6, generator=generator, dtype=torch.float64, requires_grad=True)
    with torch.no_grad():
        norm.weight.copy_(torch.randn(6, generator=generator))
    inverse = (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt()
    torch.testing.assert_close(norm(x), x * inverse * (1 + norm.weight))

    def call(x: Tensor, weight: Tensor) -> Tensor:
        return torch.func.functional_call(norm, {"weight": weight}, (x,))

    assert torch.autograd.gradcheck(call, (x, norm.weight))


def test_rotation_depends_on_the_distance_only_and_passes_the_rest() -> None:
    generator = torch.Generator().manual_seed(0)
    q, k = (torch.randn(1, 1, 8, generator=generator).expand(20, 1, 8) for _ in range(2))
    tables = rotary_tables(torch.arange(20), 4, 100.0)
    q_rotated, k_rotated = rotate(q, tables)[:, 0], rotate(k, tables)[:, 0]
    products = q_rotated @ k_rotated.T
    torch.testing.assert_close(products[3:, 3:], products[:-3, :-3])
    assert torch.equal(q_rotated[:, 4:], q[:, 0, 4:]) and not torch.allclose(products[0, 0], products[0, 5])


def test_full_attention_ignores_empty_documents() -> None:
    q, k, v = (torch.randn(9, heads, 8) for heads in (4, 2, 2))
    without = full_attention(q, k, v, torch.tensor([0, 4, 9]).int())
    assert torch.equal(full_attention(q, k, v, torch.tensor([0, 4, 4, 9]).int()), without)


def test_patches_stand_in_merge_block_order() -> None:
    positions = patch_positions(torch.tensor([[1, 2, 4], [2, 2, 2]]), merge_size=2)
    rows_columns = [[0, 0], [0, 1], [1, 0], [1, 1], [0, 2], [0, 3], [1, 2], [1, 3]]
    assert positions[:8].tolist() == [[0, *place] for place in rows_columns]
    assert positions[8:, 0].tolist() == [0] * 4 + [1] * 4


@pytest.mark.parametrize(
    ("field", "change", "message"),
    [
        ("patches", lambda x: x[1:], r"patches: shape \(15, 96\)"),
        ("grids", lambda x: torch.tensor([[1, 16, 1]]), "grids: .*divide by 2"),
        ("is_placeholder", lambda x: x.roll(1) & x, "is_placeholder: 3 tokens"),
    ],
)
def test_pictures_that_do_not_fit_are_refused(
    field: str, change: Callable[[Tensor], Tensor], message: str
) -> None:
    inputs = document(20, [[1, 4, 4]])
    setattr(inputs, field, change(getattr(inputs, field)))
    with pytest.raises(ValueError, match=message):
        OmniModel(CONFIG)(inputs)
