import io
import re
import zipfile
from collections.abc import Callable
from typing import Any

import pytest
from lxml import etree
from pptx import Presentation
from pptx.chart.data import BubbleChartData, CategoryChartData, XyChartData
from pptx.enum.chart import XL_CHART_TYPE
from pptx.util import Inches

from datapipe.errors import EmptyDocument, Encrypted, FileTooLarge, MalformedMarkup, UnsupportedFormat
from datapipe.sources import archive, slides
from datapipe.sources.items import RawDocument
from jobs import fetch
from tests import make

BLANK, TITLE_ONLY, CONTENT, COMPARISON, TITLE = 6, 5, 1, 4, 0
PICTURE, OTHER, MOVIE = make.picture(seed=1), make.picture(seed=2), make.video(5)
NAMES = {PICTURE: "PICTURE", OTHER: "OTHER", MOVIE: "MOVIE"}
SHAPE_XML = (
    '<p:sp xmlns:p="http://schemas.openxmlformats.org/presentationml/2006/main" '
    'xmlns:a="http://schemas.openxmlformats.org/drawingml/2006/main" '
    'xmlns:a14="http://schemas.microsoft.com/office/drawing/2010/main" '
    'xmlns:m="http://schemas.openxmlformats.org/officeDocument/2006/math">'
    '<p:nvSpPr><p:cNvPr id="90" name="x"/><p:cNvSpPr/><p:nvPr>{ph}</p:nvPr></p:nvSpPr><p:spPr/>'
    "<p:txBody><a:bodyPr/><a:p>{text}</a:p></p:txBody></p:sp>"
)


def run(text: str) -> str:
    return f"<a:r><a:t>{text}</a:t></a:r>"


def deck() -> Any:
    return Presentation()


def saved(presentation: Any) -> bytes:
    buffer = io.BytesIO()
    presentation.save(buffer)
    return buffer.getvalue()


def edited(
    data: bytes, edit: Callable[[str, bytes], bytes | None], more: dict[str, bytes] | None = None
) -> bytes:
    """The archive with each member's bytes as `edit(name, bytes)` gives them; None takes the member out."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as new:
        for name in old.namelist():
            content = edit(name, old.read(name))
            if content is not None:
                new.writestr(name, content)
        for name, content in (more or {}).items():
            new.writestr(name, content)
    return buffer.getvalue()


def seen(document: RawDocument) -> list[tuple[str, str | None]]:
    """Role and text of each item; for pictures and videos which one it is, or where it would be."""
    return [
        (i.role, i.text) if i.kind == "text" else (i.kind, NAMES.get(i.data or b"", i.href))
        for i in document.items
    ]


def read(presentation: Any, uri: str = "talks/deck.pptx") -> list[tuple[str, str | None]]:
    return seen(slides.read(saved(presentation), uri))


def add_text(shapes: Any, text: str, left: float, top: float, width: float = 2, height: float = 0.5) -> Any:
    box = shapes.add_textbox(Inches(left), Inches(top), Inches(width), Inches(height))
    box.text_frame.text = text
    return box


def add_picture(shapes: Any, data: bytes, left: float, top: float, alt: str = "") -> Any:
    shape = shapes.add_picture(io.BytesIO(data), Inches(left), Inches(top), Inches(2), Inches(1.5))
    shape._element.nvPicPr.cNvPr.set("descr", alt)
    return shape


def test_shapes_are_read_as_they_lie_not_as_they_were_made() -> None:
    presentation = deck()
    slide = presentation.slides.add_slide(presentation.slide_layouts[TITLE_ONLY])
    add_text(slide.shapes, "below right", 5, 6)
    add_text(slide.shapes, "left", 0.5, 2, 3, 3)
    add_picture(slide.shapes, PICTURE, 5, 2, alt="A red square")
    add_text(slide.shapes, "below left", 0.5, 6)
    add_text(slide.shapes, "over the title", 0.5, 0, 9, 0.2)
    slide.shapes.title.text = "The title\vin two lines"
    assert read(presentation) == [
        ("heading", "The title in two lines"),
        ("paragraph", "over the title"),
        ("paragraph", "left"),
        ("image", "PICTURE"),
        ("alt", "A red square"),
        ("paragraph", "below left"),
        ("paragraph", "below right"),
    ]


def test_groups_are_read_whole_with_their_transforms() -> None:
    presentation = deck()
    slide = presentation.slides.add_slide(presentation.slide_layouts[BLANK])
    add_text(slide.shapes, "after", 0.5, 5)
    outer = slide.shapes.add_group_shape()
    inner = outer.shapes.add_group_shape()
    add_text(inner.shapes, "deep right", 3, 1)
    add_text(inner.shapes, "deep left", 0, 1)
    add_picture(outer.shapes, PICTURE, 0, 3)
    add_text(slide.shapes, "beside the group", 6, 1)
    group = outer._element.grpSpPr.xfrm
    group.off.x, group.off.y, group.ext.cx, group.ext.cy = (Inches(n) for n in (0.5, 1, 4, 3))
    assert read(presentation) == [
        ("paragraph", "deep left"),
        ("paragraph", "deep right"),
        ("image", "PICTURE"),
        ("paragraph", "beside the group"),
        ("paragraph", "after"),
    ]
    inner._element.grpSpPr.xfrm.set("flipH", "1")
    assert [text for _, text in read(presentation)][:2] == ["deep right", "deep left"]
    inner._element.grpSpPr.xfrm.set("rot", str(180 * 60_000))
    assert [text for _, text in read(presentation)][:2] == ["deep left", "deep right"]


def test_placeholders_take_their_place_and_bullets_from_layout_and_master() -> None:
    presentation = deck()
    slide = presentation.slides.add_slide(presentation.slide_layouts[COMPARISON])
    for shape, text in zip(
        slide.placeholders, ("T", "Left head", "left", "Right head", "right"), strict=True
    ):
        shape.text_frame.text = text
    frame = slide.placeholders[2].text_frame
    for text, level in (("below", 1), ("deeper", 2)):
        paragraph = frame.add_paragraph()
        paragraph.text, paragraph.level = text, level
    assert read(presentation) == [
        ("heading", "T"),
        ("paragraph", "Left head"),
        ("list_item", "left"),
        ("list_item", "- below"),
        ("list_item", "- - deeper"),
        ("paragraph", "Right head"),
        ("list_item", "right"),
    ]


def test_a_paragraph_may_take_its_bullet_off() -> None:
    presentation = deck()
    slide = presentation.slides.add_slide(presentation.slide_layouts[CONTENT])
    slide.placeholders[1].text_frame.text = "no bullet"
    properties = slide.placeholders[1].text_frame.paragraphs[0]._p.get_or_add_pPr()
    properties.append(
        properties.makeelement("{http://schemas.openxmlformats.org/drawingml/2006/main}buNone", {})
    )
    assert read(presentation) == [("paragraph", "no bullet")]


def test_placeholder_pictures_and_picture_fills_are_pictures() -> None:
    presentation = deck()
    slide = presentation.slides.add_slide(presentation.slide_layouts[8])
    slide.placeholders[1].insert_picture(io.BytesIO(PICTURE))
    shape = slide.shapes.add_shape(1, Inches(1), Inches(6), Inches(1), Inches(1))
    shape.text_frame.text = "on it"
    _, id = slide.part.get_or_add_image_part(io.BytesIO(OTHER))
    fill = etree.fromstring(
        '<a:blipFill xmlns:a="http://schemas.openxmlformats.org/drawingml/2006/main" xmlns:r="http://schemas.'
        f'openxmlformats.org/officeDocument/2006/relationships"><a:blip r:embed="{id}"/></a:blipFill>'
    )
    shape._element.spPr.append(fill)
    slide.shapes.title.text = "T"
    assert read(presentation) == [
        ("heading", "T"),
        ("image", "PICTURE"),
        ("image", "OTHER"),
        ("paragraph", "on it"),
    ]


@pytest.mark.parametrize(
    ("alt", "expected"),
    [
        ("picture.png", None),
        ("C:\\Users\\me\\My pictures\\photo 1.JPG", None),
        ("Picture 3", None),
        ("A dog on a mat\n\nDescription automatically generated", "A dog on a mat"),
        ("A dog. Description automatically generated with low confidence", "A dog."),
        ("Two lines\n of  text", "Two lines of text"),
    ],
)
def test_alternative_text_is_what_a_person_wrote(alt: str, expected: str | None) -> None:
    presentation = deck()
    add_picture(presentation.slides.add_slide(presentation.slide_layouts[BLANK]).shapes, PICTURE, 1, 1, alt)
    assert read(presentation) == [("image", "PICTURE")] + ([("alt", expected)] if expected else [])


def test_linked_pictures_are_links_relative_to_the_deck_or_on_the_web() -> None:
    presentation = deck()
    slide = presentation.slides.add_slide(presentation.slide_layouts[BLANK])
    for left, target in ((1, "img/a%20b.png"), (4, "https://example.org/c.png"), (7, "..\\d.png")):
        shape = add_picture(slide.shapes, PICTURE, left, 1)
        id = slide.part.relate_to(target, "http://x/relationships/image", is_external=True)
        blip = shape._element.blipFill.find(".//{*}blip")
        blip.attrib.clear()
        blip.set("{http://schemas.openxmlformats.org/officeDocument/2006/relationships}link", id)
    assert [href for _, href in read(presentation)] == [
        "talks/img/a b.png",
        "https://example.org/c.png",
        "d.png",
    ]


def test_tables_charts_and_notes_are_text() -> None:
    presentation = deck()
    slide = presentation.slides.add_slide(presentation.slide_layouts[BLANK])
    table = slide.shapes.add_table(3, 3, 0, 0, Inches(4), Inches(1)).table
    for row, texts in enumerate((("A", "B", "C"), ("1", "two\nlines", ""), ("", "", ""))):
        for column, text in enumerate(texts):
            table.cell(row, column).text = text
    table.cell(0, 1).merge(table.cell(0, 2))
    data = CategoryChartData(number_format="0.0")
    data.categories = ["East", "West"]
    data.add_series("2023", (1.0, 0.1 + 0.2))
    data.add_series("2024", (2.5, None))
    chart = slide.shapes.add_chart(
        XL_CHART_TYPE.COLUMN_CLUSTERED, 0, Inches(3), Inches(4), Inches(3), data
    ).chart
    chart.has_title, chart.chart_title.text_frame.text = True, "Sales by region"
    slide.notes_slide.notes_text_frame.text = "Say hello.\nThen go on."
    assert read(presentation) == [
        ("table", "A | B C | \n1 | two lines | "),
        ("table", "Sales by region\n | 2023 | 2024\nEast | 1 | 2.5\nWest | 0.3 | "),
        ("note", "Say hello."),
        ("note", "Then go on."),
    ]


def test_charts_without_categories_dates_and_levels_are_tables_too() -> None:
    presentation = deck()
    slide = presentation.slides.add_slide(presentation.slide_layouts[BLANK])
    points = XyChartData()
    series = points.add_series("height")
    series.add_data_point(0.5, 7)
    bubbles = BubbleChartData()
    bubbles.add_series("size").add_data_point(1, 2, 30)
    levels = CategoryChartData()
    for state, cities in (("CA", ("SF", "LA")), ("NY", ("Albany",))):
        category = levels.add_category(state)
        for city in cities:
            category.add_sub_category(city)
    levels.add_series("people", (1, 2, 3))
    for top, kind, data in (
        (0, XL_CHART_TYPE.XY_SCATTER, points),
        (2, XL_CHART_TYPE.BUBBLE, bubbles),
        (4, XL_CHART_TYPE.BAR_CLUSTERED, levels),
    ):
        slide.shapes.add_chart(kind, 0, Inches(top), Inches(4), Inches(1.5), data).chart.has_title = False
    assert [text for _, text in read(presentation)] == [
        " | height\n0.5 | 7",
        " | size | size (size)\n1 | 2 | 30",
        " | people\nCA / SF | 1\nCA / LA | 2\nNY / Albany | 3",
    ]


def test_a_movie_stands_where_its_poster_is() -> None:
    presentation = deck()
    slide = presentation.slides.add_slide(presentation.slide_layouts[BLANK])
    add_text(slide.shapes, "after", 1, 5)
    poster = io.BytesIO(PICTURE)
    slide.shapes.add_movie(
        io.BytesIO(MOVIE),
        Inches(1),
        Inches(2),
        Inches(2),
        Inches(2),
        poster_frame_image=poster,
        mime_type="video/webm",
    )
    add_text(slide.shapes, "before", 1, 1)
    assert read(presentation) == [("paragraph", "before"), ("video", "MOVIE"), ("paragraph", "after")]


def test_a_video_on_the_web_keeps_its_poster() -> None:
    presentation = deck()
    slide = presentation.slides.add_slide(presentation.slide_layouts[BLANK])
    slide.shapes.add_movie(io.BytesIO(MOVIE), 0, 0, 9, 9, poster_frame_image=io.BytesIO(PICTURE))
    relationship = re.compile(rb'Target="[^"]*\.vid"')
    data = edited(
        saved(presentation),
        lambda name, content: (
            relationship.sub(b'Target="https://example.org/v" TargetMode="External"', content)
            if name.endswith(".rels")
            else content
        ),
    )
    assert seen(slides.read(data, "x.pptx")) == [("video", "https://example.org/v"), ("image", "PICTURE")]


def test_an_embedded_object_shows_its_preview() -> None:
    presentation = deck()
    slide = presentation.slides.add_slide(presentation.slide_layouts[BLANK])
    slide.shapes.add_ole_object(io.BytesIO(b"x"), "Word.Document", 0, 0, icon_file=io.BytesIO(PICTURE))
    assert read(presentation) == [("image", "PICTURE")]


def test_a_diagram_is_its_outline_then_its_pictures() -> None:
    presentation = deck()
    slide = presentation.slides.add_slide(presentation.slide_layouts[BLANK])
    points = "".join(
        f'<dgm:pt modelId="{id}"{kind}><dgm:t><a:p><a:r><a:t>{text}</a:t></a:r></a:p></dgm:t></dgm:pt>'
        for id, kind, text in (
            (1, ' type="doc"', ""),
            (2, "", "second"),
            (3, "", "first"),
            (4, "", "below first"),
            (5, ' type="pres"', "not shown twice"),
        )
    )
    links = "".join(
        f'<dgm:cxn modelId="{10 + order}{to}" srcId="{of}" destId="{to}" srcOrd="{order}"/>'
        for of, to, order in ((1, 2, 1), (1, 3, 0), (3, 4, 0))
    )
    model = (
        '<dgm:dataModel xmlns:dgm="http://schemas.openxmlformats.org/drawingml/2006/diagram" '
        f'xmlns:a="http://schemas.openxmlformats.org/drawingml/2006/main"><dgm:ptLst>{points}</dgm:ptLst>'
        f"<dgm:cxnLst>{links}</dgm:cxnLst></dgm:dataModel>"
    ).encode()
    frame = (
        b'<p:graphicFrame><p:nvGraphicFramePr><p:cNvPr id="9" name="d"/></p:nvGraphicFramePr>'
        b"<a:graphic><a:graphicData>"
        b'<dgm:relIds xmlns:dgm="http://schemas.openxmlformats.org/drawingml/2006/diagram" r:dm="rId77" '
        b'xmlns:r="http://schemas.openxmlformats.org/officeDocument/2006/relationships"/>'
        b"</a:graphicData></a:graphic></p:graphicFrame></p:spTree>"
    )
    del slide

    def edit(name: str, content: bytes) -> bytes:
        if name == "ppt/slides/slide1.xml":
            return content.replace(b"</p:spTree>", frame).replace(b"<p:spTree/>", b"<p:spTree>" + frame)
        if name == "ppt/slides/_rels/slide1.xml.rels":
            link = b'<Relationship Id="rId77" Type="x/diagramData" Target="../diagrams/data1.xml"/>'
            return content.replace(b"</Relationships>", link + b"</Relationships>")
        return content

    data = edited(saved(presentation), edit, {"ppt/diagrams/data1.xml": model})
    assert seen(slides.read(data, "x.pptx")) == [
        ("list_item", "first"),
        ("list_item", "- below first"),
        ("list_item", "second"),
    ]


def test_code_keeps_its_lines_and_spaces() -> None:
    presentation = deck()
    slide = presentation.slides.add_slide(presentation.slide_layouts[BLANK])
    frame = add_text(slide.shapes, "for x in y:\n    print( x )\nand prose", 1, 1).text_frame
    for paragraph in frame.paragraphs[:2]:
        paragraph.runs[0].font.name = "Courier New"
    assert read(presentation) == [("code", "for x in y:\n    print( x )"), ("paragraph", "and prose")]


def test_an_equation_is_latex_and_the_picture_of_it_is_not_read() -> None:
    presentation = deck()
    slide = presentation.slides.add_slide(presentation.slide_layouts[BLANK])
    math = (
        "<a14:m><m:oMath><m:f><m:num><m:r><m:t>a</m:t></m:r></m:num><m:den><m:r><m:t>b</m:t></m:r></m:den>"
        "</m:f></m:oMath></a14:m>"
    )
    shape = SHAPE_XML.format(ph="", text=run("so ") + math)
    slide.shapes._spTree.append(
        etree.fromstring(
            '<mc:AlternateContent xmlns:mc="http://schemas.openxmlformats.org/markup-compatibility/2006">'
            f'<mc:Choice Requires="a14">{shape}</mc:Choice>'
            f"<mc:Fallback>{SHAPE_XML.format(ph='', text=run('fallback'))}</mc:Fallback>"
            "</mc:AlternateContent>"
        )
    )
    assert read(presentation) == [("paragraph", r"so $\frac{a}{b}$")]


def test_footers_hidden_slides_and_what_lies_beside_the_slide_are_masked() -> None:
    presentation = deck()
    slide = presentation.slides.add_slide(presentation.slide_layouts[BLANK])
    add_text(slide.shapes, "words", 1, 1)
    add_text(slide.shapes, "scrap", -4, 1)
    add_text(slide.shapes, "hidden", 1, 2)._element.nvSpPr.cNvPr.set("hidden", "1")
    for kind, text in (("sldNum", "7"), ("ftr", "ACME"), ("dt", "1 May")):
        shape = SHAPE_XML.format(ph=f'<p:ph type="{kind}" idx="1{len(kind)}"/>', text=run(text))
        slide.shapes._spTree.append(etree.fromstring(shape))
    second = presentation.slides.add_slide(presentation.slide_layouts[BLANK])
    add_text(second.shapes, "not shown", 1, 1)
    second._element.set("show", "0")
    document = slides.read(saved(presentation), "x.pptx")
    assert [(i.page, i.text, i.mask) for i in document.items] == [
        (1, "scrap", "off_slide"),
        (1, "words", None),
        (1, "7", "page_footer"),
        (1, "ACME", "page_footer"),
        (1, "1 May", "page_footer"),
        (2, "not shown", "hidden_slide"),
    ]


def test_shapes_without_a_place_or_with_an_impossible_one_are_read() -> None:
    presentation = deck()
    slide = presentation.slides.add_slide(presentation.slide_layouts[BLANK])
    picture = add_picture(slide.shapes, PICTURE, 1, 1)
    picture._element.spPr.remove(picture._element.spPr.xfrm)
    add_text(slide.shapes, "words", 1, 5)._element.spPr.xfrm.set("rot", "1e400")
    document = slides.read(saved(presentation), "x.pptx")
    assert [(i.text, i.mask) for i in document.items] == [(None, None), ("words", None)]


def test_title_and_language_are_those_of_the_document() -> None:
    presentation = deck()
    slide = presentation.slides.add_slide(presentation.slide_layouts[TITLE])
    slide.shapes.title.text = "Über uns"
    slide.shapes.title.text_frame.paragraphs[0].runs[0].font.language_id = 1031
    presentation.core_properties.title = "PowerPoint-Präsentation"
    document = slides.read(saved(presentation), "x.pptx")
    assert (document.format, document.title, document.lang) == ("slides", "Über uns", "de")
    presentation.core_properties.title = "From the properties"
    assert slides.read(saved(presentation), "x.pptx").title == "From the properties"


def test_missing_parts_leave_the_rest_of_the_deck() -> None:
    presentation = deck()
    for text in ("one", "two", "three"):
        slide = presentation.slides.add_slide(presentation.slide_layouts[TITLE_ONLY])
        slide.shapes.title.text = text
    add_picture(slide.shapes, PICTURE, 1, 3)
    lost = (
        "ppt/slides/slide2.xml",
        "ppt/media/image1.png",
        "docProps/core.xml",
        "ppt/slideLayouts/slideLayout6.xml",
    )
    data = edited(saved(presentation), lambda name, content: None if name in lost else content)
    document = slides.read(data, "talks/deck.pptx")
    assert [(i.page, i.text or i.href) for i in document.items] == [
        (1, "one"),
        (3, "three"),
        (3, "talks/deck.pptx#/ppt/media/image1.png"),
    ]


def test_macro_template_show_and_strict_files_are_decks_too() -> None:
    presentation = deck()
    presentation.slides.add_slide(presentation.slide_layouts[TITLE_ONLY]).shapes.title.text = "words"
    data = saved(presentation)
    main = b"vnd.openxmlformats-officedocument.presentationml.presentation.main+xml"
    for other in (b"vnd.ms-powerpoint.presentation.macroEnabled.main+xml", b"x.slideshow.main+xml"):
        changed = edited(data, lambda _, content: content.replace(main, other))  # noqa: B023, called at once
        assert seen(slides.read(changed, "x.pptm")) == [("heading", "words")]
    strict = edited(
        data,
        lambda _, content: re.sub(
            rb"http://schemas.openxmlformats.org/(presentationml|drawingml|officeDocument)/2006/",
            rb"http://purl.oclc.org/ooxml/\1/",
            content,
        ),
    )
    assert b"purl.oclc.org/ooxml/presentationml/main" in zipfile.ZipFile(io.BytesIO(strict)).read(
        "ppt/slides/slide1.xml"
    )
    assert seen(slides.read(strict, "x.pptx")) == [("heading", "words")]


def test_files_that_are_no_deck_are_refused_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    presentation = deck()
    with pytest.raises(EmptyDocument):
        slides.read(saved(presentation), "x.pptx")
    presentation.slides.add_slide(presentation.slide_layouts[TITLE_ONLY]).shapes.title.text = "words"
    data = saved(presentation)
    container = archive._OLE_CONTAINER
    with pytest.raises(Encrypted, match="password"):
        slides.read(container + b"\0" * 99 + "EncryptedPackage".encode("utf-16-le"), "x.pptx")
    with pytest.raises(UnsupportedFormat, match="2007"):
        slides.read(container + b"\0" * 99, "x.ppt")
    for broken in (b"", b"PK\3\4 no archive", data[: len(data) // 2]):
        with pytest.raises(MalformedMarkup, match="zip"):
            slides.read(broken, "x.pptx")
    with pytest.raises(MalformedMarkup, match=r"slide1\.xml"):
        slides.read(edited(data, lambda n, c: c[:-9] if n.endswith("slide1.xml") else c), "x.pptx")
    with pytest.raises(MalformedMarkup, match="missing"):
        slides.read(edited(data, lambda n, c: None if n == "ppt/presentation.xml" else c), "x.pptx")
    bomb = b'<!DOCTYPE p [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;">]><p:sld xmlns:p="x">&b;</p:sld>'
    with pytest.raises(MalformedMarkup, match="document type"):
        slides.read(edited(data, lambda n, c: bomb if n.endswith("slide1.xml") else c), "x.pptx")
    monkeypatch.setattr(archive, "MAX_XML_BYTES", 1000)
    with pytest.raises(FileTooLarge, match="XML"):
        slides.read(data, "x.pptx")


def test_an_archive_that_unpacks_to_too_much_is_refused_before_it_is_unpacked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archived:
        archived.writestr("ppt/media/1.png", bytes(60 << 20))
        archived.writestr("ppt/media/2.png", bytes(60 << 20))
    monkeypatch.setattr(archive, "MAX_UNPACKED_BYTES", 100 << 20)
    assert len(buffer.getvalue()) < 1 << 20
    with pytest.raises(FileTooLarge, match="unpacked"):
        slides.read(buffer.getvalue(), "x.pptx")


def test_a_picture_shown_twice_or_cropped_keeps_the_bytes_of_its_file() -> None:
    presentation = deck()
    slide = presentation.slides.add_slide(presentation.slide_layouts[BLANK])
    add_picture(slide.shapes, PICTURE, 1, 1)
    add_picture(slide.shapes, PICTURE, 1, 4).crop_left = 0.5
    assert read(presentation) == [("image", "PICTURE"), ("image", "PICTURE")]


def test_reading_twice_gives_the_same_document() -> None:
    presentation = deck()
    slide = presentation.slides.add_slide(presentation.slide_layouts[BLANK])
    for number in range(20):
        add_text(slide.shapes, f"box {number}", number % 7, number % 3).rotation = number
    data = saved(presentation)
    assert slides.read(data, "x.pptx") == slides.read(data, "x.pptx")


# What is known of decks that others made: words of the items by (page, role), and how many items there are.
KNOWN = {
    "features/steps/test_files/act-props.pptm": (21, (1, "paragraph", "First")),
    "features/steps/test_files/cht-category-access.pptx": (3, (2, "table", "US / CA / SF | 4.3 | 2.4 | 2")),
    "features/steps/test_files/cht-chart-props.pptx": (4, (1, "table", "2002-01-05 | 32 | 12")),
    "features/steps/test_files/shp-movie-props.pptx": (1, (1, "figure", None)),
    "features/steps/test_files/tbl-cell.pptx": (4, (3, "table", "a | b | c\nd | e | f\ng | h | i")),
    "features/steps/test_files/ph-inherit-props.pptx": (4, (1, "list_item", "Body Text")),
    "features/steps/test_files/txt-fit-text.pptx": (
        1,
        (1, "paragraph", "The art and craft of designing typefaces"),
    ),
    "tests/test_files/test_slides.pptx": (7, (1, "table", "Cell text 1 | Cell text 2")),
    "tests/test_files/no-core-props.pptx": (2, (1, "heading", "Minimal Deck")),
    "tests/test_files/missing_rels_item.pptx": (2, (1, "paragraph", "Subtitle Text")),
}


@pytest.mark.slow
def test_decks_of_others_are_read_with_every_word_or_have_none() -> None:
    [root] = fetch.fetch("sdist:python-pptx")
    decks = sorted(path for path in root.rglob("*.ppt*") if "_scratch" not in path.parts)
    assert len(decks) >= 68
    for path in decks:
        said = shown = 0
        with zipfile.ZipFile(path) as archived:
            for name in archived.namelist():
                if re.fullmatch(r"ppt/slides/slide\d+\.xml", name):
                    xml = archived.read(name)
                    said += len(re.findall(rb"<a:t>[^<]*\S[^<]*</a:t>", xml))
                    shown += len(re.findall(rb"<p:pic>|c:chart ", xml))
        name = str(path.relative_to(root))
        try:
            document = slides.read(path.read_bytes(), name)
        except EmptyDocument:
            assert said == shown == 0, name
            continue
        if name in KNOWN:
            num_items, (page, role, words) = KNOWN[name]
            assert len(document.items) == num_items, name
            assert any(
                i.page == page and i.role == role and (words is None or words in (i.text or ""))
                for i in document.items
            ), name


@pytest.mark.slow
def test_the_sample_deck_of_iscc_is_read_in_full() -> None:
    [root] = fetch.fetch("sdist:iscc-samples")
    folder = root / "iscc_samples" / "files" / "text"
    document = slides.read((folder / "demo.pptx").read_bytes(), "demo.pptx")
    assert (document.title, document.lang, len(document.items)) == ("title from metadata", "en", 14)
    assert [i.page for i in document.items] == [1, 2, 2, 3, 3, 3, 3, 4, 4, 4, 5, 5, 5, 5]
    assert 950 < sum(len((i.text or "").split()) for i in document.items) < 1100
    with pytest.raises(UnsupportedFormat, match="2007"):
        slides.read((folder / "demo.ppt").read_bytes(), "demo.ppt")
