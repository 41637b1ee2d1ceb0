"""Pack: choose, order and join spans of documents into training sequences; the result is the `plan` table.

Owns which tokens are trained on, how often and in which order, and the account of those that are not. Does
not read tokens: it works on a description of each document (`describe`), so changing the mixture or the
context length rewrites a small table only. Scores become weights elsewhere (`rewards.select`).

The way of a document:

    weight 0 ----------------------------------> not selected
    hash of its doc_id below the fraction -----> held out, packed alone into `heldout`
    each epoch: the mixture takes it 0 times --> thinned by mixture         (2 times or more: repeated)
      cut where it exceeds the context --------> tail too short, unbreakable too long
        shuffled, packed window by window -----> not reached, once there are `num_sequences`
          planned

`Packed.report` counts tokens at each of these places, and they add up:

    input = not_selected + held_out + in_training
    in_training * epochs + repeated
        = planned + thinned_by_mixture + tail_too_short + unbreakable_too_long + not_reached
"""

import bisect
import dataclasses
import hashlib
import itertools
import math
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from datapipe.errors import PlanError
from datapipe.spec import PackSpec
from schemas import check, plan

VERSION = "1"

RANGE = pa.struct(
    [
        pa.field("start", pa.int32(), nullable=False),
        pa.field("end", pa.int32(), nullable=False),
    ]
)
DESCRIPTION = pa.schema(
    [
        pa.field("doc_id", pa.string(), nullable=False),
        pa.field("shard", pa.string(), nullable=False),
        pa.field("row", pa.int32(), nullable=False),
        pa.field("num_tokens", pa.int32(), nullable=False),
        pa.field("unbreakable", pa.list_(RANGE), nullable=False),  # pictures and video segments: never cut
        pa.field("modality", pa.string(), nullable=False),  # text, image or video: the richest it holds
    ]
)
# What `pack` reads: the description, and what its caller adds to it.
INPUT = pa.schema(
    [
        *(field for field in DESCRIPTION if field.name != "modality"),
        pa.field("stratum", pa.string(), nullable=False),
        pa.field("weight", pa.float32(), nullable=False),  # multiplies the loss; 0 is not selected
    ]
)

Range = tuple[int, int]

# What becomes of the tokens of documents in training, over all epochs; `repeated` is what is taken once more.
FATES = ("repeated", "planned", "thinned_by_mixture", "tail_too_short", "unbreakable_too_long", "not_reached")
HELD_OUT_FATES = ("planned", "tail_too_short", "unbreakable_too_long")


@dataclasses.dataclass(frozen=True)
class Packed:
    """The training plan, the plan of the held-out documents, and the account of all tokens."""

    plan: pa.Table
    heldout: pa.Table
    report: dict[str, Any]


def describe(tokens: pa.Table | pa.RecordBatch, shard: str) -> pa.RecordBatch:
    """Return what packing needs to know of the documents of the token file `shard`, given whole."""
    rows = []
    columns = (tokens[name].to_pylist() for name in ("doc_id", "num_tokens", "spans"))
    for row, (doc_id, num_tokens, spans) in enumerate(zip(*columns, strict=True)):
        kinds = {span["kind"] for span in spans}
        rows.append(
            {
                "doc_id": doc_id,
                "shard": shard,
                "row": row,
                "num_tokens": num_tokens,
                "unbreakable": [
                    {"start": span["start"], "end": span["end"]}
                    for span in spans
                    if span["kind"] in ("image", "video")
                ],
                "modality": next((kind for kind in ("video", "image") if kind in kinds), "text"),
            }
        )
    return pa.RecordBatch.from_pylist(rows, schema=DESCRIPTION)


def pack(documents: pa.Table, spec: PackSpec) -> Packed:
    """Return the plan for described documents (see `INPUT`); the order of the rows has no influence.

    A held-out span has weight 1, whatever its document's: an evaluation is to be the same for every
    selection.

    Raises:
        PlanError: a column is missing or has nulls, a doc_id occurs twice, a weight is negative or not
        finite,
            or the mixture does not fit the strata.
    """
    table = _checked(documents)
    is_selected = table["weight"].to_numpy() > 0
    is_held_out = _hashes(table["doc_id"]) / 2.0**64 < spec.held_out_frac
    held_out = table.filter(pa.array(is_selected & is_held_out))
    in_training = table.filter(pa.array(is_selected & ~is_held_out))
    planned, account = _planned(in_training, spec, _factors(in_training, spec), spec.num_sequences)
    ones = pa.array(np.ones(held_out.num_rows), INPUT.field("weight").type)
    unweighted = held_out.set_column(INPUT.get_field_index("weight"), INPUT.field("weight"), ones)
    held_out_planned, held_out_account = _planned(unweighted, spec, {}, None)
    places = {
        "input": table,
        "not_selected": table.filter(pa.array(~is_selected)),
        "held_out": held_out,
        "in_training": in_training,
    }
    return Packed(planned, held_out_planned, _report(places, planned, account, held_out_account, spec))


def _checked(documents: pa.Table) -> pa.Table:
    """Return the input columns, sorted by doc_id."""
    missing = [name for name in INPUT.names if name not in documents.column_names]
    if missing:
        raise PlanError(f"pack: columns {missing} are missing; `describe` gives all but stratum and weight")
    table = documents.select(INPUT.names).cast(INPUT).sort_by("doc_id").combine_chunks()
    check.matches(table, INPUT, "pack")
    for first, second in itertools.pairwise(table["doc_id"].to_pylist()):
        if first == second:
            raise PlanError(f"pack: document {first} occurs more than once; `mixture` repeats documents")
    for doc_id, weight in zip(table["doc_id"].to_pylist(), table["weight"].to_pylist(), strict=True):
        if not 0 <= weight < math.inf:
            raise PlanError(f"pack: weight {weight} of document {doc_id} must be finite and at least 0")
    return table


# ---- pseudo-random order


def _hashes(doc_ids: pa.ChunkedArray) -> np.ndarray:
    """Return 64 uniform bits for each document, the same in every corpus it is part of."""
    digests = (hashlib.blake2b(doc_id.encode(), digest_size=8).digest() for doc_id in doc_ids.to_pylist())
    return np.frombuffer(b"".join(digests), dtype="<u8").astype(np.uint64)


def _mixed(keys: np.ndarray, *salts: int | np.ndarray) -> np.ndarray:
    """Return new uniform keys for each combination of a key and salts.

    Source: SplitMix64 (Steele, Lea, Flood 2014, "Fast splittable pseudorandom number generators").
    """
    for salt in salts:
        step = np.atleast_1d(np.asarray(salt, dtype=np.int64)).astype(np.uint64) + np.uint64(1)
        keys = keys + step * np.uint64(0x9E3779B97F4A7C15)
        keys = (keys ^ (keys >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        keys = (keys ^ (keys >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        keys = keys ^ (keys >> np.uint64(31))
    return keys


# ---- mixture: how often an epoch takes a document


def _factors(table: pa.Table, spec: PackSpec) -> dict[str, float]:
    """Return by what the tokens of strata are multiplied so that an epoch has the mixture's shares.

    Raises:
        PlanError: the mixture names a stratum without tokens, or leaves a share that no stratum can take.
    """
    if not spec.mixture:
        return {}
    available = _tokens_by_stratum(table["stratum"], table["num_tokens"])
    unknown = sorted(set(spec.mixture) - set(available))
    if unknown:
        raise PlanError(
            f"mixture: stratum {unknown[0]!r} has no tokens to train on; "
            f"those that have are {sorted(available)}"
        )
    shares = dict(spec.mixture)
    rest = max(0.0, 1 - sum(shares.values()))
    others = {name: tokens for name, tokens in available.items() if name not in shares}
    if rest > 1e-6 and not others:
        raise PlanError(f"mixture: shares sum to {1 - rest:g}, and no stratum is left out to take the rest")
    shares |= {name: rest * tokens / sum(others.values()) for name, tokens in others.items()}
    return {name: share * sum(available.values()) / available[name] for name, share in shares.items()}


def _copies(table: pa.Table, factors: dict[str, float], keys: np.ndarray) -> np.ndarray:
    """Return how often an epoch takes each document; strata without a factor have 1.

    That is the whole part of the factor, and once more for the documents of the stratum with the lowest keys,
    until the tokens of the factor's rest are reached.
    """
    strata, num_tokens = table["stratum"].to_numpy(zero_copy_only=False), table["num_tokens"].to_numpy()
    copies = np.ones(table.num_rows, dtype=np.int64)
    for name, factor in factors.items():
        members = np.flatnonzero(strata == name)
        members = members[np.argsort(keys[members], kind="stable")]
        middle = np.cumsum(num_tokens[members], dtype=np.int64) - num_tokens[members] / 2
        whole = math.floor(factor + 1e-9)
        copies[members] = whole + (middle < (factor - whole) * num_tokens[members].sum(dtype=np.int64))
    return copies


# ---- spans


@dataclasses.dataclass(frozen=True)
class _Spans:
    """What documents are cut into, and how many tokens of each document are in no span."""

    document: np.ndarray
    start: np.ndarray
    end: np.ndarray
    tail_too_short: np.ndarray  # tokens, one entry a document
    unbreakable_too_long: np.ndarray

    @property
    def length(self) -> np.ndarray:
        return self.end - self.start


def _cut_documents(table: pa.Table, spec: PackSpec) -> _Spans:
    """Cut the documents that exceed the context; the others stay whole."""
    num_tokens = table["num_tokens"].to_numpy()
    tail, too_long = np.zeros((2, table.num_rows), dtype=np.int64)
    spans = [
        (document, 0, num_tokens[document])
        for document in np.flatnonzero((num_tokens > 0) & (num_tokens <= spec.context_length))
    ]
    long = np.flatnonzero(num_tokens > spec.context_length)
    for document, runs in zip(long, table["unbreakable"].take(pa.array(long)).to_pylist(), strict=True):
        found, tail[document], too_long[document] = cut(
            int(num_tokens[document]), [(run["start"], run["end"]) for run in runs], spec
        )
        spans += [(document, start, end) for start, end in found]
    of_document, start, end = np.array(spans, dtype=np.int64).reshape(-1, 3).T
    return _Spans(of_document, start, end, tail, too_long)


def cut(num_tokens: int, unbreakable: list[Range], spec: PackSpec) -> tuple[list[Range], int, int]:
    """Return the spans of a document, and how many tokens are left out in short rests and in long runs.

    Spans are as long as the context allows without cutting into an unbreakable run (sorted, apart). A run
    that alone exceeds the context is left out, and so is a rest shorter than `min_span_tokens`, wherever it
    arises.
    """
    spans, tail_too_short, unbreakable_too_long, start = [], 0, 0, 0
    while start < num_tokens:
        end = min(start + spec.context_length, num_tokens)
        run = bisect.bisect_left(unbreakable, (end, -1)) - 1  # the last run that starts before `end`
        if run >= 0 and unbreakable[run][1] > end:
            if unbreakable[run][0] <= start:
                unbreakable_too_long += unbreakable[run][1] - start
                start = unbreakable[run][1]
                continue
            end = unbreakable[run][0]
        if end - start >= spec.min_span_tokens:
            spans.append((start, end))
        else:
            tail_too_short += end - start
        start = end
    return spans, tail_too_short, unbreakable_too_long


# ---- sequences


def best_fit(lengths: list[int], capacity: int) -> list[list[int]]:
    """Return bins of items, each item (longest first) in the fullest bin that has room for it.

    Source: best-fit decreasing, as in "Fewer Truncations Improve Language Modeling" (arXiv 2404.10830).
    """
    bins: list[list[int]] = []
    room: list[tuple[int, int]] = []  # (free, bin) of the bins that are not full, sorted
    for item in sorted(range(len(lengths)), key=lambda item: -lengths[item]):
        place = bisect.bisect_left(room, (lengths[item], -1))
        if place == len(room):
            free, number = capacity, len(bins)
            bins.append([])
        else:
            free, number = room.pop(place)
        bins[number].append(item)
        if free > lengths[item]:
            bisect.insort(room, (free - lengths[item], number))
    return bins


def _sequences(lengths: np.ndarray, spec: PackSpec) -> Iterator[list[int]]:
    """Yield the spans of each sequence; they come shuffled, and sequences keep that order as far as they can.

    A sequence takes the place of its longest span, so that long and short documents stay mixed within a
    window.
    """
    for first in range(0, len(lengths), spec.window):
        bins = best_fit(lengths[first : first + spec.window].tolist(), spec.context_length)
        for members in sorted(bins, key=lambda members: members[0]):
            yield [first + member for member in sorted(members)]


# ---- the plan and its account


def _planned(
    table: pa.Table, spec: PackSpec, factors: dict[str, float], num_sequences: int | None
) -> tuple[pa.Table, Counter[str]]:
    """Return the plan of all documents of `table`, and the count of epochs, sequences and tokens by fate."""
    spans, keys = _cut_documents(table, spec), _hashes(table["doc_id"])
    num_tokens = table["num_tokens"].to_numpy().astype(np.int64)
    account: Counter[str] = Counter()
    sequences: list[np.ndarray] = []
    while len(sequences) < (num_sequences or 1):
        epoch_keys = _mixed(keys, spec.seed, account["epochs"])
        copies = _copies(table, factors, epoch_keys)
        order = _shuffled(spans, copies, epoch_keys)
        made = [order[members] for members in _sequences(spans.length[order], spec)]
        account.update(
            {
                "epochs": 1,
                "repeated": int((num_tokens * np.maximum(copies - 1, 0)).sum()),
                "thinned_by_mixture": int(num_tokens[copies == 0].sum()),
                "tail_too_short": int((spans.tail_too_short * copies).sum()),
                "unbreakable_too_long": int((spans.unbreakable_too_long * copies).sum()),
                "planned": int(spans.length[order].sum()),
            }
        )
        if not made:
            break
        sequences += made
    for surplus in sequences[num_sequences:] if num_sequences else []:
        account["planned"] -= int(spans.length[surplus].sum())
        account["not_reached"] += int(spans.length[surplus].sum())
    account["sequences"] = min(len(sequences), num_sequences or len(sequences))
    return _plan_table(table, spans, sequences[: account["sequences"]]), account


def _shuffled(spans: _Spans, copies: np.ndarray, epoch_keys: np.ndarray) -> np.ndarray:
    """Return the spans of an epoch, each as often as its document is taken, in pseudo-random order."""
    order = np.repeat(np.arange(len(spans.document)), copies[spans.document])
    copy = np.arange(len(order)) - np.searchsorted(order, order)  # 0, 1, 2 ... among copies of a span
    keys = _mixed(epoch_keys[spans.document[order]], copy, spans.start[order])
    return order[np.argsort(keys, kind="stable")]


def _plan_table(table: pa.Table, spans: _Spans, sequences: list[np.ndarray]) -> pa.Table:
    """Return plan rows for sequences of span numbers."""
    order = np.concatenate([np.zeros(0, dtype=np.int64), *sequences])
    sizes = np.array([len(sequence) for sequence in sequences], dtype=np.int64)
    before = np.cumsum(spans.length[order]) - spans.length[order]  # tokens of the plan before each span
    position = before - np.repeat(before[np.cumsum(sizes) - sizes], sizes)
    columns = {
        "sequence": np.repeat(np.arange(len(sizes)), sizes),
        "position": position,
        "start": spans.start[order],
        "end": spans.end[order],
    }
    documents = table.take(pa.array(spans.document[order]))
    arrays = [
        pa.array(columns[field.name], field.type) if field.name in columns else documents[field.name]
        for field in plan.SCHEMA
    ]
    return pa.table(arrays, schema=plan.SCHEMA)


def _report(
    places: dict[str, pa.Table],
    planned: pa.Table,
    account: Counter[str],
    held_out_account: Counter[str],
    spec: PackSpec,
) -> dict[str, Any]:
    """Return the account of documents and tokens that `Packed.report` holds."""
    num_planned, in_training = len(planned["doc_id"].unique()), places["in_training"]
    by_stratum = _tokens_by_stratum(planned["stratum"], pc.subtract(planned["end"], planned["start"]))
    return {
        "epochs": account["epochs"],
        **_filling(account, spec),
        "documents": {
            **{place: table.num_rows for place, table in places.items()},
            "planned": num_planned,
            "never_planned": in_training.num_rows - num_planned,
        },
        "tokens": {
            **{place: pc.sum(table["num_tokens"]).as_py() or 0 for place, table in places.items()},
            **{fate: account[fate] for fate in FATES},
        },
        "held_out": {
            **_filling(held_out_account, spec),
            **{fate: held_out_account[fate] for fate in HELD_OUT_FATES},
        },
        "strata": {
            name: {
                "in_training": tokens,
                "planned": by_stratum[name],
                "planned_frac": by_stratum[name] / max(account["planned"], 1),
            }
            for name, tokens in sorted(
                _tokens_by_stratum(in_training["stratum"], in_training["num_tokens"]).items()
            )
        },
    }


def _filling(account: Counter[str], spec: PackSpec) -> dict[str, Any]:
    capacity = max(account["sequences"], 1) * spec.context_length
    return {"sequences": account["sequences"], "fill_frac": account["planned"] / capacity}


def _tokens_by_stratum(strata: pa.ChunkedArray, num_tokens: pa.ChunkedArray) -> Counter[str]:
    counts: Counter[str] = Counter()
    for stratum, tokens in zip(strata.to_pylist(), num_tokens.to_pylist(), strict=True):
        counts[stratum] += tokens
    return counts
