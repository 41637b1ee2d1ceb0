"""Drawings: what is drawn, how large, and which are refused because a part would be missing."""

import base64
import gzip

import numpy as np
import pytest
from PIL import Image

from datapipe import errors
from datapipe.decode import image, svg
from tests.datapipe.test_decode_image import LIMIT, encoded, png

HEAD = '<?xml version="1.0" encoding="UTF-8"?>\n<!-- a drawing -->\n'


def drawing(body: str, attributes: str = 'width="60" height="40"', head: str = HEAD) -> bytes:
    names = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
    return f"{head}<svg {names} {attributes}>{body}</svg>".encode()


def test_a_drawing_is_rendered_at_its_own_size_on_white() -> None:
    decoded = image.decode(drawing('<rect x="10" y="10" width="20" height="20" fill="#0a8020"/>'), LIMIT)
    seen = (decoded.mime, decoded.width, decoded.height, decoded.policy)
    assert seen == ("image/svg+xml", 60, 40, "svg=60x40 alpha=white")
    assert decoded.pixels.getpixel((20, 20)) == (0x0A, 0x80, 0x20)
    assert decoded.pixels.getpixel((50, 20)) == (255, 255, 255)


@pytest.mark.parametrize(
    ("attributes", "size"),
    [
        ('width="3cm" height="1in"', (113, 96)),
        ('width="228pt" height="171pt" viewBox="0 0 228 171"', (304, 228)),
        ('viewBox="0 0 30 20"', (30, 20)),
        ('width="60" viewBox="0,0,30,20"', (60, 40)),
        ('height="10px" viewBox="-5 -5 30 20"', (15, 10)),
        ('width="100%" height="100%" viewBox="0 0 24 24"', (24, 24)),
        ('width="40960" height="20480"', (2048, 1024)),
        ('width="0.4" height="5"', (1, 5)),
    ],
)
def test_the_size_is_that_a_browser_would_take(attributes: str, size: tuple[int, int]) -> None:
    decoded = image.decode(drawing('<circle r="9"/>', attributes), 10**8)
    assert (decoded.width, decoded.height) == size


def test_a_drawing_is_shrunk_to_the_pixel_limit() -> None:
    decoded = image.decode(drawing('<rect width="9" height="9"/>', 'width="2000" height="1000"'), 500_000)
    assert (decoded.width, decoded.height) == (1000, 500)


def test_text_is_drawn_in_the_fonts_that_come_along() -> None:
    blank = image.decode(drawing(""), LIMIT)
    for text in ("Word", "Größe — Ω Жук ∑", "&amp;"):
        for family in ("Arial", "serif", "monospace", "no such font"):
            body = f'<text x="2" y="25" font-size="16" font-family="{family}">{text}</text>'
            written = image.decode(drawing(body), LIMIT)
            assert (written.array < 128).sum() > 60, (text, family)
    assert blank.array.min() == 255


def test_zipped_drawings_entities_and_scripts_are_read_and_scripts_not_run() -> None:
    plain = drawing('<rect width="60" height="40" fill="#102030"/>')
    assert image.decode(gzip.compress(plain), LIMIT).pixels_id == image.decode(plain, LIMIT).pixels_id
    named = '<!DOCTYPE svg [<!ENTITY ink "#102030">]>\n'
    entity = drawing('<rect width="60" height="40" fill="&ink;"/>', head=named)
    assert image.decode(entity, LIMIT).pixels_id == image.decode(plain, LIMIT).pixels_id
    script = "<script>document.querySelector('rect').setAttribute('fill', 'red')</script>"
    scripted = drawing(f'<rect width="60" height="40" fill="#102030"/>{script}')
    assert image.decode(scripted, LIMIT).pixels_id == image.decode(plain, LIMIT).pixels_id


def test_an_embedded_picture_is_drawn() -> None:
    data = base64.b64encode(encoded(Image.new("RGB", (4, 4), (200, 30, 10)))).decode()
    place = 'width="60" height="40" preserveAspectRatio="none"'
    body = f'<image {place} xlink:href="data:image/png;base64,{data}"/>'
    assert image.decode(drawing(body), LIMIT).pixels.getpixel((30, 20)) == (200, 30, 10)


def test_html_in_a_drawing_may_stand_where_another_branch_is_drawn() -> None:
    html = (
        '<foreignObject width="9" height="9"><p xmlns="http://www.w3.org/1999/xhtml">Word</p></foreignObject>'
    )
    with pytest.raises(errors.UnsupportedMedium, match="foreignObject"):
        image.decode(drawing(html), LIMIT)
    both = image.decode(drawing(f'<switch>{html}<rect width="30" height="30"/></switch>'), LIMIT)
    assert both.array.min() == 0


BOMB = base64.b64encode(png(30_000, 30_000, b"")).decode()
USES = "".join(f'<g id="l{n}">' + f'<use href="#l{n - 1}"/>' * 10 + "</g>" for n in range(1, 9))
ENTITIES = (
    "<!DOCTYPE svg [<!ENTITY a0 'aaaaaaaaaa'>"
    + "".join(f"<!ENTITY a{n} '" + f"&a{n - 1};" * 10 + "'>" for n in range(1, 10))
    + "]>"
)


@pytest.mark.parametrize(
    ("data", "error", "message"),
    [
        (drawing('<image href="logo.png" width="9" height="9"/>'), errors.UnsupportedMedium, "logo.png"),
        (
            drawing('<image href="file:///etc/motd" width="9" height="9"/>'),
            errors.UnsupportedMedium,
            "etc/motd",
        ),
        (drawing('<image xlink:href="https://a.example/x.png"/>'), errors.UnsupportedMedium, "a.example"),
        (drawing('<filter><feImage href="x.png"/></filter>'), errors.UnsupportedMedium, "x.png"),
        (drawing("", head='<?xml-stylesheet href="a.css"?>'), errors.UnsupportedMedium, "a.css"),
        (drawing("<style>@import url(a.css);</style>"), errors.UnsupportedMedium, "style sheet"),
        (drawing('<text y="9">漢字</text>'), errors.UnsupportedMedium, "characters"),
        (drawing(f'<image href="data:image/png;base64,{BOMB}"/>'), errors.TooManyPixels, "900000000"),
        (drawing('<image href="data:image/png;base64,AAAA"/>'), errors.DamagedMedium, "cannot be read"),
        (drawing(f'<rect id="l0" width="9" height="9"/>{USES}'), errors.TooManyPixels, "repeats"),
        (drawing("<text>&a9;</text>", head=ENTITIES), errors.DamagedMedium, "XML"),
        (drawing("<g>" * 5000 + "</g>" * 5000), errors.DamagedMedium, "depth"),
        (drawing("<rect"), errors.DamagedMedium, "XML"),
        (drawing("", ""), errors.DamagedMedium, "no size"),
        (drawing("", 'width="-5" height="9"'), errors.DamagedMedium, "no size"),
        (b'<svg width="9" height="9"><rect width="5" height="5"/></svg>', errors.DamagedMedium, "namespace"),
        (gzip.compress(drawing("") + b" " * (svg.MAX_BYTES + 1)), errors.TooManyPixels, "unpacks"),
    ],
)
def test_what_cannot_be_drawn_whole_is_refused(data: bytes, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        image.decode(data, LIMIT)


def test_parts_that_use_themselves_end() -> None:
    body = '<g id="a"><use href="#b"/></g><g id="b"><use href="#a"/><rect width="60" height="40"/></g>'
    try:
        decoded = image.decode(drawing(body), LIMIT)
    except errors.DecodeError:
        return
    assert np.unique(decoded.array).size <= 3
