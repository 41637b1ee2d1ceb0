import contextlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datapipe.errors import MalformedMarkup, ReadError
from datapipe.sources import mallard as mallard_pages
from datapipe.sources import markdown, rst
from datapipe.sources.items import RawDocument


def seen(page: RawDocument) -> list[tuple[str, str | None]]:
    return [(i.role, i.text if i.kind == "text" else i.href) for i in page.items]


def mallard(body: str) -> bytes:
    return (
        f'<page xmlns="{mallard_pages.MALLARD}" xmlns:if="http://projectmallard.org/if/1.0/" id="x" '
        'xml:lang="de">'
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
    page = mallard_pages.read(
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
    page = mallard_pages.read(
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
    page = mallard_pages.read(
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
    page = mallard_pages.read(mallard(f"{body}<p>After.</p>"), "help/x.page")
    assert [i.text for i in page.items[:2]] == ["The page", "Demo"]
    assert [(i.kind, i.text, i.t_start_s, i.t_end_s) for i in page.items[2:-1]] == STRETCHES
    assert {i.href for i in page.items if i.kind == "video"} == {"help/figures/v.webm"}
    assert page.items[-1].text == "After."


def test_other_comments_are_left_out() -> None:
    page = mallard_pages.read(mallard("<!-- <p>old</p> --><!-- <media broken ttml> --><p>new</p>"), "x.page")
    assert seen(page)[1:] == [("paragraph", "new")]


def test_malformed_mallard_is_refused_and_external_entities_are_not_read() -> None:
    with pytest.raises(MalformedMarkup, match="line 1"):
        mallard_pages.read(b"<page><p></page>", "x.page")
    with pytest.raises(MalformedMarkup):
        mallard_pages.read(
            b'<!DOCTYPE page [<!ENTITY e SYSTEM "file:///etc/passwd">]>'
            b'<page xmlns="http://projectmallard.org/1.0/"><p>x &e;</p></page>',
            "x.page",
        )


def test_rst_keeps_pictures_captions_code_and_the_words_of_unknown_roles() -> None:
    page = rst.read(
        b"""Title
=====

Intro with :ref:`the link <target>` and :py:class:`~a.B`, not ``:x:`y```.

.. toctree::

   other

Part
----

.. figure:: img/a.png
   :alt: An alternative
   :unknown: option
   :width: nonsense

   The caption

.. code-block:: python
   :linenos:
   :caption: Sphinx only

   x = 1

- item one

.. image:: b.png

.. include:: /etc/passwd

.. |gear| image:: gear.png

Press |gear| and :menuselection:`File --> Open`, so :math:`a^2` [1]_.

.. [1] A note.

.. video:: v.webm

.. youtube:: dQw4w9WgXcQ

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
        ("paragraph", "Intro with the link and B, not :x:`y`."),
        ("heading", "Part"),
        ("figure", "docs/img/a.png"),
        ("alt", "An alternative"),
        ("caption", "The caption"),
        ("code", "x = 1"),
        ("list_item", "item one"),
        ("figure", "docs/b.png"),
        ("paragraph", "Press and File → Open, so $a^2$ [1]."),
        ("figure", "docs/gear.png"),
        ("paragraph", "[1] A note."),
        ("figure", "docs/v.webm"),
        ("figure", "https://www.youtube.com/watch?v=dQw4w9WgXcQ"),
        ("table", "A | B\n1 | 2"),
    ]


def test_rst_of_sphinx_keeps_what_docutils_would_leave_out() -> None:
    page = rst.read(
        b"""
.. versionadded:: 2.0
   The reason.

.. py:function:: load(path, mode)
   :noindex:

   Loads a :class:`file`.

   .. tabs::

      .. tab:: Linux

         Use apt.

.. automodule:: a.b
   :members:

=====  =====
broken table
""",
        "x.rst",
    )
    assert seen(page) == [
        ("paragraph", "Added in version 2.0 The reason."),
        ("paragraph", "load(path, mode)"),
        ("paragraph", "Loads a file."),
        ("paragraph", "Linux"),
        ("paragraph", "Use apt."),
        ("code", "=====  =====\nbroken table"),
    ]


@pytest.mark.parametrize(
    "directive",
    [
        ".. include:: {}",
        ".. raw:: html\n   :file: {}",
        ".. csv-table::\n   :file: {}",
        ".. image:: {}\n   :loading: embed",
        ".. figure:: {}\n   :loading: embed",
        ".. literalinclude:: {}",
    ],
)
def test_no_directive_reads_a_file_of_this_machine(directive: str, tmp_path: Path) -> None:
    secret = tmp_path / "secret.svg"
    secret.write_text(
        "<svg xmlns='http://www.w3.org/2000/svg' width='300' height='300'><text>pass</text></svg>"
    )
    page = rst.read(f"Text.\n\n{directive.format(secret)}\n".encode(), "x.rst")
    assert not any("pass" in (item.text or "") or item.data for item in page.items)


def test_markdown_keeps_order_tables_front_matter_and_embedded_html() -> None:
    page = markdown.read(
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


def test_markdown_dialects() -> None:
    page = markdown.read(
        b"""+++
title = "From TOML"
language = "de"
+++
## Head {#anchor}

A note[^1], a formula $a_b$ and $c_d$, not $5 or $6. ![][cat]{width=50%}

> [!WARNING]
> Mind.

![[sub/photo.png|300]]

See [[Page|the page]] and {func}`~a.open`.

Term
: Meaning

<video src="clip.webm"></video>

```{figure} fig.png
:name: x

Caption *here*
```

:::{tip} Look here
Down.
:::

```{eval-rst}
.. note:: From RST.
```

```{code-block} python
:linenos:

x = 1
```

$$
e = m
$$

[cat]: cat.png
[^1]: http://example.org
""",
        "x.md",
    )
    assert (page.title, page.lang) == ("From TOML", "de")
    assert seen(page) == [
        ("heading", "Head"),
        ("paragraph", "A note[1], a formula $a_b$ and $c_d$, not $5 or $6."),
        ("figure", "cat.png"),
        ("paragraph", "Mind."),
        ("figure", "sub/photo.png"),
        ("paragraph", "See the page and open."),
        ("list_item", "Term"),
        ("paragraph", "Meaning"),
        ("figure", "clip.webm"),
        ("figure", "fig.png"),
        ("caption", "Caption here"),
        ("paragraph", "Look here"),
        ("paragraph", "Down."),
        ("paragraph", "Note"),
        ("paragraph", "From RST."),
        ("code", "x = 1"),
        ("paragraph", "$$e = m$$"),
        ("list_item", "http://example.org"),
    ]


def test_nesting_without_end_is_read_or_refused() -> None:
    for read, data in [
        (markdown.read, b"> " * 3000 + b"deep"),
        (markdown.read, b"".join(b" " * i + b"- x\n" for i in range(500))),
        (markdown.read, b"[" * 2000 + b"*" * 2000),
        (rst.read, b"\n\n".join(b" " * i + b"x" for i in range(400))),
        (rst.read, b"*" * 1000 + b"`" * 1000),
        (mallard_pages.read, mallard("<section><title>x</title>" * 250 + "</section>" * 250)),
        (mallard_pages.read, mallard("<note><p>x</p>" * 120 + "</note>" * 120)),
    ]:
        with contextlib.suppress(ReadError):
            assert read(data, "x").items


_PIECES = (
    ".. image:: a\n|.. foo::\n|   :bar: 1\n|   x\n|=====\n|:a:`b`|`c`_|[^1]|[^1]: x|```{figure} a\n|```\n|"
    ":::\n|$a$|![x](y)|<video>|> |- |# |+---+\n|*|**|.. |\n\n|\n|    |x|[[a]]|"
    "{eval-rst}|---\n|\0|<p>|</page>|<page"
)
_bytes = st.one_of(st.sampled_from([piece.encode() for piece in _PIECES.split("|")]), st.binary(max_size=6))


@settings(max_examples=40)
@given(st.lists(_bytes, max_size=30).map(b"".join))
def test_any_bytes_are_a_document_or_refused(data: bytes) -> None:
    for read in (rst.read, markdown.read, mallard_pages.read):
        with contextlib.suppress(ReadError):
            for item in read(data, "x").items:
                (item.text or item.href or "").encode()
