"""`omniloom walk DOC_ID`: one document through a run, from its first segments to the step that trained on it.

Owns what is printed and how a document is found by id, prefix or uri. Writes nothing.
"""

import difflib
from collections.abc import Iterator
from typing import Any

import pyarrow.compute as pc
from rich.console import Console
from rich.rule import Rule
from rich.text import Text
from tokenizers import Tokenizer

from datapipe.spec import InterleaveSpec
from datapipe.stages.interleave import departures
from jobs.errors import JobError
from jobs.run_directory import RunDirectory, open_run
from schemas import vocabulary

MIN_PREFIX = 4
NUM_CANDIDATES = 5
MAX_SEGMENTS, MAX_SPANS = 40, 60
SNIPPET = 90
SPAN_LINE = "{:>13}  {:<8} {:<15} {:<6} {:<10} {}"
COMPARED = ("title", "lang", "license", "cluster_id")


def walk(run_path: str, doc_id: str, console: Console) -> None:
    """Print a document after each stage, its scores, tokens, plan rows, and the steps that trained on it.

    `doc_id` is an id, a prefix of at least four characters that only one document has, or a uri.

    Raises:
        JobError: there is no such run or document, or the prefix fits several; the message names candidates.
    """
    run = open_run(run_path)
    found = find_document(run, doc_id)
    first = run.document_steps()[0]
    row = run.find_row(first, "documents", found) or run.find_row(first, "dropped", found)
    assert row is not None
    console.print(
        Text.assemble((row["uri"], "bold"), f"  {row['collection']} · {row['format']}\n", (found, "dim"))
    )
    final = _print_stages(run, found, console)
    if final is None:
        return
    _print_scores(run, found, console)
    _print_tokens(run, run.find_row("tokenize", "tokens", found), final, console)
    _print_plan(run, found, console)


# ---- finding a document


def find_document(run: RunDirectory, wanted: str) -> str:
    """Return the doc_id meant by an id, a unique prefix of one, or a uri.

    Raises:
        JobError: nothing or too much fits; the message names candidates, or why the input is in quarantine.
    """
    steps = run.document_steps()
    if not steps:
        raise JobError(f"no document step of {run.path} has finished, so there is no document to walk")
    uris: dict[str, str] = {}
    for table in ("documents", "dropped"):
        for _, part in run.batches(steps[0], table, ["doc_id", "uri"]):
            uris.update(zip(part["doc_id"].to_pylist(), part["uri"].to_pylist(), strict=True))
    if wanted in uris:
        return wanted
    fitting = [doc_id for doc_id, uri in uris.items() if uri == wanted]
    if not fitting and len(wanted) >= MIN_PREFIX:
        fitting = [doc_id for doc_id in uris if doc_id.startswith(wanted)]
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        raise JobError(f"{wanted!r} fits {len(fitting)} documents: {_listed(fitting, uris)}")
    _stop_if_in_quarantine(run, wanted)
    raise JobError(
        f"no document {wanted!r} in {run.path}; nearest are {_listed(_nearest(wanted, uris), uris)}"
    )


def _nearest(wanted: str, uris: dict[str, str]) -> list[str]:
    """Return the documents whose uri contains what was asked for, or whose uri or id looks most like it."""
    inside = sorted(doc_id for doc_id, uri in uris.items() if wanted and wanted.lower() in uri.lower())
    by_uri = {uri: doc_id for doc_id, uri in uris.items()}
    alike = [by_uri[uri] for uri in difflib.get_close_matches(wanted, by_uri, n=NUM_CANDIDATES, cutoff=0.3)]
    ids = difflib.get_close_matches(wanted, uris, n=NUM_CANDIDATES, cutoff=0.3)
    return (list(dict.fromkeys([*inside, *alike, *ids])) or sorted(uris))[:NUM_CANDIDATES]


def _listed(doc_ids: list[str], uris: dict[str, str]) -> str:
    shown = ", ".join(f"{doc_id[:12]} ({uris[doc_id]})" for doc_id in doc_ids[:NUM_CANDIDATES])
    return shown + (f" and {len(doc_ids) - NUM_CANDIDATES} more" if len(doc_ids) > NUM_CANDIDATES else "")


def _stop_if_in_quarantine(run: RunDirectory, uri: str) -> None:
    for _, part in run.batches("ingest", "quarantine"):
        index = pc.index(part["uri"], uri).as_py()
        if index >= 0:
            row = part.slice(index, 1).to_pylist()[0]
            raise JobError(
                f"{uri} became no document: {row['error_class']} in {row['stage']}: {row['message']}"
            )


# ---- stages


def _print_stages(run: RunDirectory, doc_id: str, console: Console) -> dict[str, Any] | None:
    """Print what each stage made of the document; return it as the last one left it, or None if dropped."""
    before: dict[str, Any] | None = None
    for step in run.document_steps():
        row = run.find_row(step, "documents", doc_id)
        dropped = None if row is not None else run.find_row(step, "dropped", doc_id)
        console.print(Rule(step, align="left", style="dim"))
        if row is None and dropped is None:
            console.print("not in this step", style="red")
            return None
        after = row or dropped
        assert after is not None
        why = _departures(run, before) if step == "interleave" and before is not None else {}
        for line in (
            [*_segments(after)]
            if before is None
            else [*_changes(before, after, why)] or [Text("unchanged", "dim")]
        ):
            console.print(line, soft_wrap=True)
        if dropped is not None:
            console.print(Text(f"dropped here: {dropped['drop_reason']}", "bold red"))
            return None
        before = after
    return before


def _departures(run: RunDirectory, row: dict[str, Any]) -> dict[int, str]:
    """Return why segments leave the stream when the document is interleaved."""
    manifest = run.manifest("interleave")
    assert manifest is not None
    reasons = departures(row["segments"], row["masks"], InterleaveSpec.model_validate(manifest.spec))
    return {number: reason for number, reason in enumerate(reasons) if reason is not None}


def _segments(row: dict[str, Any]) -> Iterator[Text]:
    for number, segment in enumerate(row["segments"][:MAX_SEGMENTS]):
        yield _segment(number, segment)
    if len(row["segments"]) > MAX_SEGMENTS:
        yield Text(f"… and {len(row['segments']) - MAX_SEGMENTS} more segments", "dim")


def _segment(number: int, segment: dict[str, Any], sign: str = " ", note: str = "") -> Text:
    style = {"-": "red", "+": "green"}.get(sign, "")
    head = f"{sign} {number:>3} {segment['kind']:<5} {segment['role']:<10} "
    times = (
        "" if segment["t_start_s"] is None else f"{segment['t_start_s']:.1f}–{segment['t_end_s'] or 0:.1f} s "
    )
    medium = "no medium" if segment["media_id"] is None else f"medium {segment['media_id'][:12]}"
    named = f", {_short(segment['href'])}" if segment["href"] else ""
    body = _short(segment["text"]) if segment["text"] is not None else f"[{medium}{named}]"
    return Text.assemble(
        (head, style or "dim"),
        (times, "cyan"),
        (body, style),
        (f"  left: {note}" if note else "", "bold red"),
    )


def _changes(before: dict[str, Any], after: dict[str, Any], why: dict[int, str]) -> Iterator[Text]:
    for name in COMPARED:
        if before[name] != after[name]:
            yield Text(f"{name}: {before[name]} → {after[name]}")
    yield from _changed_segments(before["segments"], after["segments"], why)
    old = [_key(mask) for mask in before["masks"]]
    for mask in after["masks"]:
        if _key(mask) not in old and len(after["masks"]) >= len(before["masks"]):
            yield _mask(mask, after["segments"])
    if len(after["masks"]) < len(before["masks"]):
        yield Text(
            f"masks applied: {len(before['masks']) - len(after['masks'])}, masks left: {len(after['masks'])}",
            "yellow",
        )


def _changed_segments(
    before: list[dict[str, Any]], after: list[dict[str, Any]], why: dict[int, str]
) -> Iterator[Text]:
    matcher = difflib.SequenceMatcher(a=[str(s) for s in before], b=[str(s) for s in after], autojunk=False)
    for tag, a0, a1, b0, b1 in matcher.get_opcodes():
        if tag != "equal":
            yield from (_segment(i, before[i], "-", why.get(i, "")) for i in range(a0, a1))
            yield from (_segment(i, after[i], "+") for i in range(b0, b1))


def _key(mask: dict[str, Any]) -> str:
    return str(sorted(mask.items()))


def _mask(mask: dict[str, Any], segments: list[dict[str, Any]]) -> Text:
    segment = segments[mask["segment"]]
    where = ""
    if mask["start"] is not None or mask["end"] is not None:
        where = f"{mask['start'] or 0}:{'' if mask['end'] is None else mask['end']} "
        where += repr(_short(segment["text"][mask["start"] or 0 : mask["end"]])) if segment["text"] else "ms"
    elif mask["box"] is not None:
        where = "box " + ", ".join(f"{edge:.2f}" for edge in mask["box"])
    style = "red" if mask["action"] == "drop" else "yellow"
    return Text.assemble(
        ("mask ", style),
        (f"{mask['reason']} ", f"bold {style}"),
        (
            f"{mask['action']} segment {mask['segment']} {where} by {mask['detector']}".replace("  ", " "),
            style,
        ),
    )


def _short(text: str, limit: int = SNIPPET) -> str:
    line = text.replace("\n", "⏎")
    return line if len(line) <= limit else line[: limit - 1] + "…"


# ---- scores, tokens, plan


def _print_scores(run: RunDirectory, doc_id: str, console: Console) -> None:
    for step in run.scorers():
        console.print(Rule(step, align="left", style="dim"))
        rows = run.find_rows(step, "scores", doc_id)
        for row in rows:
            value = f"{row['score']:.4f}" if row["score"] is not None else f"no score: {row['error']}"
            spread = "" if row["uncertainty"] is None else f" ± {row['uncertainty']:.4f}"
            where = "document" if row["segment"] is None else f"segment {row['segment']}"
            console.print(Text.assemble(f"{where}: ", (value + spread, "bold")))
        if not rows:
            console.print(Text("no row", "dim"))


def _print_tokens(
    run: RunDirectory, row: dict[str, Any] | None, document: dict[str, Any] | None, console: Console
) -> None:
    if run.manifest("tokenize") is None:
        return
    console.print(Rule("tokenize", align="left", style="dim"))
    if row is None:
        console.print(Text("no tokens", "dim"))
        return
    trained = sum(s["end"] - s["start"] for s in row["spans"] if s["loss_weight"] > 0)
    console.print(f"{row['num_tokens']} tokens, {trained} of them trained on, {len(row['images'])} pictures")
    json = run.text("tokenize", "tokenizer.json")
    decoder = Tokenizer.from_str(json) if json is not None else None
    console.print(
        Text(SPAN_LINE.format("tokens", "kind", "segment", "weight", "reason", "text"), "dim"), soft_wrap=True
    )
    for span in row["spans"][:MAX_SPANS]:
        role = (
            "" if document is None or span["segment"] < 0 else document["segments"][span["segment"]]["role"]
        )
        segment = f"{span['segment']} {role}" if span["segment"] >= 0 else "–"
        line = SPAN_LINE.format(
            f"{span['start']}–{span['end']}",
            span["kind"],
            segment,
            f"{span['loss_weight']:g}",
            span["reason"] or "",
            _decoded(row, span, decoder),
        )
        console.print(Text(line, "" if span["loss_weight"] else "yellow"), soft_wrap=True)
    if len(row["spans"]) > MAX_SPANS:
        console.print(Text(f"… and {len(row['spans']) - MAX_SPANS} more spans", "dim"))


def _decoded(row: dict[str, Any], span: dict[str, Any], decoder: Tokenizer | None) -> str:
    """Return what a span's tokens say; runs of one placeholder stand as one with their number."""
    tokens = row["input_ids"][span["start"] : span["end"]]
    if decoder is None:
        return " ".join(map(str, tokens[:12]))
    text = decoder.decode(tokens, skip_special_tokens=False)
    for placeholder in (vocabulary.IMAGE, vocabulary.VIDEO):
        count = text.count(placeholder)
        if count > 1:
            first, _, rest = text.partition(placeholder)
            text = f"{first}{placeholder}×{count} {rest.replace(placeholder, '')}"
    return _short(text)


def _print_plan(run: RunDirectory, doc_id: str, console: Console) -> None:
    if run.manifest("plan") is None:
        return
    console.print(Rule("plan and training", align="left", style="dim"))
    planned, held_out = (run.find_rows("plan", table, doc_id) for table in ("plan", "heldout"))
    batch_sequences, rows = _batch_sequences(run), {row["step"]: row for row in run.metrics("pretrain")}
    for row in planned:
        console.print(
            Text.assemble(
                _place(row),
                f" weight {row['weight']:g}  {row['stratum']}  ",
                _consumed(row["sequence"], batch_sequences, rows),
            )
        )
    for row in held_out:
        console.print(Text.assemble(_place(row), ("  held out for evaluation", "cyan")))
    if not planned and not held_out:
        console.print(Text("in no sequence: dropped, not selected, or left out by the packer", "yellow"))


def _place(row: dict[str, Any]) -> str:
    return f"tokens {row['start']}–{row['end']} → sequence {row['sequence']} at {row['position']}"


def _batch_sequences(run: RunDirectory) -> int | None:
    """Return the sequences of one training step, from the pretrain step or else from the run's spec."""
    manifest = run.manifest("pretrain")
    specs = [manifest.spec] if manifest is not None else []
    specs += [job for job in run.spec.get("jobs", []) if job.get("kind") == "pretrain"]
    return next((spec["batch_sequences"] for spec in specs if "batch_sequences" in spec), None)


def _consumed(sequence: int, batch_sequences: int | None, rows: dict[int, dict[str, Any]]) -> tuple[str, str]:
    """Say which training step took a sequence; steps count from 1, as in `metrics.jsonl`."""
    if batch_sequences is None or not rows:
        return "no training in this run", "dim"
    step = sequence // batch_sequences + 1
    if step not in rows:
        return f"not trained on: step {step} of {max(rows)} taken", "yellow"
    loss = rows[step].get("loss/text_nats")
    skipped = ", skipped as unstable" if rows[step].get("stability/skipped") else ""
    return f"training step {step}" + (
        "" if loss is None else f", text loss there {loss:.3f} nats"
    ) + skipped, "green"
