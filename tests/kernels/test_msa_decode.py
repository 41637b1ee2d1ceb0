"""Decoding with a cache, contiguous and paged, equals the last token of a prefill."""

from typing import Any

import pytest
import torch
from torch import Tensor

from kernels.msa import msa_attention, msa_decode
from tests.kernels.test_msa_reference import edges, tensors
from tests.kernels.tolerances import assert_close

LENGTHS = (1, 8, 77, 130)
OPTIONS: dict[str, Any] = {"block_size": 8, "top_k": 4}
ROOM, PAGE = 144, 12


def sequences(dtype: torch.dtype) -> list[list[Tensor]]:
    return [
        [x.detach() for x in tensors(length, index_dim=16, seed=length, dtype=dtype)] for length in LENGTHS
    ]


def caches(parts: list[list[Tensor]]) -> list[Tensor]:
    """k, v and index_k side by side; NaN where nothing was written."""
    return [
        torch.stack(
            [
                torch.cat((x[i], x[i].new_full((ROOM - len(x[i]), *x[i].shape[1:]), torch.nan))).nan_to_num(
                    7e3
                )
                for x in parts
            ]
        )
        for i in (1, 2, 4)
    ]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("paged", [False, True])
def test_decoding_equals_the_last_token_of_a_prefill(paged: bool, dtype: torch.dtype) -> None:
    parts = sequences(dtype)
    q, index_q = (torch.stack([x[i][-1] for x in parts]) for i in (0, 3))
    k, v, index_k = caches(parts)
    table = None
    if paged:
        num_pages = ROOM // PAGE * len(parts)
        order = torch.randperm(num_pages, generator=torch.Generator().manual_seed(0))
        table = order.argsort().int().view(len(parts), -1)
        k, v, index_k = (x.flatten(0, 1).unflatten(0, (num_pages, PAGE))[order] for x in (k, v, index_k))
        for sequence, length in enumerate(LENGTHS):
            table[sequence, -(-length // PAGE) :] = -1
    lengths = torch.tensor(LENGTHS).int()
    result = msa_decode(q, k, v, index_q, index_k, lengths, block_table=table, **OPTIONS)
    for sequence, inputs in enumerate(parts):
        prefill = msa_attention(*inputs, edges(len(inputs[0])), impl="reference", **OPTIONS)
        assert torch.equal(result.block_ids[sequence], prefill.block_ids[-1])
        assert_close(result.out[sequence], prefill.out[-1], "out")
        assert_close(result.lse[sequence], prefill.lse[-1], "lse", dtype)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"q": torch.zeros(4, 4)}, r"q: shape \(4, 4\)"),
        ({"k_cache": torch.zeros(4, ROOM, 3, 6)}, r"k_cache: shape \(4, 144, 3, 6\)"),
        ({"v_cache": torch.zeros(4, ROOM, 2, 5)}, r"v_cache: shape \(4, 144, 2, 5\)"),
        ({"index_k_cache": torch.zeros(4, ROOM, 16).half()}, "index_k_cache: dtype torch.float16"),
        (
            {"lengths": torch.tensor([1, 2, 3, 145]).int()},
            r"lengths: \[1, 2, 3, 145\], each must be from 1 to 144",
        ),
        ({"lengths": torch.tensor([1, 2, 3, 4])}, "lengths: torch.int64"),
        ({"block_table": torch.zeros(4, 1)}, "block_table: torch.float32"),
        (
            {"block_table": torch.tensor([[0], [1], [9], [3]]).int()},
            "block_table: 9 for page 0 of sequence 2",
        ),
        ({"top_k": 0}, "top_k: 0"),
    ],
)
def test_an_argument_that_does_not_fit_is_named(changes: dict[str, Any], message: str) -> None:
    parts = sequences(torch.float32)
    k, v, index_k = caches(parts)
    arguments: dict[str, Any] = {
        "q": torch.stack([x[0][-1] for x in parts]),
        "k_cache": k,
        "v_cache": v,
        "index_q": torch.stack([x[3][-1] for x in parts]),
        "index_k_cache": index_k,
        "lengths": torch.tensor(LENGTHS).int(),
    }
    with pytest.raises(ValueError, match=message):
        msa_decode(**{**arguments, **changes})
