"""Packing: how full training sequences get, beside Grain's first fit and best fit, and what is lost.

50,000 documents of 2,293 tokens in the mean (log-normal), a third of them with pictures of 64 to 576 tokens
that must not be cut, into sequences of 8,192.

    python -m tests.bench.pack [NUM_DOCUMENTS]
"""

import statistics
import sys

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from datapipe.spec import PackSpec
from datapipe.stages import pack
from tests.bench import report

CONTEXT = 8192
MEAN_TOKENS, SPREAD = 2293, 1.1
GOAL_FILL = 0.995


def documents(count: int) -> pa.Table:
    """Return described documents; lengths are log-normal, pictures stand at random places."""
    rng = np.random.default_rng(1)
    lengths = (
        np.exp(rng.normal(np.log(MEAN_TOKENS) - SPREAD**2 / 2, SPREAD, count)).astype(int).clip(32, 200_000)
    )
    rows = []
    for number, length in enumerate(lengths.tolist()):
        rows.append(
            {
                "doc_id": f"{number:08}",
                "shard": "tokens-00000.arrow",
                "row": number,
                "num_tokens": length,
                "unbreakable": _pictures(rng, length) if number % 3 == 0 else [],
                "stratum": "all",
                "weight": 1.0,
            }
        )
    return pa.Table.from_pylist(rows, schema=pack.INPUT)


def _pictures(rng: np.random.Generator, length: int) -> list[dict[str, int]]:
    found, at = [], 0
    while True:
        at += int(rng.integers(50, 1500))
        end = at + int(rng.integers(64, 577))
        if end > length:
            return found
        found.append({"start": at, "end": end})
        at = end


def lost(table: pa.Table, packed: pack.Packed) -> dict[str, int]:
    """Count what the plan did to pictures and tokens, from the plan itself."""
    planned: dict[str, list[tuple[int, int]]] = {}
    for row in packed.plan.select(["doc_id", "start", "end"]).to_pylist():
        planned.setdefault(row["doc_id"], []).append((row["start"], row["end"]))
    cut = 0
    for row in table.select(["doc_id", "unbreakable"]).to_pylist():
        spans = planned.get(row["doc_id"], [])
        for picture in row["unbreakable"]:
            inside = [s for s, e in spans if s < picture["end"] and e > picture["start"]]
            whole = [s for s, e in spans if s <= picture["start"] and picture["end"] <= e]
            cut += len(inside) != len(whole)
    tokens = sum(end - start for spans in planned.values() for start, end in spans)
    told = sum(packed.report["tokens"][fate] for fate in pack.FATES if fate not in ("planned", "repeated"))
    total = pc.sum(table["num_tokens"]).as_py()
    return {
        "pictures cut": cut,
        "tokens left out": told,
        "tokens left out without a count": total - tokens - told,
    }


def grain_fill(lengths: list[int], packer: str, num_bins: int) -> float:
    """Return the fill of one of Grain's packers over the same lengths, cut to the context as ours are."""
    import grain  # takes seconds to load
    from grain.experimental import BestFitPackIterDataset, FirstFitPackIterDataset

    kind = {"first fit": FirstFitPackIterDataset, "best fit": BestFitPackIterDataset}[packer]
    source = grain.MapDataset.source(lengths).map(lambda n: {"tokens": np.ones(n, np.int8)}).to_iter_dataset()
    packed = kind(source, length_struct={"tokens": CONTEXT}, num_packing_bins=num_bins)
    rows = tokens = 0
    for element in packed:
        value = element[0] if isinstance(element, tuple) else element
        rows, tokens = rows + 1, tokens + int(value["tokens"].sum())
    return tokens / (rows * CONTEXT)


def main(count: int) -> None:
    table = documents(count)
    spec = PackSpec(context_length=CONTEXT, held_out_frac=0.0)
    packed = pack.pack(table, spec)
    lengths = pc.subtract(packed.plan["end"], packed.plan["start"]).to_pylist()
    num_sequences = len(packed.plan["sequence"].unique())
    fill = sum(lengths) / (num_sequences * CONTEXT)
    seconds = report.in_turn({"ours": lambda: pack.pack(table, spec)}, rounds=3)
    rows = [
        report.row(
            f"fill of {num_sequences:,} sequences of {CONTEXT:,} from {count:,} documents",
            100 * fill,
            "%",
            goal=100 * GOAL_FILL,
            quality=lost(table, packed),
        ),
        report.row(f"{count:,} documents packed", count / statistics.median(seconds["ours"]), "documents/s"),
    ]
    few = np.random.default_rng(2).permutation(lengths)[:10_000].tolist()
    rows += [
        report.row(
            f"fill of {CONTEXT:,}; theirs from {len(few):,} of our spans with {num_bins} bins",
            100 * fill,
            "%",
            peer=100 * grain_fill(few, packer, num_bins),
            peer_name=f"Grain, {packer}",
        )
        for packer in ("first fit", "best fit")
        for num_bins in (8, 64)
    ]
    report.write("pack", rows, ["grain"])


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 50_000)
