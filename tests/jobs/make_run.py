"""A complete small run directory made by code: every step, with made-up texts, pictures, scores and metrics.

The document stages here are a few lines each and stand for the real ones: what readers of a run must
understand is the layout and the tables, and those are written with `schemas.shard` as in a real run.
"""

import dataclasses
import io
import itertools
import json
import re
from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
from PIL import Image, ImageDraw
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from schemas import document, files, ids, media, plan, quarantine, rollout, scores, shard, tokens, vocabulary
from tests import make
from trainer.rl import environments

CONTEXT_LENGTH, BATCH_SEQUENCES, NUM_STEPS, PATCH = 96, 2, 7, 8
NUM_RL_STEPS = 8
RL_ENVIRONMENTS: tuple[environments.Environment, ...] = ("count", "colour")
EMAIL, PHONE, ADDRESS = "mia@example.org", "+49 30 5550 1234", "203.0.113.9"
CONTACT_URI, FIGURES_URI, VIDEO_URI = "pages/contact.html", "pages/layers.html", "video/tour.page"
COPY_URI, SHORT_URI, BROKEN_URI = "pages/contact-copy.html", "notes/stub.txt", "pages/broken.html"
TRAIN_WORDS = (
    "layer",
    "brush",
    "canvas",
    "colour",
    "mask",
    "select",
    "paint",
    "filter",
    "window",
    "menu",
    "tool",
    "path",
)


def make_run(path: str, steps: tuple[str, ...] | None = None) -> str:
    """Write a run directory at `path` and return it; `steps` keeps only the named ones in `run.json`."""
    made = _Run(path, {}, {})
    documents, pictures = _sources()
    after = _document_steps(made, documents, pictures)
    token_rows, encoder = _tokenize(made, after, pictures)
    _score(made, after)
    _plan(made, token_rows)
    _train(made)
    _rl(made, encoder)
    kept = {name: relative for name, relative in made.steps.items() if steps is None or name in steps}
    spec = {
        "kind": "pipeline",
        "name": "small",
        "output": "runs/small",
        "jobs": [
            {"kind": "prepare", "name": "prepare", "sources": [{"path": "pages", "collection": "manual"}]},
            {"kind": "plan", "name": "plan", "pack": {"context_length": CONTEXT_LENGTH}},
            {
                "kind": "pretrain",
                "name": "pretrain",
                "batch_sequences": BATCH_SEQUENCES,
                "num_steps": NUM_STEPS,
            },
        ],
    }
    shard.write_json(shard.join(path, "run.json"), {"name": "small", "spec": spec, "steps": kept})
    return path


@dataclasses.dataclass
class _Run:
    path: str
    steps: dict[str, str]
    ids: dict[str, str]

    def commit(
        self,
        name: str,
        tables: dict[str, list[pa.Table]],
        *,
        spec: Any = None,
        files: dict[str, bytes] | None = None,
        rows_in: int = 0,
        rows_out: int = 0,
        dropped: dict[str, int] | None = None,
        metrics: dict[str, Any] | None = None,
    ) -> None:
        step = ids.step_id(name, "1", spec, list(self.ids.values())[-1:])
        step_path = shard.join(self.path, "steps", step)
        written = [
            shard.write_table(shard.join(step_path, shard.shard_name(table, i)), part)
            for table, parts in tables.items()
            for i, part in enumerate(parts)
        ]
        for file_name, data in (files or {}).items():
            shard.write_bytes(shard.join(step_path, file_name), data)
        shard.write_manifest(
            step_path,
            shard.Manifest(
                step,
                "1",
                spec or {},
                list(self.ids.values())[-1:],
                rows_in,
                rows_out,
                dropped or {},
                metrics or {},
                written,
            ),
        )
        self.steps[name], self.ids[name] = f"steps/{step}", step


def chart(seed: int, width: int = 160, height: int = 112) -> bytes:
    """A PNG that looks like a figure: a title bar and coloured blocks, another one for every seed."""
    rng = np.random.default_rng(seed)
    image = Image.new("RGB", (width, height), "#f4f1ea")
    pen = ImageDraw.Draw(image)
    pen.rectangle((0, 0, width, height // 8), fill="#44546a")
    for i in range(6):
        left, tall = 8 + i * (width - 16) // 6, int(rng.integers(height // 6, height * 3 // 4))
        pen.rectangle(
            (left, height - tall, left + (width - 16) // 8, height - 6),
            fill=tuple(rng.integers(40, 220, 3).tolist()),
        )
    sink = io.BytesIO()
    image.save(sink, "PNG")
    return sink.getvalue()


def _sources() -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    logo, dot = make.media_row(chart(1, 64, 64)), make.media_row(make.picture(12, 12, seed=2))
    charts = [make.media_row(chart(seed)) for seed in range(10, 14)]
    broken = {**make.media_row(chart(3)), "error": "TruncatedImage: 120 of 400 bytes"}
    video_data = b"stands for a video file"
    video: dict[str, Any] = {
        **dict.fromkeys(media.SCHEMA.names),
        "media_id": ids.content_id(video_data),
        "kind": "video",
        "mime": "video/webm",
        "bytes": video_data,
        "width": 320,
        "height": 180,
        "num_frames": 6,
        "duration_s": 6.0,
    }
    frames = [
        make.media_row(chart(30 + t, 160, 90), kind="frame", parent_id=video["media_id"], t_s=float(t))
        for t in range(6)
    ]
    figures = [make.picture_segment(logo["media_id"]), make.text("Working with  layers", "heading")]
    for i, row in enumerate(charts):
        figures += [
            make.text(
                f"Every layer holds a part of the image, part {i}. Blend modes mix it with what is below."
            ),
            make.picture_segment(row["media_id"]),
            make.text(f"Figure {i + 1}. Layer {i} of the canvas", "caption"),
        ]
    figures += [
        make.picture_segment(dot["media_id"]),
        make.picture_segment(broken["media_id"]),
        make.picture_segment(None),
        make.text("gimp --batch layers.scm", "code"),
        make.text("Key | Action\nCtrl+L | open the layer window", "table"),
        make.text("Duplicate a layer before you change it", "list_item"),
    ]
    contact = [
        make.text("Reach the team", "heading"),
        make.text(
            f"Write to {EMAIL} or call {PHONE}; the mirror at {ADDRESS} serves older manuals of every tool."
        ),
        make.picture_segment(logo["media_id"]),
        make.text("We answer within a week, <b>also</b> in winter."),
    ]
    tour = [make.text("A tour in six seconds", "heading")]
    for t in (0.0, 3.0):
        tour += [
            make.video_segment(video["media_id"], t, t + 3),
            make.text(
                f"At {t:.0f} seconds the tool opens a window with a new canvas.", "transcript", t, t + 3
            ),
        ]
    rng = np.random.default_rng(5)
    rows = [
        make.document_row(figures, FIGURES_URI, collection="manual", title="Layers", license="GFDL"),
        make.document_row(contact, CONTACT_URI, collection="manual", title="Contact"),
        make.document_row(tour, VIDEO_URI, collection="help", format="mallard", title="Tour"),
        make.document_row(contact, COPY_URI, collection="manual"),
        make.document_row([make.text("Stub")], SHORT_URI, collection="notes", format="text"),
    ]
    rows += [
        make.document_row(
            [make.text(" ".join(rng.choice(TRAIN_WORDS, 30)) + ".") for _ in range(2)],
            f"notes/note-{i:02d}.txt",
            collection="notes",
            format="text",
        )
        for i in range(19)
    ]
    return rows, [logo, dot, *charts, broken, video, *frames]


def _document_steps(
    made: _Run, rows: list[dict[str, Any]], pictures: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    halves = [pa.Table.from_pylist(half, document.SCHEMA) for half in (rows[:12], rows[12:])]
    failed = pa.Table.from_pylist(
        [
            {
                "uri": BROKEN_URI,
                "collection": "manual",
                "stage": "ingest",
                "error_class": "NotText",
                "message": "bytes 0-40 are no HTML",
                "content_id": None,
            },
            {
                "uri": "pages/huge.html",
                "collection": "manual",
                "stage": "ingest",
                "error_class": "TooLarge",
                "message": "700 MB, the limit is 512 MB",
                "content_id": None,
            },
        ],
        quarantine.SCHEMA,
    )
    listed = [
        {"uri": row["uri"], "collection": "manual", "size_bytes": 1, "format": "html", "fate": "documents"}
        for row in [*rows, *failed.to_pylist()]
    ]
    made.commit(
        "ingest",
        {
            "documents": halves,
            "media": [make.media_table(pictures), make.media_table([])],
            "quarantine": [failed, quarantine.SCHEMA.empty_table()],
            "files": [pa.Table.from_pylist(listed, files.SCHEMA)],
        },
        rows_in=len(rows) + 2,
        rows_out=len(rows),
        dropped={"quarantine:NotText": 1, "quarantine:TooLarge": 1},
        metrics={"num_media": len(pictures), "num_frames": 6},
    )
    for name, stage in (
        ("clean", _clean),
        ("dedupe_text", _dedupe),
        ("mask_text", _mask_text),
        ("mask_media", _mask_media),
        ("interleave", _interleave),
    ):
        made_rows = [{**row, **stage(row, pictures)} for row in rows]
        rows = [row for row in made_rows if row["drop_reason"] is None]
        gone = [row for row in made_rows if row["drop_reason"] is not None]
        tables = {
            "documents": [pa.Table.from_pylist(part, document.SCHEMA) for part in (rows[:10], rows[10:])],
            "dropped": [pa.Table.from_pylist(part, document.SCHEMA) for part in (gone, [])],
        }
        made.commit(
            name,
            tables,
            rows_in=len(made_rows),
            rows_out=len(rows),
            dropped=dict(Counter(row["drop_reason"] for row in gone)),
        )
    return rows


def _clean(row: dict[str, Any], _: Any) -> dict[str, Any]:
    segments = [{**s, "text": s["text"] and s["text"].replace("  ", " ")} for s in row["segments"]]
    return {
        "segments": segments,
        "lang": "en",
        "lang_prob": 0.9,
        "drop_reason": "too_short" if row["uri"] == SHORT_URI else None,
    }


def _dedupe(row: dict[str, Any], _: Any) -> dict[str, Any]:
    if row["uri"] in (CONTACT_URI, COPY_URI):
        kept = ids.document_id("test", CONTACT_URI, "")
        return {"cluster_id": kept, "drop_reason": None if row["doc_id"] == kept else "exact_duplicate"}
    return {}


def _mask_text(row: dict[str, Any], _: Any) -> dict[str, Any]:
    masks = [
        {
            "segment": i,
            "start": s["text"].index(value),
            "end": s["text"].index(value) + len(value),
            "box": None,
            "reason": reason,
            "action": "no_loss",
            "detector": f"{reason}_pattern",
        }
        for i, s in enumerate(row["segments"])
        for reason, value in (("email", EMAIL), ("phone", PHONE), ("ip", ADDRESS))
        if s["text"] and value in s["text"]
    ]
    return {"masks": masks}


def _mask_media(row: dict[str, Any], pictures: list[dict[str, Any]]) -> dict[str, Any]:
    reasons = {
        pictures[0]["media_id"]: "repeated_image",
        pictures[1]["media_id"]: "too_small",
        None: "media_error",
        **{p["media_id"]: "media_error" for p in pictures if p["error"]},
    }
    masks = [
        {
            "segment": i,
            "start": None,
            "end": None,
            "box": None,
            "reason": reasons[s["media_id"]],
            "action": "drop",
            "detector": "mask_media",
        }
        for i, s in enumerate(row["segments"])
        if s["kind"] == "image" and s["media_id"] in reasons
    ]
    return {"masks": row["masks"] + masks}


def _interleave(row: dict[str, Any], _: Any) -> dict[str, Any]:
    gone = {m["segment"] for m in row["masks"] if m["action"] == "drop"}
    number = {old: new for new, old in enumerate(i for i in range(len(row["segments"])) if i not in gone)}
    return {
        "segments": [row["segments"][i] for i in number],
        "masks": [{**m, "segment": number[m["segment"]]} for m in row["masks"] if m["action"] == "no_loss"],
    }


def _tokenize(
    made: _Run, rows: list[dict[str, Any]], pictures: list[dict[str, Any]]
) -> tuple[list[list[dict[str, Any]]], Tokenizer]:
    encoder = Tokenizer(models.BPE())
    encoder.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    encoder.decoder = decoders.ByteLevel()
    texts = [s["text"] for row in rows for s in row["segments"] if s["text"]]
    encoder.train_from_iterator(
        texts,
        trainers.BpeTrainer(
            vocab_size=480,
            special_tokens=list(vocabulary.SPECIAL_TOKENS),
            show_progress=False,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        ),
    )
    frames = [p for p in pictures if p["kind"] == "frame"]
    token_rows = [[_token_row(row, encoder, frames) for row in part] for part in (rows[:10], rows[10:])]
    tables = [pa.Table.from_pylist(part, tokens.SCHEMA) for part in token_rows]
    made.commit(
        "tokenize",
        {"tokens": tables},
        spec={"patch_size": PATCH, "merge_size": 2, "vocab_size": 480},
        files={"tokenizer.json": encoder.to_str().encode()},
        rows_in=len(rows),
        rows_out=len(rows),
    )
    return token_rows, encoder


def _token_row(row: dict[str, Any], encoder: Tokenizer, frames: list[dict[str, Any]]) -> dict[str, Any]:
    found: list[tuple[list[int], str, int, float, str | None]] = []
    images: list[dict[str, Any]] = []

    def special(name: str) -> int:
        return int(encoder.token_to_id(name) or 0)

    found.append(([special(vocabulary.BEGIN_OF_DOCUMENT)], "special", -1, 0.0, None))
    for i, segment in enumerate(row["segments"]):
        at = sum(len(part) for part, *_ in found)
        if segment["kind"] == "text":
            found += [
                (part, "text", i, 0.0 if reason else 1.0, reason)
                for part, reason in _pieces(segment["text"], i, row["masks"], encoder)
            ]
            continue
        is_video = segment["kind"] == "video"
        placeholder = special(vocabulary.VIDEO if is_video else vocabulary.IMAGE)
        run = [special(vocabulary.START_OF_IMAGE), *[placeholder] * 4, special(vocabulary.END_OF_IMAGE)]
        images.append(
            {
                "media_id": segment["media_id"],
                "token_start": at + 1,
                "grid_t": 1,
                "grid_h": 4,
                "grid_w": 4,
                "bytes": make.picture(4 * PATCH, 8 * PATCH if is_video else 4 * PATCH, seed=i),
            }
        )
        found.append((run, segment["kind"], i, 0.0, None))
    found.append(([special(vocabulary.END_OF_DOCUMENT)], "special", -1, 1.0, None))
    edges = np.cumsum([0, *(len(part) for part, *_ in found)]).tolist()
    spans = [
        {
            "start": edges[j],
            "end": edges[j + 1],
            "kind": kind,
            "segment": segment,
            "loss_weight": weight,
            "reason": reason,
        }
        for j, (_, kind, segment, weight, reason) in enumerate(found)
    ]
    return {
        "doc_id": row["doc_id"],
        "num_tokens": edges[-1],
        "input_ids": [t for part, *_ in found for t in part],
        "spans": spans,
        "images": images,
    }


def _pieces(
    text: str, segment: int, masks: list[dict[str, Any]], encoder: Tokenizer
) -> list[tuple[list[int], str | None]]:
    ranges = sorted((m["start"], m["end"], m["reason"]) for m in masks if m["segment"] == segment)
    edges = [
        (0, None),
        *(edge for start, end, reason in ranges for edge in ((start, reason), (end, None))),
        (len(text), None),
    ]
    parts = [
        (text[start:end], reason) for (start, reason), (end, _) in itertools.pairwise(edges) if end > start
    ]
    return [
        (encoder.encode(part + ("\n\n" if i == len(parts) - 1 else "")).ids, reason)
        for i, (part, reason) in enumerate(parts)
    ]


def _score(made: _Run, rows: list[dict[str, Any]]) -> None:
    rng = np.random.default_rng(7)
    empty = dict.fromkeys(scores.SCHEMA.names)
    quality = [
        {
            **empty,
            "doc_id": r["doc_id"],
            "scorer": "text_quality",
            "version": "1",
            "score": float(rng.normal(1, 1)),
        }
        for r in rows
    ]
    quality[-1] |= {"score": None, "error": "too_short"}
    fit = [
        {
            **empty,
            "doc_id": r["doc_id"],
            "segment": i,
            "scorer": "alignment",
            "version": "1",
            "score": float(rng.uniform(-0.2, 0.6)),
        }
        for r in rows
        for i, s in enumerate(r["segments"])
        if s["kind"] == "image"
    ]
    for name, part, auc in (("text_quality", quality, 0.93), ("alignment", fit, 0.71)):
        made.commit(
            f"score_{name}",
            {"scores": [pa.Table.from_pylist(part, scores.SCHEMA)]},
            rows_in=len(rows),
            rows_out=len(part),
            metrics={"auc_held_out": auc, "num_pairs_train": 40, "num_pairs_held_out": 5},
        )


def _plan(made: _Run, token_rows: list[list[dict[str, Any]]]) -> None:
    planned, held_out, sequence, position = [], [], 0, 0
    for partition, part in enumerate(token_rows):
        for row_number, row in enumerate(part):
            at = {
                "doc_id": row["doc_id"],
                "shard": shard.shard_name("tokens", partition),
                "row": row_number,
                "weight": 1.0,
                "stratum": "notes" if partition else "manual",
            }
            if partition == 1 and row_number == 0:
                held_out.append(
                    {
                        **at,
                        "sequence": 0,
                        "position": 0,
                        "start": 0,
                        "end": min(CONTEXT_LENGTH, row["num_tokens"]),
                    }
                )
                continue
            start = 0
            while start < row["num_tokens"]:
                end = min(row["num_tokens"], start + CONTEXT_LENGTH - position)
                planned.append({**at, "sequence": sequence, "position": position, "start": start, "end": end})
                position, start = position + end - start, end
                if position == CONTEXT_LENGTH:
                    sequence, position = sequence + 1, 0
    num_documents, num_tokens = (
        sum(map(len, token_rows)),
        sum(row["num_tokens"] for part in token_rows for row in part),
    )
    num_planned, rest = sum(r["end"] - r["start"] for r in planned), sum(r["end"] for r in held_out)
    places = {"held_out": 1, "in_training": num_documents - 1, "input": num_documents, "not_selected": 0}
    report = {
        "documents": {**places, "planned": num_documents - 1, "never_planned": 0},
        "epochs": 1,
        "fill_frac": 0.96,
        "tokens": {
            "input": num_tokens,
            "not_selected": 0,
            "held_out": rest,
            "in_training": num_planned,
            "planned": num_planned,
            "tail_too_short": 0,
            "not_reached": 0,
        },
    }
    made.commit(
        "plan",
        {
            "plan": [pa.Table.from_pylist(planned, plan.SCHEMA)],
            "heldout": [pa.Table.from_pylist(held_out, plan.SCHEMA)],
        },
        spec={"pack": {"context_length": CONTEXT_LENGTH}},
        rows_in=sum(map(len, token_rows)),
        rows_out=len(planned),
        metrics={"report": report},
    )


def _lines(rows: list[dict[str, Any]]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def _train(made: _Run) -> None:
    rng, rows = np.random.default_rng(11), []
    for step in range(1, NUM_STEPS + 1):
        fall = np.exp(-step / 5)
        rows.append(
            {
                "step": step,
                "loss/text_nats": 2 + 4 * fall + rng.normal(0, 0.05),
                "loss/image_nats": 2.2 + 3.8 * fall,
                "loss/video_nats": 3 + 3 * fall if step % 3 == 0 else None,
                "tokens/text_frac": 0.7,
                "tokens/image_frac": 0.2,
                "tokens/video_frac": 0.1,
                "index/kl_nats": 0.5 * fall,
                "index/phase": "dense" if step <= 3 else "sparse",
                "step/tokens_per_s": 900 + 10 * rng.normal(),
                **{
                    f"grad_norm/{part}": fall + rng.uniform(0.05, 0.2)
                    for part in ("vision", "projector", "decoder", "index")
                },
            }
        )
    made.commit(
        "pretrain",
        {},
        spec={"batch_sequences": BATCH_SEQUENCES, "num_steps": NUM_STEPS, "index_warmup_frac": 0.25},
        files={"metrics.jsonl": _lines(rows)},
        metrics={"steps": NUM_STEPS, "stability/skipped": 0},
    )
    made.commit(
        "evaluate",
        {},
        metrics={
            **{
                f"loss/{k}_nats": v
                for k, v in (("text", 2.4), ("image", 2.625), ("video", None), ("all", 2.5))
            },
            **{
                f"bits_per_token/{k}": v
                for k, v in (("text", 3.46), ("image", 3.79), ("video", None), ("all", 3.6))
            },
            **{f"tokens/{k}_count": v for k, v in (("text", 50), ("image", 18), ("video", 0), ("all", 68))},
            "loss/image_shuffled_nats": 2.875,
            "loss/video_shuffled_nats": None,
            "sequences/held_out_count": 1,
            "pictures/exchanged_frac": 0.75,
        },
    )


def _rl(made: _Run, encoder: Tokenizer) -> None:
    rng, rows, samples = np.random.default_rng(13), [], []
    for step in range(1, NUM_RL_STEPS + 1):
        reward = {"count": 0.2 + 0.05 * step, "colour": 0.3 + 0.08 * step}
        rows.append(
            {
                "step": step,
                "rl/reward_mean": sum(reward.values()) / 2,
                **{f"rl/reward_{k}_mean": v for k, v in reward.items()},
            }
        )
        [task] = environments.draw_tasks(RL_ENVIRONMENTS, "train", 1, step - 1, 1)
        for _ in range(4):
            answer = str(rng.choice(environments.ANSWERS[task.environment]))
            prompt_ids, answer_ids = encoder.encode(task.prompt).ids, encoder.encode(answer).ids
            right = float(answer == task.answer)
            samples.append(
                {
                    "doc_id": task.doc_id,
                    "prompt": task.prompt,
                    "group": step - 1,
                    "policy_step": step - 1,
                    "turns": [{"role": "user", "text": task.prompt}, {"role": "assistant", "text": answer}],
                    "input_ids": prompt_ids + answer_ids,
                    "logprobs": [0.0] * len(prompt_ids) + [-0.7] * len(answer_ids),
                    "loss_mask": [False] * len(prompt_ids) + [True] * len(answer_ids),
                    "rewards": [{"verifier": "exact", "reward": right, "error": None}],
                    "advantage": right - 0.25,
                }
            )
    made.commit(
        "rl",
        {"rollouts": [pa.Table.from_pylist(samples, rollout.SCHEMA)]},
        files={"metrics.jsonl": _lines(rows)},
        spec={
            "environments": list(RL_ENVIRONMENTS),
            "num_steps": NUM_RL_STEPS,
            "prompts_per_step": 1,
            "seed": 1,
        },
        metrics={
            "before": {"count": 0.21, "colour": 0.3},
            "after": {"count": 0.55, "colour": 0.86},
            "exchanged": {"count": 0.2, "colour": 0.28},
        },
    )


def words(text: str) -> str:
    """Return a page's text with its tags and runs of white space taken out."""
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", text))
