"""Backward kernels of MSA in Triton: gradients of q, k, v and of the index's queries and keys.

Probabilities are recomputed from the log-sum-exp. Gradients of queries are query-major, those of keys
block-major over the block's readers; each piece of readers writes a partial sum, and partial sums are added
in order. No atomics, so the bits are the same in every run. Attention and KL have kernels of their own, so
that neither can change the other's gradients. Names and letters as in triton_forward.py.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.msa import triton_tiles
from kernels.msa.triton_forward import (
    count_steps,
    head_sizes,
    keys_of_step,
    load_piece,
    load_rows,
    load_tile,
    rows_of_tile,
    store_rows,
    student_sizes,
    student_tile_shape,
    teach,
    tile_shape,
)
from kernels.msa.triton_tiles import Call, Readers, padded

LIFT = tl.constexpr(4096.0)
"""Student minus teacher is at most 1, and often less than float16 holds: lifted before its product."""

READER_ROWS = 64
READER_QUERIES = 32
"""Rows of a tile of readers in the kernels of keys, which hold two accumulators; more of them spill."""


@triton.jit
def _grad_q_kernel(
    p_q,
    p_k,
    p_v,
    p_block_ids,
    p_tiles,
    p_out,
    p_lse,
    p_grad_out,
    p_grad_q,
    p_delta,
    scale,
    NUM_GROUPS: tl.constexpr,
    GROUP_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HEAD_PADDED: tl.constexpr,
    BLOCK: tl.constexpr,
    TOP_K: tl.constexpr,
    SLOTS: tl.constexpr,
    QUERIES: tl.constexpr,
    HEADS: tl.constexpr,
    KEYS: tl.constexpr,
    DENSE: tl.constexpr,
):
    """Gradient of a tile's queries, and delta = sum over D of output times its gradient."""
    i_tile, i_group = tl.program_id(0), tl.program_id(1)
    first, count, position, first_key = load_tile(p_tiles, i_tile)
    o_query, o_place, m_row = rows_of_tile(first, count, i_group, NUM_GROUPS, GROUP_SIZE, QUERIES, HEADS)
    # [M, D]
    b_out = load_rows(p_out, o_place, m_row, HEAD_DIM, HEAD_PADDED)
    # [M, D]
    b_grad_out = load_rows(p_grad_out, o_place, m_row, HEAD_DIM, HEAD_PADDED)
    b_delta = tl.sum(b_out.to(tl.float32) * b_grad_out.to(tl.float32), 1)
    tl.store(p_delta + o_place, b_delta, mask=m_row)
    # [M, D]
    b_q = load_rows(p_q, o_place, m_row, HEAD_DIM, HEAD_PADDED)
    # [M]
    b_lse = tl.load(p_lse + o_place, mask=m_row, other=float("inf"))
    p_chosen = p_block_ids + (first * NUM_GROUPS + i_group) * TOP_K
    last = position + count - 1
    b_grad_q = tl.zeros((QUERIES * HEADS, HEAD_PADDED), tl.float32)
    for i_step in range(count_steps(p_chosen, last, BLOCK, TOP_K, SLOTS, KEYS, DENSE)):
        o_key, m_key = keys_of_step(p_chosen, i_step, last, BLOCK, KEYS, DENSE)
        o_place_k = (first_key + o_key) * NUM_GROUPS + i_group
        # [KEYS, D]
        b_k = load_rows(p_k, o_place_k, m_key, HEAD_DIM, HEAD_PADDED)
        # [KEYS, D]
        b_v = load_rows(p_v, o_place_k, m_key, HEAD_DIM, HEAD_PADDED)
        m_seen = m_key[None, :] & (o_key[None, :] <= (position + o_query)[:, None])
        b_logits = tl.dot(b_q, tl.trans(b_k), input_precision="ieee") * scale
        b_probs = tl.where(m_seen, tl.exp(b_logits - b_lse[:, None]), 0.0)
        b_grad_probs = tl.dot(b_grad_out, tl.trans(b_v), input_precision="ieee")
        b_grad_logits = b_probs * (b_grad_probs - b_delta[:, None])
        b_grad_q = tl.dot(b_grad_logits.to(b_k.dtype), b_k, b_grad_q, input_precision="ieee")
    store_rows(p_grad_q, o_place, m_row, b_grad_q * scale, HEAD_DIM, HEAD_PADDED)


def grad_queries(
    call: Call,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    block_ids: Tensor,
    out: Tensor,
    lse: Tensor,
    grad_out: Tensor,
) -> tuple[Tensor, Tensor]:
    """Gradient of q [T, H, D], and delta [T, H]."""
    grad_q, delta = torch.empty_like(q), torch.empty_like(lse)
    queries, heads = tile_shape(call)
    tiles = triton_tiles.tiles(call, queries)
    triton_tiles.launch(
        _grad_q_kernel,
        (len(tiles), call.num_groups),
        num_warps=8 if call.dense else 4,
        p_q=q,
        p_k=k,
        p_v=v,
        p_block_ids=block_ids,
        p_tiles=tiles,
        p_out=out,
        p_lse=lse,
        p_grad_out=grad_out,
        p_grad_q=grad_q,
        p_delta=delta,
        scale=call.head_dim**-0.5,
        **head_sizes(call),
        SLOTS=padded(call.top_k),
        QUERIES=queries,
        HEADS=heads,
        KEYS=triton_tiles.keys_per_step(call, call.head_dim, 16384),
        DENSE=call.dense,
    )
    return grad_q, delta


@triton.jit
def load_reader(p_readers, o_reader, m_reader, READS: tl.constexpr, DENSE: tl.constexpr):
    """Numbers of the queries at these places among the readers; READS of them come from one query."""
    if DENSE:
        return tl.where(m_reader, o_reader, 0)
    else:
        return tl.load(p_readers + o_reader, mask=m_reader, other=0).to(tl.int64) // READS


@triton.jit
def _grad_kv_kernel(
    p_q,
    p_k,
    p_v,
    p_positions,
    p_blocks,
    p_pieces,
    p_readers,
    p_lse,
    p_delta,
    p_grad_out,
    p_partial_k,
    p_partial_v,
    scale,
    group,
    num_blocks,
    NUM_GROUPS: tl.constexpr,
    GROUP_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HEAD_PADDED: tl.constexpr,
    BLOCK: tl.constexpr,
    TOP_K: tl.constexpr,
    QUERIES: tl.constexpr,
    HEADS: tl.constexpr,
    KEYS: tl.constexpr,
    DENSE: tl.constexpr,
):
    """Gradients of a block's keys and values from one piece of its readers; products are [KEYS, M]."""
    i_piece, i_step = tl.program_id(0), tl.program_id(1)
    _, begin, end, o_key, o_position, m_key = load_piece(
        p_pieces, p_blocks, i_piece, i_step, num_blocks, KEYS
    )
    if begin >= end:
        return
    o_row = tl.arange(0, QUERIES * HEADS)
    o_head = o_row % HEADS
    o_place_k = o_key * NUM_GROUPS + group
    # [KEYS, D]
    b_k = load_rows(p_k, o_place_k, m_key, HEAD_DIM, HEAD_PADDED)
    # [KEYS, D]
    b_v = load_rows(p_v, o_place_k, m_key, HEAD_DIM, HEAD_PADDED)
    b_grad_k = tl.zeros((KEYS, HEAD_PADDED), tl.float32)
    b_grad_v = tl.zeros((KEYS, HEAD_PADDED), tl.float32)
    for i_reader in range(begin, end, QUERIES):
        o_reader = i_reader + o_row // HEADS
        m_row = (o_reader < end) & (o_head < GROUP_SIZE)
        # [M]
        b_query = load_reader(p_readers, o_reader, m_row, TOP_K, DENSE)
        # [M]
        b_position = tl.load(p_positions + b_query, mask=m_row, other=0)
        o_place = (b_query * NUM_GROUPS + group) * GROUP_SIZE + o_head
        # [M, D]
        b_q = load_rows(p_q, o_place, m_row, HEAD_DIM, HEAD_PADDED)
        # [M, D]
        b_grad_out = load_rows(p_grad_out, o_place, m_row, HEAD_DIM, HEAD_PADDED)
        # [M]
        b_lse = tl.load(p_lse + o_place, mask=m_row, other=float("inf"))
        # [M]
        b_delta = tl.load(p_delta + o_place, mask=m_row, other=0.0)
        m_seen = m_key[:, None] & (o_position[:, None] <= b_position[None, :])
        b_logits = tl.dot(b_k, tl.trans(b_q), input_precision="ieee") * scale
        b_probs = tl.where(m_seen, tl.exp(b_logits - b_lse[None, :]), 0.0)
        b_grad_v = tl.dot(b_probs.to(b_q.dtype), b_grad_out, b_grad_v, input_precision="ieee")
        b_grad_probs = tl.dot(b_v, tl.trans(b_grad_out), input_precision="ieee")
        b_grad_logits = b_probs * (b_grad_probs - b_delta[None, :])
        b_grad_k = tl.dot(b_grad_logits.to(b_q.dtype), b_q, b_grad_k, input_precision="ieee")
    o_partial = i_piece.to(tl.int64) * BLOCK + i_step * KEYS + tl.arange(0, KEYS)
    store_rows(p_partial_k, o_partial, m_key, b_grad_k * scale, HEAD_DIM, HEAD_PADDED)
    store_rows(p_partial_v, o_partial, m_key, b_grad_v, HEAD_DIM, HEAD_PADDED)


@triton.jit
def _sum_pieces_kernel(
    p_partial,
    p_blocks,
    p_first_piece,
    p_sum,
    stride,
    offset,
    WIDTH: tl.constexpr,
    PADDED: tl.constexpr,
    BLOCK: tl.constexpr,
    KEYS: tl.constexpr,
    ADD: tl.constexpr,
):
    """Add a block's partial sums in the order of its pieces; ADD: to what is there."""
    i_block, i_step = tl.program_id(0), tl.program_id(1)
    o_within = i_step * KEYS + tl.arange(0, KEYS)
    m_key = o_within < tl.load(p_blocks + i_block * 5 + 2)
    o_place = (tl.load(p_blocks + i_block * 5) + o_within) * stride + offset
    b_sum = tl.zeros((KEYS, PADDED), tl.float32)
    if ADD:
        # [KEYS, WIDTH]
        b_sum = load_rows(p_sum, o_place, m_key, WIDTH, PADDED).to(tl.float32)
    for i_piece in range(tl.load(p_first_piece + i_block), tl.load(p_first_piece + i_block + 1)):
        # [KEYS, WIDTH]
        b_sum += load_rows(p_partial, i_piece * BLOCK + o_within, m_key, WIDTH, PADDED)
    store_rows(p_sum, o_place, m_key, b_sum, WIDTH, PADDED)


def grad_keys_values(
    call: Call,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    block_ids: Tensor,
    lse: Tensor,
    delta: Tensor,
    grad_out: Tensor,
) -> tuple[Tensor, Tensor]:
    """Gradients of k and v [T, R, D], one group after the other."""
    grad_k, grad_v = torch.empty_like(k), torch.empty_like(v)
    keys = triton_tiles.keys_per_step(call, call.head_dim, 16384)
    heads = triton.next_power_of_2(call.group_size)
    for group in range(call.num_groups):
        readers = triton_tiles.readers_of(call, block_ids, group)
        partial_k, partial_v = (triton_tiles.partial_sums(call, readers, k) for _ in range(2))
        triton_tiles.launch(
            _grad_kv_kernel,
            (len(readers.pieces), triton.cdiv(call.block_size, keys)),
            num_warps=8,
            num_stages=1,
            p_q=q,
            p_k=k,
            p_v=v,
            p_positions=call.positions,
            p_blocks=call.blocks,
            p_pieces=readers.pieces,
            p_readers=readers.readers,
            p_lse=lse,
            p_delta=delta,
            p_grad_out=grad_out,
            p_partial_k=partial_k,
            p_partial_v=partial_v,
            scale=call.head_dim**-0.5,
            group=group,
            num_blocks=len(call.blocks),
            **head_sizes(call),
            QUERIES=max(1, min(READER_ROWS, triton_tiles.rows_per_tile(call)) // heads),
            HEADS=heads,
            KEYS=keys,
            DENSE=call.dense,
        )
        _sum_pieces(call, readers, partial_k, grad_k, call.num_groups, group)
        _sum_pieces(call, readers, partial_v, grad_v, call.num_groups, group)
    return grad_k, grad_v


def _sum_pieces(
    call: Call,
    readers: Readers,
    partial: Tensor,
    total: Tensor,
    stride: int,
    offset: int,
    add: bool = False,
) -> None:
    keys = triton_tiles.keys_per_step(call, partial.shape[1], 16384)
    triton_tiles.launch(
        _sum_pieces_kernel,
        (len(call.blocks), triton.cdiv(call.block_size, keys)),
        p_partial=partial,
        p_blocks=call.blocks,
        p_first_piece=readers.first_piece,
        p_sum=total,
        stride=stride,
        offset=offset,
        WIDTH=partial.shape[1],
        PADDED=padded(partial.shape[1]),
        BLOCK=call.block_size,
        KEYS=keys,
        ADD=add,
    )


# ---- index -----------------------------------------------------------------------------------------------


@triton.jit
def _grad_index_q_kernel(
    p_q,
    p_k,
    p_index_q,
    p_index_k,
    p_block_ids,
    p_tiles,
    p_lse,
    p_index_lse,
    p_grad_kl,
    p_grad_index_q,
    scale,
    index_scale,
    num_rows,
    NUM_GROUPS: tl.constexpr,
    GROUP_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HEAD_PADDED: tl.constexpr,
    BLOCK: tl.constexpr,
    TOP_K: tl.constexpr,
    INDEX_DIM: tl.constexpr,
    INDEX_PADDED: tl.constexpr,
    SLOTS: tl.constexpr,
    QUERIES: tl.constexpr,
    HEADS: tl.constexpr,
    KEYS: tl.constexpr,
    STUDENTS: tl.constexpr,
    DENSE: tl.constexpr,
):
    """Student minus teacher, times the index keys."""
    i_tile, i_group = tl.program_id(0), tl.program_id(1)
    first, count, position, first_key = load_tile(p_tiles, i_tile)
    _, o_place, m_row = rows_of_tile(first, count, i_group, NUM_GROUPS, GROUP_SIZE, QUERIES, HEADS)
    # [M, D]
    b_q = load_rows(p_q, o_place, m_row, HEAD_DIM, HEAD_PADDED)
    # [M]
    b_lse = tl.load(p_lse + o_place, mask=m_row, other=float("inf"))
    o_student = tl.arange(0, STUDENTS)
    o_place_index = (first + o_student) * NUM_GROUPS + i_group
    m_student = o_student < count
    # [S, E]
    b_index_q = load_rows(p_index_q, o_place_index, m_student, INDEX_DIM, INDEX_PADDED)
    # [S]
    b_index_lse = tl.load(p_index_lse + o_place_index, mask=m_student, other=float("inf"))
    p_chosen = p_block_ids + (first * NUM_GROUPS + i_group) * TOP_K
    last = position + count - 1
    b_grad = tl.zeros((STUDENTS, INDEX_PADDED), tl.float32)
    for i_step in range(count_steps(p_chosen, last, BLOCK, TOP_K, SLOTS, KEYS, DENSE)):
        o_key, m_key = keys_of_step(p_chosen, i_step, last, BLOCK, KEYS, DENSE)
        # [KEYS, D]
        b_k = load_rows(p_k, (first_key + o_key) * NUM_GROUPS + i_group, m_key, HEAD_DIM, HEAD_PADDED)
        # [KEYS, E]
        b_index_k = load_rows(p_index_k, first_key + o_key, m_key, INDEX_DIM, INDEX_PADDED)
        m_seen = m_key[None, :] & (o_key[None, :] <= (position + o_student)[:, None])
        b_teacher = teach(b_q, b_k, b_lse, scale, GROUP_SIZE, QUERIES, HEADS, KEYS, STUDENTS)
        b_scores = tl.dot(b_index_q, tl.trans(b_index_k), input_precision="ieee") * index_scale
        b_student = tl.exp(b_scores - b_index_lse[:, None])
        b_grad_scores = tl.where(m_seen, b_student - b_teacher, 0.0) * LIFT
        b_grad = tl.dot(b_grad_scores.to(b_index_k.dtype), b_index_k, b_grad, input_precision="ieee")
    b_grad = b_grad * (tl.load(p_grad_kl) * index_scale / LIFT / num_rows)
    store_rows(p_grad_index_q, o_place_index, m_student, b_grad, INDEX_DIM, INDEX_PADDED)


def grad_index_queries(
    call: Call,
    q: Tensor,
    k: Tensor,
    index_q: Tensor,
    index_k: Tensor,
    block_ids: Tensor,
    lse: Tensor,
    index_lse: Tensor,
    grad_kl: Tensor,
) -> Tensor:
    """Gradient of index_q [T, R, E]."""
    grad_index_q = torch.empty_like(index_q)
    queries, heads = student_tile_shape(call)
    tiles = triton_tiles.tiles(call, queries)
    triton_tiles.launch(
        _grad_index_q_kernel,
        (len(tiles), call.num_groups),
        num_warps=8 if call.dense else 4,
        p_q=q,
        p_k=k,
        p_index_q=index_q,
        p_index_k=index_k,
        p_block_ids=block_ids,
        p_tiles=tiles,
        p_lse=lse,
        p_index_lse=index_lse,
        p_grad_kl=grad_kl,
        p_grad_index_q=grad_index_q,
        scale=call.head_dim**-0.5,
        index_scale=call.index_dim**-0.5,
        num_rows=index_lse.numel(),
        **head_sizes(call),
        **student_sizes(call, queries),
        QUERIES=queries,
        HEADS=heads,
        DENSE=call.dense,
    )
    return grad_index_q


@triton.jit
def _grad_index_k_kernel(
    p_q,
    p_k,
    p_index_q,
    p_index_k,
    p_positions,
    p_blocks,
    p_pieces,
    p_readers,
    p_lse,
    p_index_lse,
    p_grad_kl,
    p_partial,
    scale,
    index_scale,
    num_rows,
    group,
    num_blocks,
    NUM_GROUPS: tl.constexpr,
    GROUP_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HEAD_PADDED: tl.constexpr,
    BLOCK: tl.constexpr,
    TOP_K: tl.constexpr,
    INDEX_DIM: tl.constexpr,
    INDEX_PADDED: tl.constexpr,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
    DENSE: tl.constexpr,
):
    """Student minus teacher of a piece of readers, times their index queries; one head after the other."""
    i_piece, i_step = tl.program_id(0), tl.program_id(1)
    _, begin, end, o_key, o_position, m_key = load_piece(
        p_pieces, p_blocks, i_piece, i_step, num_blocks, KEYS
    )
    if begin >= end:
        return
    # [KEYS, D]
    b_k = load_rows(p_k, o_key * NUM_GROUPS + group, m_key, HEAD_DIM, HEAD_PADDED)
    # [KEYS, E]
    b_index_k = load_rows(p_index_k, o_key, m_key, INDEX_DIM, INDEX_PADDED)
    b_grad = tl.zeros((KEYS, INDEX_PADDED), tl.float32)
    for i_reader in range(begin, end, QUERIES):
        o_reader = i_reader + tl.arange(0, QUERIES)
        m_reader = o_reader < end
        # [QUERIES]
        b_query = load_reader(p_readers, o_reader, m_reader, TOP_K, DENSE)
        # [QUERIES]
        b_position = tl.load(p_positions + b_query, mask=m_reader, other=-1)
        o_place_index = b_query * NUM_GROUPS + group
        b_teacher = tl.zeros((KEYS, QUERIES), tl.float32)
        for i_head in range(GROUP_SIZE):
            o_place = o_place_index * GROUP_SIZE + i_head
            # [QUERIES, D]
            b_q = load_rows(p_q, o_place, m_reader, HEAD_DIM, HEAD_PADDED)
            # [QUERIES]
            b_lse = tl.load(p_lse + o_place, mask=m_reader, other=float("inf"))
            b_logits = tl.dot(b_k, tl.trans(b_q), input_precision="ieee") * scale
            b_teacher += tl.exp(b_logits - b_lse[None, :])
        # [QUERIES, E]
        b_index_q = load_rows(p_index_q, o_place_index, m_reader, INDEX_DIM, INDEX_PADDED)
        # [QUERIES]
        b_index_lse = tl.load(p_index_lse + o_place_index, mask=m_reader, other=float("inf"))
        b_scores = tl.dot(b_index_k, tl.trans(b_index_q), input_precision="ieee") * index_scale
        b_student = tl.exp(b_scores - b_index_lse[None, :])
        m_seen = m_key[:, None] & (o_position[:, None] <= b_position[None, :])
        b_grad_scores = tl.where(m_seen, b_student - b_teacher / GROUP_SIZE, 0.0) * LIFT
        b_grad = tl.dot(b_grad_scores.to(b_index_q.dtype), b_index_q, b_grad, input_precision="ieee")
    b_grad = b_grad * (tl.load(p_grad_kl) * index_scale / LIFT / num_rows)
    o_partial = i_piece.to(tl.int64) * BLOCK + i_step * KEYS + tl.arange(0, KEYS)
    store_rows(p_partial, o_partial, m_key, b_grad, INDEX_DIM, INDEX_PADDED)


def grad_index_keys(
    call: Call,
    q: Tensor,
    k: Tensor,
    index_q: Tensor,
    index_k: Tensor,
    block_ids: Tensor,
    lse: Tensor,
    index_lse: Tensor,
    grad_kl: Tensor,
) -> Tensor:
    """Gradient of index_k [T, E], the groups' parts being added one after the other in float32."""
    grad_index_k = torch.empty_like(index_k, dtype=torch.float32)
    keys = triton_tiles.keys_per_step(call, max(call.head_dim, call.index_dim), 32768)
    for group in range(call.num_groups):
        readers = triton_tiles.readers_of(call, block_ids, group)
        partial = triton_tiles.partial_sums(call, readers, index_k)
        triton_tiles.launch(
            _grad_index_k_kernel,
            (len(readers.pieces), triton.cdiv(call.block_size, keys)),
            num_warps=8,
            p_q=q,
            p_k=k,
            p_index_q=index_q,
            p_index_k=index_k,
            p_positions=call.positions,
            p_blocks=call.blocks,
            p_pieces=readers.pieces,
            p_readers=readers.readers,
            p_lse=lse,
            p_index_lse=index_lse,
            p_grad_kl=grad_kl,
            p_partial=partial,
            scale=call.head_dim**-0.5,
            index_scale=call.index_dim**-0.5,
            num_rows=index_lse.numel(),
            group=group,
            num_blocks=len(call.blocks),
            **head_sizes(call),
            INDEX_DIM=call.index_dim,
            INDEX_PADDED=padded(call.index_dim),
            QUERIES=READER_QUERIES,
            KEYS=keys,
            DENSE=call.dense,
        )
        _sum_pieces(call, readers, partial, grad_index_k, 1, 0, add=group > 0)
    return grad_index_k.to(index_k.dtype)
