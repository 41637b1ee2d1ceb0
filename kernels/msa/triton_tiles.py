"""What the Triton kernels of MSA are launched on: tables of documents, tiles, key blocks and their readers.

Owns the tables, the sizes of tiles and the launch itself. Plain torch on the tensors' device; a table costs
one wait for the device where its length is not known. Letters as in reference.py; P pieces.
"""

import contextlib
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

MIN_PIECE_READERS = 512
MAX_EXTRA_PIECES = 4096
"""Readers of one block are cut into pieces so that a block read by all does not outlast the others."""


class Call(NamedTuple):
    """Sizes and tables of one call."""

    num_groups: int
    group_size: int
    head_dim: int
    index_dim: int
    block_size: int
    top_k: int
    dense: bool
    element_bytes: int
    edges: Tensor
    """Per document [documents, 4]: first query, end of its queries, first key, end of its keys."""
    positions: Tensor
    """Of each query in its document [T]."""
    first_blocks: Tensor
    """Number of each query's document's first block [T], int32; blocks are counted over all documents."""
    blocks: Tensor
    """Per block [N, 5]: first key, its position in its document, number of keys, and the first query and the
    end of those that may read it."""


class Readers(NamedTuple):
    """Which queries read each of some key blocks, cut into pieces of work."""

    readers: Tensor
    """Places [reads] in the flat choice, sorted by group and block; nothing in the dense phase."""
    pieces: Tensor
    """Per piece [P, 3]: group x N + block, and the range of `readers`, in the dense phase of queries."""
    first_piece: Tensor
    """Per group and block, with one more for the end [R x N + 1]."""


def describe(
    q: Tensor,
    index_q: Tensor,
    cu_seqlens: Tensor,
    cu_seqlens_k: Tensor,
    *,
    block_size: int,
    top_k: int,
    dense: bool,
) -> Call:
    """Lay out the documents."""
    num_groups = index_q.shape[1]
    cu, cu_k = cu_seqlens.to(q.device).long(), cu_seqlens_k.to(q.device).long()
    edges = torch.stack((cu[:-1], cu[1:], cu_k[:-1], cu_k[1:]), dim=-1)
    length, length_k = cu.diff(), cu_k.diff()
    document, number = _numbered(length)
    num_blocks = -(-length_k // block_size)
    block_document, block_number = _numbered(num_blocks)
    position = block_number * block_size
    shift = (length_k - length)[block_document]  # position of a document's first query
    first, end, first_key, _ = edges[block_document].unbind(-1)
    blocks = torch.stack(
        (
            first_key + position,
            position,
            (length_k[block_document] - position).clamp(max=block_size),
            first + (position - shift).clamp(min=0),
            end,
        ),
        dim=-1,
    )
    return Call(
        num_groups=num_groups,
        group_size=q.shape[1] // num_groups,
        head_dim=q.shape[2],
        index_dim=index_q.shape[2],
        block_size=block_size,
        top_k=top_k,
        dense=dense,
        element_bytes=q.element_size(),
        edges=edges,
        positions=(number + (length_k - length)[document]).contiguous(),
        first_blocks=(num_blocks.cumsum(0) - num_blocks)[document].int(),
        blocks=blocks,
    )


def tiles(call: Call, num_queries: int) -> Tensor:
    """Cut each document's queries into tiles.

    Returns:
        Per tile [tiles, 4]: first query, number of queries, position of the first, the document's first key.
    """
    first, end, first_key, end_key = call.edges.unbind(-1)
    document, number = _numbered(-(-(end - first) // num_queries))
    at = first[document] + number * num_queries
    count = (end[document] - at).clamp(max=num_queries)
    position = at - end[document] + (end_key - first_key)[document]
    return torch.stack((at, count, position, first_key[document]), dim=-1)


def turn_round(call: Call, block_ids_TRK: Tensor, first_blocks_T: Tensor) -> Readers:
    """List for each group and block the queries that read it, ascending; the same bits in every run."""
    num_blocks, num_groups = len(call.blocks), block_ids_TRK.shape[1]
    units = num_groups * num_blocks
    group_R1 = torch.arange(num_groups, device=block_ids_TRK.device, dtype=torch.int32)[:, None] * num_blocks
    number_TRK = block_ids_TRK + first_blocks_T[:, None, None] + group_R1
    numbers = torch.where(block_ids_TRK < 0, units, number_TRK).flatten()
    numbers, order = numbers.sort(stable=True)
    edges = torch.searchsorted(numbers, torch.arange(units + 1, device=numbers.device, dtype=torch.int32))
    return _cut(order.int(), edges[:-1], edges[1:], len(numbers))


def readers_of(call: Call, block_ids_TRK: Tensor, group: int) -> Readers:
    """Those of one group, to bound the room that sorting takes; dense, every later query reads a block."""
    if not call.dense:
        return turn_round(call, block_ids_TRK[:, group : group + 1], call.first_blocks)
    begins, ends = call.blocks[:, 3].contiguous(), call.blocks[:, 4].contiguous()
    return _cut(begins.new_zeros(1, dtype=torch.int32), begins, ends, int((ends - begins).sum()))


def partial_sums(call: Call, readers: Readers, like: Tensor) -> Tensor:
    """Room for what each piece adds to the gradient of its block's keys."""
    size = (len(readers.pieces) * call.block_size, like.shape[-1])
    return torch.empty(size, dtype=torch.float32, device=like.device)


def _cut(readers: Tensor, begins: Tensor, ends: Tensor, num_reads: int) -> Readers:
    """Cut each range into pieces of equal length; the table is as long as it can get, surplus is empty."""
    length = max(MIN_PIECE_READERS, -(-num_reads // MAX_EXTRA_PIECES))
    num_pieces = (ends - begins + length - 1) // length
    last_piece = num_pieces.cumsum(0)
    piece = torch.arange(len(begins) + num_reads // length, device=begins.device)
    unit = torch.searchsorted(last_piece, piece, right=True)
    surplus = unit == len(begins)
    unit = unit.masked_fill(surplus, 0)
    begin = begins[unit] + (piece - last_piece[unit] + num_pieces[unit]) * length
    end = torch.minimum(begin + length, ends[unit]).masked_fill(surplus, 0)
    pieces = torch.stack((unit, begin.masked_fill(surplus, 0), end), dim=-1)
    return Readers(readers, pieces, torch.cat((last_piece.new_zeros(1), last_piece)))


def _numbered(counts: Tensor) -> tuple[Tensor, Tensor]:
    """For each of `counts` things of each document: the document, and which of its things it is."""
    document = torch.arange(len(counts), device=counts.device).repeat_interleave(counts)
    first = counts.cumsum(0) - counts
    return document, torch.arange(len(document), device=counts.device) - first[document]


def padded(width: int) -> int:
    """The power of two, at least 16, that a tile of this width takes."""
    return max(16, triton.next_power_of_2(width))


def keys_per_step(call: Call, width: int, tile_bytes: int) -> int:
    """As many keys of one block as a tile may take."""
    fitting = tile_bytes // (padded(width) * call.element_bytes)
    return max(16, min(padded(call.block_size), fitting, 128))


def rows_per_tile(call: Call) -> int:
    """Rows, each a head of a query, of a tile that tensor cores are kept busy with."""
    if call.element_bytes > 2:
        return 32
    return 128 if call.head_dim <= 128 else 64


def launch(
    kernel: Any, grid: tuple[int, ...], *, num_warps: int = 4, num_stages: int = 2, **arguments: Any
) -> None:
    """Run a kernel over a grid on the device of its tensors."""
    device = next(x.device for x in arguments.values() if isinstance(x, Tensor))
    if device.type == "cpu" and isinstance(kernel, triton.JITFunction):
        raise ValueError("q: on cpu, where impl 'triton' computes only under TRITON_INTERPRET=1")
    if 0 in grid:
        return
    if torch.version.hip is not None:
        num_warps //= 2  # of 64 lanes
    with torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext():
        kernel[grid](**arguments, num_warps=num_warps, num_stages=num_stages)
