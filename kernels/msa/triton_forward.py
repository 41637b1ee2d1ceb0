"""Forward kernels of MSA in Triton: choice of blocks, attention in two loop orders, KL of the index.

A *query-major* program owns a tile of queries of one group and walks over their keys: all earlier ones in the
dense phase, the chosen blocks of a single query in the sparse phase. A *block-major* program owns a key block
of one group and walks over the queries that read it, then partial results are merged.

Rows of a tile are pairs of query and head of the group, so that the group's heads share one product with
its keys. Names: `i_` program or loop index, `p_` pointer, `b_` block of values, `o_` offset, `m_` mask.
Widths are padded to powers of two by masks. Shapes in comments; letters as in reference.py, M = QUERIES x
HEADS rows, S = STUDENTS rows of the index, each a query.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.msa import triton_tiles
from kernels.msa.triton_tiles import Call, padded

CHOOSE_QUERIES = 64
MAX_ROW_BYTES = 1 << 16
"""Of a tile's queries, which lie in shared memory."""
PARTIAL_BYTES = 1 << 30
"""Room for partial outputs of the block-major order, which sets how many queries are done at a time."""

NO_BLOCK = tl.constexpr(0x7FFFFFFF)
NO_CANDIDATE = tl.constexpr(-0x7FFFFFFFFFFFFFFF)
NEVER_REPLACED = tl.constexpr(0x7FFFFFFFFFFFFFFF)


@triton.jit
def load_tile(p_tiles, i_tile):
    """First query, number of queries, position of the first in its document, the document's first key."""
    p_tile = p_tiles + i_tile * 4
    return tl.load(p_tile), tl.load(p_tile + 1), tl.load(p_tile + 2), tl.load(p_tile + 3)


@triton.jit
def rows_of_tile(
    first,
    count,
    i_group,
    NUM_GROUPS: tl.constexpr,
    GROUP_SIZE: tl.constexpr,
    QUERIES: tl.constexpr,
    HEADS: tl.constexpr,
):
    """Of each row of a tile: its query within the tile, place in [T, H], and whether there is such a row."""
    o_row = tl.arange(0, QUERIES * HEADS)
    o_query, o_head = o_row // HEADS, o_row % HEADS
    o_place = ((first + o_query) * NUM_GROUPS + i_group) * GROUP_SIZE + o_head
    return o_query, o_place, (o_query < count) & (o_head < GROUP_SIZE)


@triton.jit
def load_rows(p_x, o_place, m_row, WIDTH: tl.constexpr, PADDED: tl.constexpr):
    """Rows [.., WIDTH] of a matrix at these places, zeros where there is none."""
    o_width = tl.arange(0, PADDED)
    mask = m_row[:, None] & (o_width < WIDTH)[None, :]
    return tl.load(p_x + o_place[:, None] * WIDTH + o_width[None, :], mask=mask, other=0.0)


@triton.jit
def store_rows(p_x, o_place, m_row, b_x, WIDTH: tl.constexpr, PADDED: tl.constexpr):
    """Store rows in the type of the matrix."""
    o_width = tl.arange(0, PADDED)
    mask = m_row[:, None] & (o_width < WIDTH)[None, :]
    tl.store(p_x + o_place[:, None] * WIDTH + o_width[None, :], b_x.to(p_x.dtype.element_ty), mask=mask)


@triton.jit
def count_steps(
    p_chosen,
    last,
    BLOCK: tl.constexpr,
    TOP_K: tl.constexpr,
    SLOTS: tl.constexpr,
    KEYS: tl.constexpr,
    DENSE: tl.constexpr,
):
    """How many steps of KEYS keys a query-major program makes, `last` being its last query's position."""
    if DENSE:
        return tl.cdiv(last + 1, KEYS)
    else:
        o_slot = tl.arange(0, SLOTS)
        # [SLOTS]
        b_ids = tl.load(p_chosen + o_slot, mask=o_slot < TOP_K, other=-1)
        return tl.sum((b_ids >= 0).to(tl.int32), 0) * tl.cdiv(BLOCK, KEYS)


@triton.jit
def keys_of_step(p_chosen, i_step, last, BLOCK: tl.constexpr, KEYS: tl.constexpr, DENSE: tl.constexpr):
    """Positions of a step's keys in the document [KEYS], and which of them any query may see."""
    o_key = tl.arange(0, KEYS)
    if DENSE:
        o_position = i_step * KEYS + o_key
        return o_position, o_position <= last
    else:
        STEPS: tl.constexpr = (BLOCK + KEYS - 1) // KEYS
        o_within = i_step % STEPS * KEYS + o_key
        o_position = tl.load(p_chosen + i_step // STEPS).to(tl.int64) * BLOCK + o_within
        return o_position, (o_within < BLOCK) & (o_position <= last)


@triton.jit
def teach(
    b_q,
    b_k,
    b_lse,
    scale,
    GROUP_SIZE: tl.constexpr,
    QUERIES: tl.constexpr,
    HEADS: tl.constexpr,
    KEYS: tl.constexpr,
    STUDENTS: tl.constexpr,
):
    """Mean attention of each query's heads [S, KEYS]; rows of no head have lse +inf and so weigh nothing."""
    b_logits = tl.dot(b_q, tl.trans(b_k), input_precision="ieee") * scale
    b_probs = tl.exp(b_logits - b_lse[:, None])
    b_teacher = tl.sum(tl.reshape(b_probs, (QUERIES, HEADS, KEYS)), 1) / GROUP_SIZE
    return tl.broadcast_to(b_teacher, (STUDENTS, KEYS))


# ---- choice of blocks ------------------------------------------------------------------------------------


@triton.jit
def rank(b_score, b_block):
    """One integer for score and block, the greater the better: on equal scores the lower block is better."""
    b_bits = tl.where(b_score == 0, 0.0, b_score).to(tl.int32, bitcast=True)  # -0 equals 0
    b_ordered = (b_bits ^ ((b_bits >> 31) & 0x7FFFFFFF)).to(tl.int64)
    return (b_ordered << 32) | (0x7FFFFFFF - b_block.to(tl.int64))


@triton.jit
def keep_better(b_kept, b_candidate):
    """Replace the worst of each query's candidates [QUERIES, SLOTS] where the new one is better."""
    b_worst = tl.min(b_kept, 1)
    m_replaced = (b_kept == b_worst[:, None]) & (b_candidate > b_worst)[:, None]
    return tl.where(m_replaced, b_candidate[:, None], b_kept)


@triton.jit
def _choose_kernel(
    p_index_q,
    p_index_k,
    p_tiles,
    p_block_ids,
    NUM_GROUPS: tl.constexpr,
    INDEX_DIM: tl.constexpr,
    INDEX_PADDED: tl.constexpr,
    BLOCK: tl.constexpr,
    TOP_K: tl.constexpr,
    SLOTS: tl.constexpr,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
):
    """Score a tile of queries against every earlier block and keep the best in registers."""
    i_tile, i_group = tl.program_id(0), tl.program_id(1)
    first, count, position, first_key = load_tile(p_tiles, i_tile)
    o_query, o_key, o_slot = tl.arange(0, QUERIES), tl.arange(0, KEYS), tl.arange(0, SLOTS)
    o_place = (first + o_query) * NUM_GROUPS + i_group
    m_query = o_query < count
    # [QUERIES, E]
    b_index_q = load_rows(p_index_q, o_place, m_query, INDEX_DIM, INDEX_PADDED)
    b_own = (position + o_query) // BLOCK
    # Empty slots differ from each other, so that a new candidate replaces one of them.
    b_kept = tl.where(o_slot < TOP_K, NO_CANDIDATE + o_slot.to(tl.int64), NEVER_REPLACED)
    b_kept = tl.broadcast_to(b_kept[None, :], (QUERIES, SLOTS))
    for i_block in range(((position + count - 1) // BLOCK).to(tl.int32)):
        b_best = tl.full((QUERIES,), float("-inf"), tl.float32)
        for i_step in tl.static_range((BLOCK + KEYS - 1) // KEYS):
            o_within = i_step * KEYS + o_key
            m_key = o_within < BLOCK
            # [KEYS, E]
            b_index_k = load_rows(
                p_index_k, first_key + i_block * BLOCK + o_within, m_key, INDEX_DIM, INDEX_PADDED
            )
            b_scores = tl.dot(b_index_q, tl.trans(b_index_k), input_precision="ieee")
            b_best = tl.maximum(b_best, tl.max(tl.where(m_key[None, :], b_scores, float("-inf")), 1))
        b_block = tl.full((QUERIES,), i_block, tl.int32)
        b_kept = keep_better(b_kept, tl.where(i_block < b_own, rank(b_best, b_block), NO_CANDIDATE))
    b_kept = keep_better(b_kept, rank(tl.full((QUERIES,), float("inf"), tl.float32), b_own))
    m_filled = (b_kept >= NO_CANDIDATE + SLOTS) & (b_kept < NEVER_REPLACED)
    b_ids = tl.where(m_filled, 0x7FFFFFFF - (b_kept & 0x7FFFFFFF), NO_BLOCK).to(tl.int32)
    for i_slot in range(TOP_K):
        b_lowest = tl.min(b_ids, 1)
        b_stored = tl.where(b_lowest == NO_BLOCK, -1, b_lowest)
        tl.store(p_block_ids + o_place * TOP_K + i_slot, b_stored, mask=m_query)
        b_ids = tl.where(b_ids == b_lowest[:, None], NO_BLOCK, b_ids)


def choose(call: Call, index_q: Tensor, index_k: Tensor) -> Tensor:
    """Blocks of each query and group [T, R, K]."""
    block_ids = torch.empty((*index_q.shape[:2], call.top_k), dtype=torch.int32, device=index_q.device)
    queries = min(CHOOSE_QUERIES, triton_tiles.rows_per_tile(call))
    tiles = triton_tiles.tiles(call, queries)
    triton_tiles.launch(
        _choose_kernel,
        (len(tiles), call.num_groups),
        p_index_q=index_q,
        p_index_k=index_k,
        p_tiles=tiles,
        p_block_ids=block_ids,
        NUM_GROUPS=call.num_groups,
        INDEX_DIM=call.index_dim,
        INDEX_PADDED=padded(call.index_dim),
        BLOCK=call.block_size,
        TOP_K=call.top_k,
        SLOTS=padded(call.top_k),
        QUERIES=queries,
        KEYS=triton_tiles.keys_per_step(call, call.index_dim, 32768),
    )
    return block_ids


# ---- attention, query-major ------------------------------------------------------------------------------


@triton.jit
def _attend_queries_kernel(
    p_q,
    p_k,
    p_v,
    p_block_ids,
    p_tiles,
    p_out,
    p_lse,
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
    """Softmax over the keys of a tile's queries with a running maximum and sum."""
    i_tile, i_group = tl.program_id(0), tl.program_id(1)
    first, count, position, first_key = load_tile(p_tiles, i_tile)
    o_query, o_place, m_row = rows_of_tile(first, count, i_group, NUM_GROUPS, GROUP_SIZE, QUERIES, HEADS)
    # [M, D]
    b_q = load_rows(p_q, o_place, m_row, HEAD_DIM, HEAD_PADDED)
    p_chosen = p_block_ids + (first * NUM_GROUPS + i_group) * TOP_K
    last = position + count - 1
    b_max = tl.full((QUERIES * HEADS,), float("-inf"), tl.float32)
    b_sum = tl.zeros((QUERIES * HEADS,), tl.float32)
    b_out = tl.zeros((QUERIES * HEADS, HEAD_PADDED), tl.float32)
    for i_step in range(count_steps(p_chosen, last, BLOCK, TOP_K, SLOTS, KEYS, DENSE)):
        o_key, m_key = keys_of_step(p_chosen, i_step, last, BLOCK, KEYS, DENSE)
        o_place_k = (first_key + o_key) * NUM_GROUPS + i_group
        # [KEYS, D]
        b_k = load_rows(p_k, o_place_k, m_key, HEAD_DIM, HEAD_PADDED)
        # [KEYS, D]
        b_v = load_rows(p_v, o_place_k, m_key, HEAD_DIM, HEAD_PADDED)
        m_seen = m_key[None, :] & (o_key[None, :] <= (position + o_query)[:, None])
        b_logits = tl.dot(b_q, tl.trans(b_k), input_precision="ieee") * scale
        b_logits = tl.where(m_seen, b_logits, float("-inf"))
        # Finite from the first step on: the first key of a document or of a chosen block is seen.
        b_new_max = tl.maximum(b_max, tl.max(b_logits, 1))
        b_probs = tl.exp(b_logits - b_new_max[:, None])
        b_shrink = tl.exp(b_max - b_new_max)
        b_sum = b_sum * b_shrink + tl.sum(b_probs, 1)
        b_out = b_out * b_shrink[:, None]
        b_out = tl.dot(b_probs.to(b_v.dtype), b_v, b_out, input_precision="ieee")
        b_max = b_new_max
    b_out = b_out / tl.where(b_sum > 0, b_sum, 1.0)[:, None]  # a given choice may be empty: zeros
    store_rows(p_out, o_place, m_row, b_out, HEAD_DIM, HEAD_PADDED)
    tl.store(p_lse + o_place, b_max + tl.log(b_sum), mask=m_row)


def attend_queries(call: Call, q: Tensor, k: Tensor, v: Tensor, block_ids: Tensor) -> tuple[Tensor, Tensor]:
    """Output [T, H, D] and log-sum-exp [T, H]; either phase."""
    out = torch.empty_like(q)
    lse = torch.empty(q.shape[:2], dtype=torch.float32, device=q.device)
    queries, heads = tile_shape(call)
    tiles = triton_tiles.tiles(call, queries)
    triton_tiles.launch(
        _attend_queries_kernel,
        (len(tiles), call.num_groups),
        num_warps=8 if call.dense else 4,
        p_q=q,
        p_k=k,
        p_v=v,
        p_block_ids=block_ids,
        p_tiles=tiles,
        p_out=out,
        p_lse=lse,
        scale=call.head_dim**-0.5,
        **head_sizes(call),
        SLOTS=padded(call.top_k),
        QUERIES=queries,
        HEADS=heads,
        KEYS=triton_tiles.keys_per_step(call, call.head_dim, 16384),
        DENSE=call.dense,
    )
    return out, lse


def tile_shape(call: Call) -> tuple[int, int]:
    """Queries and heads of a query-major tile; one query in the sparse phase, as each has its own blocks."""
    heads = triton.next_power_of_2(call.group_size)
    if not call.dense:
        return 1, max(16, heads)
    return max(1, triton_tiles.rows_per_tile(call) // heads), heads


def student_tile_shape(call: Call) -> tuple[int, int]:
    """The same where queries are also rows of a product: 16 or more, or one where 16 are too wide."""
    queries, heads = tile_shape(call)
    if not call.dense or queries >= 16:
        return queries, heads
    fits = 16 * heads * padded(call.head_dim) * call.element_bytes <= MAX_ROW_BYTES
    return (16, heads) if fits else (1, max(16, heads))


def head_sizes(call: Call) -> dict[str, int]:
    """Arguments of every kernel that reads the heads."""
    return {
        "NUM_GROUPS": call.num_groups,
        "GROUP_SIZE": call.group_size,
        "HEAD_DIM": call.head_dim,
        "HEAD_PADDED": padded(call.head_dim),
        "BLOCK": call.block_size,
        "TOP_K": call.top_k,
    }


# ---- attention, block-major ------------------------------------------------------------------------------


@triton.jit
def load_piece(p_pieces, p_blocks, i_piece, i_step, num_blocks, KEYS: tl.constexpr):
    """Group and range of readers of a piece, and of its keys: place in [T], position, whether there."""
    p_piece = p_pieces + i_piece * 3
    unit = tl.load(p_piece)
    p_block = p_blocks + unit % num_blocks * 5
    o_within = i_step * KEYS + tl.arange(0, KEYS)
    o_key = tl.load(p_block) + o_within
    o_position = tl.load(p_block + 1) + o_within
    return (
        unit // num_blocks,
        tl.load(p_piece + 1),
        tl.load(p_piece + 2),
        o_key,
        o_position,
        o_within < tl.load(p_block + 2),
    )


@triton.jit
def _attend_block_kernel(
    p_q,
    p_k,
    p_v,
    p_positions,
    p_blocks,
    p_pieces,
    p_readers,
    p_partial,
    p_partial_lse,
    scale,
    first_query,
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
):
    """Attend from a block's readers to its keys alone: normalised output and log-sum-exp of each."""
    i_piece, i_step = tl.program_id(0), tl.program_id(1)
    i_group, begin, end, o_key, o_position, m_key = load_piece(
        p_pieces, p_blocks, i_piece, i_step, num_blocks, KEYS
    )
    if begin >= end:
        return
    STEPS: tl.constexpr = (BLOCK + KEYS - 1) // KEYS
    o_row = tl.arange(0, QUERIES * HEADS)
    o_head = o_row % HEADS
    o_place_k = o_key * NUM_GROUPS + i_group
    # [KEYS, D]
    b_k = load_rows(p_k, o_place_k, m_key, HEAD_DIM, HEAD_PADDED)
    # [KEYS, D]
    b_v = load_rows(p_v, o_place_k, m_key, HEAD_DIM, HEAD_PADDED)
    for i_reader in range(begin, end, QUERIES):
        o_reader = i_reader + o_row // HEADS
        m_row = (o_reader < end) & (o_head < GROUP_SIZE)
        # [M]
        b_slot = tl.load(p_readers + o_reader, mask=m_row, other=0).to(tl.int64)
        b_query = first_query + b_slot // (NUM_GROUPS * TOP_K)
        # [M]
        b_position = tl.load(p_positions + b_query, mask=m_row, other=0)
        o_place = (b_query * NUM_GROUPS + i_group) * GROUP_SIZE + o_head
        # [M, D]
        b_q = load_rows(p_q, o_place, m_row, HEAD_DIM, HEAD_PADDED)
        m_seen = m_key[None, :] & (o_position[None, :] <= b_position[:, None])
        b_logits = tl.dot(b_q, tl.trans(b_k), input_precision="ieee") * scale
        b_logits = tl.where(m_seen, b_logits, float("-inf"))
        b_max = tl.max(b_logits, 1)
        b_probs = tl.exp(b_logits - tl.where(b_max == float("-inf"), 0.0, b_max)[:, None])
        b_sum = tl.sum(b_probs, 1)
        b_out = tl.dot(b_probs.to(b_v.dtype), b_v, input_precision="ieee")
        b_out = b_out / tl.where(b_sum > 0, b_sum, 1.0)[:, None]
        o_partial = (b_slot * STEPS + i_step) * GROUP_SIZE + o_head
        store_rows(p_partial, o_partial, m_row, b_out, HEAD_DIM, HEAD_PADDED)
        tl.store(p_partial_lse + o_partial, b_max + tl.log(b_sum), mask=m_row)


@triton.jit
def _merge_kernel(
    p_partial,
    p_partial_lse,
    p_block_ids,
    p_out,
    p_lse,
    first_query,
    NUM_GROUPS: tl.constexpr,
    GROUP_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HEAD_PADDED: tl.constexpr,
    BLOCK: tl.constexpr,
    TOP_K: tl.constexpr,
    SLOTS: tl.constexpr,
    HEADS: tl.constexpr,
    KEYS: tl.constexpr,
):
    """Weigh a query's partial outputs by their share of the sum of exponentials."""
    i_query, i_group = tl.program_id(0).to(tl.int64), tl.program_id(1)
    o_head = tl.arange(0, HEADS)
    m_head = o_head < GROUP_SIZE
    i_place = (first_query + i_query) * NUM_GROUPS + i_group
    p_chosen = p_block_ids + i_place * TOP_K
    STEPS: tl.constexpr = (BLOCK + KEYS - 1) // KEYS
    first_partial = (i_query * NUM_GROUPS + i_group) * TOP_K * STEPS
    b_max = tl.full((HEADS,), float("-inf"), tl.float32)
    b_sum = tl.zeros((HEADS,), tl.float32)
    b_out = tl.zeros((HEADS, HEAD_PADDED), tl.float32)
    for i_step in range(count_steps(p_chosen, 0, BLOCK, TOP_K, SLOTS, KEYS, False)):
        o_partial = (first_partial + i_step) * GROUP_SIZE + o_head
        # [HEADS]
        b_lse = tl.load(p_partial_lse + o_partial, mask=m_head, other=0.0)
        # [HEADS, D]
        b_partial = load_rows(p_partial, o_partial, m_head, HEAD_DIM, HEAD_PADDED)
        b_new_max = tl.maximum(b_max, b_lse)
        b_shrink, b_weight = tl.exp(b_max - b_new_max), tl.exp(b_lse - b_new_max)
        b_sum = b_sum * b_shrink + b_weight
        b_out = b_out * b_shrink[:, None] + b_partial.to(tl.float32) * b_weight[:, None]
        b_max = b_new_max
    o_place = i_place * GROUP_SIZE + o_head
    b_out = b_out / tl.where(b_sum > 0, b_sum, 1.0)[:, None]
    store_rows(p_out, o_place, m_head, b_out, HEAD_DIM, HEAD_PADDED)
    tl.store(p_lse + o_place, b_max + tl.log(b_sum), mask=m_head)


def attend_blocks(call: Call, q: Tensor, k: Tensor, v: Tensor, block_ids: Tensor) -> tuple[Tensor, Tensor]:
    """The same as `attend_queries` in the sparse phase, some thousand queries at a time."""
    out = torch.empty_like(q)
    lse = torch.empty(q.shape[:2], dtype=torch.float32, device=q.device)
    keys = triton_tiles.keys_per_step(call, call.head_dim, 32768)
    steps = triton.cdiv(call.block_size, keys)
    slots = call.top_k * steps * q.shape[1]
    chunk = min(len(q), max(1, PARTIAL_BYTES // (slots * call.head_dim * q.element_size())))
    partial = q.new_empty(chunk * slots, call.head_dim)
    partial_lse = lse.new_empty(chunk * slots)
    heads = triton.next_power_of_2(call.group_size)
    for first in range(0, len(q), chunk):
        here = slice(first, first + chunk)
        turned = triton_tiles.turn_round(call, block_ids[here], call.first_blocks[here])
        triton_tiles.launch(
            _attend_block_kernel,
            (len(turned.pieces), steps),
            num_warps=8,
            num_stages=1,
            p_q=q,
            p_k=k,
            p_v=v,
            p_positions=call.positions,
            p_blocks=call.blocks,
            p_pieces=turned.pieces,
            p_readers=turned.readers,
            p_partial=partial,
            p_partial_lse=partial_lse,
            scale=call.head_dim**-0.5,
            first_query=first,
            num_blocks=len(call.blocks),
            **head_sizes(call),
            QUERIES=max(1, triton_tiles.rows_per_tile(call) // heads),
            HEADS=heads,
            KEYS=keys,
        )
        triton_tiles.launch(
            _merge_kernel,
            (len(block_ids[here]), call.num_groups),
            p_partial=partial,
            p_partial_lse=partial_lse,
            p_block_ids=block_ids,
            p_out=out,
            p_lse=lse,
            first_query=first,
            **head_sizes(call),
            SLOTS=padded(call.top_k),
            HEADS=heads,
            KEYS=keys,
        )
    return out, lse


# ---- KL of the index -------------------------------------------------------------------------------------


@triton.jit
def _index_kl_kernel(
    p_q,
    p_k,
    p_index_q,
    p_index_k,
    p_block_ids,
    p_tiles,
    p_lse,
    p_index_lse,
    p_kl,
    scale,
    index_scale,
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
    """Sum t (log t - s) over a tile's keys, beside the log-sum-exp of s, which is the rest of the KL."""
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
    p_chosen = p_block_ids + (first * NUM_GROUPS + i_group) * TOP_K
    last = position + count - 1
    b_max = tl.full((STUDENTS,), float("-inf"), tl.float32)
    b_sum = tl.zeros((STUDENTS,), tl.float32)
    b_kl = tl.zeros((STUDENTS,), tl.float32)
    for i_step in range(count_steps(p_chosen, last, BLOCK, TOP_K, SLOTS, KEYS, DENSE)):
        o_key, m_key = keys_of_step(p_chosen, i_step, last, BLOCK, KEYS, DENSE)
        # [KEYS, D]
        b_k = load_rows(p_k, (first_key + o_key) * NUM_GROUPS + i_group, m_key, HEAD_DIM, HEAD_PADDED)
        # [KEYS, E]
        b_index_k = load_rows(p_index_k, first_key + o_key, m_key, INDEX_DIM, INDEX_PADDED)
        m_seen = m_key[None, :] & (o_key[None, :] <= (position + o_student)[:, None])
        b_teacher = teach(b_q, b_k, b_lse, scale, GROUP_SIZE, QUERIES, HEADS, KEYS, STUDENTS)
        b_teacher = tl.where(m_seen, b_teacher, 0.0)
        b_scores = tl.dot(b_index_q, tl.trans(b_index_k), input_precision="ieee") * index_scale
        b_log = tl.log(tl.where(b_teacher > 0, b_teacher, 1.0))
        b_kl += tl.sum(b_teacher * (b_log - b_scores), 1)
        b_scores = tl.where(m_seen, b_scores, float("-inf"))
        b_new_max = tl.maximum(b_max, tl.max(b_scores, 1))
        b_sum = b_sum * tl.exp(b_max - b_new_max)
        b_sum += tl.sum(tl.exp(b_scores - b_new_max[:, None]), 1)
        b_max = b_new_max
    b_index_lse = b_max + tl.log(b_sum)
    b_kl = tl.where(b_sum > 0, b_kl + b_index_lse, 0.0)  # 0 where a given choice is empty
    tl.store(p_index_lse + o_place_index, b_index_lse, mask=m_student)
    tl.store(p_kl + o_place_index, b_kl, mask=m_student)


def index_kl(
    call: Call,
    q: Tensor,
    k: Tensor,
    index_q: Tensor,
    index_k: Tensor,
    block_ids: Tensor,
    lse: Tensor,
) -> tuple[Tensor, Tensor]:
    """KL of each query and group [T, R], and log-sum-exp of the index scores over the same keys [T, R]."""
    kl = torch.empty(index_q.shape[:2], dtype=torch.float32, device=q.device)
    index_lse = torch.empty_like(kl)
    queries, heads = student_tile_shape(call)
    tiles = triton_tiles.tiles(call, queries)
    triton_tiles.launch(
        _index_kl_kernel,
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
        p_kl=kl,
        scale=call.head_dim**-0.5,
        index_scale=call.index_dim**-0.5,
        **head_sizes(call),
        **student_sizes(call, queries),
        QUERIES=queries,
        HEADS=heads,
        DENSE=call.dense,
    )
    return kl, index_lse


def student_sizes(call: Call, queries: int) -> dict[str, int]:
    """Arguments of the query-major kernels of the index."""
    return {
        "INDEX_DIM": call.index_dim,
        "INDEX_PADDED": padded(call.index_dim),
        "SLOTS": padded(call.top_k),
        "KEYS": triton_tiles.keys_per_step(call, max(call.head_dim, call.index_dim), 16384),
        "STUDENTS": max(16, queries),
    }
