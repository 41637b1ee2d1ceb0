"""MSA's C kernels against the reference in float64, outputs and all gradients, and what callers rely on."""

import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from kernels.msa import MSAOutput, cpu, msa_attention
from tests.kernels.test_msa_reference import NAMES, edges, tensors
from tests.kernels.tolerances import assert_close

pytestmark = pytest.mark.skipif(cpu.library(bf16=False) is None, reason="no C compiler here")


def run(inputs: list[Tensor], cu_seqlens: Tensor, **options: Any) -> tuple[MSAOutput, tuple[Tensor, ...]]:
    """Outputs, and the gradients of a fixed function of them."""
    result = msa_attention(*inputs, cu_seqlens, **options)
    weights = torch.linspace(-1, 1, result.out.numel(), dtype=torch.float64).reshape(result.out.shape)
    loss = (result.out.double() * weights).sum() + result.index_kl.double() * len(inputs[0])
    return result, torch.autograd.grad(loss, inputs)


def widened(inputs: list[Tensor]) -> list[Tensor]:
    return [x.detach().double().requires_grad_() for x in inputs]


def assert_agrees(inputs: list[Tensor], cu_seqlens: Tensor, **options: Any) -> None:
    """With the reference in float64 reading the same blocks: near ties may be broken otherwise in float32."""
    dtype = inputs[0].dtype
    result, grads = run(inputs, cu_seqlens, impl="cpu", **options)
    replay = {} if options.get("phase") == "dense" else {"block_ids": result.block_ids}
    expected, expected_grads = run(widened(inputs), cu_seqlens, impl="reference", **{**options, **replay})
    assert result.out.dtype == dtype
    for name in ("out", "lse"):
        assert_close(getattr(result, name), getattr(expected, name), name, dtype)
    assert abs(float(result.index_kl) - float(expected.index_kl)) <= 1e-5 * max(1, float(expected.index_kl))
    largest = max(float(grad.double().norm()) for grad in expected_grads[3:])
    for name, ours, theirs in zip(NAMES, grads, expected_grads, strict=True):
        if float(theirs.double().norm()) > 1e-6 * max(largest, 1):  # not where all that is left is rounding
            assert_close(ours, theirs, name, dtype)


@settings(max_examples=40)
@given(
    lengths=st.lists(st.integers(0, 150), min_size=1, max_size=3).filter(lambda x: sum(x) > 1),
    groups=st.integers(1, 2),
    group_size=st.sampled_from([1, 2, 3, 8, 16]),
    head_dim=st.sampled_from([16, 40, 64, 128]),
    index_dim=st.sampled_from([16, 24, 128]),
    block_size=st.sampled_from([4, 8, 20, 32, 64]),
    top_k=st.integers(1, 6),
    phase=st.sampled_from(["sparse", "dense"]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
    seed=st.integers(0, 1000),
)
def test_agrees_with_the_reference_in_float64(
    lengths: list[int],
    groups: int,
    group_size: int,
    head_dim: int,
    index_dim: int,
    block_size: int,
    top_k: int,
    phase: str,
    dtype: torch.dtype,
    seed: int,
) -> None:
    inputs = tensors(sum(lengths), groups * group_size, groups, head_dim, index_dim, seed, dtype)
    assert_agrees(inputs, edges(*lengths), block_size=block_size, top_k=top_k, phase=phase)


@pytest.mark.parametrize("phase", ["sparse", "dense"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_published_geometry_agrees(dtype: torch.dtype, phase: str) -> None:
    inputs = tensors(900, heads=16, groups=1, head_dim=128, index_dim=128, dtype=dtype)
    assert_agrees(inputs, edges(700, 200), block_size=128, top_k=3, phase=phase)


def test_the_same_blocks_as_the_reference() -> None:
    inputs = [x.detach() for x in tensors(700, index_dim=16, dtype=torch.float32)]
    options: dict[str, Any] = {"block_size": 8, "top_k": 5}
    ours = msa_attention(*inputs, edges(500, 200), impl="cpu", **options)
    wide = [x.double() for x in inputs]
    assert torch.equal(ours.block_ids, msa_attention(*wide, edges(500, 200), **options).block_ids)
    inputs[4].zero_()
    tied = msa_attention(*inputs, edges(700), impl="cpu", **options).block_ids
    assert tied[699].tolist() == [[0, 1, 2, 3, 87]] * 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_packing_changes_no_bit(dtype: torch.dtype) -> None:
    lengths = (170, 3, 0, 340)
    inputs = tensors(sum(lengths), head_dim=32, index_dim=32, dtype=dtype)
    options: dict[str, Any] = {"block_size": 16, "top_k": 3, "impl": "cpu"}
    packed, packed_grads = run_sum(inputs, edges(*lengths), **options)
    for start, end in pairwise(edges(*lengths).tolist()):
        if start == end:
            continue
        part = [x.detach()[start:end].clone().requires_grad_() for x in inputs]
        alone, alone_grads = run_sum(part, edges(end - start), **options)
        for name in ("out", "block_ids", "lse"):
            assert torch.equal(getattr(packed, name)[start:end], getattr(alone, name)), name
        for name, ours, theirs in zip(NAMES, packed_grads, alone_grads, strict=True):
            assert torch.equal(ours[start:end], theirs), name


def run_sum(inputs: list[Tensor], cu_seqlens: Tensor, **options: Any) -> tuple[MSAOutput, tuple[Tensor, ...]]:
    """As `run`, with a loss in which a token weighs the same in any packing."""
    result = msa_attention(*inputs, cu_seqlens, **options)
    index_weight = result.index_kl.new_tensor(float(len(inputs[0])))
    grads = torch.autograd.grad(
        (result.out, result.index_kl), inputs, (torch.ones_like(result.out), index_weight)
    )
    return result, grads


@pytest.mark.parametrize("phase", ["sparse", "dense"])
def test_the_number_of_threads_changes_no_bit(phase: str) -> None:
    inputs = tensors(1100, head_dim=32, index_dim=32, dtype=torch.bfloat16)
    options: dict[str, Any] = {"block_size": 16, "top_k": 3, "phase": phase, "impl": "cpu"}
    before = torch.get_num_threads()
    results = []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            results.append(run(inputs, edges(900, 200), **options))
    finally:
        torch.set_num_threads(before)
    for result, grads in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(result, results[0][0], strict=True))
        assert all(torch.equal(a, b) for a, b in zip(grads, results[0][1], strict=True))


@pytest.mark.parametrize("impl", ["cpu", "reference"])
def test_the_kl_leaves_the_backbones_gradients_untouched(impl: str) -> None:
    inputs = tensors(200, head_dim=32, index_dim=32, dtype=torch.float32)
    result = msa_attention(*inputs, edges(200), block_size=8, top_k=3, impl=impl)
    of_kl = torch.autograd.grad(result.index_kl, inputs, retain_graph=True, allow_unused=True)
    of_out = torch.autograd.grad(result.out.sum(), inputs, retain_graph=True, allow_unused=True)
    of_both = torch.autograd.grad(result.out.sum() + result.index_kl, inputs)
    assert [grad is None for grad in of_kl] == [True] * 3 + [False] * 2
    assert [grad is None for grad in of_out] == [False] * 3 + [True] * 2
    for both, out, kl in zip(of_both, of_out, of_kl, strict=True):
        assert torch.equal(both, out if kl is None else kl)  # type: ignore[arg-type]


@pytest.mark.parametrize("impl", ["cpu", "reference"])
def test_a_prefill_in_chunks_equals_one_in_a_whole(impl: str) -> None:
    dtype = torch.float32 if impl == "cpu" else torch.float64
    inputs = [x.detach() for x in tensors(300, head_dim=32, index_dim=32, dtype=dtype)]
    options: dict[str, Any] = {"block_size": 16, "top_k": 4, "impl": impl}
    whole = msa_attention(*inputs, edges(300), **options)
    q, k, v, index_q, index_k = inputs
    for first, end in pairwise((0, 90, 91, 230, 300)):
        part = msa_attention(
            q[first:end],
            k[:end],
            v[:end],
            index_q[first:end],
            index_k[:end],
            edges(end - first),
            cu_seqlens_k=edges(end),
            **options,
        )
        assert torch.equal(part.block_ids, whole.block_ids[first:end])
        assert_close(part.out, whole.out[first:end], "out")
        assert_close(part.lse, whole.lse[first:end], "lse")


@pytest.mark.parametrize("impl", ["cpu", "reference"])
def test_a_given_choice_is_read_in_any_order_and_nothing_gives_zeros(impl: str) -> None:
    inputs = tensors(120, head_dim=32, index_dim=32, dtype=torch.float32)
    options: dict[str, Any] = {"block_size": 8, "top_k": 4, "impl": impl}
    result, grads = run(inputs, edges(70, 50), **options)
    flipped = result.block_ids.flip(-1)
    again, again_grads = run(inputs, edges(70, 50), block_ids=flipped, **options)
    assert all(torch.equal(a, b) for a, b in zip(result, again, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(grads, again_grads, strict=True))
    given_ids = result.block_ids.clone()
    given_ids[5] = -1
    given_ids[100] = 0  # four times the same
    emptied, emptied_grads = run(inputs, edges(70, 50), block_ids=given_ids, **options)
    assert not emptied.out[5].any() and (emptied.lse[5] == -torch.inf).all()
    assert emptied.block_ids[100].tolist() == [[0, -1, -1, -1]] * 2
    assert all(grad.isfinite().all() for grad in emptied_grads)
    assert not emptied_grads[0][5].any() and not emptied_grads[3][5].any()


@pytest.mark.parametrize("impl", ["cpu", "reference"])
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_value_that_is_not_finite_is_named(impl: str, name: str, value: float) -> None:
    inputs = dict(zip(NAMES, (x.detach() for x in tensors(50, dtype=torch.float32)), strict=True))
    inputs[name].view(-1)[7] = value
    with pytest.raises(ValueError, match=rf"{name}: {value} at \[.*\], must be finite"):
        msa_attention(**inputs, cu_seqlens=edges(50), block_size=8, top_k=2, impl=impl)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"q": torch.zeros(9, 4, 6, dtype=torch.float64)}, "k: dtype torch.float32"),
        ({"cu_seqlens_k": edges(8)}, r"cu_seqlens_k: \[0, 8\], must rise from 0 to 9"),
        ({"cu_seqlens_k": edges(4, 5)}, "cu_seqlens_k: 2 documents, must be 1"),
        (
            {"block_ids": torch.zeros(9, 2, 2, dtype=torch.int32)},
            r"block_ids: torch.int32 of shape \(9, 2, 2\)",
        ),
        ({"block_ids": torch.full((9, 2, 3), 2).int(), "block_size": 4}, "block_ids: 2 for token 0"),
        ({"block_ids": torch.zeros(9, 2, 3).int(), "phase": "dense"}, "block_ids: given, but phase 'dense'"),
    ],
)
def test_an_argument_that_does_not_fit_is_named(changes: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = dict(zip(NAMES, tensors(9, dtype=torch.float32), strict=True))
    arguments |= {"cu_seqlens": edges(9), "top_k": 3}
    with pytest.raises(ValueError, match=message):
        msa_attention(**{**arguments, **changes})


def test_without_a_compiler_plain_torch_computes(tmp_path: Path) -> None:
    program = (
        "import torch; from kernels.msa import msa_attention\n"
        "x = [torch.ones(9, *shape) for shape in ((2, 8), (1, 8), (1, 8), (1, 8), (8,))]\n"
        "print(msa_attention(*x, torch.tensor([0, 9]).int()).out.sum().item())"
    )
    environment = {"PATH": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path), "CC": "none"}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    assert float(done.stdout) == 144
    assert "no C compiler found" in done.stderr and done.stderr.count("compiler") == 1


def test_the_c_file_compiles_without_vector_extensions(tmp_path: Path) -> None:
    for machine in ("x86-64", "x86-64-v3", "x86-64-v4"):
        command = ["cc", "-O1", f"-march={machine}", "-std=gnu11", "-Wall", "-Wno-psabi", "-fPIC", "-shared"]
        done = subprocess.run(
            [*command, "-DBF16=0", "-o", str(tmp_path / "made.so"), str(cpu.SOURCE), "-lm"],
            capture_output=True,
            text=True,
        )
        assert (done.returncode, done.stderr) == (0, "")
