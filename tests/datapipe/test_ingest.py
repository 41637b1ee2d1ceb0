import base64
import functools
import struct
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from datapipe.guard import Guard, Unguarded
from datapipe.sources import files
from datapipe.spec import IngestSpec, SourceSpec, VideoSpec
from datapipe.stages import ingest
from schemas import document, ids, media
from tests import make
from tests.datapipe import guarded

VTT = "WEBVTT\n\n00:01.000 --> 00:02.000\nFirst words\n\n00:02.000 --> 00:02.900\nSecond words\n"


def run(
    root: Path, load: Callable[[str], bytes] | None = None, spec: IngestSpec | None = None, **fields: Any
) -> ingest.Ingested:
    source = SourceSpec(path=str(root), collection="test", **fields)
    return ingest.ingest(
        files.list_files(source), source, spec or IngestSpec(), load or (lambda uri: files.load(source, uri))
    )


def segments(tables: ingest.Ingested, row: int = 0) -> list[dict[str, Any]]:
    return tables.documents["segments"][row].as_py()


def test_a_page_becomes_a_document_whose_pictures_are_in_the_media_table(tmp_path: Path) -> None:
    picture = make.picture()
    make.folder(
        tmp_path,
        {
            "p.html": "<html lang=en><title>T</title><p>Look:</p><figure><img src=i/a.png><figcaption>It"
            "</figcaption></figure>",
            "i/a.png": picture,
        },
    )
    tables = run(tmp_path, license="CC0")
    row = tables.documents.to_pylist()[0]
    assert row["doc_id"] == ids.document_id(
        "test", "p.html", ids.content_id((tmp_path / "p.html").read_bytes())
    )
    assert {
        k: row[k] for k in ("uri", "collection", "format", "license", "title", "lang", "drop_reason")
    } == {
        "uri": "p.html",
        "collection": "test",
        "format": "html",
        "license": "CC0",
        "title": "T",
        "lang": "en",
        "drop_reason": None,
    }
    assert [(s["kind"], s["role"], s["text"], s["media_id"]) for s in row["segments"]] == [
        ("text", "paragraph", "Look:", None),
        ("image", "figure", None, ids.content_id(picture)),
        ("text", "caption", "It", None),
    ]
    (medium,) = tables.media.to_pylist()
    assert (medium["bytes"], medium["width"], medium["height"], medium["error"]) == (picture, 64, 48, None)
    assert medium["perceptual_hash"] is not None


def test_one_picture_is_loaded_once_and_stored_once_whatever_its_names(tmp_path: Path) -> None:
    page = "<p>x</p><img src=a.png><img src=a.png><img src=copy.png>"
    make.folder(
        tmp_path, {"1.html": page, "2.html": page, "a.png": make.picture(), "copy.png": make.picture()}
    )
    loaded: list[str] = []

    def load(uri: str) -> bytes:
        loaded.append(uri)
        return (tmp_path / uri).read_bytes()

    tables = run(tmp_path, load)
    assert sorted(loaded) == ["1.html", "2.html", "a.png", "copy.png"]
    assert tables.media.num_rows == 1
    assert [len([s for s in segments(tables, row) if s["media_id"]]) for row in (0, 1)] == [3, 3]


def test_missing_remote_and_undecodable_pictures_stay_in_the_document(tmp_path: Path) -> None:
    make.folder(
        tmp_path,
        {
            "p.html": "<p>x</p><img src=no.png><img src=https://h/a.png><img src=../../up.png><img src=d.bmp>"
            f"<img src=bad.png><img src='data:image/png;base64,{'A' * 2001}'>",
            "d.bmp": "no picture",
            "bad.png": make.picture()[:200],
        },
    )
    tables = run(tmp_path)
    assert [s["media_id"] for s in segments(tables)[1:]] == [
        None,
        None,
        None,
        ids.content_id(b"no picture"),
        ids.content_id(make.picture()[:200]),
        None,
    ]
    assert [s["href"] for s in segments(tables)] == [
        None,
        "no.png",
        "https://h/a.png",
        "../../up.png",
        "d.bmp",
        "bad.png",
        "data:image/png;base64,",
    ]
    rows = tables.media.to_pylist()
    assert [(r["mime"], r["error"].split(":")[0], r["width"]) for r in rows] == [
        ("image/bmp", "UnknownMedium", None),
        ("image/png", "TruncatedMedium", None),
    ]
    assert tables.quarantine.num_rows == 0


@pytest.mark.parametrize(
    ("name", "content", "error"),
    [
        ("bad.html", make.picture(), "NotText"),
        ("empty.html", "<script>x</script>", "EmptyDocument"),
        ("empty.txt", "", "EmptyDocument"),
        ("broken.page", "<page><p>", "MalformedMarkup"),
        ("binary.txt", bytes(range(32)) * 9, "NotText"),
        ("long.txt", "x" * 25_000, "FileTooLarge"),
    ],
)
def test_one_bad_file_is_one_quarantine_row(
    tmp_path: Path, name: str, content: bytes | str, error: str
) -> None:
    make.folder(tmp_path, {"good.txt": "good", name: content})
    tables = run(tmp_path, spec=IngestSpec(max_file_bytes=20_000))
    assert tables.documents["uri"].to_pylist() == ["good.txt"]
    (row,) = tables.quarantine.to_pylist()
    assert (row["uri"], row["stage"], row["error_class"]) == (name, "ingest", error)
    assert row["message"] and row["content_id"] == ids.content_id((tmp_path / name).read_bytes())


def test_a_loader_that_fails_quarantines_the_page_it_failed_for(tmp_path: Path) -> None:
    make.folder(
        tmp_path,
        {
            "a.html": "<p>a</p><img src=b.png><img src=a.png>",
            "b.png": make.picture(seed=1),
            "b.html": "<p>b</p>",
            "a.png": make.picture(),
        },
    )

    def load(uri: str) -> bytes:
        if uri == "a.png":
            raise ConnectionError("reset")
        return (tmp_path / uri).read_bytes()

    tables = run(tmp_path, load)
    assert tables.documents["uri"].to_pylist() == ["b.html"]
    assert tables.quarantine.select(["uri", "error_class", "message"]).to_pylist() == [
        {"uri": "a.html", "error_class": "ConnectionError", "message": "reset"}
    ]
    assert tables.media.num_rows == 0


@pytest.mark.parametrize(
    "body", ["<video src=v.webm></video>", "<video src=v.webm><track src=v.vtt></video>", "<img src=v.webm>"]
)
def test_a_video_is_sampled_and_cut_by_the_captions_beside_it(tmp_path: Path, body: str) -> None:
    clip = make.video(40, 10)
    make.folder(tmp_path, {"p.html": f"<p>Before</p>{body}<p>After</p>", "v.webm": clip, "v.vtt": VTT})
    tables = run(tmp_path)
    video_id = ids.content_id(clip)
    assert [(s["text"] or s["media_id"], s["t_start_s"], s["t_end_s"]) for s in segments(tables)] == [
        ("Before", None, None),
        (video_id, 0.0, 1.0),
        (video_id, 1.0, 2.0),
        ("First words", 1.0, 2.0),
        (video_id, 2.0, 2.9),
        ("Second words", 2.0, 2.9),
        (video_id, 2.9, pytest.approx(4.0)),
        ("After", None, None),
    ]
    rows = tables.media.to_pylist()
    assert [(r["kind"], r["parent_id"], r["t_s"]) for r in rows] == [
        ("video", None, None),
        *[("frame", video_id, float(t)) for t in range(4)],
    ]
    assert (rows[0]["duration_s"], rows[0]["num_frames"], rows[0]["mime"]) == (
        pytest.approx(4.0),
        40,
        "video/webm",
    )
    frames = media.index_by_id(tables.media)[1][video_id]
    assert [f["t_s"] for f in frames] == [0.0, 1.0, 2.0, 3.0]


def test_equal_frames_at_other_times_are_other_media(tmp_path: Path) -> None:
    make.folder(tmp_path, {"p.html": "<video src=v.webm></video>", "v.webm": make.video(20, 10, grey_step=0)})
    _, *frames = run(
        tmp_path, spec=IngestSpec(video=VideoSpec(frames_per_second=5, max_frame_side=16))
    ).media.to_pylist()
    assert len({f["media_id"] for f in frames}) == len(frames) == 10
    assert len({f["pixels_id"] for f in frames}) < 10
    assert {(f["width"], f["height"]) for f in frames} == {(16, 12)}


def test_a_damaged_video_keeps_its_place_and_words(tmp_path: Path) -> None:
    make.folder(
        tmp_path, {"p.html": "<video src=v.webm></video>", "v.webm": make.video()[:500], "v.vtt": VTT}
    )
    tables = run(tmp_path)
    assert [s["text"] for s in segments(tables) if s["kind"] == "text"] == ["First words", "Second words"]
    assert len({s["media_id"] for s in segments(tables) if s["kind"] == "video"}) == 1
    assert tables.media["error"][0].as_py().startswith("TruncatedMedium")


def test_a_bad_caption_file_is_quarantined_and_its_video_kept_whole(tmp_path: Path) -> None:
    make.folder(
        tmp_path, {"p.html": "<video src=v.webm></video>", "v.webm": make.video(), "v.srt": "no times"}
    )
    tables = run(tmp_path)
    assert [(s["kind"], s["t_start_s"], s["t_end_s"]) for s in segments(tables)] == [
        ("video", 0.0, pytest.approx(3.0))
    ]
    assert tables.quarantine.select(["uri", "error_class"]).to_pylist() == [
        {"uri": "v.srt", "error_class": "MalformedMarkup"}
    ]


def test_standalone_media_become_documents_and_bad_ones_go_to_quarantine(tmp_path: Path) -> None:
    make.folder(
        tmp_path, {"a.png": make.picture(), "bad.png": b"no picture", "v.webm": make.video(), "v.vtt": VTT}
    )
    tables = run(tmp_path, standalone_media=True)
    assert tables.documents.select(["uri", "format"]).to_pylist() == [
        {"uri": "a.png", "format": "image"},
        {"uri": "v.webm", "format": "video"},
    ]
    assert [s["text"] for s in segments(tables, 1) if s["text"]] == ["First words", "Second words"]
    assert tables.quarantine.select(["uri", "error_class"]).to_pylist() == [
        {"uri": "bad.png", "error_class": "UnknownMedium"}
    ]
    assert tables.media["error"].null_count == tables.media.num_rows  # nothing of what was refused is left


def grey_png(side: int) -> bytes:
    """A PNG of one grey: a third of a megabyte that unpacks to a third of a gigabyte at a side of 9,000."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0)
    packed = zlib.compress(bytes(side * (side + 1)), 1)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", packed) + chunk(b"IEND", b"")


def long_gif(num_frames: int) -> bytes:
    """A GIF of one pixel that changes a million times; its frames have to be gone through to be counted."""
    header = b"GIF89a" + struct.pack("<HHBBB", 1, 1, 0x80, 0, 0) + bytes(3) + b"\xff" * 3
    frame = b"\x2c" + struct.pack("<HHHHB", 0, 0, 1, 1, 0) + b"\x02\x02\x44\x01\x00"
    return header + num_frames * frame + b"\x3b"


def test_pictures_that_need_too_much_memory_keep_their_documents(tmp_path: Path) -> None:
    inline = base64.b64encode(grey_png(9000)).decode()
    make.folder(
        tmp_path,
        {
            "a.html": f"<p>Look<img src=good.png><img src='data:image/png;base64,{inline}'><p>on",
            "good.png": make.picture(),
        },
    )
    tables = run(tmp_path, spec=IngestSpec(memory_limit_bytes=256 * 1024**2))
    assert [s["kind"] for s in segments(tables)] == ["text", "image", "image", "text"]
    memory = "MemoryLimitExceeded: it needs more memory than memory_limit_bytes allows"
    assert [(r["width"], r["error"], r["bytes"] is not None) for r in tables.media.to_pylist()] == [
        (64, None, True),
        (None, memory, True),
    ]
    assert tables.quarantine.num_rows == 0


def test_a_picture_that_takes_too_long_keeps_its_document(tmp_path: Path) -> None:
    make.folder(
        tmp_path,
        {
            "a.html": "<p>Look<img src=long.gif><img src=good.png><p>on",
            "good.png": make.picture(),
            "long.gif": long_gif(1_100_000),
        },
    )
    tables = run(tmp_path, spec=IngestSpec(time_limit_s=0.2))
    assert [s["kind"] for s in segments(tables)] == ["text", "image", "image", "text"]
    assert [(r["width"], r["error"]) for r in tables.media.to_pylist()] == [
        (None, "TimeLimitExceeded: it takes longer than 0.2 s"),
        (64, None),
    ]


class Faulty(Unguarded):
    """A guard whose child crashes on bytes that tell it to."""

    def __init__(self, guard: Guard) -> None:
        self.guard = guard

    def each(
        self,
        function: Callable[..., Any],
        arguments: Iterable[tuple[Any, ...]],
        time_limit_s: float | None = None,
    ) -> list[Any]:
        calls = ((function, *given) for given in arguments)
        return self.guard.each(guarded.faulty, calls, time_limit_s)


def test_a_reader_and_a_decoder_that_crash_cost_one_file_and_one_picture(tmp_path: Path) -> None:
    make.folder(
        tmp_path,
        {
            "a.html": "<p>Look<img src=bad.png><img src=good.png>",
            "b.html": "<p>SEGFAULT",
            "bad.png": make.picture(seed=1) + b"SEGFAULT",
            "c.html": "<p>Words<video src=v.webm></video>",
            "good.png": make.picture(),
            "v.webm": make.video(),
            "v.vtt": VTT + "SEGFAULT",
        },
    )
    source = SourceSpec(path=str(tmp_path), collection="test")
    with Guard(30, 1 << 30) as guard:
        tables = ingest.ingest(
            files.list_files(source),
            source,
            IngestSpec(),
            functools.partial(files.load, source),
            Faulty(guard),
        )
    assert tables.documents["uri"].to_pylist() == ["a.html", "c.html"]
    errors = [(r["kind"], (r["error"] or "")[:14]) for r in tables.media.to_pylist() if r["kind"] != "frame"]
    assert errors == [("image", "DecoderCrashed"), ("image", ""), ("video", "")]
    assert tables.quarantine.select(["uri", "error_class", "message"]).to_pylist() == [
        {"uri": uri, "error_class": "DecoderCrashed", "message": "its process ended by SIGSEGV"}
        for uri in ("b.html", "v.vtt")
    ]


def test_with_and_without_a_guard_the_tables_are_the_same(tmp_path: Path) -> None:
    make.folder(
        tmp_path,
        {
            "a.html": "<p>x</p><img src=a.png><video src=v.webm></video><img src=bad.png>",
            "a.png": make.picture(),
            "bad.html": b"\0\1",
            "bad.png": make.picture()[:200],
            "deep.html": "<div>" * 5000 + "deep",
            "large.txt": "x" * 3_000_000,
            "v.srt": "no times",
            "v.webm": make.video(),
        },
    )
    source = SourceSpec(path=str(tmp_path), collection="test")
    listed, load = files.list_files(source), functools.partial(files.load, source)
    one = ingest.ingest(listed, source, IngestSpec(), load)
    other = ingest.ingest(listed, source, IngestSpec(), load, Unguarded())
    assert all(getattr(one, n).equals(getattr(other, n)) for n in ("documents", "media", "quarantine"))
    assert one.documents.num_rows == 3 and one.quarantine.num_rows == 2


def test_a_picture_file_that_is_too_large_is_not_loaded_and_told_once(tmp_path: Path) -> None:
    page = "<p>x</p><img src=large.bmp>"
    make.folder(tmp_path, {"1.html": page, "2.html": page, "large.bmp": b"BM" + bytes(30_000)})
    source = SourceSpec(path=str(tmp_path), collection="test")
    tables = run(tmp_path, functools.partial(files.load, source, max_bytes=20_000))
    assert [s["media_id"] for s in (*segments(tables, 0), *segments(tables, 1))] == [None] * 4
    assert tables.quarantine.select(["uri", "error_class"]).to_pylist() == [
        {"uri": "large.bmp", "error_class": "FileTooLarge"}
    ]


def test_files_asked_for_that_no_reader_knows_and_known_unread_formats_are_told(tmp_path: Path) -> None:
    make.folder(
        tmp_path,
        {"a.txt": "good", "b.xyz": "words", "c.doc": b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "d.css": ""},
    )
    tables = run(tmp_path, include=("**", "**/*.xyz"))
    assert tables.documents["uri"].to_pylist() == ["a.txt"]
    assert tables.quarantine.select(["uri", "error_class", "message"]).to_pylist() == [
        {"uri": "b.xyz", "error_class": "ReadError", "message": "no reader for this file"},
        {
            "uri": "c.doc",
            "error_class": "UnsupportedFormat",
            "message": "an OLE compound file (.doc, .ppt, .xls of before 2007, .fpx): "
            "a known format, and not read here",
        },
    ]


def test_the_same_input_gives_the_same_tables_and_each_document_the_same_rows_in_any_partition(
    tmp_path: Path,
) -> None:
    make.folder(
        tmp_path,
        {f"{i}.html": f"<p>page {i}</p><img src={i % 2}.png><video src=v.webm></video>" for i in range(4)}
        | {
            "0.png": make.picture(),
            "1.png": make.picture(seed=1),
            "v.webm": make.video(),
            "bad.html": b"\0\1",
        },
    )
    whole, again = run(tmp_path), run(tmp_path)
    assert all(getattr(whole, n).equals(getattr(again, n)) for n in ("documents", "media", "quarantine"))
    source = SourceSpec(path=str(tmp_path), collection="test")
    parts = [
        ingest.ingest([f], source, IngestSpec(), lambda uri: files.load(source, uri))
        for f in files.list_files(source)
    ]
    assert pa.concat_tables([p.documents for p in parts]).equals(whole.documents)
    for part in parts:
        named = {s["media_id"] for s in check_segments(part.documents)} - {None}
        assert named <= set(part.media["media_id"].to_pylist())


def check_segments(documents: pa.Table) -> list[dict[str, Any]]:
    document.validate(documents)
    return [s for row in documents["segments"].to_pylist() for s in row]
