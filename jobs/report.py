"""The report of a run: one HTML page that needs nothing but itself.

Owns what the page says of data and scores, and its order; `jobs.report_training` speaks of training,
`jobs.samples` draws documents, `jobs.plots` draws plots, and `templates/report.html` is the page. A section
is a function from the run to plain data, or None where its step has not finished: then the page says so. The
same run gives the same bytes.
"""

from collections import Counter
from importlib import resources
from typing import Any

import jinja2
import pyarrow as pa
import pyarrow.compute as pc
import yaml

from jobs import plots, samples
from jobs.report_training import column, flat, mean, plan, pretraining, rl, words
from jobs.run_directory import RunDirectory, open_run
from schemas import shard

STAGES = {
    "ingest": "files read and decoded; what fails goes to quarantine",
    "clean": "text repair, language, empty pages",
    "dedupe_text": "exact and near duplicates",
    "mask_text": "personal data in text",
    "mask_repeats": "navigation, repeated paragraphs, templates",
    "contamination": "text and pictures of benchmarks",
    "mask_video": "stretches of video that show nothing",
    "mask_media": "pictures that carry no content",
    "mask_regions": "faces and lines of text in pictures",
    "interleave": "masks applied: the training stream",
    "tokenize": "text to ids, pictures to model size",
}
ACTIVITY = (*STAGES, "plan", "pretrain", "evaluate", "rl")
NUM_EXAMPLES = 4


def write_report(run_path: str) -> str:
    """Write `report.html` into a run directory and return its path.

    Raises:
        JobError: there is no run at `run_path`.
    """
    run = open_run(run_path)
    loader = jinja2.FunctionLoader(
        lambda name: (resources.files("jobs") / "templates" / name).read_text("utf-8")
    )
    environment = jinja2.Environment(
        loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    environment.filters.update(number=_number, percent=lambda frac: f"{100 * frac:.1f}%", words=words)
    page = environment.get_template("report.html").render(
        run=run,
        summary=_summary(run),
        funnel=_funnel(run),
        documents=_samples(run),
        scores=_scores(run),
        plan=plan(run),
        pretraining=pretraining(run),
        rl=rl(run),
        spec=yaml.safe_dump(run.spec, sort_keys=False, allow_unicode=True, width=100),
        actions=samples.ACTIONS,
    )
    path = shard.join(run_path, "report.html")
    shard.write_bytes(path, page.encode())
    return path


def _number(value: Any) -> str:
    """Write a number for people: thin spaces between thousands, four significant digits after a point."""
    if value is None:
        return "–"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if isinstance(value, int) or (value == int(value) and abs(value) >= 1000):
        return f"{int(value):,}".replace(",", "\u202f")
    return f"{value:.4g}" if abs(value) < 1000 else f"{value:,.0f}".replace(",", "\u202f")


# ---- summary and funnel


def _summary(run: RunDirectory) -> dict[str, Any]:
    cards: list[tuple[str, str, str]] = []
    ingest, last = run.manifest("ingest"), run.document_steps()[-1:]
    if ingest is not None and last:
        kept = run.manifest(last[0])
        assert kept is not None
        cards.append(("documents", _number(kept.rows_out), f"of {_number(ingest.rows_in)} files read"))
    media = run.table("ingest", "media", ["kind", "error"])
    if media is not None:
        good = Counter(
            k for k, e in zip(media["kind"].to_pylist(), media["error"].to_pylist(), strict=True) if e is None
        )
        others = ", ".join(
            f"{_number(good[kind])} {name}"
            for kind, name in (("video", "videos"), ("frame", "frames"))
            if good[kind]
        )
        cards.append(("pictures", _number(good["image"]), others and f"and {others}"))
    num_tokens = run.table("tokenize", "tokens", ["num_tokens"])
    if num_tokens is not None:
        cards.append(("tokens", _number(pc.sum(num_tokens["num_tokens"]).as_py() or 0), "pictures included"))
    cards += _training_cards(run)
    return {
        "cards": cards,
        "collections": _collections(run),
        "steps": [
            (name, run.steps[name].rpartition("/")[2], run.manifest(name) is not None) for name in run.steps
        ],
        "missing": [name for name in ACTIVITY if name not in run.steps],
    }


def _collections(run: RunDirectory) -> list[tuple[str, str, str, int]]:
    table = run.table("ingest", "documents", ["collection", "format", "license"])
    columns = [] if table is None else [table[name].to_pylist() for name in table.column_names]
    counted = Counter(
        (collection, form, license or "not stated")
        for collection, form, license in zip(*columns, strict=True)
    )
    return [(*key, count) for key, count in sorted(counted.items())]


def _training_cards(run: RunDirectory) -> list[tuple[str, str, str]]:
    cards = []
    losses = column(run.metrics("pretrain"), "loss/text_nats")
    if losses.y:
        cards.append(
            (
                "text loss",
                f"{mean(losses.y[-10:]):.2f}",
                f"nats, from {losses.y[0]:.2f} in {len(losses.y)} steps",
            )
        )
    rewards = column(run.metrics("rl"), "rl/reward_mean")
    if rewards.y:
        cards.append(
            (
                "mean reward",
                f"{mean(rewards.y[-5:]):.2f}",
                f"from {mean(rewards.y[:5]):.2f} in {len(rewards.y)} RL steps",
            )
        )
    return cards


def _funnel(run: RunDirectory) -> dict[str, Any] | None:
    rows, first = [], None
    for step, meaning in STAGES.items():
        manifest = run.manifest(step)
        if manifest is None:
            continue
        first = first or max(1, manifest.rows_in)
        reasons = sorted(manifest.dropped.items(), key=lambda item: (-item[1], item[0]))
        rows.append(
            {
                "step": step,
                "meaning": meaning,
                "rows_in": manifest.rows_in,
                "rows_out": manifest.rows_out,
                "reasons": reasons,
                "kept_frac": min(1.0, manifest.rows_out / first),
                "lost_frac": max(0, manifest.rows_in - manifest.rows_out) / first,
                "metrics": list(flat(manifest.metrics)),
            }
        )
    return (
        {"rows": rows, "examples": _dropped_examples(run), "quarantine": _quarantine(run)} if rows else None
    )


def _dropped_examples(run: RunDirectory) -> list[tuple[str, str, int, list[str]]]:
    found: dict[tuple[str, str], list[str]] = {}
    for step in run.document_steps():
        for _, table in run.batches(step, "dropped", ["uri", "drop_reason"]):
            for uri, reason in zip(table["uri"].to_pylist(), table["drop_reason"].to_pylist(), strict=True):
                found.setdefault((step, reason), []).append(uri)
    return [(step, reason, len(uris), sorted(uris)[:NUM_EXAMPLES]) for (step, reason), uris in found.items()]


def _quarantine(run: RunDirectory) -> list[dict[str, Any]]:
    table = run.table("ingest", "quarantine")
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in table.to_pylist() if table is not None else []:
        groups.setdefault((row["stage"], row["error_class"]), []).append(row)
    return [
        {
            "stage": stage,
            "error_class": name,
            "count": len(rows),
            "examples": sorted(rows, key=lambda r: r["uri"])[:NUM_EXAMPLES],
        }
        for (stage, name), rows in sorted(groups.items(), key=lambda item: (-len(item[1]), item[0]))
    ]


# ---- documents and scores


def _samples(run: RunDirectory) -> list[samples.Sample] | None:
    steps = [step for step in run.document_steps() if step != "interleave"]  # with all masks still on
    if not steps:
        return None
    step = steps[-1]
    shown = [samples.show(run, step, doc_id, why) for doc_id, why in samples.choose(run, step)]
    return [sample for sample in shown if sample is not None]


def _scores(run: RunDirectory) -> list[dict[str, Any]] | None:
    found = []
    for step in run.scorers():
        table, manifest = run.table(step, "scores"), run.manifest(step)
        if table is None or manifest is None:
            continue
        known = table.filter(pc.is_valid(table["score"]))
        name = step.removeprefix("score_")
        picture = None
        if known.num_rows:
            picture = plots.histogram(
                known["score"].to_numpy(),
                f"{words(name)}, {known.num_rows} scores",
                "score",
                "pictures" if known["segment"].null_count == 0 else "documents",
            )
        measures = list(flat(manifest.metrics.get("fit", manifest.metrics)))
        found.append(
            {
                "name": name,
                "histogram": picture,
                "auc": [m for m in measures if "auc" in m[0].lower()],
                "measures": measures,
                "errors": sorted(Counter(e for e in table["error"].to_pylist() if e).items()),
                "low": _extremes(run, known, "ascending"),
                "high": _extremes(run, known, "descending"),
            }
        )
    return found or None


def _extremes(run: RunDirectory, known: pa.Table, order: str) -> list[dict[str, Any]]:
    """Show the documents at one end of the scores, each once, in the given order."""
    ordered = known.sort_by([("score", order), ("doc_id", "ascending")])
    shown: dict[str, dict[str, Any]] = {}
    for row in ordered.slice(0, 20 * NUM_EXAMPLES).to_pylist():
        if row["doc_id"] not in shown and len(shown) < NUM_EXAMPLES:
            document = run.find_row("interleave", "documents", row["doc_id"])
            shown[row["doc_id"]] = {
                "score": row["score"],
                "uri": document["uri"] if document else row["doc_id"],
                "text": samples.snippet(document, row["segment"]),
                "picture": _scored_picture(run, document, row["segment"]),
            }
    return list(shown.values())


def _scored_picture(run: RunDirectory, document: dict[str, Any] | None, segment: int | None) -> str | None:
    if document is None or segment is None or not 0 <= segment < len(document["segments"]):
        return None
    media_id = document["segments"][segment]["media_id"]
    by_id, frames = run.find_media({media_id} - {None})
    medium = next(iter(frames.get(media_id, [])), by_id.get(media_id))
    return samples.thumbnail(medium["bytes"], samples.FRAME_SIDE) if medium else None
