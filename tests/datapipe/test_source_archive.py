import io
import random
import re
import zipfile
from collections.abc import Callable

import pytest
from lxml import etree

from datapipe.errors import Encrypted, FileTooLarge, MalformedMarkup, ReadError
from datapipe.sources import archive, epub, slides, word
from datapipe.sources.archive import Archive
from datapipe.sources.items import RawDocument
from tests.datapipe import test_source_epub as books
from tests.datapipe import test_source_slides as decks
from tests.datapipe import test_source_word as papers


def zipped(members: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archived:
        for name, content in members.items():
            archived.writestr(name, content)
    return buffer.getvalue()


def test_names_are_found_whatever_their_case_slashes_and_dots() -> None:
    opened = Archive(zipped({"A/b.XML": b"<x/>", "c\\d": b"d"}))
    assert opened.read("/a/./B.xml") == b"<x/>"
    assert opened.read("c/d") == b"d"
    assert "a/c" not in opened
    assert opened.read("a/c") is None


def test_a_damaged_member_is_missing_and_damaged_xml_is_an_error() -> None:
    data = zipped({"a.png": b"pixels" * 50, "b.xml": b"<x>words</x>"}, zipfile.ZIP_STORED)
    damaged = data.replace(b"pixels" * 2, b"PIXELS" * 2, 1).replace(b"words", b"WORDS", 1)
    opened = Archive(damaged)
    assert opened.read("a.png") is None
    with pytest.raises(MalformedMarkup, match=r"b\.xml: damaged"):
        opened.xml("b.xml")
    assert opened.xml("lost.xml") is None


def test_a_member_behind_a_password_is_refused() -> None:
    data = bytearray(zipped({"a.xml": b"<x/>"}))
    for signature, at in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        data[data.index(signature) + at] |= 1
    with pytest.raises(Encrypted, match=r"a\.xml"):
        Archive(bytes(data)).read("a.xml")


def test_an_announced_size_that_is_a_lie_unpacks_to_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    data = bytearray(zipped({"a": bytes(1 << 20)}))
    directory = data.index(b"PK\x01\x02")
    data[directory + 24 : directory + 28] = (100).to_bytes(4, "little")
    monkeypatch.setattr(archive, "MAX_UNPACKED_BYTES", 1000)
    assert Archive(bytes(data)).read("a") is None
    with pytest.raises(FileTooLarge):
        Archive(zipped({"a": bytes(1 << 20)}))


def test_entities_are_not_expanded_nor_files_read() -> None:
    bomb = '<!DOCTYPE x [<!ENTITY a "aaaaaaaaaa">' + "".join(
        f'<!ENTITY {new} "{f"&{old};" * 10}">' for old, new in zip("abcdefgh", "bcdefghi", strict=True)
    )
    opened = Archive(
        zipped(
            {
                "bomb.xml": f"{bomb}]><x>&i;</x>".encode(),
                "attribute.xml": f'{bomb}]><x y="&i;"/>'.encode(),
                "file.xml": b'<!DOCTYPE x [<!ENTITY e SYSTEM "file:///etc/passwd">]><x>&e;</x>',
            }
        )
    )
    for name in ("bomb.xml", "attribute.xml", "file.xml"):
        with pytest.raises(MalformedMarkup):
            opened.xml(name)
    root = opened.xml("file.xml", may_declare_type=True)
    assert root is not None
    assert "".join(root.itertext("x")) == ""


# ---- any damage is an error of reading, or is read over


def made_deck() -> bytes:
    presentation = decks.deck()
    slide = presentation.slides.add_slide(presentation.slide_layouts[decks.COMPARISON])
    for shape in slide.placeholders:
        shape.text_frame.text = "words"
    group = slide.shapes.add_group_shape()
    decks.add_text(group.shapes, "in a group", 1, 5)
    decks.add_picture(group.shapes, decks.PICTURE, 3, 5, "A square")
    slide.shapes.add_table(2, 2, 0, 0, 9, 9).table.cell(0, 0).text = "cell"
    data = decks.CategoryChartData()
    data.categories = ["a", "b"]
    data.add_series("s", (1, 2))
    slide.shapes.add_chart(decks.XL_CHART_TYPE.PIE, 0, 0, 9, 9, data)
    slide.notes_slide.notes_text_frame.text = "note"
    return decks.saved(presentation)


def made_paper() -> bytes:
    notes = '<w:r><w:footnoteReference w:id="1"/></w:r>'
    fraction = papers.m("f", papers.m("num", "a"), papers.m("den", "b"))
    data = papers.of(
        papers.paragraph(papers.run("Head"), '<w:pStyle w:val="Heading1"/>'),
        papers.paragraph(
            papers.run("x") + papers.text_box(papers.paragraph(papers.drawing("first"))) + notes
        ),
        papers.table(papers.cells(papers.paragraph(papers.run("a")), papers.paragraph(papers.run("b")))),
        papers.paragraph(papers.m("oMath", fraction)),
        papers.paragraph(papers.run("item"), '<w:numPr><w:ilvl w:val="2"/><w:numId w:val="1"/></w:numPr>'),
        setup=papers.picture_ids,
    )
    return papers.with_parts(data, footnotes=papers.NOTES.format("footnote"))


def made_book() -> bytes:
    pages: dict[str, str | bytes] = {
        "cover.xhtml": books.COVER_PAGE,
        "toc.xhtml": books.page(books.LINKS),
        "1.xhtml": books.page('<p>One <img src="a.png"/></p>'),
    }
    files: dict[str, str | bytes] = {"cover.png": books.COVER, "a.png": books.PICTURE}
    return books.book(pages, files, {"cover.png": "cover-image"}, guide=books.GUIDE)


def spoiled(data: bytes, seed: int) -> bytes:
    """The archive after an accident: files lost, values of attributes or elements gone, or bytes changed."""
    rng = random.Random(seed)
    with zipfile.ZipFile(io.BytesIO(data)) as archived:
        members = {name: archived.read(name) for name in archived.namelist()}
    accident = rng.choice([_lose_files, _spoil_numbers, _lose_elements, _lose_attributes])
    accident(members, rng)
    spoilt = bytearray(zipped(members))
    if rng.random() < 0.2:
        for _ in range(10):
            spoilt[rng.randrange(len(spoilt))] = rng.randrange(256)
    return bytes(spoilt)


def _lose_files(members: dict[str, bytes], rng: random.Random) -> None:
    for name in rng.sample(sorted(members), min(3, len(members))):
        del members[name]


def _spoil_numbers(members: dict[str, bytes], rng: random.Random) -> None:
    values = [b"", b"x", b"-1", b"1e400", b"NaN", b"9" * 30]
    for name in members:
        members[name] = re.sub(
            rb'="-?\d+"', lambda found: b'="' + rng.choice([*values, found[0][2:-1]]) + b'"', members[name]
        )


def _some_elements(members: dict[str, bytes], rng: random.Random) -> list[tuple[str, etree._Element]]:
    found = []
    for name in rng.sample([n for n in sorted(members) if n.endswith(("xml", "rels", "opf", "xhtml"))], 3):
        root = etree.fromstring(members[name], etree.XMLParser(recover=True))
        elements = [e for e in root.iter() if isinstance(e.tag, str) and e.getparent() is not None]
        found += [(name, element) for element in rng.sample(elements, min(6, len(elements)))]
    return found


def _lose_elements(members: dict[str, bytes], rng: random.Random) -> None:
    for name, element in _some_elements(members, rng):
        root, parent = element.getroottree(), element.getparent()
        if parent is not None:
            parent.remove(element)
            members[name] = etree.tostring(root)


def _lose_attributes(members: dict[str, bytes], rng: random.Random) -> None:
    for name, element in _some_elements(members, rng):
        for attribute in rng.sample(sorted(element.attrib), min(1, len(element.attrib))):
            element.attrib[attribute] = rng.choice(["", "zz"])
        members[name] = etree.tostring(element.getroottree())


@pytest.mark.parametrize(
    ("read", "made"), [(slides.read, made_deck), (word.read, made_paper), (epub.read, made_book)]
)
def test_a_damaged_file_is_read_or_refused(
    read: Callable[[bytes, str], RawDocument], made: Callable[[], bytes]
) -> None:
    whole, num_read = made(), 0
    assert read(whole, "x").items
    for seed in range(25):
        try:
            num_read += bool(read(spoiled(whole, seed), "x").items)
        except ReadError:
            continue
    assert num_read > 8
