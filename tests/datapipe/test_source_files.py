from pathlib import Path

import pytest

from datapipe.errors import ReadError, SourceError
from datapipe.sources import files
from datapipe.spec import SourceSpec
from schemas import ids
from tests import make

PAGE = "<html><body><p>Words</p><img src='img/a.png'></body></html>"


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
