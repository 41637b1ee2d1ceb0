import base64

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datapipe.errors import EmptyDocument, NotText
from datapipe.sources import html
from datapipe.sources.items import RawDocument
from tests import make


def read(body: str, uri: str = "guide/page.html") -> RawDocument:
    return html.read(
        f"<!DOCTYPE html><html lang='en-GB'><head><title> A  page </title></head><body>{body}".encode(),
        uri,
    )


def seen(body: str, uri: str = "guide/page.html") -> list[tuple[str, str | None]]:
    """What a reader sees, in order: (role, text or href)."""
    return [(i.role, i.text if i.kind == "text" else i.href) for i in read(body, uri).items]


def test_title_language_and_blocks_come_in_reading_order() -> None:
    page = read(
        "<h1>Top</h1>loose <b>te</b>xt<p>One\n  two</p><ul><li>a</li><li><p>b</p><p>more b</p></li></ul>"
        "<dl><dt>term</dt><dd>meaning</dd></dl><pre>  x = 1\n\n  y</pre><blockquote>said</blockquote>"
    )
    assert (page.format, page.title, page.lang) == ("html", "A page", "en")
    assert [(i.role, i.text) for i in page.items] == [
        ("heading", "Top"),
        ("paragraph", "loose text"),
        ("paragraph", "One two"),
        ("list_item", "a"),
        ("list_item", "b"),
        ("paragraph", "more b"),
        ("list_item", "term"),
        ("paragraph", "meaning"),
        ("code", "  x = 1\n\n  y"),
        ("paragraph", "said"),
    ]


def test_navigation_scripts_and_hidden_parts_are_left_out() -> None:
    assert seen(
        "<nav>Menu</nav><header>Site</header><div class='navheader'>Prev <img src='p.png'></div>"
        "<script>var x</script><style>p{}</style><div hidden>h</div><p style='display: none'>n</p>"
        "<div class='toc'><a>Contents</a></div><h2>Kept<a class='headerlink'>¶</a></h2><template><p>t</p>"
        "</template><article><header><h1>Own head</h1></header><footer>Own foot</footer></article>"
        "<div class='navfooter'>Next</div><footer>Imprint</footer>"
    ) == [("heading", "Kept"), ("heading", "Own head"), ("paragraph", "Own foot")]


def test_page_header_that_holds_the_title_is_kept() -> None:
    assert seen("<header><h1>Title</h1></header><p>x</p>") == [("heading", "Title"), ("paragraph", "x")]


def test_html_figure_gives_picture_alt_and_caption() -> None:
    assert seen(
        "<p>Before.</p><figure><img src='a%20b.png?v=2' alt='A red ball'>"
        "<figcaption>Figure <i>1</i></figcaption>"
        "</figure><p>After.</p>"
    ) == [
        ("paragraph", "Before."),
        ("figure", "guide/a b.png"),
        ("alt", "A red ball"),
        ("caption", "Figure 1"),
        ("paragraph", "After."),
    ]


def test_docbook_figure_keeps_title_pictures_and_captions_in_order_without_repeating_alt() -> None:
    panel = (
        "<div class='mediaobject'><img src='{0}.png' alt='The “Blur” filter'>"
        "<div class='caption'><p>{1}</p></div></div>"
    )
    assert seen(
        "<div class='figure'><p class='title'><strong>Figure 3. The “Blur” filter</strong></p>"
        "<div class='figure-contents'>"
        + panel.format("a", "Original")
        + panel.format("b", "Blurred")
        + "</div></div>"
    ) == [
        ("caption", "Figure 3. The “Blur” filter"),
        ("figure", "guide/a.png"),
        ("caption", "Original"),
        ("figure", "guide/b.png"),
        ("caption", "Blurred"),
    ]


def test_asciidoc_image_block_gives_its_title_as_caption() -> None:
    assert seen(
        "<div class='imageblock'><div class='content'><img src='../x.png' alt='x'></div>"
        "<div class='title'>Figure 2. Board</div></div>"
    ) == [("figure", "x.png"), ("caption", "Figure 2. Board")]


def test_picture_inside_a_sentence_follows_it_and_its_alt_takes_its_place() -> None:
    assert seen("<p>Click the <img src='i.png' alt='gear'> button.</p>") == [
        ("paragraph", "Click the gear button."),
        ("figure", "guide/i.png"),
    ]


def test_picture_between_sentences_stays_between_them() -> None:
    assert seen("<p>First this.<br><img src='i.png'><br>Then that.</p>") == [
        ("paragraph", "First this."),
        ("figure", "guide/i.png"),
        ("paragraph", "Then that."),
    ]


def test_admonition_layout_tables_are_read_as_blocks() -> None:
    assert seen(
        "<div class='note'><table><tr><td rowspan='2'><img alt='[Note]' src='n.png'></td><th>Note</th></tr>"
        "<tr><td><p>One.</p><p>Two.</p></td></tr></table></div>"
    ) == [("figure", "guide/n.png"), ("paragraph", "Note"), ("paragraph", "One."), ("paragraph", "Two.")]


def test_data_table_gives_rows_and_pictures_after_their_row() -> None:
    assert seen(
        "<table><caption>Keys</caption><tr><th>Key</th><th>Does</th></tr><tr><td>F1</td><td><p>Help</p></td></tr>"
        "<tr><td></td><td><img src='k.png'>Save</td></tr><tr><td>F3</td><td>Find</td></tr></table>"
    ) == [
        ("caption", "Keys"),
        ("table", "Key | Does\nF1 | Help\nSave"),
        ("figure", "guide/k.png"),
        ("table", "F3 | Find"),
    ]


def test_nested_layout_tables_lose_no_cell() -> None:
    assert seen(
        "<table><tr><td>left<table><tr><td>a</td><td>b</td></tr></table></td><td>right</td></tr></table>"
    ) == [("paragraph", "left"), ("table", "a | b"), ("paragraph", "right")]


@pytest.mark.parametrize(
    ("tag", "expected"),
    [
        ("<img src='spacer.gif' data-src='real.jpg'>", "real.jpg"),
        ("<img src='data:image/gif;base64,R0lGODlhAQABAAAAACw=' data-lazy-src='real.jpg'>", "real.jpg"),
        ("<img src='small.jpg' srcset='small.jpg 320w, real.jpg 1280w,mid.jpg 640w'>", "real.jpg"),
        ("<img src='small.jpg' srcset='small.jpg, real.jpg 2x'>", "real.jpg"),
        ("<img srcset='a,b.jpg 1x, real.jpg 3x'>", "real.jpg"),
        (
            "<picture><source srcset='real.jpg 1200w' type='image/webp'><img src='small.jpg'></picture>",
            "real.jpg",
        ),
        (
            "<picture><source media='(max-width: 9em)' srcset='tiny.jpg'><img src='real.jpg'></picture>",
            "real.jpg",
        ),
        ("<img src='real.jpg' srcset='https://cdn.example/real.jpg 2x'>", "real.jpg"),
        ("<img src='blank.png'><noscript><img src='real.jpg'></noscript>", "real.jpg"),
        ("<img data-src='real.jpg'><noscript><img src='real.jpg'></noscript>", "real.jpg"),
    ],
)
def test_the_real_picture_wins(tag: str, expected: str) -> None:
    assert seen(tag, "page.html") == [("figure", expected)]


def test_inline_data_pictures_keep_their_bytes() -> None:
    picture = make.picture()
    (item,) = read(f"<img src='data:image/png;base64,{base64.b64encode(picture).decode()}'>").items
    assert (item.data, item.mime, item.href) == (picture, "image/png", None)


def test_remote_and_base_addresses_are_resolved() -> None:
    assert seen("<img src='https://example.org/a.png'><img src='//host/b.png'><img src='/top/c.png'>") == [
        ("figure", "https://example.org/a.png"),
        ("figure", "//host/b.png"),
        ("figure", "top/c.png"),
    ]
    page = html.read(b"<head><base href='../media/'></head><body><img src='a.png'>", "guide/page.html")
    assert [i.href for i in page.items] == ["media/a.png"]


def test_embedded_video_names_its_first_source_and_track() -> None:
    page = read(
        "<video><source src='v.webm'><source src='v.mp4'><track kind='captions' src='v.en.vtt'>none</video>"
    )
    assert [(i.kind, i.role, i.href) for i in page.items] == [
        ("video", "figure", "guide/v.webm"),
        ("text", "transcript", "guide/v.en.vtt"),
    ]


@pytest.mark.parametrize(
    ("encoding", "meta"),
    [
        ("utf-8", ""),
        ("utf-16", ""),
        ("cp1252", "<meta charset='iso-8859-1'>"),
        ("cp1252", ""),
        ("shift_jis", "<meta http-equiv='Content-Type' content='text/html; charset=Shift_JIS'>"),
        ("utf-8", "<meta charset='iso-8859-1'>"),
    ],
)
def test_declared_detected_and_wrongly_declared_encodings(encoding: str, meta: str) -> None:
    words = "日本語の文章です" if encoding == "shift_jis" else "Un café à côté, déjà vu"
    page = html.read(
        f"<html><head>{meta}</head><body><p>{words}</p></body></html>".encode(encoding), "p.html"
    )
    assert [i.text for i in page.items] == [words]


def test_self_closed_elements_of_xhtml_hide_nothing() -> None:
    page = html.read(
        b"<?xml version='1.0'?><html xmlns='http://www.w3.org/1999/xhtml'><head><title/>"
        b"<script src='x.js'/></head><body><a id='top'/><p>Text</p></body></html>",
        "p.html",
    )
    assert [i.text for i in page.items] == ["Text"]


def test_pages_nested_deeper_than_the_interpreter_are_read() -> None:
    assert seen("<div>" * 3000 + "deep" + "</div>" * 3000 + "<p>after</p>") == [
        ("paragraph", "deep"),
        ("paragraph", "after"),
    ]


def test_empty_pages_and_binaries_are_refused() -> None:
    with pytest.raises(EmptyDocument):
        read("<nav>only navigation</nav>")
    with pytest.raises(NotText, match="zero bytes"):
        html.read(make.picture(), "picture.html")


_words = st.text("abc XY.é日", min_size=1, max_size=12)
_nodes = st.recursive(
    _words,
    lambda inner: st.tuples(
        st.sampled_from(["p", "div", "ul", "li", "table", "tr", "td", "b", "figure", "figcaption", "pre"]),
        st.lists(inner, max_size=4),
    ),
    max_leaves=15,
)


def _markup(node: str | tuple[str, list]) -> str:
    return node if isinstance(node, str) else f"<{node[0]}>{''.join(map(_markup, node[1]))}</{node[0]}>"


@settings(deadline=None, max_examples=60)
@given(st.lists(_nodes, min_size=1, max_size=5))
def test_no_character_is_lost_or_invented_whatever_the_tree(nodes: list) -> None:
    body = "".join(map(_markup, nodes))
    reference = html.LexborHTMLParser(f"<body>{body}").body
    assert reference is not None
    try:
        items = html.read(f"<body>{body}".encode(), "p.html").items
    except EmptyDocument:
        items = ()
    found = "".join("".join(i.text or "" for i in items).replace("|", "").split())
    assert found == "".join(reference.text().split())
