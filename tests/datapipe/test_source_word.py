import io
import re
import zipfile
from typing import Any

import docx
import pytest
from docx.shared import Inches
from docx.styles.style import ParagraphStyle
from lxml import etree

from datapipe.errors import EmptyDocument, Encrypted, MalformedMarkup
from datapipe.sources import archive, omml, word
from datapipe.sources.items import RawDocument
from datapipe.sources.office import NAMESPACES, qualified
from jobs import fetch
from tests import make
from tests.datapipe.test_source_slides import edited

PICTURE, OTHER = make.picture(seed=1), make.picture(seed=2)
NAMES = {PICTURE: "PICTURE", OTHER: "OTHER"}
PREFIXES = " ".join(f'xmlns:{prefix}="{uri}"' for prefix, uri in NAMESPACES.items())


def xml(text: str) -> etree._Element:
    """Elements of WordprocessingML with every prefix declared."""
    return etree.fromstring(f"<x {PREFIXES}>{text}</x>")[0]


def run(text: str, properties: str = "") -> str:
    return f'<w:r><w:rPr>{properties}</w:rPr><w:t xml:space="preserve">{text}</w:t></w:r>'


def paragraph(inside: str, properties: str = "") -> str:
    return f"<w:p><w:pPr>{properties}</w:pPr>{inside}</w:p>"


def saved(document: Any) -> bytes:
    buffer = io.BytesIO()
    document.save(buffer)
    return buffer.getvalue()


def of(*blocks: str, setup: Any = None) -> bytes:
    """A document of these paragraphs and tables, as XML."""
    document = docx.Document()
    more = setup(document) if setup is not None else None
    for block in blocks:
        document.element.body.insert(-1, xml(block.format(**more) if more else block))
    return saved(document)


def seen(document: RawDocument) -> list[tuple[str, str | None]]:
    return [
        (i.role, i.text) if i.kind == "text" else (i.kind, NAMES.get(i.data or b"", i.href))
        for i in document.items
    ]


def read(*blocks: str, setup: Any = None) -> list[tuple[str, str | None]]:
    return seen(word.read(of(*blocks, setup=setup), "docs/x.docx"))


def test_a_document_is_read_in_the_order_of_its_body() -> None:
    document = docx.Document()
    document.add_heading("The title", 0)
    document.add_paragraph("Intro with  two spaces")
    document.add_heading("Part", 2)
    document.add_paragraph("first", style="List Bullet")
    document.add_paragraph("second", style="List Number")
    document.add_picture(io.BytesIO(PICTURE), Inches(1))
    document.add_paragraph("Figure 1: a square", style="Caption")
    table = document.add_table(2, 2)
    for cell, text in zip(table._cells, ("A", "B", "1", ""), strict=True):
        cell.text = text
    document.add_paragraph("x = 1", style="macro")
    document.add_paragraph("Last")
    assert seen(word.read(saved(document), "x.docx")) == [
        ("heading", "The title"),
        ("paragraph", "Intro with two spaces"),
        ("heading", "Part"),
        ("list_item", "first"),
        ("list_item", "second"),
        ("image", "PICTURE"),
        ("caption", "Figure 1: a square"),
        ("table", "A | B\n1 | "),
        ("code", "x = 1"),
        ("paragraph", "Last"),
    ]


def test_headings_and_lists_are_known_by_their_styles_names_own_words_and_what_they_are_based_on() -> None:
    def setup(document: Any) -> dict[str, str]:
        for name, base in (("Kapitel", "Heading 1"), ("Punkt", "List Bullet")):
            style = document.styles.add_style(name, 1)
            assert isinstance(style, ParagraphStyle)
            style.base_style = document.styles[base]
        return {}

    assert read(
        paragraph(run("based on a heading"), '<w:pStyle w:val="Kapitel"/>'),
        paragraph(run("based on a list"), '<w:pStyle w:val="Punkt"/>'),
        paragraph(run("made a heading"), '<w:outlineLvl w:val="1"/>'),
        paragraph(run("made body text"), '<w:pStyle w:val="Heading1"/><w:outlineLvl w:val="9"/>'),
        paragraph(run("nested"), '<w:numPr><w:ilvl w:val="2"/><w:numId w:val="1"/></w:numPr>'),
        paragraph("", '<w:numPr><w:ilvl w:val="2"/><w:numId w:val="1"/></w:numPr>'),
        paragraph(
            run("out of the list"), '<w:pStyle w:val="ListBullet"/><w:numPr><w:numId w:val="0"/></w:numPr>'
        ),
        setup=setup,
    ) == [
        ("heading", "based on a heading"),
        ("list_item", "based on a list"),
        ("heading", "made a heading"),
        ("paragraph", "made body text"),
        ("list_item", "- - nested"),
        ("paragraph", "out of the list"),
    ]


def test_deleted_and_hidden_text_leaves_and_inserted_text_stays() -> None:
    assert read(
        paragraph(
            run("kept ")
            + f"<w:ins>{run('inserted ')}</w:ins><w:del><w:r><w:delText>deleted</w:delText></w:r></w:del>"
            + f"<w:moveFrom>{run('moved away')}</w:moveFrom><w:moveTo>{run('moved here')}</w:moveTo>"
            + run("hidden", "<w:vanish/>")
            + run("!", '<w:vanish w:val="0"/>')
        ),
        paragraph(run("the mark between "), "<w:rPr><w:del/></w:rPr>"),
        paragraph(run("was deleted")),
        f"<w:tbl><w:tr><w:trPr><w:del/></w:trPr><w:tc>{paragraph(run('gone'))}</w:tc></w:tr>"
        f"<w:tr><w:tc>{paragraph(run('a'))}</w:tc><w:tc>{paragraph(run('b'))}</w:tc></w:tr></w:tbl>",
    ) == [
        ("paragraph", "kept inserted moved here!"),
        ("paragraph", "the mark between was deleted"),
        ("table", "a | b"),
    ]


def test_signs_links_fields_and_controls_are_text() -> None:
    field = (
        '<w:r><w:fldChar w:fldCharType="begin"/></w:r><w:r><w:instrText>PAGEREF x</w:instrText></w:r>'
        '<w:r><w:fldChar w:fldCharType="separate"/></w:r><w:r><w:t>7</w:t></w:r>'
        '<w:r><w:fldChar w:fldCharType="end"/></w:r>'
    )
    assert read(
        paragraph(
            "<w:r><w:t>a</w:t><w:tab/><w:t>b</w:t><w:br/><w:t>c</w:t><w:noBreakHyphen/><w:t>d</w:t></w:r>"
            '<w:r><w:sym w:font="Wingdings" w:char="F0E0"/><w:sym w:font="Symbol" w:char="F061"/></w:r>'
        ),
        paragraph(f"<w:hyperlink>{run('a link')}</w:hyperlink>{run(' on page ')}{field}"),
        paragraph(f"<w:sdt><w:sdtContent>{run('in a control')}</w:sdtContent></w:sdt>"),
        f"<w:sdt><w:sdtContent>{paragraph(run('block in a control'))}</w:sdtContent></w:sdt>",
        paragraph(
            "<w:r><w:ruby><w:rt>"
            + run("かん")
            + "</w:rt><w:rubyBase>"
            + run("漢")
            + "</w:rubyBase></w:ruby></w:r>"
        ),
    ) == [
        ("paragraph", "a b\nc\N{NON-BREAKING HYPHEN}d→α"),
        ("paragraph", "a link on page 7"),
        ("paragraph", "in a control"),
        ("paragraph", "block in a control"),
        ("paragraph", "漢"),
    ]


def picture_ids(document: Any) -> dict[str, str]:
    """Relationship ids of two pictures, one that is linked, and one that leads nowhere."""
    part = document.part
    first, _ = part.get_or_add_image(io.BytesIO(PICTURE))
    second, _ = part.get_or_add_image(io.BytesIO(OTHER))
    linked = part.relate_to("../img/a.png", "http://x/relationships/image", is_external=True)
    return {"first": first, "second": second, "linked": linked}


def drawing(id: str, descr: str = "", anchor: bool = False, link: bool = False) -> str:
    where, attribute = "anchor" if anchor else "inline", "link" if link else "embed"
    return (
        f'<w:r><w:drawing><wp:{where}><wp:docPr id="1" name="p" descr="{descr}"/><a:graphic><a:graphicData>'
        f'<pic:pic><pic:blipFill><a:blip r:{attribute}="{{{id}}}"/></pic:blipFill></pic:pic>'
        f"</a:graphicData></a:graphic></wp:{where}></w:drawing></w:r>"
    )


def test_pictures_are_where_they_are_anchored_and_do_not_cut_a_sentence() -> None:
    assert read(
        paragraph(run("Press ") + drawing("first", "the red key") + run(" to go on.")),
        paragraph(drawing("second", "A square", anchor=True) + run("Beside a floating picture.")),
        paragraph(drawing("linked", link=True)),
        paragraph(
            '<w:r><w:pict><v:shape alt="Drawn"><v:imagedata r:id="{first}"/></v:shape></w:pict></w:r>'
            '<w:r><w:object><v:shape><v:imagedata r:id="{second}"/></v:shape><o:OLEObject/></w:object></w:r>'
        ),
        setup=picture_ids,
    ) == [
        ("paragraph", "Press the red key to go on."),
        ("image", "PICTURE"),
        ("image", "OTHER"),
        ("alt", "A square"),
        ("paragraph", "Beside a floating picture."),
        ("image", "img/a.png"),
        ("image", "PICTURE"),
        ("alt", "Drawn"),
        ("image", "OTHER"),
    ]


def text_box(*paragraphs: str) -> str:
    """A text box, in the form of today and again in that of 2007."""
    inside = f"<w:txbxContent>{''.join(paragraphs)}</w:txbxContent>"
    return (
        '<w:r><mc:AlternateContent><mc:Choice Requires="wps"><w:drawing><wp:anchor><a:graphic><a:graphicData>'
        f"<wps:wsp><wps:txbx>{inside}</wps:txbx></wps:wsp></a:graphicData></a:graphic></wp:anchor></w:drawing>"
        f"</mc:Choice><mc:Fallback><w:pict><v:shape><v:textbox>{inside}</v:textbox></v:shape></w:pict></mc:Fallback>"
        "</mc:AlternateContent></w:r>"
    )


def test_text_boxes_follow_their_paragraph_and_are_read_once() -> None:
    boxed = text_box(paragraph(drawing("first")), paragraph(run("Figure 1"), '<w:pStyle w:val="Caption"/>'))
    inner = text_box(paragraph(run("inner one")), paragraph(run("inner two")))
    assert read(
        paragraph(run("Before ") + boxed + run("and after.")),
        paragraph(text_box(paragraph(run("outer one") + inner), paragraph(run("outer two"))) + run("Anchor")),
        setup=picture_ids,
    ) == [
        ("paragraph", "Before and after."),
        ("image", "PICTURE"),
        ("caption", "Figure 1"),
        ("paragraph", "Anchor"),
        ("paragraph", "outer one"),
        ("paragraph", "inner one"),
        ("paragraph", "inner two"),
        ("paragraph", "outer two"),
    ]


def cells(*texts: str) -> str:
    return "".join(f"<w:tc>{text}</w:tc>" for text in texts)


def table(*rows: str) -> str:
    return "<w:tbl>" + "".join(f"<w:tr>{row}</w:tr>" for row in rows) + "</w:tbl>"


def test_tables_of_data_are_rows_and_tables_that_lay_out_are_read_through() -> None:
    one, two, merged = (paragraph(run(text)) for text in ("one", "two", "wide"))
    data = table(
        f'<w:tc><w:tcPr><w:gridSpan w:val="2"/></w:tcPr>{merged}</w:tc>' + cells(one),
        cells(one + two, paragraph(""), paragraph(drawing("first") + run("with a picture"))),
        cells(two, two, one),
    )
    assert read(
        data,
        table(cells(paragraph(run("boxed")))),
        table(cells(one, two + table(cells(one, two)) + paragraph(""))),
        table(cells(paragraph(run("H"), '<w:pStyle w:val="Heading1"/>') + one, two)),
        setup=picture_ids,
    ) == [
        ("table", "wide |  | one\none two | with a picture"),
        ("image", "PICTURE"),
        ("table", "two | two | one"),
        ("paragraph", "boxed"),
        ("paragraph", "one"),
        ("paragraph", "two"),
        ("table", "one | two"),
        ("heading", "H"),
        ("paragraph", "one"),
        ("paragraph", "two"),
    ]


NOTES = (
    f"<w:{{0}}s {PREFIXES}><w:{{0}} w:type='separator' w:id='0'>{paragraph(run('---'))}</w:{{0}}>"
    f"<w:{{0}} w:id='1'>{paragraph('<w:r><w:footnoteRef/></w:r>' + run(' The {0}.'))}"
    f"{paragraph(run('More.'))}</w:{{0}}><w:{{0}} w:id='2'>{paragraph(run('no one'))}</w:{{0}}></w:{{0}}s>"
)
HEADER = f"<w:hdr {PREFIXES}>{paragraph(run('Running head'))}</w:hdr>"
FOOTER = f"<w:ftr {PREFIXES}>{paragraph(run('Page ') + run('3'))}</w:ftr>"


def with_parts(data: bytes, **parts: str) -> bytes:
    """The document with more parts, each related to it under its own name as the id."""
    links = "".join(
        f'<Relationship Id="{name}" Type="x/{re.sub("[0-9]", "", name)}" Target="{name}.xml"/>'
        for name in parts
    )

    def edit(name: str, content: bytes) -> bytes:
        if name != "word/_rels/document.xml.rels":
            return content
        return content.replace(b"</Relationships>", links.encode() + b"</Relationships>")

    return edited(data, edit, {f"word/{name}.xml": text.encode() for name, text in parts.items()})


def test_footnotes_follow_their_paragraph_and_endnotes_end_the_document() -> None:
    references = '<w:r><w:footnoteReference w:id="1"/></w:r><w:r><w:endnoteReference w:id="1"/></w:r>'
    data = of(paragraph(run("Text") + references + run(".")), paragraph(run("Next") + references))
    data = with_parts(data, footnotes=NOTES.format("footnote"), endnotes=NOTES.format("endnote"))
    assert seen(word.read(data, "x.docx")) == [
        ("paragraph", "Text."),
        ("note", "The footnote."),
        ("note", "More."),
        ("paragraph", "Next"),
        ("note", "The endnote."),
        ("note", "More."),
    ]


def contents_style(document: Any) -> None:
    style = document.styles.add_style("toc 1", 1)
    style.element.set(qualified("w:styleId"), "TOC1")


def test_headers_footers_and_the_table_of_contents_are_masked() -> None:
    section = (
        '<w:sectPr><w:headerReference w:type="default" r:id="header1"/>'
        '<w:headerReference w:type="first" r:id="header2"/>'
        '<w:footerReference w:type="default" r:id="footer1"/></w:sectPr>'
    )
    data = of(
        paragraph(run("Contents"), '<w:pStyle w:val="TOCHeading"/>'),
        paragraph(run("Part 1"), '<w:pStyle w:val="TOC1"/>'),
        paragraph(run("Body"), section),
        paragraph(run("More"), section),
        setup=contents_style,
    )
    data = with_parts(data, header1=HEADER, header2=HEADER, footer1=FOOTER)
    document = word.read(data, "x.docx")
    assert [(i.text, i.mask) for i in document.items] == [
        ("Running head", "page_header"),
        ("Contents", "contents"),
        ("Part 1", "contents"),
        ("Body", None),
        ("More", None),
        ("Page 3", "page_footer"),
    ]
    only_repeated = with_parts(of(paragraph("", section)), header1=HEADER)
    with pytest.raises(EmptyDocument):
        word.read(only_repeated, "x.docx")


def test_lines_of_code_are_one_item_with_their_spaces() -> None:
    mono = '<w:rFonts w:ascii="Consolas"/>'
    assert read(
        paragraph(run("Prose with ") + run("code", mono)),
        paragraph(run("def f():", mono)),
        paragraph(""),
        paragraph(run("    return  1", mono)),
        paragraph(run("Prose")),
    ) == [
        ("paragraph", "Prose with code"),
        ("code", "def f():\n\n    return  1"),
        ("paragraph", "Prose"),
    ]


def m(tag: str, *inside: str, **properties: str) -> str:
    """An element of an equation; letters in it are runs."""
    parts = [part if part.startswith("<") else f"<m:r><m:t>{part}</m:t></m:r>" for part in inside]
    values = "".join(f'<m:{name} m:val="{value}"/>' for name, value in properties.items())
    stated = f"<m:{tag}Pr>{values}</m:{tag}Pr>" if values else ""
    return f"<m:{tag}>{stated}{''.join(parts)}</m:{tag}>"


def test_equations_are_latex_in_and_between_paragraphs() -> None:
    power = m("sSup", m("e", "x"), m("sup", "2"))
    assert read(
        paragraph(run("so ") + m("oMath", power, "=4") + run(" holds")),
        paragraph(m("oMathPara", m("oMath", power), m("oMath", "y"))),
    ) == [("paragraph", "so $x^{2}=4$ holds"), ("paragraph", r"$$x^{2} \\ y$$")]


@pytest.mark.parametrize(
    ("inside", "expected"),
    [
        (m("f", m("num", "a"), m("den", "b+1")), r"\frac{a}{b+1}"),
        (m("f", m("num", "a"), m("den", "b"), type="lin"), "a/b"),
        (m("rad", m("deg", "3"), m("e", "x")), r"\sqrt[3]{x}"),
        (m("nary", m("sub", "i=1"), m("sup", "n"), m("e", "i"), chr="∑"), r"\sum_{i=1}^{n}{i}"),
        (m("sSubSup", m("e", "ab"), m("sub", "i"), m("sup", "2")), "{ab}_{i}^{2}"),
        (m("d", m("e", "a"), m("e", "b")), r"\left(a|b\right)"),
        (m("d", m("e", "a"), begChr="{", endChr=""), r"\left\{a\right."),
        (m("func", m("fName", "sin"), m("e", "x")), r"\sin{x}"),
        (
            m("m", m("mr", m("e", "a"), m("e", "b")), m("mr", m("e", "c"), m("e", "d"))),
            r"\begin{matrix}a & b \\ c & d\end{matrix}",
        ),
        (m("acc", m("e", "x"), chr="\u0303"), r"\tilde{x}"),
        (m("bar", m("e", "x"), pos="top"), r"\overline{x}"),
        (m("limLow", m("e", "lim"), m("lim", "n→∞")), r"\lim_{n→∞}"),
        (m("eqArr", m("e", "a"), m("e", "b")), r"\begin{aligned}a \\ b\end{aligned}"),
        ("50%", r"50\%"),
        (m("unknown", m("e", "kept")), "kept"),
    ],
)
def test_each_part_of_an_equation_has_its_latex(inside: str, expected: str) -> None:
    assert omml.latex(xml(m("oMath", inside))) == expected


def test_an_equation_nested_deeper_than_anyone_writes_is_its_letters() -> None:
    inside = "x"
    for _ in range(400):
        inside = m("rad", m("e", inside))
    element = etree.fromstring(f"<x {PREFIXES}>{m('oMath', inside)}</x>", etree.XMLParser(huge_tree=True))[0]
    assert omml.latex(element) == "x"


def test_charts_and_diagrams_follow_their_paragraph_as_text() -> None:
    chart = (
        f"<c:chartSpace {PREFIXES}><c:chart><c:plotArea><c:barChart><c:ser><c:tx><c:v>n</c:v></c:tx>"
        '<c:cat><c:strLit><c:pt idx="0"><c:v>a</c:v></c:pt></c:strLit></c:cat>'
        '<c:val><c:numLit><c:pt idx="0"><c:v>2</c:v></c:pt></c:numLit></c:val>'
        "</c:ser></c:barChart></c:plotArea></c:chart></c:chartSpace>"
    )
    shown = (
        '<w:r><w:drawing><wp:inline><a:graphic><a:graphicData><c:chart r:id="chart1"/></a:graphicData>'
        "</a:graphic></wp:inline></w:drawing></w:r>"
    )
    data = with_parts(of(paragraph(run("See ") + shown + run("here."))), chart1=chart)
    assert seen(word.read(data, "x.docx")) == [("paragraph", "See here."), ("table", " | n\na | 2")]


def test_title_and_language_are_those_of_the_document() -> None:
    document = docx.Document()
    document.core_properties.title = "Word Document"
    document.add_heading("Überschrift", 1)
    document.element.body.insert(-1, xml(paragraph(run("Viele deutsche Wörter", '<w:lang w:val="de-DE"/>'))))
    found = word.read(saved(document), "x.docx")
    assert (found.format, found.title, found.lang) == ("word", "Überschrift", "de")
    document.core_properties.title = "From the properties"
    assert word.read(saved(document), "x.docx").title == "From the properties"


def test_missing_parts_leave_the_rest_of_the_document() -> None:
    data = of(paragraph(drawing("first") + run("text")), setup=picture_ids)
    lost = ("word/media/image1.png", "word/styles.xml", "docProps/core.xml", "word/numbering.xml")
    document = word.read(edited(data, lambda name, content: None if name in lost else content), "docs/x.docx")
    assert seen(document) == [("image", "docs/x.docx#/word/media/image1.png"), ("paragraph", "text")]


def test_files_that_are_no_word_document_are_refused_with_the_reason() -> None:
    data = of(paragraph(run("x")))
    with pytest.raises(Encrypted):
        word.read(archive._OLE_CONTAINER + "EncryptedPackage".encode("utf-16-le"), "x.docx")
    with pytest.raises(MalformedMarkup, match="zip"):
        word.read(data[:-100], "x.docx")
    with pytest.raises(MalformedMarkup, match=r"word/document\.xml"):
        word.read(edited(data, lambda n, c: c[:-20] if n == "word/document.xml" else c), "x.docx")
    with pytest.raises(MalformedMarkup, match="no word document"):
        word.read(
            edited(data, lambda n, c: c.replace(b"w:document", b"w:other") if "document.xml" in n else c),
            "x.docx",
        )
    with pytest.raises(EmptyDocument):
        word.read(of(), "x.docx")
    deep = paragraph(run("x"))
    for _ in range(40):
        deep = table(cells(deep + paragraph("")))
    assert read(deep) == [("paragraph", "x")]


@pytest.mark.slow
def test_documents_of_others_are_read_in_full() -> None:
    [iscc], [pptx], [forensics] = (
        fetch.fetch(name)
        for name in ("sdist:iscc-samples", "sdist:python-pptx", "debian:forensics-samples-files")
    )
    paths = {path.name: path for root in (iscc, pptx, forensics) for path in root.rglob("*.docx")}
    found = {name: word.read(path.read_bytes(), name) for name, path in paths.items()}
    assert set(found) == {"demo.docx", "shp-embedded-docx.docx", "a-text.docx", "d-text.docx"}
    assert found["demo.docx"].items[0].text == found["demo.docx"].items[0].text == "ISCC Test Document"
    assert [len(found[name].items) for name in ("demo.docx", "a-text.docx", "d-text.docx")] == [12, 5, 6]
    for name, path in paths.items():
        with zipfile.ZipFile(path) as archived:
            root = etree.fromstring(archived.read("word/document.xml"))
        said = "".join("".join(t.text or "" for t in root.iter("{*}t")).split())
        assert "".join("".join((i.text or "").split()) for i in found[name].items) == said, name


@pytest.mark.slow
def test_documents_made_to_test_another_reader_are_read_word_for_word() -> None:
    [root] = fetch.fetch("sdist:python-docx")
    paths = sorted(path for path in root.rglob("*.docx") if "_scratch" not in path.parts)
    assert len(paths) >= 46
    for path in paths:
        with zipfile.ZipFile(path) as archived:
            body = etree.fromstring(archived.read("word/document.xml"))
        for fallback in body.findall(".//{*}Fallback"):
            fallback.getparent().remove(fallback)
        said = "".join("".join(t.text or "" for t in body.iter(qualified("w:t"))).split())
        num_pictures = len(body.findall(".//{*}blip"))
        try:
            items = [i for i in word.read(path.read_bytes(), path.name).items if i.mask is None]
        except EmptyDocument:
            items = []
        found = "".join(i.text or "" for i in items)
        if (
            path.name != "shp-inline-shape-access.docx"
        ):  # it has a chart and a diagram, whose words are elsewhere
            assert re.sub(r"\s|\|", "", found) == re.sub(r"\|", "", said), path.name
        assert sum(i.kind == "image" for i in items) == num_pictures, path.name
