"""MSA in transformers against the model's own attention, and where that is wrong against single documents."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import accelerate
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import (
    DynamicCache,
    MiniMaxM3SparseForConditionalGeneration,
    MiniMaxM3VLConfig,
    MiniMaxM3VLForCausalLM,
    StaticCache,
    Trainer,
    TrainingArguments,
)

from kernels.msa import MSAOutput, cpu, hf, msa_attention
from tests.kernels.tolerances import RELATIVE_RMS, relative_rms

IMAGE, VIDEO, PAD = 290, 291, 0
LOGITS_ERROR = 1e-5
Model = MiniMaxM3SparseForConditionalGeneration


def config(**changes: Any) -> MiniMaxM3VLConfig:
    text = {
        "vocab_size": 300,
        "hidden_size": 64,
        "intermediate_size": 32,
        "dense_intermediate_size": 96,
        "shared_intermediate_size": 32,
        "num_hidden_layers": 3,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "rotary_dim": 8,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "index_n_heads": 2,
        "index_head_dim": 16,
        "index_block_size": 8,
        "index_topk_blocks": 3,
        "layer_types": ["full_attention", "minimax_m3_sparse", "minimax_m3_sparse"],
        "mlp_layer_types": ["dense", "sparse", "sparse"],
        "rope_parameters": {"rope_type": "default", "rope_theta": 5e6, "partial_rotary_factor": 0.5},
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": PAD,
    }
    vision = {
        "hidden_size": 48,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "patch_size": 4,
    }
    return MiniMaxM3VLConfig(
        text_config={**text, **changes},
        vision_config=vision,
        image_token_index=IMAGE,
        video_token_index=VIDEO,
        projector_hidden_size=64,
        attn_implementation="eager",
    )


def make_model(**changes: Any) -> Model:
    """Its own attention; weights so large that every part shows in the logits."""
    torch.manual_seed(0)
    model = Model(config(**changes)).float().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.add_(torch.randn_like(parameter), alpha=0.1)
            else:
                parameter.mul_(4)
        for name, buffer in model.named_buffers():
            if "e_score" in name:
                buffer.normal_(std=0.05)
    return model


@pytest.fixture(scope="module")
def own() -> Model:
    return make_model()


@pytest.fixture
def ours(own: Model) -> Iterator[Model]:
    model = copy.deepcopy(own)
    hf.enable(model)
    yield model
    hf.disable(model)


def text(length: int, seed: int = 1) -> Tensor:
    return torch.randint(1, 280, (length,), generator=torch.Generator().manual_seed(seed))


def patches(count: int, seed: int) -> Tensor:
    return torch.randn(count, 3 * 2 * 4 * 4, generator=torch.Generator().manual_seed(seed))


@torch.no_grad()
def logits(model: Model, **inputs: Any) -> Tensor:
    return model(**inputs).logits


def difference(a: Tensor, b: Tensor) -> float:
    return float((a - b).detach().abs().max())


def text_inputs() -> dict[str, Tensor]:
    return {"input_ids": torch.stack([text(100), text(100, 2)])}


def image_inputs() -> dict[str, Tensor]:
    ids = torch.cat([text(30, 3), torch.full((6,), IMAGE), text(20, 4), torch.full((2,), IMAGE), text(40, 5)])
    grids = torch.tensor([[1, 4, 6], [1, 2, 4]])
    return {"input_ids": ids[None], "pixel_values": patches(32, 2), "image_grid_thw": grids}


def video_inputs() -> dict[str, Tensor]:
    frames = [part for index in range(4) for part in (text(9, 10 + index), torch.full((2,), VIDEO))]
    return {
        "input_ids": torch.cat([text(20, 8), torch.tensor([IMAGE]), *frames, text(40, 9)])[None],
        "pixel_values": patches(4, 6),
        "image_grid_thw": torch.tensor([[1, 2, 2]]),
        "pixel_values_videos": patches(32, 7),
        "video_grid_thw": torch.tensor([[3, 4, 2], [1, 4, 2]]),
    }


@pytest.mark.parametrize("inputs", [text_inputs, image_inputs, video_inputs])
def test_the_same_logits_as_its_own_attention(
    own: Model, ours: Model, inputs: Callable[[], dict[str, Tensor]]
) -> None:
    expected = logits(own, **inputs())
    assert float(expected.std()) > 0.3
    assert difference(logits(ours, **inputs()), expected) < LOGITS_ERROR


def test_the_selection_shows_in_the_logits(ours: Model) -> None:
    reading_all = make_model(index_topk_blocks=13)
    assert difference(logits(reading_all, **text_inputs()), logits(ours, **text_inputs())) > 0.1


def test_the_text_only_model_has_the_same_logits() -> None:
    torch.manual_seed(1)
    model = MiniMaxM3VLForCausalLM(config().text_config).eval()
    expected = logits(model, **text_inputs())
    hf.enable(model)
    assert difference(logits(model, **text_inputs()), expected) < LOGITS_ERROR


@pytest.mark.parametrize("records_gradients", [False, True])
@pytest.mark.parametrize("edges", [(0, 60, *range(61, 101)), (0, 7, 50, 51, 100), (0, 100)])
def test_a_prefill_in_pieces_and_decoding_give_the_same_logits(
    own: Model, ours: Model, edges: tuple[int, ...], records_gradients: bool
) -> None:
    ids = text_inputs()["input_ids"]
    expected, cache, parts = logits(own, input_ids=ids), DynamicCache(config=ours.config), []
    for start, end in pairwise(edges):
        with torch.set_grad_enabled(records_gradients):
            parts.append(ours(input_ids=ids[:, start:end], cache=cache, use_cache=True).logits)
    assert cache.get_seq_length() == 100
    assert difference(torch.cat(parts, 1), expected) < LOGITS_ERROR


@pytest.mark.parametrize("options", [{}, {"num_beams": 3}, {"do_sample": True}])
def test_generation_gives_the_same_tokens(own: Model, ours: Model, options: dict[str, Any]) -> None:
    for inputs in (text_inputs(), image_inputs()):
        tokens = []
        for model in (own, ours):
            torch.manual_seed(5)
            tokens.append(model.generate(**inputs, max_new_tokens=20, **{"do_sample": False, **options}))
        assert tokens[0].shape[1] == inputs["input_ids"].shape[1] + 20
        assert torch.equal(*tokens)


def padded(side: str) -> tuple[list[Tensor], dict[str, Tensor]]:
    """Three documents, and the batch of them."""
    documents = [text(100, 1), text(61, 2), text(83, 3)]
    rows = torch.full((3, 100), PAD)
    mask = torch.zeros(3, 100, dtype=torch.long)
    for row, document in enumerate(documents):
        place = slice(0, len(document)) if side == "right" else slice(100 - len(document), 100)
        rows[row, place], mask[row, place] = document, 1
    return documents, {"input_ids": rows, "attention_mask": mask}


@pytest.mark.parametrize("side", ["right", "left"])
def test_a_padded_batch_equals_its_documents_alone(own: Model, ours: Model, side: str) -> None:
    documents, batch = padded(side)
    result, of_own = logits(ours, **batch), logits(own, **batch)
    differences = []
    for row, document in enumerate(documents):
        expected = logits(own, input_ids=document[None])[0]
        is_token = batch["attention_mask"][row].bool()
        assert difference(result[row, is_token], expected) < LOGITS_ERROR
        differences.append(difference(of_own[row, is_token], expected))
    assert max(differences) > 0.1 if side == "left" else max(differences) < LOGITS_ERROR


def test_generating_from_a_left_padded_batch_equals_its_prompts_alone(own: Model, ours: Model) -> None:
    documents, batch = padded("left")
    together = ours.generate(**batch, max_new_tokens=20, do_sample=False)
    for row, document in enumerate(documents):
        alone = own.generate(input_ids=document[None], max_new_tokens=20, do_sample=False)
        assert torch.equal(together[row, 100:], alone[0, len(document) :])


def test_decoding_from_a_right_padded_batch_equals_its_documents_alone(own: Model, ours: Model) -> None:
    documents, batch = padded("right")
    cache, mask = DynamicCache(config=ours.config), batch["attention_mask"]
    logits(ours, **batch, cache=cache)
    lengths = torch.tensor([len(document) for document in documents])
    following = text(12, 9)
    steps = []
    for step, token in enumerate(following):  # slots of padding stay in the cache
        mask = torch.cat([mask, torch.ones(3, 1, dtype=torch.long)], dim=1)
        step_inputs = {"input_ids": token.expand(3, 1), "position_ids": (lengths + step)[:, None]}
        steps.append(logits(ours, **step_inputs, attention_mask=mask, cache=cache))
    for row, document in enumerate(documents):
        expected = logits(own, input_ids=torch.cat([document, following])[None])[0, len(document) :]
        assert difference(torch.cat(steps, 1)[row], expected) < LOGITS_ERROR


def packed() -> tuple[list[Tensor], dict[str, Tensor]]:
    """Documents one after the other, their borders inside blocks, in two rows of the same length."""
    documents = [text(length, length) for length in (50, 1, 75, 30, 96)]
    positions = torch.cat([torch.arange(len(document)) for document in documents])
    return documents, {
        "input_ids": torch.cat(documents).view(2, 126),
        "position_ids": positions.view(2, 126),
    }


def test_packed_documents_equal_the_documents_alone_where_its_own_attention_does_not(
    own: Model, ours: Model
) -> None:
    documents, batch = packed()
    expected = torch.cat([logits(own, input_ids=document[None])[0] for document in documents])
    assert difference(logits(ours, **batch).flatten(0, 1), expected) < LOGITS_ERROR
    assert difference(logits(own, **batch, use_cache=False).flatten(0, 1), expected) > 0.1


def test_a_packed_pass_makes_no_cache(ours: Model) -> None:
    with torch.no_grad():
        assert ours(**packed()[1]).cache is None
        batch = {**packed()[1], "attention_mask": torch.tensor([[1], [0]]).expand(2, 126)}
        assert ours(**batch).cache is None  # as many documents as rows, but both in one
        assert ours(**text_inputs()).cache is not None


Gradients = dict[str, Tensor | None]


def gradients(model: Model, loss: Tensor) -> Gradients:
    names, parameters = zip(*model.named_parameters(), strict=True)
    grads = torch.autograd.grad(loss, parameters, allow_unused=True, retain_graph=True)
    return dict(zip(names, grads, strict=True))


def of_index(grads: Gradients) -> dict[str, Tensor]:
    """Those of the index that there are."""
    return {name: grad for name, grad in grads.items() if "indexer" in name and grad is not None}


def assert_same_bits(result: Gradients, expected: Gradients) -> None:
    for name, grad in expected.items():
        assert grad is result[name] or torch.equal(grad, result[name]), name  # type: ignore[arg-type]  # both None


def labelled(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    ids = inputs["input_ids"]
    return {**inputs, "labels": torch.where((ids == IMAGE) | (ids == VIDEO) | (ids == PAD), -100, ids)}


@pytest.mark.parametrize("inputs", [text_inputs, image_inputs, video_inputs, lambda: padded("right")[1]])
def test_the_language_loss_has_the_same_gradients(
    own: Model, ours: Model, inputs: Callable[[], dict[str, Tensor]]
) -> None:
    batch = labelled(inputs())
    expected, result = gradients(own, own(**batch).loss), gradients(ours, ours(**batch).loss)
    for name, grad in expected.items():
        ours_grad = result[name]
        if grad is None or ours_grad is None:
            assert grad is ours_grad, name
        else:  # each may be as far from the truth as the table has it
            assert relative_rms(ours_grad, grad) < 2 * RELATIVE_RMS[torch.float32], name


@pytest.mark.parametrize(
    "inputs", [text_inputs, image_inputs, lambda: padded("left")[1], lambda: packed()[1]]
)
def test_the_index_learns_from_the_kl_only_and_nothing_else_does(
    own: Model, inputs: Callable[[], dict[str, Tensor]]
) -> None:
    batch, model = labelled(inputs()), copy.deepcopy(own)
    msa = hf.enable(model, kl_weight=0)
    loss = model(**batch).loss
    assert msa.index_kl is not None
    of_loss, of_kl = gradients(model, loss), gradients(model, msa.index_kl)
    of_both = gradients(model, loss + msa.index_kl)
    assert len(of_index(of_kl)) == 8 and all(grad.any() for grad in of_index(of_kl).values())
    assert not any(grad.any() for grad in of_index(of_loss).values())
    assert {name for name, grad in of_kl.items() if grad is not None} == set(of_index(of_kl))
    assert_same_bits({**of_loss, **of_index(of_kl)}, of_both)

    hf.disable(model)
    hf.enable(model)  # without an index that learns
    assert_same_bits(gradients(model, model(**batch).loss), {**of_loss, **dict.fromkeys(of_index(of_kl))})

    hf.disable(model)
    msa = hf.enable(model, kl_weight=0.5)  # a power of two: the scale changes no bit
    weighted = model(**batch).loss
    assert torch.equal(weighted, loss + 0.5 * msa.index_kl)
    halved = {name: grad * 0.5 for name, grad in of_index(of_kl).items()}
    assert_same_bits(gradients(model, weighted), {**of_loss, **halved})


@pytest.mark.parametrize("batch", [padded("left"), padded("right"), packed()])
def test_the_kl_is_the_mean_over_tokens_of_all_documents(
    own: Model, batch: tuple[list[Tensor], dict[str, Tensor]]
) -> None:
    documents, inputs = batch
    model = copy.deepcopy(own)
    msa = hf.enable(model, kl_weight=0)

    def kl(**inputs: Tensor) -> float:
        logits(model, **inputs)
        assert msa.index_kl is not None and not msa.index_kl.requires_grad
        return float(msa.index_kl)

    of_documents = [kl(input_ids=document[None]) * len(document) for document in documents]
    expected = sum(of_documents) / sum(len(document) for document in documents)
    assert abs(kl(**inputs) - expected) < 1e-5


def test_checkpointing_changes_no_bit_of_the_gradients(own: Model) -> None:
    model = copy.deepcopy(own).train()
    msa = hf.enable(model, kl_weight=0.5)
    batch = labelled(text_inputs())
    loss = model(**batch).loss
    expected, expected_kl = gradients(model, loss), msa.index_kl
    assert len(of_index(expected)) == 8
    model.activation_checkpointing_enable()
    first = model(**batch)
    kl = msa.index_kl
    model(**labelled(image_inputs()))  # another pass before the first one's layers are computed again
    result = gradients(model, first.loss)
    assert torch.equal(kl, expected_kl)  # type: ignore[arg-type]  # neither is None
    assert_same_bits(result, expected)


def test_layers_computed_again_for_the_backward_pass_keep_no_kl(
    own: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = copy.deepcopy(own).train()
    hf.enable(model, kl_weight=0.5)
    model.activation_checkpointing_enable()
    kls: list[weakref.ref[Tensor]] = []

    def attend(*args: Any, **kwargs: Any) -> MSAOutput:
        assert not any(kl() is not None for kl in kls[2:])  # those of layers computed again before this one
        result = msa_attention(*args, **kwargs)
        kls.append(weakref.ref(result.index_kl))
        return result

    monkeypatch.setattr(hf, "msa_attention", attend)
    model(**labelled(text_inputs())).loss.backward()
    assert len(kls) == 4


def test_checkpointing_that_would_lose_the_index_gradient_is_refused(own: Model) -> None:
    model = copy.deepcopy(own).train()
    msa = hf.enable(model, kl_weight=0.5)
    model.activation_checkpointing_enable({"use_reentrant": True})
    with pytest.raises(ValueError, match="use_reentrant: True, under which checkpointing loses"):
        model(**labelled(text_inputs()))
    assert logits(model.eval(), **text_inputs()).isfinite().all() and msa.index_kl is not None
    hf.disable(model)
    hf.enable(model.train())
    model(**labelled(text_inputs())).loss.backward()


def test_accumulated_steps_have_the_loss_of_one(own: Model) -> None:
    model = copy.deepcopy(own)
    hf.enable(model, kl_weight=0.5)
    rows = text_inputs()["input_ids"]
    whole = model(input_ids=rows, labels=rows).loss
    parts = [model(input_ids=row[None], labels=row[None], num_items_in_batch=198).loss for row in rows]
    assert difference(whole, sum(parts)) < 1e-5  # type: ignore[arg-type]  # a tensor
    with torch.no_grad():
        assert float(model(input_ids=rows, labels=rows).loss) < float(whole) - 0.05  # language loss only


def step_of_trainer(model: Model, folder: Path, accumulated: int) -> Gradients:
    """What one step of transformers' Trainer subtracts from each parameter, on a padded batch of four."""
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    rows = [{"input_ids": text(length, length)} for length in (60, 100, 75, 61)]

    def collate(rows: list[dict[str, Tensor]]) -> dict[str, Tensor]:
        ids = torch.nn.utils.rnn.pad_sequence([row["input_ids"] for row in rows], True, PAD)
        return {**labelled({"input_ids": ids}), "attention_mask": (ids != PAD).long()}

    arguments = TrainingArguments(
        str(folder),
        per_device_train_batch_size=4 // accumulated,
        gradient_accumulation_steps=accumulated,
        gradient_checkpointing=True,
        max_steps=1,
        max_grad_norm=0,
        optim="sgd",
        learning_rate=1.0,
        lr_scheduler_type="constant",
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
    )
    Trainer(model, arguments, train_dataset=rows, data_collator=collate).train()  # type: ignore[arg-type]
    return {name: before[name] - parameter.detach() for name, parameter in model.named_parameters()}


def test_a_step_of_the_trainer_does_not_depend_on_accumulation(own: Model, tmp_path: Path) -> None:
    whole, parts, untrained = (copy.deepcopy(own) for _ in range(3))
    for model, kl_weight in ((whole, 0.5), (parts, 0.5), (untrained, None)):
        hf.enable(model, kl_weight=kl_weight)
    expected, result = step_of_trainer(whole, tmp_path, 1), step_of_trainer(parts, tmp_path, 4)
    assert len(of_index(expected)) == 8
    for name, step in expected.items():
        if "language_model" in name:
            assert step is not None and step.any() and result[name] is not None
            # Accumulated KLs count by their targets, of which each document has one fewer than tokens.
            limit = 1e-2 if "indexer" in name else 1e-5
            assert relative_rms(result[name], step) < limit, name  # type: ignore[arg-type]  # a tensor
    assert not any(step.any() for step in of_index(step_of_trainer(untrained, tmp_path, 1)).values())


@pytest.mark.parametrize("under_autocast", [True, False])
def test_bfloat16_is_near(own: Model, under_autocast: bool) -> None:
    model, expected = copy.deepcopy(own), logits(own, **text_inputs())
    if not under_autocast:
        model = model.bfloat16()
    msa = hf.enable(model, kl_weight=0.5)
    with torch.autocast("cpu", torch.bfloat16, enabled=under_autocast):
        output = model(**labelled(text_inputs()))
    output.loss.backward()
    assert msa.index_kl is not None and msa.index_kl.dtype == torch.float32
    typical = (output.logits.detach().float() - expected).abs().median()
    assert float(typical) < 0.05 * float(expected.std())
    with torch.autocast("cpu", torch.bfloat16, enabled=under_autocast):
        tokens = model.generate(**text_inputs(), max_new_tokens=4, do_sample=False)
    assert tokens.shape == (2, 104)


class LargestTensor(TorchDispatchMode):
    """Number of values of the largest tensor made."""

    size = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for tensor in made if isinstance(made, (tuple, list)) else (made,):
            if isinstance(tensor, Tensor):
                self.size = max(self.size, tensor.numel())
        return made


@pytest.mark.skipif(cpu.library(bf16=False) is None, reason="no C compiler here")
def test_no_tensor_is_quadratic_in_the_length(own: Model) -> None:
    model, sizes = copy.deepcopy(own), []
    hf.enable(model, kl_weight=0.5)
    for length in (1024, 2048):
        row = text(length)[None]
        with LargestTensor() as largest:
            model(input_ids=row, labels=row).loss.backward()
            with torch.no_grad():
                cache = model(input_ids=row[:, :-300], use_cache=True).cache
                model(input_ids=row[:, -300:], cache=cache)
        sizes.append(largest.size)
    assert sizes[1] <= 2 * sizes[0] and sizes[1] < 2048 * 2048 / 4


def test_disabling_gives_its_own_attention_back(own: Model) -> None:
    model, batch = copy.deepcopy(own), labelled(text_inputs())
    before, names = model(**batch), set(model.state_dict())
    hf.enable(model, kl_weight=0.5)
    assert set(model.state_dict()) == names
    assert not torch.equal(model(**batch).loss, before.loss)
    hf.disable(model)
    after = model(**batch)
    assert torch.equal(after.logits, before.logits) and torch.equal(after.loss, before.loss)
    assert model.model.language_model.config._attn_implementation == "eager"
    assert not any("forward" in vars(module) for module in model.modules())


def test_a_copied_model_is_its_own(own: Model) -> None:
    model = copy.deepcopy(own)
    msa = hf.enable(model, kl_weight=0.5)
    twin = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.mul_(0.5)
    assert difference(logits(twin, **text_inputs()), logits(own, **text_inputs())) > 0.1
    assert msa.index_kl is None
    hf.disable(twin)
    assert difference(logits(model, **text_inputs()), logits(own, **text_inputs())) < LOGITS_ERROR


def test_a_model_with_hooks_of_accelerate_has_the_same_logits(own: Model) -> None:
    model = copy.deepcopy(own)
    for module in model.modules():
        accelerate.hooks.add_hook_to_module(module, accelerate.hooks.AlignDevicesHook("cpu"))
    expected = logits(model, **text_inputs())
    hf.enable(model)
    assert difference(logits(model, **text_inputs()), expected) < LOGITS_ERROR
    hf.disable(model)
    assert torch.equal(logits(model, **text_inputs()), expected)


def test_a_row_without_tokens_harms_no_other(own: Model, ours: Model) -> None:
    documents, batch = padded("right")
    batch["attention_mask"][1] = 0
    result = logits(ours, **batch)
    assert result.isfinite().all()
    assert difference(result[0], logits(own, input_ids=documents[0][None])[0]) < LOGITS_ERROR
    batch["attention_mask"][:] = 0
    assert logits(ours, **batch).isfinite().all()


def cached(model: Model) -> DynamicCache:
    return model(**text_inputs(), use_cache=True).cache


def offloading(model: Model) -> DynamicCache:
    """As `DynamicCache(offloading=True)`, which only a machine with a GPU can make."""
    cache = DynamicCache(config=model.config)
    cache.offloading = True
    return cache


IDS = torch.stack([text(20), text(20, 2)])


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"output_attentions": True}, "output_attentions: True, must be False"),
        ({"is_causal": False}, "is_causal: False, must be True"),
        ({"attention_mask": torch.ones(2, 1, 20, 20)}, r"attention_mask: shape \(2, 1, 20, 20\), must be"),
        ({"attention_mask": torch.ones(2, 19)}, r"attention_mask: shape \(2, 19\), must be \(2, 20\)"),
        ({"attention_mask": {"full_attention": None}}, "attention_mask: a dict, must be a tensor"),
        ({"position_ids": torch.arange(20)}, r"position_ids: shape \(20,\), must be \(2 or 1, 20\)"),
        ({"position_ids": 2 * torch.arange(20)[None]}, "position_ids: 2 after 0 in row 0, must rise by one"),
        (
            {"position_ids": torch.arange(20)[None] % 10, "use_cache": True},
            "position_ids: 4 documents in 2 rows, must be one in each",
        ),
        (
            {"position_ids": torch.arange(20)[None] % 10, "cache": cached},
            "position_ids: 0 in row 0 begins a document, but the cache has 100 tokens of another",
        ),
        (
            {"position_ids": 100 + torch.arange(20)[None] % 10, "cache": cached},
            "position_ids: 100 in row 0 begins a document, but the cache has 100",
        ),
        (
            {"attention_mask": torch.ones(2, 20), "cache": cached},
            r"attention_mask: shape \(2, 20\), must be \(2, 120\)",
        ),
        ({"cache": DynamicCache()}, r"cache: a DynamicCache of 0 layers \(none\), must be made for"),
        (
            {"cache": lambda model: StaticCache(config=model.config, max_cache_len=99)},
            "cache: StaticCache, must be a DynamicCache",
        ),
        (
            {"cache": offloading},
            "cache: a DynamicCache with offloading=True",
        ),
    ],
)
def test_what_a_pass_cannot_do_is_named(ours: Model, inputs: dict[str, Any], message: str) -> None:
    made = {name: value(ours) if callable(value) else value for name, value in inputs.items()}
    with pytest.raises(ValueError, match=message):
        logits(ours, input_ids=IDS, **made)


def test_what_a_model_cannot_do_is_named(own: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="model: Linear, must be a MiniMaxM3SparseForConditionalGeneration"):
        hf.enable(torch.nn.Linear(1, 1))
    with pytest.raises(ValueError, match="model: MiniMaxM3VLModel, must be"):
        hf.enable(own.model)
    with pytest.raises(ValueError, match="model: does not have this attention"):
        hf.disable(own)
    with pytest.raises(ValueError, match=r"kl_weight: -1, must be None or finite and at least 0"):
        hf.enable(own, kl_weight=-1)
    with pytest.raises(ValueError, match=r"config.index_n_heads: 4, must be the number of KV heads, 2"):
        hf.enable(make_model(index_n_heads=4))
    with pytest.raises(ValueError, match=r"config.index_local_blocks: 2, must be 1"):
        hf.enable(make_model(index_local_blocks=2))
    frozen = copy.deepcopy(own).requires_grad_(False)
    with pytest.raises(
        ValueError, match=r"kl_weight: 0.5, must be None: no parameter of 2 indexers requires"
    ):
        hf.enable(frozen, kl_weight=0.5)
    with monkeypatch.context() as patch:
        patch.setattr("transformers.__version__", "5.22.3")
        with pytest.raises(ValueError, match=r"transformers: version 5.22.3, must be at least 5.23"):
            hf.enable(own)
    model = make_model(attention_dropout=0.1)
    hf.enable(model)
    with pytest.raises(ValueError, match="model: has this attention already"):
        hf.enable(model)
    with pytest.raises(ValueError, match=r"config.attention_dropout: 0.1, must be 0 in training"):
        model.train()(input_ids=IDS)
    model.eval()
    with pytest.raises(ValueError, match="attention_mask: a NoneType; call the model, not its layers"):
        rotation = torch.ones(1, 2, 8), torch.zeros(1, 2, 8)
        model.model.language_model.layers[0](torch.zeros(1, 2, 64), rotation)
    with pytest.raises(ValueError, match="cache: StaticCache, must be a DynamicCache"):
        model.generate(input_ids=IDS, max_new_tokens=2, cache_implementation="static")
    model.set_attn_implementation("sdpa")
    with pytest.raises(ValueError, match="attn_implementation: 'sdpa', set since enable"):
        model(input_ids=IDS)
    hf.disable(model)
    assert model(input_ids=IDS).logits.isfinite().all()
