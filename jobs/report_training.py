"""The report's sections on the plan, pretraining and RL, as plain data and plots.

Owns what they say. A section is None where its step has not run. Metrics are found by their `area/name_unit`
names, so a new one of a known area shows by itself.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from jobs import plots, samples
from jobs.run_directory import RunDirectory
from schemas import shard, tokens
from trainer.rl import environments

MODALITIES = ("text", "image", "video")
# Where documents and tokens of the tokens step end up, in the order they get there.
FATES = {
    "input": "all there were",
    "not_selected": "weight 0 by their score",
    "held_out": "kept for evaluation",
    "in_training": "the rest",
    "repeated": "taken again by the mixture or a further epoch",
    "planned": "in a training sequence",
    "thinned_by_mixture": "left out to reach the mixture",
    "tail_too_short": "rests of split documents",
    "unbreakable_too_long": "pictures or video longer than the context",
    "not_reached": "after the last sequence asked for",
    "never_planned": "in training, but in no sequence",
}
PHASES = ("before", "after", "exchanged")
NUM_ROLLOUT_GROUPS = 6
TASKS_AT_ONCE = 64
MAX_TASKS = 20_000  # numbers tried at most when RL tasks are drawn again to show their pictures


def flat(value: Mapping[str, Any], prefix: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Yield the leaves of nested metrics with their path; short lists become text, long ones are left out."""
    for key, item in value.items():
        if isinstance(item, Mapping):
            yield from flat(item, (*prefix, str(key)))
        elif not isinstance(item, list | tuple):
            yield " · ".join((*prefix, str(key))), item
        elif len(item) <= 8 and not any(isinstance(x, Mapping | list) for x in item):
            yield " · ".join((*prefix, str(key))), ", ".join(map(str, item))


def words(name: str) -> str:
    """Return a metric's or reason's name as people read it."""
    return str(name).replace("_", " ").replace("/", " · ")


def mean(values: Sequence[float | None]) -> float:
    """Return the mean of the values that are there."""
    return float(np.mean([v for v in values if v is not None]))


def column(rows: list[dict[str, Any]], key: str, name: str | None = None) -> plots.Series:
    """Return one metric over the steps that have it."""
    found = [(row["step"], row[key]) for row in rows if isinstance(row.get(key), int | float)]
    return plots.Series(name or key, [step for step, _ in found], [value for _, value in found])


def plan(run: RunDirectory) -> dict[str, Any] | None:
    """Return what the plan takes and leaves out."""
    manifest, planned = run.manifest("plan"), run.table("plan", "plan")
    if manifest is None or planned is None:
        return None
    held_out = run.table("plan", "heldout")
    by_stratum = _tokens_by_stratum(planned)
    rest = _tokens_by_stratum(held_out) if held_out is not None else {}
    kinds = _tokens_by_kind(run, planned)
    total = sum(by_stratum.values())
    num_sequences = pc.count_distinct(planned["sequence"]).as_py()
    context_length = (manifest.spec.get("pack") or manifest.spec).get("context_length")
    report = manifest.metrics.get("report", manifest.metrics)
    overall = {kind: sum(row.get(kind, 0) for row in kinds.values()) for kind in tokens.SPAN_KINDS}
    return {
        "strata": [
            (name, count, count / max(1, total), rest.get(name, 0))
            for name, count in sorted(by_stratum.items())
        ],
        "total": total,
        "num_sequences": num_sequences,
        "context_length": context_length,
        "held_out": sum(rest.values()),
        "num_documents": pc.count_distinct(planned["doc_id"]).as_py(),
        "fill_frac": total / (num_sequences * context_length) if context_length and num_sequences else None,
        "kinds": overall,
        "shares": plots.shares({"all": overall, **dict(sorted(kinds.items()))}, "Planned tokens by kind")
        if kinds
        else None,
        "not_selected": sorted(manifest.dropped.items()),
        "fates": _fates(report),
        "report": list(flat({k: v for k, v in report.items() if k not in ("documents", "tokens", "strata")})),
    }


def _fates(report: Mapping[str, Any]) -> list[tuple[str, str, int | None, int | None]]:
    """Return the packer's account: fate, what it means, documents, tokens."""
    documents, counted = report.get("documents", {}), report.get("tokens", {})
    names = [name for name in FATES if name in documents or name in counted]
    names += sorted({*documents, *counted} - set(FATES))
    return [(name, FATES.get(name, ""), documents.get(name), counted.get(name)) for name in names]


def _tokens_by_stratum(planned: pa.Table) -> dict[str, int]:
    length = pc.subtract(planned["end"], planned["start"])
    summed = (
        pa.table({"stratum": planned["stratum"], "tokens": length})
        .group_by("stratum")
        .aggregate([("tokens", "sum")])
    )
    return dict(zip(summed["stratum"].to_pylist(), summed["tokens_sum"].to_pylist(), strict=True))


def _tokens_by_kind(run: RunDirectory, planned: pa.Table) -> dict[str, dict[str, float]]:
    """Count the planned tokens of each stratum by kind of span, a token as often as it is planned."""
    counts: dict[str, Counter[str]] = {}
    for path, table in run.batches("tokenize", "tokens", ["num_tokens", "spans"]):
        rows = planned.filter(pc.equal(planned["shard"], path.rpartition("/")[2]))
        if rows.num_rows == 0:
            continue
        begins = np.concatenate([[0], np.cumsum(table["num_tokens"].to_numpy())])
        low, high = (begins[rows["row"].to_numpy()] + rows[edge].to_numpy() for edge in ("start", "end"))
        strata = np.asarray(rows["stratum"].to_pylist(), object)
        for kind, running in _running_counts(table["spans"]).items():
            for stratum in np.unique(strata):
                mine = strata == stratum
                counts.setdefault(stratum, Counter())[kind] += int(
                    (running[high[mine]] - running[low[mine]]).sum()
                )
    return {stratum: dict(found) for stratum, found in counts.items()}


def _running_counts(spans: pa.ChunkedArray) -> dict[str, np.ndarray]:
    """For each kind of span, the number of its tokens before each token of a shard (documents end to end)."""
    flat = pa.concat_arrays([chunk.flatten() for chunk in spans.chunks])
    length = flat.field("end").to_numpy() - flat.field("start").to_numpy()
    kind = np.asarray(flat.field("kind").to_pylist(), object)
    return {
        name: np.concatenate([[0], np.cumsum(np.repeat(kind == name, length))]) for name in tokens.SPAN_KINDS
    }


def _keys(rows: list[dict[str, Any]], prefix: str) -> list[str]:
    return sorted(
        {
            key
            for row in rows
            for key, value in row.items()
            if key.startswith(prefix) and isinstance(value, int | float)
        }
    )


def pretraining(run: RunDirectory) -> dict[str, Any] | None:
    """Return the course of pretraining and its held-out evaluation, also of a run that has not finished."""
    rows = run.metrics("pretrain")
    if not rows:
        return None
    manifest, evaluation = run.manifest("pretrain"), run.manifest("evaluate")
    skipped = [row["step"] for row in rows if row.get("stability/skipped")]
    losses = [s for kind in MODALITIES if (s := column(rows, f"loss/{kind}_nats", kind)).y]
    phases = [(row["step"], row.get("index/phase")) for row in rows]
    sparse = next(
        (
            step
            for (step, phase), (_, before) in zip(phases[1:], phases, strict=False)
            if (before, phase) == ("dense", "sparse")
        ),
        None,
    )
    marks = {} if sparse is None else {"sparse from here": sparse}
    norms = [column(rows, key, key.partition("/")[2]) for key in _keys(rows, "grad_norm/")]
    panels = [
        plots.lines(
            losses, "Loss on text tokens by what they follow", "step", "loss (nats)", marks=marks, wide=True
        ),
        plots.lines(norms, "Gradient norm by component", "step", "norm", log_y=True),
    ]
    others = {
        "index/kl_nats": ("Index KL to attention", "nats"),
        **{k: ("Throughput", "tokens/s") for k in _keys(rows, "") if k.endswith("tokens_per_s")},
    }
    panels += [
        plots.lines([s], title, "step", unit, marks=marks if "index" in key else None)
        for key, (title, unit) in others.items()
        if (s := column(rows, key)).y
    ]
    fracs = [
        column(rows, key, key.partition("/")[2].removesuffix("_frac"))
        for key in _keys(rows, "tokens/")
        if key.endswith("_frac")
    ]
    if fracs:
        panels.append(plots.lines(fracs, "Share of tokens in a batch", "step", "fraction"))
    table = [(s.name, s.y[0], s.y[-1], mean(s.y[:5]), mean(s.y[-5:])) for s in losses]
    return {
        "plots": panels,
        "losses": table,
        "finished": manifest is not None,
        "num_steps": len(rows),
        "smoothed": len(rows) >= plots.MIN_POINTS_TO_SMOOTH,
        "skipped": skipped,
        "summary": list(flat(manifest.metrics)) if manifest else [],
        "evaluation": _evaluation(evaluation.metrics) if evaluation else None,
    }


def _evaluation(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return held-out losses by modality, with true and exchanged pictures, and the other measures."""
    table, used = [], set()
    for kind in (*MODALITIES, "all"):
        keys = [
            f"loss/{kind}_nats",
            f"bits_per_token/{kind}",
            f"tokens/{kind}_count",
            f"loss/{kind}_shuffled_nats",
        ]
        nats, bits, count, shuffled = (metrics.get(key) for key in keys)
        used.update(keys)
        if nats is not None:
            table.append((kind, count, nats, bits, shuffled, None if shuffled is None else shuffled - nats))
    return {
        "table": table,
        "rest": list(flat({key: value for key, value in metrics.items() if key not in used})),
    }


def rl(run: RunDirectory) -> dict[str, Any] | None:
    """Return the course of RL, its held-out rewards and some rollouts."""
    rows = run.metrics("rl")
    manifest, rollouts = run.manifest("rl"), run.table("rl", "rollouts")
    if not rows and manifest is None:
        return None
    rewards = [column(rows, key, _reward_name(key)) for key in _keys(rows, "rl/reward")]
    rest = [column(rows, key, key) for key in _keys(rows, "rl/") if not key.startswith("rl/reward")]
    curve = plots.lines(rewards, "Mean reward of the sampled answers", "RL step", "reward", wide=True)
    constant = [(s.name, s.y[0]) for s in rest if len(set(s.y)) == 1]
    others = [
        plots.lines([s], words(s.name.partition("/")[2]), "RL step", s.name.rpartition("_")[2])
        for s in rest
        if len(set(s.y)) > 1
    ]
    table, measures = _by_phase(manifest.metrics if manifest else {})
    return {
        "curve": curve if rewards else None,
        "others": others,
        "evaluation": table,
        "measures": [*measures, *constant],
        "rollouts": _rollouts(run, rollouts, manifest),
    }


def _by_phase(metrics: Mapping[str, Any]) -> tuple[dict[str, Any] | None, list[tuple[str, Any]]]:
    """Lay out the measures named before, after or exchanged as a table; return it and the other measures."""
    cells: dict[str, dict[str, Any]] = {}
    others = []
    for path, value in flat(metrics):
        parts = [part for part in re.split(r"[^A-Za-z0-9]+", path) if part]
        phase = " ".join(sorted((part for part in parts if part in PHASES), key=PHASES.index))
        if phase:
            cells.setdefault(" ".join(part for part in parts if part not in PHASES) or "reward", {})[
                phase
            ] = value
        else:
            others.append((path, value))
    columns = sorted(
        {phase for row in cells.values() for phase in row}, key=lambda p: [PHASES.index(w) for w in p.split()]
    )
    table = {
        "columns": columns,
        "rows": [(name, [row.get(c) for c in columns]) for name, row in cells.items()],
    }
    return (table if cells else None), others


def _reward_name(key: str) -> str:
    return words(key.removeprefix("rl/reward")).replace("mean", "").strip(" ·") or "all"


def _rollouts(
    run: RunDirectory, rollouts: pa.Table | None, manifest: shard.Manifest | None
) -> list[dict[str, Any]]:
    """Show whole groups, spread evenly from the first policy step to the last."""
    if rollouts is None or rollouts.num_rows == 0:
        return []
    groups = pc.unique(rollouts["group"]).sort().to_pylist()
    places = np.unique(np.linspace(0, len(groups) - 1, NUM_ROLLOUT_GROUPS).round().astype(int))
    chosen = [rollouts.filter(pc.equal(rollouts["group"], groups[i])).to_pylist() for i in places]
    tasks = _tasks(manifest.spec if manifest else {}, {members[0]["doc_id"] for members in chosen})
    shown = []
    for members in chosen:
        task = tasks.get(members[0]["doc_id"])
        answers = [
            {
                "text": m["turns"][-1]["text"],
                "advantage": m["advantage"],
                "rewards": [(r["verifier"], r["reward"], r["error"]) for r in m["rewards"]],
            }
            for m in members
        ]
        shown.append(
            {
                "prompt": members[0]["prompt"],
                "policy_step": members[0]["policy_step"],
                "answers": answers,
                "truth": task.answer if task else None,
                "picture": samples.as_uri(task.picture) if task else None,
            }
        )
    return shown


def _tasks(spec: Mapping[str, Any], wanted: set[str]) -> dict[str, environments.Task]:
    """Draw the tasks of a run again, to show the pictures: they are not stored, their number fixes them."""
    names = tuple(spec.get("environments", ()))
    num_tasks = min(MAX_TASKS, spec["num_steps"] * spec["prompts_per_step"]) if names else 0
    found: dict[str, environments.Task] = {}
    for start in range(0, num_tasks, TASKS_AT_ONCE):
        if len(found) == len(wanted):
            break
        tasks = environments.draw_tasks(names, "train", spec["seed"], start, TASKS_AT_ONCE)
        found.update((task.doc_id, task) for task in tasks if task.doc_id in wanted)
    return found
