"""The reference of MSA against its definition, token by token, and against dense attention."""

from itertools import pairwise
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from kernels.msa import MSAOutput, msa_attention, reference
from tests.kernels.tolerances import assert_close

Blocks = list[list[list[int]]]
NAMES = ("q", "k", "v", "index_q", "index_k")


def tensors(
    num_tokens: int,
    heads: int = 4,
    groups: int = 2,
    head_dim: int = 6,
    index_dim: int = 5,
    seed: int = 0,
    dtype: torch.dtype = torch.float64,
) -> list[Tensor]:
    """q, k, v, index_q and index_k as leaves."""
    generator = torch.Generator().manual_seed(seed)
    shapes = (
        (num_tokens, heads, head_dim),
        (num_tokens, groups, head_dim),
        (num_tokens, groups, head_dim),
        (num_tokens, groups, index_dim),
        (num_tokens, index_dim),
    )
    return [
        torch.randn(shape, generator=generator, dtype=torch.float64).mul(1.5).to(dtype).requires_grad_()
        for shape in shapes
    ]


def edges(*lengths: int) -> Tensor:
    return torch.tensor([0, *lengths]).cumsum(0).int()


def by_definition(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    index_q: Tensor,
    index_k: Tensor,
    cu_seqlens: Tensor,
    block_size: int,
    top_k: int,
    phase: str,
) -> tuple[Tensor, Tensor, Blocks, Tensor]:
    """Output, KL, block numbers and log-sum-exp for one query token and one group at a time."""
    group_size = q.shape[1] // k.shape[1]
    out, lse = torch.zeros_like(q), torch.zeros(q.shape[:2], dtype=q.dtype)
    kls, blocks = [], []
    for start, end in pairwise(cu_seqlens.tolist()):
        for position in range(end - start):
            query, blocks_of_token = start + position, []
            for group in range(k.shape[1]):
                scores = index_k[start : query + 1] @ index_q[query, group] / index_q.shape[-1] ** 0.5
                own = position // block_size
                best = [float(scores[b * block_size : (b + 1) * block_size].max()) for b in range(own)]
                ranked = sorted(range(own), key=lambda block: (-best[block], block))
                chosen = sorted([own, *ranked[: top_k - 1]])
                blocks_of_token.append(chosen)
                seen = [j for j in range(position + 1) if phase == "dense" or j // block_size in chosen]
                keys = start + torch.tensor(seen)
                probabilities = []
                for head in range(group * group_size, (group + 1) * group_size):
                    logits = k[keys, group] @ q[query, head] / q.shape[-1] ** 0.5
                    lse[query, head] = logits.logsumexp(0)
                    probabilities.append(logits.softmax(0))
                    out[query, head] = probabilities[-1] @ v[keys, group]
                teacher = torch.stack(probabilities).mean(0)
                kls.append((teacher * (teacher.log() - scores[seen].log_softmax(0))).sum())
            blocks.append(blocks_of_token)
    return out, torch.stack(kls).mean(), blocks, lse


@settings(max_examples=25)
@given(
    lengths=st.lists(st.integers(0, 40), min_size=1, max_size=3).filter(any),
    groups=st.integers(1, 3),
    group_size=st.integers(1, 3),
    block_size=st.integers(1, 9),
    top_k=st.integers(1, 5),
    phase=st.sampled_from(["sparse", "dense"]),
    chunk=st.sampled_from([8, 128]),
    seed=st.integers(0, 1000),
)
def test_agrees_with_the_definition(
    lengths: list[int],
    groups: int,
    group_size: int,
    block_size: int,
    top_k: int,
    phase: Any,
    chunk: int,
    seed: int,
) -> None:
    inputs = [x.detach() for x in tensors(sum(lengths), heads=groups * group_size, groups=groups, seed=seed)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reference, "CHUNK_QUERIES", chunk)
        result = msa_attention(*inputs, edges(*lengths), block_size=block_size, top_k=top_k, phase=phase)
    out, index_kl, blocks, lse = by_definition(*inputs, edges(*lengths), block_size, top_k, phase)
    assert_close(result.out, out, "out")
    assert_close(result.lse, lse, "lse")
    torch.testing.assert_close(result.index_kl, index_kl, rtol=1e-10, atol=1e-12)
    padded = [[chosen + [-1] * (top_k - len(chosen)) for chosen in of_token] for of_token in blocks]
    assert result.block_ids.tolist() == padded


def test_equals_dense_attention_when_every_block_is_kept() -> None:
    inputs = tensors(150)
    result = msa_attention(*inputs, edges(150), block_size=16, top_k=10)
    q, k, v = (x.detach().clone().requires_grad_() for x in inputs[:3])
    heads_first = (x.transpose(0, 1)[None] for x in (q, k, v))
    dense = F.scaled_dot_product_attention(*heads_first, is_causal=True, enable_gqa=True)[0].transpose(0, 1)
    assert_close(result.out, dense, "out")
    grad = torch.randn(dense.shape, generator=torch.Generator().manual_seed(1), dtype=dense.dtype)
    ours = torch.autograd.grad(result.out, inputs[:3], grad)
    for name, mine, theirs in zip(NAMES, ours, torch.autograd.grad(dense, (q, k, v), grad), strict=False):
        assert_close(mine, theirs, name)


def test_the_dense_phase_equals_dense_attention_and_still_reports_the_choice() -> None:
    inputs = tensors(150)
    dense = msa_attention(*inputs, edges(150), block_size=16, top_k=3, phase="dense")
    every_block = msa_attention(*inputs, edges(150), block_size=16, top_k=10)
    assert torch.equal(dense.out, every_block.out) and torch.equal(dense.index_kl, every_block.index_kl)
    assert torch.equal(dense.block_ids, msa_attention(*inputs, edges(150), block_size=16, top_k=3).block_ids)


def run(inputs: list[Tensor], cu_seqlens: Tensor) -> tuple[MSAOutput, tuple[Tensor, ...]]:
    """A sparse pass and the gradients of a fixed function of its output."""
    result = msa_attention(*inputs, cu_seqlens, block_size=8, top_k=3)
    loss = (result.out * torch.linspace(-1, 1, result.out.shape[-1])).sum() + result.index_kl * len(inputs[0])
    return result, torch.autograd.grad(loss, inputs)


def test_packed_documents_equal_separate_ones_to_the_bit() -> None:
    lengths = (70, 3, 140)
    inputs = tensors(sum(lengths), dtype=torch.float32)
    packed, packed_grads = run(inputs, edges(*lengths))
    for start, end in pairwise(edges(*lengths).tolist()):
        part = [x.detach()[start:end].clone().requires_grad_() for x in inputs]
        alone, alone_grads = run(part, edges(end - start))
        for name in ("out", "block_ids", "lse"):
            assert torch.equal(getattr(packed, name)[start:end], getattr(alone, name)), name
        for name, ours, theirs in zip(NAMES[:3], packed_grads, alone_grads, strict=False):
            assert torch.equal(ours[start:end], theirs), name
        for name, ours, theirs in zip(NAMES[3:], packed_grads[3:], alone_grads[3:], strict=True):
            torch.testing.assert_close(ours[start:end], theirs, rtol=1e-5, atol=1e-7, msg=name)


def test_the_own_block_is_always_read_and_takes_one_of_the_slots() -> None:
    inputs = [x.detach() for x in tensors(64)]
    inputs[3][:] = 1
    inputs[4][:] = torch.arange(64, 0, -1, dtype=torch.float64)[:, None]  # scores fall with position
    blocks = msa_attention(*inputs, edges(64), block_size=8, top_k=3).block_ids
    assert blocks[63].tolist() == [[0, 1, 7]] * 2
    assert msa_attention(*inputs, edges(64), block_size=8, top_k=1).block_ids[40].tolist() == [[5]] * 2


def test_ties_go_to_the_lower_block() -> None:
    inputs = [x.detach() for x in tensors(64)]
    inputs[4].zero_()
    blocks = msa_attention(*inputs, edges(64), block_size=8, top_k=4).block_ids
    assert blocks[63].tolist() == [[0, 1, 2, 7]] * 2
    assert blocks[20].tolist() == [[0, 1, 2, -1]] * 2


def test_changing_a_later_token_changes_nothing_before_it() -> None:
    inputs = [x.detach() for x in tensors(200, dtype=torch.float32)]
    before = msa_attention(*inputs, edges(200), block_size=8, top_k=3)
    for position in (199, 137, 64):
        changed = [x.clone() for x in inputs]
        for x in changed:
            x[position:] += 7
        after = msa_attention(*changed, edges(200), block_size=8, top_k=3)
        for name in ("out", "block_ids", "lse"):
            assert torch.equal(getattr(before, name)[:position], getattr(after, name)[:position]), name
        assert not torch.equal(before.out[position:], after.out[position:])


def test_the_index_gradient_is_student_minus_teacher() -> None:
    num_tokens, block_size, top_k = 60, 8, 3
    inputs = tensors(num_tokens, heads=4, groups=2)
    q, k, _, index_q, index_k = inputs
    result = msa_attention(*inputs, edges(num_tokens), block_size=block_size, top_k=top_k)
    grad_q, grad_k = torch.autograd.grad(result.index_kl, (index_q, index_k))
    with torch.no_grad():
        blocks = torch.arange(num_tokens) // block_size
        seen_TRT = (result.block_ids[..., None] == blocks).any(2)
        seen_TRT &= torch.arange(num_tokens) <= torch.arange(num_tokens)[:, None, None]
        scores = torch.einsum("tre,je->trj", index_q, index_k) / index_q.shape[-1] ** 0.5
        student = scores.masked_fill(~seen_TRT, -torch.inf).softmax(-1)
        logits = torch.einsum("trgd,jrd->trgj", q.unflatten(1, (2, 2)), k) / q.shape[-1] ** 0.5
        teacher = logits.masked_fill(~seen_TRT[:, :, None], -torch.inf).softmax(-1).mean(2)
        grad_scores = (student - teacher) / (num_tokens * 2) / index_q.shape[-1] ** 0.5
    assert_close(grad_q, torch.einsum("trj,je->tre", grad_scores, index_k), "index_q")
    assert_close(grad_k, torch.einsum("trj,tre->je", grad_scores, index_q), "index_k")


@pytest.mark.parametrize("phase", ["sparse", "dense"])
def test_kl_and_output_send_gradient_to_their_own_inputs_only(phase: Any) -> None:
    inputs = tensors(60, dtype=torch.float32)
    result = msa_attention(*inputs, edges(60), block_size=8, top_k=3, phase=phase)
    of_kl = torch.autograd.grad(result.index_kl, inputs, retain_graph=True, allow_unused=True)
    assert [grad is None for grad in of_kl] == [True, True, True, False, False]
    of_out = torch.autograd.grad(result.out.sum(), inputs, retain_graph=True, allow_unused=True)
    assert [grad is None for grad in of_out] == [False, False, False, True, True]
    of_both = torch.autograd.grad(result.out.sum() + result.index_kl, inputs)
    assert all(torch.equal(both, out) for both, out in zip(of_both[:3], of_out[:3], strict=True))
    assert not result.block_ids.requires_grad and not result.lse.requires_grad


@pytest.mark.parametrize("phase", ["sparse", "dense"])
def test_gradients_equal_finite_differences(phase: Any) -> None:
    q, k, v, index_q, index_k = tensors(14, heads=4, groups=2, head_dim=3, index_dim=2)

    def attend(*inputs: Tensor) -> MSAOutput:
        return msa_attention(*inputs, edges(3, 11), block_size=2, top_k=2, phase=phase)

    fixed_index = (index_q.detach(), index_k.detach())
    assert torch.autograd.gradcheck(lambda *qkv: attend(*qkv, *fixed_index).out, (q, k, v))
    fixed = (q.detach(), k.detach(), v.detach())
    assert torch.autograd.gradcheck(lambda a, b: attend(*fixed, a, b).index_kl, (index_q, index_k))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_narrow_types_agree_with_float64(dtype: torch.dtype) -> None:
    narrow = tensors(100, dtype=dtype)
    wide = [x.detach().double().requires_grad_() for x in narrow]
    (result, grads), (expected, expected_grads) = run(narrow, edges(60, 40)), run(wide, edges(60, 40))
    assert result.out.dtype == dtype and torch.equal(result.block_ids, expected.block_ids)
    assert_close(result.out, expected.out, "out")
    for name, ours, theirs in zip(NAMES, grads, expected_grads, strict=True):
        assert_close(ours, theirs, name)


def test_recomputing_long_documents_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = tensors(150, dtype=torch.float32)
    kept, kept_grads = run(inputs, edges(150))
    monkeypatch.setattr(reference, "RECOMPUTE_TOKENS", 100)
    recomputed, recomputed_grads = run(inputs, edges(150))
    assert torch.equal(kept.out, recomputed.out) and torch.equal(kept.index_kl, recomputed.index_kl)
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(kept_grads, recomputed_grads, strict=True))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"q": torch.zeros(9, 4)}, r"q: shape \(9, 4\)"),
        ({"q": torch.zeros(9, 4, 6, dtype=torch.int64)}, "q: dtype torch.int64"),
        ({"k": torch.zeros(9, 3, 6)}, r"k: shape \(9, 3, 6\)"),
        ({"v": torch.zeros(8, 2, 6)}, r"v: shape \(8, 2, 6\)"),
        ({"v": torch.zeros(9, 2, 6, dtype=torch.float16)}, "v: dtype torch.float16"),
        ({"index_q": torch.zeros(9, 4, 5)}, r"index_q: shape \(9, 4, 5\)"),
        ({"index_k": torch.zeros(9, 1, 5)}, r"index_k: shape \(9, 1, 5\)"),
        ({"cu_seqlens": torch.tensor([0, 9])}, "cu_seqlens: torch.int64"),
        ({"cu_seqlens": torch.tensor([0, 8]).int()}, r"cu_seqlens: \[0, 8\]"),
        ({"cu_seqlens": torch.tensor([0, 6, 4, 9]).int()}, r"cu_seqlens: \[0, 6, 4, 9\]"),
        ({"block_size": 0}, "block_size: 0"),
        ({"top_k": 0}, "top_k: 0"),
        ({"phase": "warm"}, "phase: 'warm'"),
        ({"impl": "cuda"}, r"impl: 'cuda', must be one of \['cpu', 'reference', 'triton'\]"),
    ],
)
def test_an_argument_that_does_not_fit_is_named(changes: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = dict(zip(NAMES, tensors(9, dtype=torch.float32), strict=True))
    arguments["cu_seqlens"] = edges(9)
    with pytest.raises(ValueError, match=message):
        msa_attention(**{**arguments, **changes})
