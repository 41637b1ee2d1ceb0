import io
import zipfile

import pytest

from datapipe.errors import EmptyDocument, Encrypted, MalformedMarkup, NotText
from datapipe.sources import epub
from datapipe.sources.items import RawDocument
from jobs import fetch
from tests import make

PICTURE, OTHER, COVER, MOVIE = (
    make.picture(seed=1),
    make.picture(seed=2),
    make.picture(seed=3),
    make.video(20),
)
NAMES = {PICTURE: "PICTURE", OTHER: "OTHER", COVER: "COVER", MOVIE: "MOVIE"}
CONTAINER = (
    '<container xmlns="urn:oasis:names:tc:opendocument:xmlns:container"><rootfiles>'
    '<rootfile full-path="OEBPS/book.opf" media-type="application/oebps-package+xml"/></rootfiles>'
    "</container>"
)
OPF = """<?xml version="1.0"?>
<package xmlns="http://www.idpf.org/2007/opf" version="3.0"><metadata xmlns:dc="http://purl.org/dc/elements/1.1/">
<dc:title>The book</dc:title><dc:language>de-AT</dc:language>{metadata}</metadata>
<manifest>{manifest}</manifest><spine>{spine}</spine>{guide}</package>"""
MIMES = {"xhtml": "application/xhtml+xml", "png": "image/png", "svg": "image/svg+xml", "webm": "video/webm"}


def page(body: str, body_tag: str = "<body>") -> str:
    return (
        '<!DOCTYPE html><html xmlns="http://www.w3.org/1999/xhtml" xmlns:epub="http://www.idpf.org/2007/ops">'
        f"<head><title/></head>{body_tag}{body}</body></html>"
    )


def book(
    pages: dict[str, str | bytes],
    files: dict[str, str | bytes] | None = None,
    properties: dict[str, str] | None = None,
    metadata: str = "",
    guide: str = "",
) -> bytes:
    """A book with these pages in its spine; other files are in the archive, pictures in the manifest too."""
    files = files or {}
    listed = [name for name in (*pages, *files) if name.rpartition(".")[2] in MIMES]
    manifest = "".join(
        f'<item id="{name}" href="{name}" media-type="{MIMES[name.rpartition(".")[2]]}" '
        f'properties="{(properties or {}).get(name, "")}"/>'
        for name in listed
    )
    spine = "".join(f'<itemref idref="{name}"/>' for name in pages)
    opf = OPF.format(metadata=metadata, manifest=manifest, spine=spine, guide=guide)
    members = {
        f"OEBPS/{name}": content
        for name, content in {**pages, **files}.items()
        if not name.startswith("META")
    }
    members |= {name: content for name, content in files.items() if name.startswith("META")}
    return zipped({"META-INF/container.xml": CONTAINER, "OEBPS/book.opf": opf, **members})


def zipped(members: dict[str, str | bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archived:
        for name, content in members.items():
            archived.writestr(name, content)
    return buffer.getvalue()


def seen(document: RawDocument) -> list[tuple[int | None, str, str | None]]:
    return [
        (i.page, i.role, i.text) if i.kind == "text" else (i.page, i.kind, NAMES.get(i.data or b"", i.href))
        for i in document.items
    ]


def test_pages_are_read_in_the_order_of_the_spine_with_pictures_from_inside() -> None:
    data = book(
        {
            "text/2.xhtml": page('<h1>Two</h1><p>Words.</p><img src="../img/a%20b.png" alt="A red square"/>'),
            "1.xhtml": page('<p>One <img src="img/c.png"/></p><img src="https://example.org/x.png"/>'),
            "empty.xhtml": page(""),
            "3.xhtml": page('<p>Three</p><img src="lost.png"/>'),
        },
        {"img/a b.png": PICTURE, "img/c.png": OTHER},
    )
    document = epub.read(data, "books/x.epub")
    assert (document.format, document.title, document.lang) == ("epub", "The book", "de")
    assert seen(document) == [
        (1, "heading", "Two"),
        (1, "paragraph", "Words."),
        (1, "image", "PICTURE"),
        (1, "alt", "A red square"),
        (2, "paragraph", "One"),
        (2, "image", "OTHER"),
        (2, "image", "https://example.org/x.png"),
        (4, "paragraph", "Three"),
        (4, "image", "books/x.epub#/OEBPS/lost.png"),
    ]
    assert [i.mime for i in document.items if i.data] == ["image/png", "image/png"]


def test_pages_that_are_xml_without_saying_so_are_read_as_xml() -> None:
    data = book(
        {"1.xhtml": page('<p><a id="x"/>Before <i/>and after.</p><script src="x.js"/><p>Still here.</p>')}
    )
    assert seen(epub.read(data, "x")) == [
        (1, "paragraph", "Before and after."),
        (1, "paragraph", "Still here."),
    ]


COVER_PAGE = page(
    '<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" viewBox="0 0 9 9">'
    '<title>Cover</title><image width="9" xlink:href="cover.png"/></svg>'
)


def test_a_cover_in_a_frame_of_svg_is_its_picture() -> None:
    data = book(
        {"cover.xhtml": COVER_PAGE, "1.xhtml": page("<p>x</p>")},
        {"cover.png": COVER},
        {"cover.png": "cover-image"},
    )
    assert seen(epub.read(data, "x")) == [(1, "image", "COVER"), (2, "paragraph", "x")]


@pytest.mark.parametrize(
    ("properties", "metadata"),
    [({"cover.png": "cover-image"}, ""), ({}, '<meta name="cover" content="cover.png"/>')],
)
def test_a_cover_that_no_page_shows_comes_first(properties: dict[str, str], metadata: str) -> None:
    data = book({"1.xhtml": page("<p>x</p>")}, {"cover.png": COVER}, properties, metadata)
    assert seen(epub.read(data, "x")) == [(None, "image", "COVER"), (1, "paragraph", "x")]


LINKS = (
    '<h1>Contents</h1><ol><li><a id="a"/><a href="1.xhtml">The first chapter</a></li>'
    '<li><a href="2.xhtml">Two</a></li></ol>'
)
GUIDE = '<guide><reference type="toc" href="toc.xhtml#start" title="Contents"/></guide>'


@pytest.mark.parametrize(
    ("toc", "properties", "guide"),
    [
        (page(f"<nav epub:type='toc'>{LINKS}</nav>"), {"toc.xhtml": "nav"}, ""),
        (page(LINKS), {}, GUIDE),
        (page(f'<section epub:type="toc">{LINKS}</section>'), {}, ""),
        (page(LINKS, '<body class="x" epub:type="frontmatter index">'), {}, ""),
    ],
)
def test_pages_that_only_lead_to_others_are_masked(toc: str, properties: dict[str, str], guide: str) -> None:
    data = book({"toc.xhtml": toc, "1.xhtml": page("<p>Text.</p>")}, None, properties, guide=guide)
    assert [(i.text, i.mask) for i in epub.read(data, "x").items] == [
        ("Contents", "contents"),
        ("The first chapter", "contents"),
        ("Two", "contents"),
        ("Text.", None),
    ]


def test_a_page_of_prose_is_not_masked_because_the_guide_calls_it_contents() -> None:
    prose = 'Much <a id="x"/>prose. ' * 20
    data = book({"toc.xhtml": page(f"<p>{prose}</p>{LINKS}")}, guide=GUIDE)
    assert {i.mask for i in epub.read(data, "x").items} == {None}


def test_numbers_of_printed_pages_leave_the_text() -> None:
    body = (
        '<div><span epub:type="pagebreak" id="p1" title="1">1</span></div>'
        '<p>In the mid<span role="doc-pagebreak">2</span>dle <a class="pagenum" id="p3">[Pg 3]</a>of it.</p>'
    )
    assert seen(epub.read(book({"1.xhtml": page(body)}), "x")) == [(1, "paragraph", "In the middle of it.")]


def test_a_video_has_its_captions_from_inside_the_book() -> None:
    vtt = "WEBVTT\n\n00:00.500 --> 00:01.500\nHello there.\n"
    data = book(
        {"1.xhtml": page('<video src="v.webm"><track src="v.vtt" kind="captions"/></video><p>After</p>')},
        {"v.webm": MOVIE, "v.vtt": vtt},
    )
    document = epub.read(data, "x")
    assert [(i.kind, i.text, i.t_start_s, i.t_end_s) for i in document.items] == [
        ("video", None, 0.0, 0.5),
        ("video", None, 0.5, 1.5),
        ("text", "Hello there.", 0.5, 1.5),
        ("video", None, 1.5, None),
        ("text", "After", None, None),
    ]
    assert {i.data for i in document.items if i.kind == "video"} == {MOVIE}


def test_pictures_in_the_spine_are_pages_and_a_page_is_read_once() -> None:
    data = book({"1.png": PICTURE, "2.xhtml": page("<p>x</p>")})
    data = zipped(
        {n: c.replace(b"</spine>", b'<itemref idref="2.xhtml"/></spine>') for n, c in unzipped(data).items()}
    )
    assert seen(epub.read(data, "x")) == [(1, "image", "PICTURE"), (2, "paragraph", "x")]


def unzipped(data: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(data)) as archived:
        return {name: archived.read(name) for name in archived.namelist()}


def encryption(*algorithms: str) -> str:
    entries = "".join(
        f'<enc:EncryptedData><enc:EncryptionMethod Algorithm="{algorithm}"/></enc:EncryptedData>'
        for algorithm in algorithms
    )
    return f'<encryption xmlns:enc="http://www.w3.org/2001/04/xmlenc#">{entries}</encryption>'


AES = "http://www.w3.org/2001/04/xmlenc#aes256-cbc"


def test_books_behind_rights_management_are_refused_and_obfuscated_fonts_are_no_reason() -> None:
    pages: dict[str, str | bytes] = {"1.xhtml": page("<p>x</p>")}
    fonts = encryption("http://www.idpf.org/2008/embedding", "http://ns.adobe.com/pdf/enc#RC")
    assert seen(epub.read(book(pages, {"META-INF/encryption.xml": fonts}), "x")) == [(1, "paragraph", "x")]
    with pytest.raises(Encrypted, match="2 files"):
        epub.read(book(pages, {"META-INF/encryption.xml": encryption(AES, AES)}), "x")
    with pytest.raises(Encrypted, match="FairPlay"):
        epub.read(book(pages, {"META-INF/sinf.xml": "<x/>"}), "x")
    with pytest.raises(Encrypted, match="cannot be read"):
        epub.read(book(pages, {"META-INF/encryption.xml": "<x"}), "x")


def test_a_book_without_its_container_file_or_with_odd_names_is_read() -> None:
    members = unzipped(
        book({"Text/1.xhtml": page('<p>x</p><img src="../Img/A.PNG"/>')}, {"img/a.png": PICTURE})
    )
    del members["META-INF/container.xml"]
    assert seen(epub.read(zipped(dict(members)), "x")) == [(1, "paragraph", "x"), (1, "image", "PICTURE")]


def test_a_package_document_with_a_document_type_is_read_without_its_entities() -> None:
    members = unzipped(book({"1.xhtml": page("<p>x</p>")}))
    doctype = b'<!DOCTYPE package [<!ENTITY x SYSTEM "file:///etc/passwd">]><package'
    members["OEBPS/book.opf"] = (
        members["OEBPS/book.opf"].replace(b"<package", doctype, 1).replace(b"The book", b"The &x;book")
    )
    document = epub.read(zipped(dict(members)), "x")
    assert "root" not in (document.title or "")


def test_what_is_no_book_is_refused_with_the_reason() -> None:
    with pytest.raises(MalformedMarkup, match="zip"):
        epub.read(b"PK no", "x")
    with pytest.raises(MalformedMarkup, match="no package document"):
        epub.read(zipped({"a.txt": "x"}), "x")
    with pytest.raises(MalformedMarkup, match=r"book\.opf"):
        epub.read(zipped({"META-INF/container.xml": CONTAINER, "OEBPS/book.opf": "<package>"}), "x")
    with pytest.raises(EmptyDocument):
        epub.read(book({"1.xhtml": page("")}), "x")
    with pytest.raises(NotText, match=r"1\.xhtml: "):
        epub.read(book({"1.xhtml": bytes(range(256)) * 20}), "x")


@pytest.mark.slow
def test_books_of_others_are_read_in_full() -> None:
    [iscc] = fetch.fetch("sdist:iscc-samples")
    data = (iscc / "iscc_samples" / "files" / "text" / "demo.epub").read_bytes()
    document = epub.read(data, "demo.epub")
    assert (document.title, document.lang) == ("title from metadata", "en")
    assert (document.items[0].kind, document.items[0].mime) == ("image", "image/png")
    contents = [i.text for i in document.items if i.mask == "contents"]
    assert contents[:2] == ["THE CONTENTS", "SECTION IV FAIRY STORIES—MODERN FANTASTIC TALES"]
    assert not any((i.text or "").isdecimal() and i.role == "paragraph" for i in document.items)
    [debian_edu] = fetch.fetch("debian:debian-edu-doc-en")
    path = next(debian_edu.rglob("debian-edu-bookworm-manual.epub"))
    document = epub.read(path.read_bytes(), path.name)
    pictures = [i for i in document.items if i.kind == "image"]
    assert len(pictures) == 83
    assert all(i.data for i in pictures)
    [eyes17] = fetch.fetch("debian:eyes17-manuals-en")
    path = next(eyes17.rglob("eyes17.epub"))
    document = epub.read(path.read_bytes(), path.name)
    assert len([i for i in document.items if i.kind == "image" and i.data]) > 130
    # The other 171 of its pictures are typeset formulas, which are text.
    assert any(r"$\pm16\ V$ Analog Inputs" in (i.text or "") for i in document.items)
