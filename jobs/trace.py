"""`omniloom walk DOC_ID --token N`: one token back to the characters, picture or seconds it was made from.

Owns the way back: token, span, segment of the stream, segment of the raw file, and the masks that met it on
the way. Writes nothing.
"""

import dataclasses
from typing import Any

from rich.console import Console
from rich.text import Text

from datapipe.stages import tokenize
from jobs.errors import JobError
from jobs.run_directory import RunDirectory, open_run
from jobs.walk import find_document

CONTEXT = 30  # characters shown on either side


@dataclasses.dataclass(frozen=True)
class Trace:
    """Where a token comes from. `start` and `end` are characters of the stream's segment `text`."""

    token: int
    token_text: str
    span: dict[str, Any]
    uri: str
    segment: (
        dict[str, Any] | None
    )  # of the interleaved stream; None for a token that marks the document's ends
    start: int | None
    end: int | None
    raw_segment: dict[str, Any] | None  # as ingest read it
    image: dict[str, Any] | None  # the row of `tokens.images` whose placeholder or frame time this is
    masks: list[tuple[str, dict[str, Any]]]  # step and mask, of the same raw segment


def walk_token(run_path: str, doc_id: str, token: int, console: Console) -> None:
    """Print where a token comes from.

    Raises:
        JobError: there is no such run, document or token.
    """
    run = open_run(run_path)
    found = trace(run, find_document(run, doc_id), token)
    for line in _lines(found):
        console.print(line, soft_wrap=True)


def trace(run: RunDirectory, doc_id: str, token: int) -> Trace:
    """Return where token `token` (from 0) of a document comes from.

    Raises:
        JobError: the document has no tokens in this run, or not as many.
    """
    row = run.find_row("tokenize", "tokens", doc_id)
    if row is None:
        raise JobError(
            f"document {doc_id} has no tokens in {run.path}: it was dropped, or tokenize has not run"
        )
    if not 0 <= token < row["num_tokens"]:
        raise JobError(f"--token {token}: document {doc_id} has tokens 0 to {row['num_tokens'] - 1}")
    stream = run.find_row("interleave", "documents", doc_id)
    raw = run.find_row("ingest", "documents", doc_id)
    tokenizer = run.text("tokenize", "tokenizer.json")
    assert stream is not None and raw is not None and tokenizer is not None
    span = next(s for s in row["spans"] if s["start"] <= token < s["end"])
    segment = stream["segments"][span["segment"]] if span["segment"] >= 0 else None
    start, end = _characters(row, stream["segments"], span, token, tokenizer)
    return Trace(
        token=token,
        token_text=tokenize.decode([row["input_ids"][token]], tokenizer),
        span=span,
        uri=raw["uri"],
        segment=segment,
        start=start,
        end=end,
        raw_segment=raw["segments"][segment["origin"]] if segment is not None else None,
        image=_image(row, span) if span["kind"] in ("image", "video") else None,
        masks=_masks(run, doc_id, segment["origin"]) if segment is not None else [],
    )


def _characters(
    row: dict[str, Any], segments: list[dict[str, Any]], span: dict[str, Any], token: int, tokenizer: str
) -> tuple[int | None, int | None]:
    """Return the characters of the segment that a text token has bytes of, those after its end left out."""
    if span["kind"] != "text":
        return None, None
    number = span["segment"]
    first = min(s["start"] for s in row["spans"] if s["segment"] == number)
    start, end = tokenize.offsets(segments, number, tokenizer)[token - first]
    length = len(segments[number]["text"])
    return min(start, length), min(end, length)


def _image(row: dict[str, Any], span: dict[str, Any]) -> dict[str, Any]:
    """Return the picture or video segment whose placeholders stand in a span."""
    image = next(i for i in row["images"] if span["start"] <= i["token_start"] < span["end"])
    return {name: value for name, value in image.items() if name != "bytes"}


def _masks(run: RunDirectory, doc_id: str, origin: int) -> list[tuple[str, dict[str, Any]]]:
    """Return the masks on a raw segment, each with the step that laid it."""
    found: list[tuple[str, dict[str, Any]]] = []
    for step in run.document_steps():
        row = run.find_row(step, "documents", doc_id)
        if row is None or step == "interleave":
            break
        known = [(m["reason"], m["detector"], m["box"]) for _, m in found]
        found += [
            (step, mask)
            for mask in row["masks"]
            if row["segments"][mask["segment"]]["origin"] == origin
            and (mask["reason"], mask["detector"], mask["box"]) not in known
        ]
    return found


def _lines(found: Trace) -> list[Text]:
    span = found.span
    trained = "trained on" if span["loss_weight"] > 0 else f"not trained on{_because(span)}"
    lines = [
        Text.assemble(
            ("token     ", "dim"), f"{found.token} ", (repr(found.token_text), "bold"), f", {trained}"
        )
    ]
    lines.append(Text.assemble(("span      ", "dim"), f"{span['start']}–{span['end']} {span['kind']}"))
    if found.segment is None or found.raw_segment is None:
        return [*lines, Text("no segment: it marks where the document begins or ends", "dim")]
    if found.start is not None and found.end is not None:
        text = found.segment["text"]
        lines.append(
            Text.assemble(
                ("text      ", "dim"),
                f"characters {found.start}–{found.end}: …{text[max(0, found.start - CONTEXT) : found.start]}",
                (text[found.start : found.end], "bold reverse"),
                f"{text[found.end : found.end + CONTEXT]}…",
            )
        )
    if found.image is not None:
        grid = " x ".join(str(found.image[f"grid_{axis}"]) for axis in "thw")
        lines.append(
            Text.assemble(("picture   ", "dim"), f"medium {found.image['media_id']}, {grid} patches")
        )
    origin = found.segment["origin"]
    page = f", page {found.raw_segment['page']}" if found.raw_segment["page"] is not None else ""
    lines.append(
        Text.assemble(
            ("comes from", "dim"),
            f" segment {origin} ({found.raw_segment['kind']}, {found.raw_segment['role']}{page}) of ",
            (found.uri, "bold"),
        )
    )
    for step, mask in found.masks:
        where = "all of it" if mask["start"] is None else f"{mask['start']}–{mask['end']}"
        lines.append(
            Text.assemble(("mask      ", "dim"), f"{mask['reason']} {mask['action']} on {where}, by {step}")
        )
    return lines


def _because(span: dict[str, Any]) -> str:
    return f": {span['reason']}" if span["reason"] else f": {span['kind']}"
