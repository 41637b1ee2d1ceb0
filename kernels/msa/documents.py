"""Where the documents of a padded or packed batch lie, as attention over documents wants to know.

Owns the reading of masks and position numbers, and the way of tensors from rows to documents and back.

Letters: B rows of a batch, S slots of a row, Q slots of them that are new, T new tokens of all documents,
L their keys, H query heads, R key-value heads, D head width, M model width.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor


class Documents(NamedTuple):
    """Where the documents of a batch lie."""

    spans: list[tuple[int, int, int, int]]
    """Of each document its new tokens, from and up to, among T, and its keys among L."""
    query_slots_T: Tensor | None
    """Where the new tokens stand in the B x Q slots; None: in all of them."""
    key_slots_L: Tensor | None
    """Where the keys stand in the B x S slots; None: in all of them."""
    num_new: int
    """New slots of a row, Q."""
    is_packed: bool
    """Several in a row."""
    is_decoding: bool
    """One new token in every row, the last one of a cache."""

    def pack(self, query: Tensor, *keys: Tensor) -> tuple[Tensor, ...]:
        """From [B, H, Q, D] and [B, R, S, D] take all documents' tokens in turn, [T, H, D] and [L, R, D]."""
        slots = (self.query_slots_T, *[self.key_slots_L] * len(keys))
        flat = [x.transpose(1, 2).flatten(0, 1) for x in (query, *keys)]
        return tuple(x if at is None else x[at.to(x.device)] for x, at in zip(flat, slots, strict=True))

    def unpack(self, out_THD: Tensor, num_rows: int) -> Tensor:
        """Put tokens back into their slots [B, Q, H, D], with zeros where there is none."""
        if self.query_slots_T is not None:
            empty = out_THD.new_zeros(num_rows * self.num_new, *out_THD.shape[1:])
            out_THD = empty.index_copy(0, self.query_slots_T.to(out_THD.device), out_THD)
        return out_THD.unflatten(0, (num_rows, self.num_new)).contiguous()


def find_documents(
    attention_mask: Any, position_ids: Tensor | None, inputs: Tensor, num_cached: int
) -> Documents:
    """Find the documents of a batch: rows without what the mask leaves out, cut where positions restart.

    Shapes:
        attention_mask [B, S] or None, nothing left out; position_ids [B or 1, Q] or None, they rise; inputs,
        the new tokens, [B, Q] or [B, Q, M]. The first `num_cached` of the S slots are those of a cache, which
        holds one document a row.

    Raises:
        ValueError: for a mask or positions of other shapes, and positions that neither rise by one nor
            restart.
    """
    num_rows, num_new = inputs.shape[:2]
    valid_BS = _valid_slots(attention_mask, num_rows, num_cached + num_new, inputs.device)
    new_BQ = valid_BS[:, num_cached:]
    row_T, slot_T = new_BQ.nonzero(as_tuple=True)
    begins_T = torch.ones_like(row_T, dtype=torch.bool)
    begins_T[1:] = row_T.diff() != 0
    num_rows_read = int(begins_T.sum())
    if position_ids is not None:
        if position_ids.ndim != 2 or position_ids.shape not in ((num_rows, num_new), (1, num_new)):
            raise ValueError(
                f"position_ids: shape {tuple(position_ids.shape)}, must be ({num_rows} or 1, {num_new})"
            )
        position_T = position_ids.to(inputs.device).expand(num_rows, -1)[row_T, slot_T]
        begins_T[1:] |= _restarts(position_T, row_T, slot_T)
        if num_cached:
            _check_continues(position_T, row_T, begins_T, valid_BS[:, :num_cached].sum(-1))
    edges = [*begins_T.nonzero().flatten().tolist(), len(row_T)]
    edges_k, key_slots_L = edges, None
    if num_cached:
        rows = row_T[begins_T]  # those with a new token
        counts = valid_BS.sum(-1)[rows]
        edges_k = [0, *counts.cumsum(0).tolist()]
        if not valid_BS.all():
            read_BS = torch.zeros_like(valid_BS)
            read_BS[rows] = valid_BS[rows]
            key_slots_L = read_BS.flatten().nonzero().flatten()
    query_slots_T = None if new_BQ.all() else new_BQ.flatten().nonzero().flatten()
    return Documents(
        spans=list(zip(edges[:-1], edges[1:], edges_k[:-1], edges_k[1:], strict=True)),
        query_slots_T=query_slots_T,
        key_slots_L=key_slots_L if num_cached else query_slots_T,
        num_new=num_new,
        is_packed=len(edges) - 1 > num_rows_read,
        is_decoding=bool(num_cached) and num_new == 1 and len(row_T) == num_rows,
    )


def _valid_slots(attention_mask: Any, num_rows: int, num_slots: int, device: torch.device) -> Tensor:
    if attention_mask is None:
        return torch.ones(num_rows, num_slots, dtype=torch.bool, device=device)
    if not isinstance(attention_mask, Tensor):
        raise ValueError(
            f"attention_mask: a {type(attention_mask).__name__}, must be a tensor [batch, tokens]"
        )
    if attention_mask.shape != (num_rows, num_slots):
        raise ValueError(
            f"attention_mask: shape {tuple(attention_mask.shape)}, must be ({num_rows}, {num_slots}): rows, "
            "and tokens with those of the cache; masks of queries by keys are not taken"
        )
    return attention_mask.to(device).bool()


def _restarts(position_T: Tensor, row_T: Tensor, slot_T: Tensor) -> Tensor:
    """Where within a row positions do not rise [T - 1]; over slots left out they may rise by as many."""
    step, gap, same_row = position_T.diff(), slot_T.diff(), row_T.diff() == 0
    wrong = (same_row & (step > 1) & (step != gap)).nonzero().flatten().tolist()
    if wrong:
        before, after = position_T[wrong[0]], position_T[wrong[0] + 1]
        raise ValueError(
            f"position_ids: {int(after)} after {int(before)} in row {int(row_T[wrong[0]])}, must rise by one "
            "in a document, or restart with the next"
        )
    return same_row & (step <= 0)


def _check_continues(position_T: Tensor, row_T: Tensor, begins_T: Tensor, num_before_B: Tensor) -> None:
    """With a cache: one document a row, at positions after those in the cache."""
    restarts_T = begins_T.clone()
    restarts_T[1:] &= row_T.diff() == 0
    restarts_T[:1] = False
    restarts_T |= begins_T & (position_T < num_before_B[row_T])
    if restarts_T.any():
        at = int(restarts_T.nonzero()[0])
        raise ValueError(
            f"position_ids: {int(position_T[at])} in row {int(row_T[at])} begins a document, but the cache "
            f"has {int(num_before_B[row_T[at]])} tokens of another; a cache holds one document a row"
        )
