import functools
import gzip
import io
import os
import tempfile
import zipfile
from pathlib import Path

import pyarrow.fs as pafs
import pytest

from datapipe.errors import FileTooLarge, MalformedMarkup, ReadError, SourceError, UnsupportedFormat
from datapipe.sources import files, formats
from datapipe.spec import IngestSpec, SourceSpec
from datapipe.stages import ingest
from schemas import ids, shard
from tests import make, s3
from tests.datapipe.make_warc import PAGE as PAGE_URL
from tests.datapipe.make_warc import page, picture

PAGE = "<html><body><p>Words</p><img src='img/a.png'></body></html>"
NOBODY = 65534  # a user without rights


def uris(root: Path, **fields: object) -> list[str]:
    return [f.uri for f in files.list_files(SourceSpec(path=str(root), **fields))]


def test_documents_are_listed_sorted_with_size_and_content_hash(tmp_path: Path) -> None:
    root = make.folder(
        tmp_path,
        {
            "b.html": PAGE,
            "a/z.md": "# x",
            "a/y.txt": "y",
            "img/a.png": make.picture(),
            "style.css": "p{}",
            ".git/c.txt": "hidden",
        },
    )
    listed = files.list_files(SourceSpec(path=str(root)))
    assert [f.uri for f in listed] == ["a/y.txt", "a/z.md", "b.html"]
    assert listed[2] == files.SourceFile("b.html", len(PAGE), ids.content_id(PAGE.encode()), "html")


def test_files_without_a_telling_name_are_sniffed(tmp_path: Path) -> None:
    root = make.folder(
        tmp_path,
        {
            "index": "\n<!DOCTYPE html><p>x",
            "topic": '<page xmlns="http://projectmallard.org/1.0/"><p>x</p></page>',
            "unknown": "just words",
            "photo": make.picture(),
        },
    )
    assert uris(root) == ["index", "topic"]
    assert uris(root, standalone_media=True) == ["index", "photo", "topic"]
    assert files.read((root / "topic").read_bytes(), "topic").format == "mallard"
    with pytest.raises(ReadError):
        files.read(b"just words", "unknown")


@pytest.mark.parametrize(
    ("include", "exclude", "expected"),
    [
        (("**",), (), ["a.html", "d/b.html", "d/e/c.txt"]),
        (("*.html",), (), ["a.html"]),
        (("**/*.html",), (), ["a.html", "d/b.html"]),
        (("d/**",), ("**/*.txt",), ["d/b.html"]),
        (("?.html",), (), ["a.html"]),
    ],
)
def test_globs_choose_files(tmp_path: Path, include: tuple, exclude: tuple, expected: list) -> None:
    root = make.folder(tmp_path, {"a.html": PAGE, "d/b.html": PAGE, "d/e/c.txt": "c"})
    assert uris(root, include=include, exclude=exclude) == expected


def test_standalone_media_are_those_that_no_page_embeds(tmp_path: Path) -> None:
    root = make.folder(
        tmp_path, {"p.html": PAGE, "img/a.png": make.picture(), "img/b.png": make.picture(seed=1)}
    )
    assert uris(root, standalone_media=True) == ["img/b.png", "p.html"]


def test_every_file_is_accounted_for_and_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = make.folder(
        tmp_path,
        {
            "p.html": PAGE,
            "img/a.png": make.picture(),
            "clip.vtt": "WEBVTT",
            "style.css": "p{}",
            "other.css": "p{}",
            "README": "words",
            "old.doc": b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1...",
            "draft/p.html": PAGE,
            ".git/c.txt": "hidden",
            "d/.hidden": "x",
            "a.xyz": "x",
        },
    )
    opened: list[str] = []
    look_at = files._look_at
    monkeypatch.setattr(files, "_look_at", lambda s, file: opened.append(file.uri) or look_at(s, file))
    listing = files.list_source(SourceSpec(path=str(root), exclude=("draft/**",), include=("**", "*.xyz")))
    assert listing.counts == {
        "captions": 1,
        "documents": 3,
        "hidden": 2,
        "ignored_css": 2,
        "ignored_without_suffix": 1,
        "media": 1,
        "not_chosen": 1,
    }
    assert sorted(opened) == sorted(str(p.relative_to(root)) for p in root.rglob("*") if p.is_file())
    assert sum(listing.counts.values()) == len(opened) == 11
    assert [(f.uri, f.format) for f in listing.documents] == [
        ("a.xyz", "unknown"),  # asked for by its own glob
        ("old.doc", "unsupported"),
        ("p.html", "html"),
    ]
    assert [f.uri for f in listing.media] == ["img/a.png"]


def reasons(listing: files.Listing) -> dict[str, str]:
    return {file.uri: file.failure.message for file in listing.documents if file.failure is not None}


def test_what_cannot_be_read_is_a_failed_document_and_no_circle_is_walked(tmp_path: Path) -> None:
    root = make.folder(tmp_path / "in", {"a.html": PAGE, "d/b.html": PAGE, "d/c.tar": b""})
    (root / "loop").symlink_to(".")
    (root / "d" / "up").symlink_to("..")
    (root / "same.html").symlink_to("d/b.html")
    (root / "gone.tar").symlink_to("nothing")
    (root / "self.txt").symlink_to("self.txt")
    (tmp_path / "secret.txt").write_text("outside")
    (root / "out.txt").symlink_to("../secret.txt")
    (root / ".hidden").symlink_to("nothing")
    os.mkfifo(root / "pipe.html")
    with open(os.fsencode(root) + b"/caf\xe9.html", "w") as file:
        file.write(PAGE)
    listing = files.list_source(SourceSpec(path=str(root)))
    assert reasons(listing) == {
        "caf\\xe9.html": "the name of the file, or of its folder, is not UTF-8",
        "d/up": "a link to a folder, which is not followed",
        "gone.tar": "a link that cannot be followed: No such file or directory",
        "loop": "a link to a folder, which is not followed",
        "out.txt": "a link that leads out of the source folder, to ../secret.txt",
        "pipe.html": "no regular file but a pipe, socket or device",
        "self.txt": "a link that cannot be followed: Too many levels of symbolic links",
    }
    assert listing.counts == {"documents": 11, "hidden": 1}
    made = ingest.ingest(
        listing.documents,
        SourceSpec(path=str(root)),
        IngestSpec(),
        functools.partial(files.load, SourceSpec(path=str(root))),
    )
    assert {row["uri"]: row["message"] for row in made.quarantine.to_pylist()} == {
        **reasons(listing),
        "d/c.tar": "the file holds no document",
    }
    assert sorted(made.documents["uri"].to_pylist()) == ["a.html", "d/b.html", "same.html"]


def test_a_locked_folder_is_a_failed_document() -> None:
    is_root = os.geteuid() == 0  # who may list every folder: then look as somebody else
    with tempfile.TemporaryDirectory() as folder:
        root = make.folder(Path(folder), {"a.html": PAGE, "locked/b.html": PAGE})
        root.chmod(0o755)
        (root / "locked").chmod(0)
        try:
            if is_root:
                os.seteuid(NOBODY)
            listing = files.list_source(SourceSpec(path=folder))
        finally:
            if is_root:
                os.seteuid(0)
            (root / "locked").chmod(0o755)
    assert reasons(listing) == {"locked": "the folder cannot be listed: Permission denied"}
    assert listing.counts == {"documents": 2}


def test_a_source_knows_what_it_would_read(tmp_path: Path) -> None:
    source = SourceSpec(path=str(tmp_path), exclude=("runs/**",))
    assert files.would_read(source, str(tmp_path / "out" / "report.html"))
    assert files.would_read(source, str(tmp_path / "x" / ".." / "report.html"))
    for path in ("runs/a/report.html", ".runs/report.html", "../report.html"):
        assert not files.would_read(source, str(tmp_path / path))
    assert not files.would_read(source, f"{tmp_path}-beside/report.html")
    assert not files.would_read(source, f"s3://bucket{tmp_path}/report.html")


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("ftp://host/x", "is no usable address"),
        ("s3://Bad_Bucket!!/x y", "is no usable address"),
        ("{root}/a.html", "is a file; give its folder, and the file in `include`"),
        ("{root}/nowhere", "there is no folder"),
    ],
)
def test_a_source_that_is_no_folder_is_said_to_be_none(tmp_path: Path, path: str, message: str) -> None:
    make.folder(tmp_path, {"a.html": PAGE})
    with pytest.raises(SourceError, match=message):
        files.list_source(SourceSpec(path=path.format(root=tmp_path)))


def zipped(*names: str, **fields: str) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name in names:
            archive.writestr(name, fields.get("content", ""))
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("name", "content", "format"),
    [
        ("a.PDF", b"%PDF-1.7", "pdf"),
        ("a", b"%PDF-1.7", "pdf"),
        ("a", zipped("[Content_Types].xml", "word/document.xml"), "word"),
        ("a.bin", zipped("[Content_Types].xml", "ppt/presentation.xml"), "slides"),
        ("a", zipped("mimetype", "META-INF/container.xml"), "epub"),
        ("a", zipped("xl/workbook.xml"), "unsupported"),
        ("a", zipped("mimetype", "content.xml", "META-INF/manifest.xml"), "unsupported"),
        ("a.zip", zipped("a.txt"), None),
        ("a", zipped("a.txt")[:40], None),
        ("a.jar", zipped("META-INF/MANIFEST.MF"), None),
        ("a.pptx", b"", "slides"),
        ("a", b"WARC/1.0\r\n", "warc"),
        ("crawl", gzip.compress(b"WARC/1.0\r\n" + bytes(10_000)), "warc"),
        ("crawl.gz", gzip.compress(b"WARC/1.1\r\n"), "warc"),
        ("a.warc.gz", b"", "warc"),
        ("a.warc.zst", b"", "warc"),
        ("a.html.gz", gzip.compress(b"<p>x"), "html"),
        ("a.gz", gzip.compress(b"<!doctype html><p>x"), "html"),
        ("a.png.gz", gzip.compress(make.picture()), None),
        ("a.tar.gz", gzip.compress(b"x"), None),
        ("a.jsonl", b"{}", "jsonl"),
        ("a.jsonl.gz", b"", "jsonl"),
        ("a.parquet", b"PAR1", "parquet"),
        ("shard-0.tar", b"", "tar"),
        ("a.json", b'{"id": 1, "messages": [{"role": "user"}]}', "session"),
        ("a.json", b'[{"role": "user", "content": "x"}]', "session"),
        ("package.json", b'{"name": "x"}', None),
        ("a.ts", b"G" + bytes(187) + b"G", "video"),
        ("a.ts", b"import x from y;", None),
        ("a.doc", b"plain words", "unsupported"),
        ("a", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "unsupported"),
        ("a", b"{\\rtf1", "unsupported"),
        ("a", b"BM\x36\0\0\0\0\0\0\0", "image"),
        ("words", b"BMW is a car", None),
    ],
)
def test_names_and_bytes_tell_the_format(name: str, content: bytes, format: str | None) -> None:
    assert formats.of(name, content, lambda: files.zip_names(io.BytesIO(content))) == format


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.doc", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "OLE compound file"),
        ("a", b"{\\rtf1 x}", "RTF"),
        ("a.odt", zipped("content.xml", "META-INF/manifest.xml"), "OpenDocument"),
        ("a.xls.gz", gzip.compress(b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"), "OLE compound file"),
    ],
)
def test_known_formats_that_are_not_read_are_named(name: str, content: bytes, words: str) -> None:
    with pytest.raises(UnsupportedFormat, match=words):
        files.read(content, name)


def test_compressed_files_are_read_within_bounds() -> None:
    html = b"<html><title>T</title><p>Words"
    two = gzip.compress(html[:10]) + gzip.compress(html[10:])
    for name in ("a.html.gz", "a.gz", "noname"):
        document = files.read(two, name, max_bytes=1000)
        assert (document.format, document.title) == ("html", "T")
    with pytest.raises(FileTooLarge, match="more than 29"):
        files.read(two, "a.html.gz", max_bytes=29)
    assert files.read(two, "a.html.gz", max_bytes=30).title == "T"
    with pytest.raises(FileTooLarge):
        files.read(gzip.compress(bytes(1 << 24)), "a.txt.gz", max_bytes=1 << 20)
    for broken in (two[:-12], two[:40] + b"\0" * 20):
        with pytest.raises(MalformedMarkup, match="gzip"):
            files.read(broken, "a.html.gz")


def test_a_large_file_is_not_loaded(tmp_path: Path) -> None:
    source = SourceSpec(path=str(make.folder(tmp_path, {"a.bin": bytes(1000)})))
    assert len(files.load(source, "a.bin", max_bytes=1000)) == 1000
    with pytest.raises(FileTooLarge, match="1000 bytes, more than 999"):
        files.load(source, "a.bin", max_bytes=999)


def test_a_file_that_cannot_be_read_does_not_stop_the_listing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = SourceSpec(path=str(make.folder(tmp_path, {"a.html": PAGE, "b.txt": "b"})))

    class Fails(pafs.LocalFileSystem):  # root reads what has no permission
        def open_input_stream(self, path: str, **more: object) -> object:
            if path.endswith("b.txt"):
                raise PermissionError(13, "denied")
            return super().open_input_stream(path, **more)

    monkeypatch.setattr(files, "_filesystem", lambda root: (Fails(), root))
    assert [(f.uri, f.content_id == "") for f in files.list_files(source)] == [
        ("a.html", False),
        ("b.txt", True),
    ]


def test_folders_on_s3_are_listed_loaded_and_fingerprinted_alike(tmp_path: Path) -> None:
    content: dict[str, bytes | str] = {
        "p.html": PAGE,
        "img/a.png": make.picture(),
        "d/b.warc": page("<p>x<img src=i.png>") + picture(b"bytes", f"{PAGE_URL}/../i.png"),
        "d/c.txt.gz": gzip.compress(b"words"),
    }
    here = SourceSpec(path=str(make.folder(tmp_path / "corpus", content)))
    with s3.server() as bucket:
        there = SourceSpec(path=f"{bucket}/corpus")
        fs, inner = shard.filesystem(there.path)
        pafs.copy_files(here.path, inner, pafs.LocalFileSystem(), fs)
        assert files.list_source(there) == files.list_source(here)
        assert files.collection(there) == "corpus"
        assert files.load(there, "d/../img/a.png") == make.picture()
        for uri in ("missing", "d", "../other"):
            with pytest.raises(SourceError):
                files.load(there, uri)
        with pytest.raises(SourceError, match="no folder"):
            files.list_files(SourceSpec(path=f"{bucket}/nowhere"))
        rows = [
            ingest.ingest(files.list_files(s), s, IngestSpec(), functools.partial(files.load, s))
            for s in (here, there)
        ]
        assert rows[0].documents.equals(rows[1].documents) and rows[0].media.equals(rows[1].media)
        assert rows[1].documents["uri"].to_pylist() == [
            f"d/b.warc#{PAGE_URL}",
            "d/c.txt.gz",
            "p.html",
        ]
        assert rows[1].quarantine.num_rows == 0


def test_missing_folder_and_empty_globs_name_what_was_asked(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"no folder .*nowhere"):
        files.list_files(SourceSpec(path=str(tmp_path / "nowhere")))
    make.folder(tmp_path, {"a.html": PAGE, "x.png": make.picture()})
    with pytest.raises(SourceError, match=r"\*\.rst"):
        files.list_files(SourceSpec(path=str(tmp_path), include=("*.rst",)))
    with pytest.raises(SourceError, match="standalone_media"):
        files.list_files(SourceSpec(path=str(tmp_path), include=("*.png",)))
    with pytest.raises(ValueError, match="NO_SUCH_VARIABLE"):
        files.list_files(SourceSpec(path="$NO_SUCH_VARIABLE/x"))


def test_fingerprint_changes_with_any_file_and_not_with_its_place(tmp_path: Path) -> None:
    content: dict[str, bytes | str] = {"p.html": PAGE, "img/a.png": make.picture()}
    one, two = (SourceSpec(path=str(make.folder(tmp_path / name, content))) for name in ("one", "two"))
    assert files.list_source(one).fingerprint == files.list_source(two).fingerprint
    make.folder(tmp_path / "two", {"img/a.png": make.picture(seed=1)})
    assert files.list_source(one).fingerprint != files.list_source(two).fingerprint


@pytest.mark.parametrize(
    "uri",
    [
        "../secret.txt",
        "/etc/passwd",
        "d/../../secret.txt",
        "out/secret.txt",
        "",
        ".",
        "nul\0",
        "x" * 5000,
        "missing.txt",
        "d",
        "\ud800.txt",
    ],
)
def test_nothing_outside_the_folder_is_loaded(tmp_path: Path, uri: str) -> None:
    make.folder(tmp_path, {"secret.txt": "s", "root/d/a.txt": "a"})
    (tmp_path / "root" / "out").symlink_to(tmp_path)
    source = SourceSpec(path=str(tmp_path / "root"))
    assert files.load(source, "d/../d/a.txt") == b"a"
    with pytest.raises(SourceError):
        files.load(source, uri)


def test_collection_is_named_after_the_folder_unless_told(tmp_path: Path) -> None:
    assert files.collection(SourceSpec(path=f"{tmp_path}/manual/")) == "manual"
    assert files.collection(SourceSpec(path=str(tmp_path), collection="mine")) == "mine"
