import pytest

from datapipe.errors import MalformedMarkup
from datapipe.sources import markup
from datapipe.sources.items import RawDocument


def seen(page: RawDocument) -> list[tuple[str, str | None]]:
    return [(i.role, i.text if i.kind == "text" else i.href) for i in page.items]


def mallard(body: str) -> bytes:
    return (
        f'<page xmlns="{markup.MALLARD}" xmlns:if="http://projectmallard.org/if/1.0/" id="x" xml:lang="de">'
        "<info><desc>About</desc><credit><name>N</name></credit></info>"
        f"<title>The <em>page</em></title>{body}</page>"
    ).encode()


TTML = """<media type="video" mime="video/webm" src="figures/v.webm"><p>Demo</p>
<tt:tt xmlns:tt="http://www.w3.org/ns/ttml"><tt:body>
<tt:div begin="1s" end="3s"><tt:p>Type <input>x</input>.</tt:p></tt:div>
<tt:div begin="3s" end="9s"><tt:p>Click
 it.</tt:p></tt:div></tt:body></tt:tt></media>"""
STRETCHES = [
    ("video", None, 0.0, 1.0),
    ("video", None, 1.0, 3.0),
    ("text", "Type x.", 1.0, 3.0),
    ("video", None, 3.0, 9.0),
    ("text", "Click it.", 3.0, 9.0),
    ("video", None, 9.0, None),
]


def test_mallard_page_is_read_in_order() -> None:
    page = markup.read_mallard(
        mallard(
            '<p>Press <keyseq><key>Ctrl</key><key>F</key></keyseq>, see <link xref="net#wifi"/>.</p>'
            "<comment><p>todo</p></comment>"
            '<links type="topic"><title>More</title></links><section id="s"><title>Part</title>'
            "<steps><item><p>One.</p>"
            "<note><p>Mind.</p></note></item></steps><code>\na = 1\n  b\n</code>"
            "<p>Run <code>ls</code> now.</p>"
            '<figure><desc>Fig</desc><media src="figures/a.png"><p>An alt text</p></media></figure></section>'
        ),
        "help/x.page",
    )
    assert (page.format, page.title, page.lang) == ("mallard", "The page", "de")
    assert seen(page) == [
        ("heading", "The page"),
        ("paragraph", "Press Ctrl+F, see wifi."),
        ("heading", "Part"),
        ("list_item", "One."),
        ("paragraph", "Mind."),
        ("code", "a = 1\n  b"),
        ("paragraph", "Run ls now."),
        ("caption", "Fig"),
        ("figure", "help/figures/a.png"),
        ("alt", "An alt text"),
    ]


def test_mallard_conditions_take_one_branch() -> None:
    page = markup.read_mallard(
        mallard(
            '<if:choose><if:when test="platform:classic"><p>classic</p></if:when>'
            '<if:when test="!platform:classic">'
            "<p>modern</p></if:when><if:else><p>else</p></if:else></if:choose>"
            '<p if:test="action:install">button</p>'
            '<p if:test="!target:mobile">desktop</p>'
            '<if:choose><if:when test="platform:x"><p>x</p></if:when><p>rest</p>'
            "</if:choose>"
        ),
        "x.page",
    )
    assert seen(page)[1:] == [("paragraph", "modern"), ("paragraph", "desktop"), ("paragraph", "rest")]


def test_mallard_table_gives_title_rows_and_pictures() -> None:
    page = markup.read_mallard(
        mallard(
            "<table><title>Keys</title><tr><td><p>A</p></td><td><p>first</p></td></tr>"
            '<tr><td><p><media src="b.png"/></p></td>'
            '<td><p>second</p></td></tr></table><media src="last.png"/>'
        ),
        "x.page",
    )
    assert seen(page)[1:] == [
        ("caption", "Keys"),
        ("table", "A | first\nsecond"),
        ("figure", "b.png"),
        ("figure", "last.png"),
    ]


@pytest.mark.parametrize(
    "body",
    [
        f"<section><title>Demo</title>{TTML}</section>",
        f"<!-- TODO: update video\n<section><title>Demo</title>{TTML}</section>\n-->",
    ],
)
def test_captioned_video_stays_in_place_also_where_it_is_commented_out(body: str) -> None:
    page = markup.read_mallard(mallard(f"{body}<p>After.</p>"), "help/x.page")
    assert [i.text for i in page.items[:2]] == ["The page", "Demo"]
    assert [(i.kind, i.text, i.t_start_s, i.t_end_s) for i in page.items[2:-1]] == STRETCHES
    assert {i.href for i in page.items if i.kind == "video"} == {"help/figures/v.webm"}
    assert page.items[-1].text == "After."


def test_other_comments_are_left_out() -> None:
    page = markup.read_mallard(mallard("<!-- <p>old</p> --><!-- <media broken ttml> --><p>new</p>"), "x.page")
    assert seen(page)[1:] == [("paragraph", "new")]


def test_malformed_mallard_is_refused_and_external_entities_are_not_read() -> None:
    with pytest.raises(MalformedMarkup, match="line 1"):
        markup.read_mallard(b"<page><p></page>", "x.page")
    with pytest.raises(MalformedMarkup):
        markup.read_mallard(
            b'<!DOCTYPE page [<!ENTITY e SYSTEM "file:///etc/passwd">]>'
            b'<page xmlns="http://projectmallard.org/1.0/"><p>x &e;</p></page>',
            "x.page",
        )


def test_rst_keeps_pictures_captions_code_and_the_text_of_unknown_roles() -> None:
    page = markup.read_rst(
        b"""Title
=====

Intro with :ref:`the link <target>` and :py:class:`~a.B`, not ``:x:`y```.

.. toctree::

   other

Part
----

.. figure:: img/a.png
   :alt: An alternative

   The caption

.. code-block:: python

   x = 1

- item one

.. image:: b.png

.. include:: /etc/passwd

====  ====
A     B
====  ====
1     2
====  ====
""",
        "docs/x.rst",
    )
    assert (page.format, page.title) == ("rst", "Title")
    assert seen(page) == [
        ("heading", "Title"),
        ("paragraph", "Intro with the link and a.B, not :x:`y`."),
        ("heading", "Part"),
        ("figure", "docs/img/a.png"),
        ("alt", "An alternative"),
        ("caption", "The caption"),
        ("code", "x = 1"),
        ("list_item", "item one"),
        ("figure", "docs/b.png"),
        ("table", "A | B\n1 | 2"),
    ]


def test_markdown_keeps_order_tables_front_matter_and_embedded_html() -> None:
    page = markup.read_markdown(
        b"""---
title: "From the front"
lang: pt-BR
---
# Head

Some *text*
on two lines.

![A cat on a mat](cat.png "hover")

<p align="center"><img data-src="dog.png" src="spacer.gif"></p>

```sh
ls -l
```

| a | b |
|---|---|
| 1 | 2 |
""",
        "x.md",
    )
    assert (page.format, page.title, page.lang) == ("markdown", "From the front", "pt")
    assert seen(page) == [
        ("heading", "Head"),
        ("paragraph", "Some text on two lines."),
        ("figure", "cat.png"),
        ("alt", "A cat on a mat"),
        ("figure", "dog.png"),
        ("code", "ls -l"),
        ("table", "a | b\n1 | 2"),
    ]
