import array
import io
import json
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest
from PIL import Image

from datapipe.errors import FileTooLarge, MalformedMarkup, ReadError, SourceError
from datapipe.sources import corpora, corpora_rows, corpora_tar
from datapipe.sources.items import Member, RawDocument
from tests import make

ONE, TWO, THREE = (make.picture(seed=seed) for seed in (1, 2, 3))
NAMES = {ONE: "ONE", TWO: "TWO", THREE: "THREE"}
END = sys.maxsize


def seen(document: RawDocument, member: Member | None = None) -> list[tuple[str, str | None]]:
    """Role and text of each item; of pictures which one it is, whether inline or in the container."""
    found = []
    for item in document.items:
        data = item.data
        if member is not None and item.href is not None:
            try:
                data = member.load(item.href)
            except SourceError:
                data = None
        found.append(
            (item.role, item.text) if item.kind == "text" else (item.kind, NAMES.get(data or b"", item.href))
        )
    return found


def outcome(member: Member) -> Any:
    try:
        return seen(member.document(), member)
    except ReadError as error:
        return f"{type(error).__name__}: {error}"


def everything(file: Any, index: bytes | None = None) -> list[Any]:
    return [outcome(member) for member in corpora.members(file, 0, END, index)]


def parquet(rows: list[dict[str, Any]], schema: pa.Schema | None = None, **options: Any) -> io.BytesIO:
    buffer = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), buffer, **options)
    return buffer


def tar(files: dict[str, bytes | str], format: int = tarfile.PAX_FORMAT) -> io.BytesIO:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=format) as archive:
        for name, content in files.items():
            data = content.encode() if isinstance(content, str) else content
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return buffer


def lines(*rows: Any) -> io.BytesIO:
    return io.BytesIO(b"".join((r if isinstance(r, bytes) else json.dumps(r).encode()) + b"\n" for r in rows))


def tiff(*pictures: bytes, mode: str = "RGB") -> bytes:
    frames = [Image.open(io.BytesIO(picture)).convert(mode) for picture in pictures]
    buffer = io.BytesIO()
    frames[0].save(buffer, "TIFF", save_all=True, append_images=frames[1:], compression="tiff_lzw")
    return buffer.getvalue()


# ---- rows


OBELICS = {
    "images": ["https://example.org/a.png", None, None, "https://example.org/b.png"],
    "texts": [None, "First.\n\nSecond\nline.END_OF_DOCUMENT_TOKEN_TO_BE_REPLACEDNext page.", "Third.", None],
    "metadata": json.dumps([{"alt_text": "A cat", "src": "x"}, None, None, {"alt_text": ""}]),
    "general_metadata": json.dumps({"url": "https://example.org/page", "title": "A page", "language": "fr"}),
}


def test_obelics_rows_keep_their_order_with_alternative_text_and_where_they_are_from() -> None:
    [member] = corpora.members(parquet([OBELICS]), 0, END)
    assert member.name == "https://example.org/page#0"
    document = member.document()
    assert (document.format, document.title, document.lang) == ("corpus", "A page", "fr")
    assert seen(document) == [
        ("image", "https://example.org/a.png"),
        ("alt", "A cat"),
        ("paragraph", "First."),
        ("paragraph", "Second\nline."),
        ("paragraph", "Next page."),
        ("paragraph", "Third."),
        ("image", "https://example.org/b.png"),
    ]


def test_interleaved_rows_may_hold_the_bytes_of_their_pictures() -> None:
    row = {
        "texts": [None, "Words.", None],
        "images": [{"bytes": ONE, "path": "a.png"}, None, {"bytes": None, "path": "b.png"}],
        "metadata": [{"width": 64, "bytes": 123}, None, {"width": 64, "bytes": 99}],
    }
    assert everything(parquet([row])) == [[("image", "ONE"), ("paragraph", "Words."), ("image", "b.png")]]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"texts": ["a", "b"], "images": [None]}, "images: 1 entries, but texts has 2 entries"),
        ({"texts": [5], "images": [None]}, "texts: an entry is int"),
        (
            {"text_list": ["a"], "image_info": [{"matched_text_index": 1}]},
            r"image_info\[0\].matched_text_index: 1",
        ),
        ({"text": "<__dj__image> x", "images": ["a", "b"]}, "images: 2, but the text has 1"),
        ({"text": "<__dj__video> x"}, "videos: 0, but the text has 1"),
        ({"label": 3}, r"columns \['label'\]"),
        ([1], "not list"),
    ],
)
def test_a_row_that_contradicts_itself_is_refused_by_its_columns(row: Any, message: str) -> None:
    with pytest.raises(MalformedMarkup, match=message):
        corpora_rows.read(row, "x")


def test_mmc4_pictures_stand_before_the_sentence_they_match() -> None:
    row = {
        "url": "https://example.org/1",
        "text_list": ["One.", "Two."],
        "image_info": [
            {"image_name": "b.png", "raw_url": "https://x/b", "matched_text_index": 1},
            {"raw_url": "https://x/a", "matched_text_index": 1},
        ],
    }
    assert everything(lines(row)) == [
        [("paragraph", "One."), ("image", "b.png"), ("image", "https://x/a"), ("paragraph", "Two.")]
    ]


def test_data_juicer_markers_become_their_pictures_and_videos() -> None:
    row = {
        "text": "<__dj__image> A cat.<|__dj__eoc|><__dj__video><__dj__audio>It runs.<__dj__image>",
        "images": ["img/a.png", "img/b.png"],
        "videos": ["v.mp4"],
        "audios": ["s.mp3"],
    }
    assert everything(lines(row)) == [
        [
            ("image", "img/a.png"),
            ("paragraph", "A cat."),
            ("video", "v.mp4"),
            ("paragraph", "It runs."),
            ("image", "img/b.png"),
        ]
    ]


def test_plain_text_and_captioned_pictures_are_told_apart() -> None:
    assert everything(
        lines(
            {"text": "One.\n\nTwo.\r\n\r\nThree.", "url": "https://example.org/x", "language": "en"},
            {"image": "a.png", "text": "A cat\non a mat"},
            {"image": {"path": "a.png"}, "caption": "A cat", "text": "Long.\n\nText."},
            {"videos": ["v.mp4"], "captions": ["One", "Other", "One"]},
            {"messages": [{"role": "user", "content": "Hello"}]},
            {"messages": json.dumps([{"role": "user", "content": "As text"}])},
        )
    ) == [
        [("paragraph", "One."), ("paragraph", "Two."), ("paragraph", "Three.")],
        [("image", "a.png"), ("caption", "A cat\non a mat")],
        [("image", "a.png"), ("caption", "A cat"), ("paragraph", "Long."), ("paragraph", "Text.")],
        [("video", "v.mp4"), ("caption", "One"), ("caption", "Other")],
        [("user", "Hello")],
        [("user", "As text")],
    ]


def test_a_broken_line_says_its_number_and_stops_no_other() -> None:
    file = lines({"text": "one"}, b"{", {"text": " "}, [1], {"text": "two \ud83d"})
    assert everything(file) == [
        [("paragraph", "one")],
        "MalformedMarkup: line 2: no JSON: Expecting property name enclosed in double quotes at character 1",
        "EmptyDocument: line 3: the file has neither text nor media",
        "MalformedMarkup: line 4: a row is an object with columns, not list",
        [("paragraph", "two \ufffd")],
    ]
    assert [m.name for m in corpora.members(file, 1, 3)] == ["2", "3"]
    assert corpora.count(file) == 5


# ---- Parquet


def numbered(num_rows: int) -> list[dict[str, Any]]:
    return [{"text": f"row {number}", "vector": [1.0] * 4} for number in range(num_rows)]


@pytest.mark.parametrize("row_group_size", [1, 7, 100])
def test_any_range_of_rows_is_read_whatever_the_row_groups(row_group_size: int) -> None:
    file = parquet(numbered(50), row_group_size=row_group_size)
    assert corpora.count(file) == 50
    for start, stop in ((0, 50), (0, 1), (6, 8), (13, 35), (49, 50), (50, 60), (20, 20)):
        found = list(corpora.members(file, start, stop))
        assert [m.name for m in found] == [str(n) for n in range(start, min(stop, 50))]
        assert [m.document().items[0].text for m in found] == [f"row {m.name}" for m in found]


class _Counted(io.BytesIO):
    """A file that knows how many of its bytes were read."""

    num_read = 0

    def read(self, size: int | None = -1) -> bytes:
        data = super().read(size)
        self.num_read += len(data)
        return data


def test_only_the_row_groups_asked_for_are_read_and_no_column_without_use() -> None:
    rows = [
        {"text": str(n), "image": {"bytes": bytes([n]) * 100_000}, "embedding": b"x" * 99} for n in range(64)
    ]
    file = _Counted(parquet(rows, row_group_size=8, compression="none").getvalue())
    assert [m.name for m in corpora.members(file, 17, 20)] == ["17", "18", "19"]
    assert file.num_read < 8 * 100_000 + 400_000


def test_content_is_that_of_the_row_pictures_included() -> None:
    def content(row: dict[str, Any]) -> bytes:
        [member] = corpora.members(parquet([row]), 0, 1)
        return member.content

    row = {"text": "x", "image": {"bytes": ONE}}
    assert content(row) == content({**row, "unknown": 1})
    assert len({content(row), content({**row, "image": {"bytes": TWO}}), content({**row, "text": "y"})}) == 3


def test_a_damaged_row_group_costs_its_own_rows() -> None:
    data = bytearray(parquet(numbered(40), row_group_size=10, compression="gzip").getvalue())
    meta = pq.ParquetFile(io.BytesIO(bytes(data))).metadata.row_group(1).column(0)
    at = meta.data_page_offset
    data[at + 20 : at + meta.total_compressed_size // 2] = bytes(meta.total_compressed_size // 2 - 20)
    found = everything(io.BytesIO(bytes(data)))
    assert len(found) == 40
    assert [type(f) is str for f in found] == [False] * 10 + [True] * 10 + [False] * 20
    assert found[10].startswith("MalformedMarkup: row 10: ")


def test_a_row_with_text_that_is_no_utf_8_stops_no_other() -> None:
    raw = pa.array([b"good", b"\xff\xfe bad", b"also good"], type=pa.binary())
    column = pa.StringArray.from_buffers(3, raw.buffers()[1], raw.buffers()[2])
    buffer = io.BytesIO()
    pq.write_table(pa.table({"text": column}), buffer)
    good, bad, other = everything(buffer)
    assert (good, other) == ([("paragraph", "good")], [("paragraph", "also good")])
    assert bad.startswith("MalformedMarkup: row 1: ")


def test_maps_dates_and_decimals_in_a_row_are_no_obstacle() -> None:
    schema = pa.schema(
        [
            ("text", pa.string()),
            ("metadata", pa.map_(pa.string(), pa.string())),
            ("lang", pa.dictionary(pa.int8(), pa.string())),
        ]
    )
    row = {"text": "x", "metadata": [("title", "T"), ("url", "https://e.org/")], "lang": "de"}
    [member] = corpora.members(parquet([row], schema), 0, 9)
    assert member.name == "https://e.org/#0"
    assert (member.document().title, member.document().lang) == ("T", "de")


def test_a_file_that_is_no_parquet_table_is_refused() -> None:
    data = parquet(numbered(3)).getvalue()
    for broken in (data[:-20], data[:40], b"PAR1" + bytes(100)):
        with pytest.raises(MalformedMarkup, match="Parquet"):
            corpora.count(io.BytesIO(broken))
        with pytest.raises(MalformedMarkup, match="Parquet"):
            everything(io.BytesIO(broken))


# ---- tar


def test_samples_of_a_tar_are_pictures_and_videos_with_their_captions() -> None:
    video = make.video(3)
    file = tar(
        {
            "./a/0001.jpg": ONE,
            "./a/0001.txt": "A cat",
            "./a/0001.json": json.dumps({"caption": "A cat", "url": "https://x/1", "lang": "en"}),
            "a/0002.clip.mp4": video,
            "a/0002.json": json.dumps({"caption": "It runs"}),
            "a/0002.vtt": "WEBVTT",
            "a/._0002.mp4": b"x",
            "README": "no sample",
            "0003.txt": "Only text.\n\nMore.",
            "0004.png": TWO,
            "0005.cls": "7",
        }
    )
    assert corpora.count(file) == 5
    found = list(corpora.members(file, 0, END))
    assert [m.name for m in found] == ["a/0001", "a/0002", "0003", "0004", "0005"]
    assert [outcome(m) for m in found[:4]] == [
        [("image", "ONE"), ("caption", "A cat")],
        [("video", "a/0002.clip.mp4"), ("caption", "It runs")],
        [("paragraph", "Only text."), ("paragraph", "More.")],
        [("image", "TWO")],
    ]
    assert found[0].document().lang == "en"
    assert found[1].load("a/0002.clip.mp4") == video
    assert found[1].load("a/0002.vtt") == b"WEBVTT"
    assert outcome(found[4]).startswith("MalformedMarkup: no text, picture or session")
    for name in ("a/0001.jpg", "../x", ""):
        with pytest.raises(SourceError):
            found[1].load(name)


def test_the_frames_of_a_tiff_are_the_pictures_of_an_interleaved_sample() -> None:
    row = {
        "texts": [None, "Words.", None],
        "images": ["page_1_image_2", None, "page_2_image_1"],
        "image_metadata": [{"page": 1, "sha256": "wrong"}, {"page": 2, "sha256": "wrong"}],
    }
    member, short = corpora.members(
        tar(
            {
                "1.json": json.dumps(row),
                "1.tiff": tiff(ONE, TWO),
                "2.tiff": tiff(ONE),
                "2.json": json.dumps(row),
            }
        ),
        0,
        END,
    )
    first, text, second = member.document().items
    assert (first.kind, text.text, second.kind) == ("image", "Words.", "image")
    for item, expected in ((first, ONE), (second, TWO)):
        picture = Image.open(io.BytesIO(item.data or b""))
        assert picture.tobytes() == Image.open(io.BytesIO(expected)).convert("RGB").tobytes()
    assert outcome(short) == "MalformedMarkup: images: 2 are named, 1 come with them"


def test_frames_of_a_mode_that_png_has_not_stay_as_they_are() -> None:
    row = {"texts": [None, None], "images": ["a", "b"]}
    [member] = corpora.members(tar({"1.json": json.dumps(row), "1.tif": tiff(ONE, TWO, mode="CMYK")}), 0, END)
    for item, expected in zip(member.document().items, (ONE, TWO), strict=True):
        picture = Image.open(io.BytesIO(item.data or b""))
        assert (picture.mode, picture.n_frames) == ("CMYK", 1)  # type: ignore[attr-defined]
        assert picture.tobytes() == Image.open(io.BytesIO(expected)).convert("CMYK").tobytes()


def test_pictures_of_an_interleaved_sample_go_by_name_else_by_order_else_stay_on_the_web() -> None:
    def sample(names: list[str | None], **files: bytes) -> Any:
        texts = [None if name else "w" for name in names]
        row = json.dumps({"texts": texts, "images": names})
        return everything(tar({"9.json": row, **{f"9.{n.replace('_', '.')}": d for n, d in files.items()}}))[
            0
        ]

    assert sample(["1.png", "0.png"], **{"0_png": ONE, "1_png": TWO}) == [("image", "TWO"), ("image", "ONE")]
    assert sample(["x", None, "y"], **{"0_png": ONE, "1_png": TWO}) == [
        ("image", "ONE"),
        ("paragraph", "w"),
        ("image", "TWO"),
    ]
    assert sample(["https://x/1"]) == [("image", "https://x/1")]
    assert sample(["a", "b"], **{"0_png": ONE}).startswith("MalformedMarkup: images: 2 are named, 1")


def test_a_session_in_a_tar_shows_the_pictures_of_its_sample() -> None:
    chat = {"conversations": [{"from": "human", "value": "<image>\nWhat?"}], "image": "x/0.jpg"}
    assert everything(tar({"s/0.json": json.dumps(chat), "s/0.jpg": ONE})) == [
        [("image", "ONE"), ("user", "What?")]
    ]


@pytest.mark.parametrize("format", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT])
def test_an_index_goes_to_a_sample_at_once(format: int) -> None:
    folder = "d" * 90 if format == tarfile.USTAR_FORMAT else "ü" * 150
    files = {f"{folder}/{n:03d}.{x}": f"text {n}" for n in range(40) for x in ("json", "txt")}
    file = _Counted(
        tar({k: f'"{v}"' if k.endswith("json") else v for k, v in files.items()}, format).getvalue()
    )
    index = corpora.index(file)
    assert (corpora.count(file), corpora.count(file, index), len(array.array("Q", index))) == (40, 40, 40)
    for start, stop in ((0, 3), (17, 20), (39, 99), (40, 41)):
        file.num_read = 0
        indexed = [(m.name, m.content, outcome(m)) for m in corpora.members(file, start, stop, index)]
        assert file.num_read < 25_000
        assert indexed == [(m.name, m.content, outcome(m)) for m in corpora.members(file, start, stop)]
        assert [name[-3:] for name, _, _ in indexed] == [f"{n:03d}" for n in range(start, min(stop, 40))]


def test_a_tar_is_read_up_to_where_it_breaks() -> None:
    whole = tar({f"{n}.txt": f"text {n}" for n in range(5)}).getvalue()
    junk = bytearray(whole)
    junk[2 * 1024 : 2 * 1024 + 512] = b"\xff" * 512  # the header of the third file
    for broken in (bytes(junk), whole[: 2 * 1024 + 100]):
        file = io.BytesIO(broken)
        index = corpora.index(file)
        assert corpora.count(file) == corpora.count(file, index) == 2
        found = corpora.members(file, 0, END, index)
        assert [next(found).name, next(found).name] == ["0", "1"]
        with pytest.raises(MalformedMarkup, match="tar"):
            next(found)
    cut = io.BytesIO(whole[: 4 * 1024 + 515])
    assert corpora.count(cut) == 5
    *good, last = (outcome(member) for member in corpora.members(cut, 0, 5))
    assert len(good) == 4
    assert last == "MalformedMarkup: 4.txt: cut off after 3 bytes"
    assert everything(io.BytesIO(whole[: 5 * 1024])) == everything(io.BytesIO(whole))


def test_a_sample_that_is_too_large_is_refused_without_reading_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpora_tar, "MAX_SAMPLE_BYTES", 10_000)
    big, small = corpora.members(tar({"0.mp4": bytes(20_000), "1.txt": "x"}), 0, END)
    with pytest.raises(FileTooLarge):
        big.document()
    assert outcome(small) == [("paragraph", "x")]


def test_a_tiff_that_is_broken_or_too_large_stops_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    row = json.dumps({"texts": [None, None], "images": ["a", "b"]})
    whole = tiff(ONE, TWO)
    file = tar(
        {
            "0.json": row,
            "0.tiff": b"no tiff",
            "1.json": row,
            "1.tiff": whole,
            "2.json": row,
            "2.tiff": whole[:-40],
        }
    )
    broken, good, _ = corpora.members(file, 0, END)
    assert outcome(broken).startswith("MalformedMarkup: tiff: ")
    monkeypatch.setattr(corpora_tar, "MAX_FRAME_PIXELS", 100)
    assert outcome(good) == [("image", "data:,unreadable")] * 2


def test_containers_are_read_from_object_storage_streams(tmp_path: Path) -> None:
    """pyarrow's files of S3 and of the local disk are the same to a reader."""
    for name, file in (
        ("a.parquet", parquet(numbered(9), row_group_size=4)),
        ("a.jsonl", lines(*numbered(9))),
        ("a.tar", tar({f"{n}.txt": f"row {n}" for n in range(9)})),
    ):
        (tmp_path / name).write_bytes(file.getvalue())
        with pafs.LocalFileSystem().open_input_file(str(tmp_path / name)) as stream:
            assert corpora.count(stream) == 9
            index = corpora.index(stream)
            found = list(corpora.members(stream, 3, 6, index))
            assert [m.document().items[0].text for m in found] == ["row 3", "row 4", "row 5"]


MEMORY = """
import resource, sys
from datapipe.sources import corpora
with open(sys.argv[1], "rb") as file:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for member in corpora.members(file, 0, sys.maxsize):
        member.document()
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["parquet", "tar", "jsonl"])
def test_memory_does_not_grow_with_the_file(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"big.{kind}"
    blob = ONE + bytes(1 << 20)
    if kind == "parquet":
        schema = pa.schema([("text", pa.string()), ("image", pa.struct([("bytes", pa.binary())]))])
        with pq.ParquetWriter(path, schema, compression="none", use_dictionary=False) as writer:
            row = {"text": "x", "image": {"bytes": blob}}
            writer.write_table(pa.Table.from_pylist([row] * 200, schema=schema), row_group_size=200)
    elif kind == "tar":
        path.write_bytes(tar({f"{n}.png": blob for n in range(200)}).getvalue())
    else:
        line = json.dumps({"text": "x" * (1 << 20)}).encode() + b"\n"
        with path.open("wb") as file:
            file.writelines(line for _ in range(200))
    done = subprocess.run(
        [sys.executable, "-c", MEMORY, str(path)], capture_output=True, text=True, check=True
    )
    assert int(done.stdout) < 100, f"{done.stdout} MiB"
