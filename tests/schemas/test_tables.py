"""Every table checks what is written into it, and says what is wrong."""

import pyarrow as pa
import pytest

from schemas import document, ids, media, plan, rollout, scores, shard, tokens
from schemas.errors import SchemaError
from tests import make


def test_a_document_that_follows_the_rules_is_accepted():
    row = make.document_row([make.text("hi"), make.picture_segment("m")])
    row["masks"] = [
        {
            "segment": 1,
            "start": None,
            "end": None,
            "box": [0.0, 0.0, 1.0, 1.0],
            "reason": "face",
            "action": "drop",
            "detector": "test",
        }
    ]
    document.validate(make.documents([row]))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"segments": [{**make.text("hi"), "role": "footnote"}]}, r"segments.role: 'footnote' is not one of"),
        ({"segments": [{**make.text("hi"), "kind": "sound"}]}, r"segments.kind: 'sound' is not one of"),
        ({"segments": [{**make.text("hi"), "text": None}]}, "has no text"),
        (
            {"segments": [{**make.picture_segment("m"), "text": "hi"}]},
            "has no text, or one of another kind has some",
        ),
        (
            {
                "masks": [
                    {
                        "segment": 1,
                        "start": None,
                        "end": None,
                        "box": None,
                        "reason": "r",
                        "action": "drop",
                        "detector": "d",
                    }
                ]
            },
            "1 is no segment of document",
        ),
        (
            {
                "masks": [
                    {
                        "segment": 0,
                        "start": None,
                        "end": None,
                        "box": None,
                        "reason": "r",
                        "action": "blur",
                        "detector": "d",
                    }
                ]
            },
            r"masks.action: 'blur' is not one of",
        ),
    ],
)
def test_a_document_that_breaks_a_rule_is_refused(change, message):
    good = make.document_row([make.text("fine")], uri="other")
    row = {**make.document_row([make.text("hi")]), **change}
    with pytest.raises(SchemaError, match=message):
        document.validate(pa.RecordBatch.from_pylist([good, row], schema=document.SCHEMA))


def test_a_mask_is_checked_against_its_own_document_also_in_a_slice():
    rows = [
        make.document_row([make.text("a"), make.text("b")], uri="1"),
        make.document_row([make.text("c")], uri="2"),
    ]
    rows[1]["masks"] = [
        {"segment": 1, "start": 0, "end": 1, "box": None, "reason": "r", "action": "drop", "detector": "d"}
    ]
    table = pa.Table.from_pylist(rows, schema=document.SCHEMA)
    document.validate(table.slice(0, 1))
    with pytest.raises(SchemaError, match=rows[1]["doc_id"]):
        document.validate(table.slice(1, 1))


def test_missing_renamed_and_retyped_columns_are_named():
    batch = make.documents([make.document_row([make.text("hi")])])
    with pytest.raises(SchemaError, match="missing \\['title'\\], unexpected \\['heading'\\]"):
        document.validate(
            pa.table(batch).rename_columns(["heading" if n == "title" else n for n in batch.schema.names])
        )
    index = batch.schema.get_field_index("lang_prob")
    with pytest.raises(SchemaError, match=r"documents.lang_prob: type string, expected float"):
        document.validate(pa.table(batch).set_column(index, "lang_prob", pa.array(["1"])))


def test_media_bytes_must_hash_to_their_id():
    row = make.media_row(make.picture())
    media.validate(pa.Table.from_pylist([row], schema=media.SCHEMA))
    with pytest.raises(SchemaError, match="do not hash to their media_id"):
        media.validate(pa.Table.from_pylist([{**row, "bytes": b"other"}], schema=media.SCHEMA))
    with pytest.raises(SchemaError, match="names no video"):
        media.validate(pa.Table.from_pylist([{**row, "kind": "frame"}], schema=media.SCHEMA))


def test_with_media_gives_pictures_and_frames_in_segment_order_and_leaves_broken_ones_out():
    first, second, broken = (make.media_row(make.picture(seed=i)) for i in range(3))
    broken["error"] = "truncated"
    video = {**make.media_row(make.picture(seed=3)), "kind": "video"}
    frames = [
        {
            **make.media_row(make.picture(seed=4 + i)),
            "kind": "frame",
            "parent_id": video["media_id"],
            "t_s": float(2 - i),
        }
        for i in range(2)
    ]
    row = make.document_row(
        [
            make.picture_segment(second["media_id"]),
            make.picture_segment(broken["media_id"]),
            make.video_segment(video["media_id"], 0, 3),
            make.picture_segment(first["media_id"]),
            make.picture_segment(None),
            make.picture_segment(second["media_id"]),
        ]
    )
    table = make.media_table([first, second, broken, video, *frames])
    found = document.with_media(make.documents([row]), table)["media"].to_pylist()[0]
    expected = [second, video, frames[1], frames[0], first]
    assert [m["media_id"] for m in found] == [m["media_id"] for m in expected]
    assert found[0]["bytes"] == second["bytes"]


def token_row(**change):
    row = {
        "doc_id": "d",
        "num_tokens": 4,
        "input_ids": [1, 2, 3, 4],
        "spans": [
            {"start": 0, "end": 3, "kind": "text", "segment": 0, "loss_weight": 1.0, "reason": None},
            {"start": 3, "end": 4, "kind": "image", "segment": 1, "loss_weight": 0.0, "reason": None},
        ],
        "images": [{"media_id": "m", "token_start": 3, "grid_t": 1, "grid_h": 2, "grid_w": 2, "bytes": b"x"}],
    }
    return pa.Table.from_pylist([{**row, **change}], schema=tokens.SCHEMA)


def test_token_spans_must_tile_the_tokens():
    tokens.validate(token_row())
    spans = token_row()["spans"].to_pylist()[0]
    for wrong in (spans[:1], [spans[0], {**spans[1], "start": 2}], [{**spans[0], "start": 1}, spans[1]], []):
        with pytest.raises(SchemaError, match="do not tile"):
            tokens.validate(token_row(spans=wrong))
    with pytest.raises(SchemaError, match="num_tokens: 5"):
        tokens.validate(token_row(num_tokens=5))
    images = token_row()["images"].to_pylist()[0]
    with pytest.raises(SchemaError, match="token_start"):
        tokens.validate(token_row(images=[{**images[0], "token_start": 4}]))


def test_a_score_is_a_finite_number_or_an_error_never_both():
    row = {
        "doc_id": "d",
        "segment": None,
        "scorer": "s",
        "version": "1",
        "score": 0.5,
        "uncertainty": None,
        "error": None,
    }
    scores.validate(
        pa.Table.from_pylist([row, {**row, "score": None, "error": "timeout"}], schema=scores.SCHEMA)
    )
    for wrong in ({"error": "timeout"}, {"score": None}):
        with pytest.raises(SchemaError, match="both or neither"):
            scores.validate(pa.Table.from_pylist([{**row, **wrong}], schema=scores.SCHEMA))
    with pytest.raises(SchemaError, match="not finite"):
        scores.validate(pa.Table.from_pylist([{**row, "score": float("nan")}], schema=scores.SCHEMA))


def plan_rows(*spans):
    return pa.Table.from_pylist(
        [
            {
                "sequence": s,
                "position": p,
                "doc_id": "d",
                "shard": "tokens-00000.arrow",
                "row": 0,
                "start": a,
                "end": b,
                "weight": 1.0,
                "stratum": "x",
            }
            for s, p, a, b in spans
        ],
        schema=plan.SCHEMA,
    )


def test_a_plan_has_numbered_sequences_without_gaps():
    plan.validate(plan_rows((0, 0, 5, 9), (0, 4, 0, 2), (1, 0, 0, 3)))
    plan.validate(plan_rows())
    for wrong in ([(0, 0, 5, 9), (0, 5, 0, 2)], [(0, 0, 5, 9), (2, 0, 0, 2)], [(1, 0, 0, 2)], [(0, 1, 0, 2)]):
        with pytest.raises(SchemaError, match="gap"):
            plan.validate(plan_rows(*wrong))
    with pytest.raises(SchemaError, match="empty or reversed"):
        plan.validate(plan_rows((0, 0, 5, 5)))


def test_a_rollout_has_one_logprob_and_mask_a_token():
    row = {
        "doc_id": "d",
        "prompt": "p",
        "group": 0,
        "turns": [{"role": "user", "text": "p"}],
        "input_ids": [1, 2],
        "logprobs": [0.0, -1.0],
        "loss_mask": [False, True],
        "rewards": [],
        "advantage": 0.5,
        "policy_step": 0,
    }
    rollout.validate(pa.Table.from_pylist([row], schema=rollout.SCHEMA))
    with pytest.raises(SchemaError, match="loss_mask: not one entry a token"):
        rollout.validate(pa.Table.from_pylist([{**row, "loss_mask": [True]}], schema=rollout.SCHEMA))


def test_every_table_reads_back_in_polars(tmp_path):
    import polars as pl

    picture = make.media_row(make.picture())
    written = {
        "documents": pa.table(make.documents([make.document_row([make.text("hi")])])),
        "media": make.media_table([picture]),
        "tokens": token_row(),
        "plan": plan_rows((0, 0, 0, 3)),
    }
    for name, table in written.items():
        path = str(tmp_path / shard.shard_name(name, 0))
        shard.write_table(path, table)
        assert pl.scan_ipc(path).collect().to_dicts() == table.to_pylist()


def test_ids_depend_on_content_and_place_only():
    assert ids.content_id(b"a") == ids.content_id(memoryview(b"a")) != ids.content_id(b"b")
    assert ids.document_id("c", "u", "x") != ids.document_id("cu", "", "x")
    assert ids.step_id("clean", "1", {"a": 1, "b": 2}, ["x"]) == ids.step_id(
        "clean", "1", {"b": 2, "a": 1}, ["x"]
    )
    base = ids.step_id("clean", "1", {"a": 1}, ["x"])
    assert (
        len(
            {
                base,
                ids.step_id("clean", "2", {"a": 1}, ["x"]),
                ids.step_id("clean", "1", {"a": 2}, ["x"]),
                ids.step_id("clean", "1", {"a": 1}, ["y"]),
            }
        )
        == 4
    )
