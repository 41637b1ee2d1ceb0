"""MSA's Triton kernels against the reference in float64: outputs, all gradients, and what callers rely on.

Without a GPU they run in Triton's interpreter (tests/conftest.py), in which a step costs milliseconds:
shapes are small, and wide ones get few queries by being the last tokens of long documents. The interpreter
multiplies bfloat16 wrongly, so that type is tested on a GPU only, by `make test-gpu`.
"""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from kernels.msa import MSAOutput, msa_attention, reference
from tests.kernels.test_msa_cpu import widened
from tests.kernels.test_msa_reference import NAMES, edges, tensors
from tests.kernels.tolerances import assert_close

triton = pytest.importorskip("kernels.msa.triton", reason="no Triton for this system")

pytestmark = [
    # The logarithm of an empty choice's sum.
    pytest.mark.filterwarnings("ignore:divide by zero:RuntimeWarning"),
    # What lies after the query has a score too, which is not taken.
    pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning"),
]

SPARSE = {"phase": "sparse", "loop_order": "queries"}
BY_BLOCKS = {"phase": "sparse", "loop_order": "blocks"}
DENSE = {"phase": "dense"}
EACH_WAY = pytest.mark.parametrize("way", [SPARSE, BY_BLOCKS, DENSE], ids=["queries", "blocks", "dense"])


def suffixes(queries: tuple[int, ...], keys: tuple[int, ...], seed: int = 0, **sizes: Any) -> list[Tensor]:
    """Inputs with fewer queries than keys."""
    inputs = tensors(sum(keys), seed=seed, **sizes)
    return [x[: sum(queries)].detach().requires_grad_() if i in (0, 3) else x for i, x in enumerate(inputs)]


def run(
    attend: Any, inputs: list[Tensor], cu_seqlens: Tensor, cu_seqlens_k: Tensor | None = None, **options: Any
) -> tuple[MSAOutput, tuple[Tensor, ...]]:
    """Outputs, and the gradients of a fixed function of them."""
    where = {"cu_seqlens_k": cu_seqlens if cu_seqlens_k is None else cu_seqlens_k, "block_ids": None}
    result = attend(*inputs, cu_seqlens, **where | options)
    weights = torch.linspace(-1, 1, result.out.numel(), dtype=torch.float64, device=result.out.device)
    loss = (result.out.double() * weights.reshape(result.out.shape)).sum()
    return result, torch.autograd.grad(loss + result.index_kl.double() * len(inputs[0]), inputs)


def assert_agrees(inputs: list[Tensor], cu_seqlens: Tensor, *, way: dict[str, Any], **options: Any) -> None:
    """With the reference in float64 reading the same blocks: near ties may be broken otherwise in float32."""
    dtype = inputs[0].dtype
    result, grads = run(triton.msa_attention, inputs, cu_seqlens, **options, **way)
    dense = way["phase"] == "dense"
    replay = {"phase": way["phase"], "block_ids": None if dense else result.block_ids}
    expected, expected_grads = run(
        reference.msa_attention, widened(inputs), cu_seqlens, **{**options, **replay}
    )
    assert result.out.dtype == dtype
    for name in ("out", "lse"):
        assert_close(getattr(result, name), getattr(expected, name), name, dtype)
    ours, theirs = float(result.index_kl.detach()), float(expected.index_kl.detach())
    assert abs(ours - theirs) <= 1e-5 * max(1, theirs)
    largest = max(float(grad.double().norm()) for grad in expected_grads[3:])
    for name, mine, right in zip(NAMES, grads, expected_grads, strict=True):
        if float(right.double().norm()) > 1e-6 * max(largest, 1):  # not where all that is left is rounding
            assert_close(mine, right, name, dtype)


@EACH_WAY
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_packed_documents_agree_with_the_reference(dtype: torch.dtype, way: dict[str, Any]) -> None:
    inputs = tensors(41, heads=4, groups=1, head_dim=64, index_dim=32, dtype=dtype)
    assert_agrees(inputs, edges(27, 1, 0, 13), way=way, block_size=8, top_k=2)


@EACH_WAY
@pytest.mark.parametrize(
    ("group_size", "head_dim", "block_size", "top_k", "dtype"),
    [
        (16, 128, 128, 4, torch.float16),
        (16, 128, 128, 4, torch.float32),
        (1, 64, 32, 32, torch.float32),
        (3, 96, 48, 4, torch.float16),
        (8, 256, 64, 5, torch.float32),
    ],
)
def test_geometries_agree_with_the_reference(
    group_size: int, head_dim: int, block_size: int, top_k: int, dtype: torch.dtype, way: dict[str, Any]
) -> None:
    queries, keys = (5, 3), (block_size * 5 + 2, 7)
    sizes: dict[str, Any] = {"heads": group_size, "groups": 1, "head_dim": head_dim, "index_dim": head_dim}
    inputs = suffixes(queries, keys, dtype=dtype, **sizes)
    options: dict[str, Any] = {"block_size": block_size, "top_k": top_k}
    assert_agrees(inputs, edges(*queries), way=way, cu_seqlens_k=edges(*keys), **options)


@settings(max_examples=10)
@given(
    documents=st.lists(st.tuples(st.integers(0, 7), st.integers(0, 60)), min_size=1, max_size=3).filter(
        lambda x: sum(queries for queries, _ in x) > 1
    ),
    groups=st.integers(1, 2),
    group_size=st.integers(1, 6),
    head_dim=st.sampled_from([16, 40, 64]),
    index_dim=st.sampled_from([16, 24, 64]),
    block_size=st.sampled_from([4, 16, 20, 32]),
    top_k=st.integers(1, 4),
    way=st.sampled_from([SPARSE, BY_BLOCKS, DENSE]),
    dtype=st.sampled_from([torch.float32, torch.float16]),
    seed=st.integers(0, 1000),
)
def test_any_shape_agrees_with_the_reference(
    documents: list[tuple[int, int]],
    groups: int,
    group_size: int,
    head_dim: int,
    index_dim: int,
    block_size: int,
    top_k: int,
    way: dict[str, Any],
    dtype: torch.dtype,
    seed: int,
) -> None:
    queries, keys = tuple(x for x, _ in documents), tuple(x + before for x, before in documents)
    sizes: dict[str, Any] = {"groups": groups, "heads": groups * group_size, "seed": seed, "dtype": dtype}
    inputs = suffixes(queries, keys, head_dim=head_dim, index_dim=index_dim, **sizes)
    options: dict[str, Any] = {"block_size": block_size, "top_k": top_k}
    assert_agrees(inputs, edges(*queries), way=way, cu_seqlens_k=edges(*keys), **options)


def test_chooses_the_same_blocks_as_the_reference_also_on_ties() -> None:
    inputs = [x.detach() for x in tensors(300, index_dim=16, dtype=torch.float32)]
    call = describe(inputs, edges(200, 100), block_size=8, top_k=5)
    ours = triton.triton_forward.choose(call, inputs[3], inputs[4])
    wide = [x.double() for x in inputs]
    theirs = msa_attention(*wide, edges(200, 100), block_size=8, top_k=5, impl="reference")
    assert torch.equal(ours, theirs.block_ids)
    inputs[3][::2], inputs[3][1::2] = 0.0, -0.0  # scores of 0 and of -0 are equal
    tied = triton.triton_forward.choose(call, inputs[3], inputs[4])
    assert tied[199].tolist() == tied[198].tolist() == [[0, 1, 2, 3, 24]] * 2
    assert tied[210].tolist() == [[0, 1, -1, -1, -1]] * 2


def describe(inputs: list[Tensor], cu_seqlens: Tensor, block_size: int, top_k: int) -> Any:
    options: dict[str, Any] = {"block_size": block_size, "top_k": top_k, "dense": False}
    return triton.triton_tiles.describe(inputs[0], inputs[3], cu_seqlens, cu_seqlens, **options)


def test_equals_dense_attention_when_every_block_is_kept() -> None:
    inputs = tensors(24, heads=2, groups=1, head_dim=16, index_dim=16, dtype=torch.float32)
    options: dict[str, Any] = {"block_size": 8, "top_k": 3}
    dense, dense_grads = run(triton.msa_attention, inputs, edges(24), **options, **DENSE)
    for way in (SPARSE, BY_BLOCKS):
        sparse, grads = run(triton.msa_attention, inputs, edges(24), **options, **way)
        assert_close(sparse.out, dense.out, "out")
        for name, ours, theirs in zip(NAMES, grads, dense_grads, strict=True):
            assert_close(ours, theirs, name)


@EACH_WAY
def test_the_kl_leaves_the_backbones_gradients_untouched(way: dict[str, Any]) -> None:
    inputs = tensors(20, heads=2, groups=1, head_dim=16, index_dim=16, dtype=torch.float32)
    cu = edges(20)
    where: dict[str, Any] = {"cu_seqlens_k": cu, "block_ids": None, "block_size": 8, "top_k": 2}
    result = triton.msa_attention(*inputs, cu, **where, **way)
    of_kl = torch.autograd.grad(result.index_kl, inputs, retain_graph=True, allow_unused=True)
    of_out = torch.autograd.grad(result.out.sum(), inputs, retain_graph=True, allow_unused=True)
    of_both = torch.autograd.grad(result.out.sum() + result.index_kl, inputs)
    assert [grad is None for grad in of_kl] == [True] * 3 + [False] * 2
    assert [grad is None for grad in of_out] == [False] * 3 + [True] * 2
    for both, out, kl in zip(of_both, of_out, of_kl, strict=True):
        assert torch.equal(both, out if kl is None else kl)
    assert not result.block_ids.requires_grad and not result.lse.requires_grad


@pytest.mark.parametrize("way", [SPARSE, BY_BLOCKS], ids=["queries", "blocks"])
def test_a_given_choice_is_read_and_nothing_gives_zeros(
    way: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(triton, "QUERY_MAJOR_HEADS", 99 if way is BY_BLOCKS else 1)
    inputs = tensors(24, heads=2, groups=1, head_dim=16, index_dim=16, dtype=torch.float32)
    options: dict[str, Any] = {"block_size": 8, "top_k": 2}

    def attend(*arguments: Any, **more: Any) -> MSAOutput:
        return msa_attention(*arguments, impl="triton", **more)

    ids = attend(*inputs, edges(14, 10), **options).block_ids
    ids[5], ids[20] = -1, torch.tensor([[0, 0]])
    replayed = {**options, "block_ids": ids.flip(-1)}
    result, grads = run(attend, inputs, edges(14, 10), **replayed)
    expected, expected_grads = run(
        lambda *x, **o: msa_attention(*x, impl="reference", **o), widened(inputs), edges(14, 10), **replayed
    )
    assert torch.equal(result.block_ids, expected.block_ids)
    assert not result.out[5].any() and (result.lse[5] == -torch.inf).all()
    assert_close(result.out, expected.out, "out", torch.float32)
    for name, ours, theirs in zip(NAMES, grads, expected_grads, strict=True):
        assert_close(ours, theirs, name, torch.float32)


@EACH_WAY
def test_every_result_is_written(way: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory that torch hands out holds NaN here, as it may anywhere."""
    inputs = suffixes((9, 1), (30, 1), heads=2, groups=1, head_dim=24, index_dim=16, dtype=torch.float32)
    arguments = (inputs, edges(9, 1), edges(30, 1))
    options: dict[str, Any] = {"block_size": 8, "top_k": 2, **way}
    clean = run(triton.msa_attention, *arguments, **options)
    for name in ("empty", "empty_like"):
        monkeypatch.setattr(torch, name, filled(getattr(torch, name)))
    monkeypatch.setattr(Tensor, "new_empty", filled(Tensor.new_empty))
    filled_with_nan = run(triton.msa_attention, *arguments, **options)
    for ours, theirs in zip((*filled_with_nan[0], *filled_with_nan[1]), (*clean[0], *clean[1]), strict=True):
        assert torch.equal(ours, theirs)


def filled(make: Any) -> Any:
    """The same, holding NaN or the least integer."""

    def made(*arguments: Any, **options: Any) -> Tensor:
        tensor: Tensor = make(*arguments, **options)
        worst = torch.nan if tensor.is_floating_point() else torch.iinfo(tensor.dtype).min
        return tensor.detach().fill_(worst)

    return made


def test_chunks_of_queries_and_pieces_of_readers_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = tensors(40, heads=2, groups=1, head_dim=16, index_dim=16, dtype=torch.float32)
    options: dict[str, Any] = {"block_size": 8, "top_k": 2, **BY_BLOCKS}
    whole, whole_grads = run(triton.msa_attention, inputs, edges(30, 10), **options)
    monkeypatch.setattr(triton.triton_forward, "PARTIAL_BYTES", 7 * 2 * 2 * 16 * 4)
    monkeypatch.setattr(triton.triton_tiles, "MIN_PIECE_READERS", 5)
    monkeypatch.setattr(triton.triton_tiles, "MAX_EXTRA_PIECES", 16)
    parts, parts_grads = run(triton.msa_attention, inputs, edges(30, 10), **options)
    assert torch.equal(parts.out, whole.out) and torch.equal(parts.lse, whole.lse)
    for name, ours, theirs in zip(NAMES, parts_grads, whole_grads, strict=True):
        assert_close(ours, theirs, name)


def test_the_readers_of_a_block_are_those_that_chose_it() -> None:
    inputs = [x.detach() for x in tensors(90, dtype=torch.float32)]
    call = describe(inputs, edges(50, 40), block_size=8, top_k=3)
    ids_TRK = msa_attention(*inputs, edges(50, 40), block_size=8, top_k=3, impl="reference").block_ids
    turned = triton.triton_tiles.turn_round(call, ids_TRK, call.first_blocks)
    found: dict[int, list[int]] = {}
    for unit, begin, end in turned.pieces.tolist():
        found.setdefault(unit, []).extend((turned.readers[begin:end] // 6).tolist())
    for unit in range(2 * len(call.blocks)):
        group, block = divmod(unit, len(call.blocks))
        chose = (ids_TRK[:, group] + call.first_blocks[:, None] == block) & (ids_TRK[:, group] >= 0)
        assert found.get(unit, []) == chose.any(-1).nonzero().flatten().tolist()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dtype": torch.float64}, "q: dtype torch.float64, which impl 'triton'"),
        ({"head_dim": 264}, "q: size 264, must be at most 256"),
        ({"index_dim": 264}, "index_q: size 264, must be at most 256"),
        ({"top_k": 65}, "top_k: size 65, must be at most 64"),
    ],
)
def test_what_it_does_not_compute_is_named(changes: dict[str, Any], message: str) -> None:
    top_k = changes.pop("top_k", 2)
    inputs = tensors(4, **{"dtype": torch.float32, **changes})
    with pytest.raises(ValueError, match=message):
        msa_attention(*inputs, edges(4), block_size=8, top_k=top_k, impl="triton")


# ---- on a GPU --------------------------------------------------------------------------------------------


def on_gpu(inputs: list[Tensor]) -> list[Tensor]:
    return [x.detach().cuda().requires_grad_() for x in inputs]


@pytest.mark.gpu
@EACH_WAY
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("group_size", "head_dim", "block_size", "top_k"),
    [
        (16, 128, 128, 16),
        (16, 128, 128, 4),
        (1, 64, 32, 4),
        (4, 128, 64, 32),
        (8, 256, 128, 4),
        (3, 96, 48, 5),
    ],
)
def test_agrees_on_a_gpu(
    group_size: int, head_dim: int, block_size: int, top_k: int, dtype: torch.dtype, way: dict[str, Any]
) -> None:
    sizes: dict[str, Any] = {
        "heads": 2 * group_size,
        "groups": 2,
        "head_dim": head_dim,
        "index_dim": head_dim,
    }
    inputs = on_gpu(tensors(3000, dtype=dtype, **sizes))
    options: dict[str, Any] = {"block_size": block_size, "top_k": top_k}
    assert_agrees(inputs, edges(2200, 1, 0, 799).cuda(), way=way, **options)


@pytest.mark.gpu
@EACH_WAY
def test_a_prefill_that_continues_agrees_on_a_gpu(way: dict[str, Any]) -> None:
    queries, keys = (300, 17), (2900, 17)
    sizes: dict[str, Any] = {"heads": 16, "groups": 1, "head_dim": 128, "index_dim": 128}
    inputs = on_gpu(suffixes(queries, keys, dtype=torch.bfloat16, **sizes))
    edges_k = edges(*keys).cuda()
    assert_agrees(inputs, edges(*queries).cuda(), way=way, cu_seqlens_k=edges_k, block_size=128, top_k=4)


@pytest.mark.gpu
@EACH_WAY
def test_the_same_bits_in_every_run_on_a_gpu(way: dict[str, Any]) -> None:
    inputs = on_gpu(tensors(6000, 16, 2, 128, 128, dtype=torch.bfloat16))
    options: dict[str, Any] = {"block_size": 128, "top_k": 4, **way}
    runs = [run(triton.msa_attention, inputs, edges(5000, 1000).cuda(), **options) for _ in range(3)]
    for result, grads in runs[1:]:
        assert all(torch.equal(a, b) for a, b in zip(result, runs[0][0], strict=True))
        assert all(torch.equal(a, b) for a, b in zip(grads, runs[0][1], strict=True))


@pytest.mark.gpu
def test_a_gpu_is_taken_by_default_and_chooses_as_the_reference() -> None:
    inputs = [x.detach() for x in on_gpu(tensors(4000, 16, 1, 128, 128, dtype=torch.float32))]
    cu = edges(4000).cuda()
    ours = msa_attention(*inputs, cu, block_size=64, top_k=8)
    theirs = msa_attention(*[x.double() for x in inputs], cu, block_size=64, top_k=8, impl="reference")
    assert_close(ours.out, theirs.out, "out", torch.bfloat16)
    agreed = np.mean((ours.block_ids == theirs.block_ids).cpu().numpy())
    assert agreed > 0.999  # near ties
