import base64

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datapipe.decode import image
from datapipe.errors import EmptyDocument, NotText, ReadError
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
    return shown(read(body, uri))


def shown(page: RawDocument) -> list[tuple[str, str | None]]:
    return [(i.role, i.text if i.kind == "text" else i.href) for i in page.items if i.mask is None]


def masked(body: str) -> list[tuple[str | None, str | None]]:
    """What stays in the document but leaves the stream: (reason, text or href)."""
    return [(i.mask, i.text or i.href) for i in read(body).items if i.mask is not None]


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


def test_scripts_and_signs_leave_no_trace() -> None:
    page = read(
        "<script>var x</script><style>p{}</style><template><p>t</p></template><select><option>o</select>"
        "<h2>Kept<a class='headerlink'>¶</a></h2><svg><text>drawn</text></svg><button>Buy</button>"
        "<h3><button>Question?</button></h3>"
    )
    assert [(i.text, i.mask) for i in page.items] == [("Kept", None), ("Question?", None)]


@pytest.mark.parametrize(
    ("markup", "reason"),
    [
        ("<nav>Menu</nav>", "navigation"),
        ("<div role='navigation'>Menu</div>", "navigation"),
        ("<div class='navheader'>Menu</div>", "navigation"),
        ("<div class='toc'>Menu</div>", "navigation"),
        ("<ul id='mainMenu'><li><a href='a'>Me</a><li><a href='b'>nu</a></ul>", "navigation"),
        ("<header>Menu</header>", "header"),
        ("<div role='banner'>Menu</div>", "header"),
        ("<div id='masthead'>Menu</div>", "header"),
        ("<footer>Menu</footer>", "footer"),
        ("<div class='site-footer'>Menu</div>", "footer"),
        ("<div itemtype='https://schema.org/WPFooter'>Menu</div>", "footer"),
        ("<aside role='complementary'>Menu</aside>", "sidebar"),
        ("<aside><a href='a'>Me</a> <a href='b'>nu</a></aside>", "sidebar"),
        ("<div role='search'>Menu</div>", "search"),
        ("<div class='sharedaddy'>Menu</div>", "sharing"),
        ("<section class='RecircMostPopular-x7'>Menu</section>", "related"),
        ("<div class='newsletter-signup'>Menu</div>", "sign_up"),
        ("<p><a href=a>M</a> <a href=b>e</a> <a href=c>n</a> <a href=d>u</a></p>", "link_list"),
        ("<div id='cookie-notice'>Menu</div>", "cookie_notice"),
        ("<div id='onetrust-consent-sdk'>Menu</div>", "cookie_notice"),
        ("<div role='dialog' aria-label='Cookie settings'>Menu</div>", "cookie_notice"),
        ("<div class='ad-slot-top'>Menu</div>", "advertisement"),
        ("<div data-ad-slot='1'>Menu</div>", "advertisement"),
        ("<div hidden>Menu</div>", "hidden"),
        ("<p style='color: red; display: none'>Menu</p>", "hidden"),
        ("<div aria-hidden='true'>Menu</div>", "hidden"),
        ("<dialog>Menu</dialog>", "hidden"),
        ("<noscript><p>Menu</p></noscript>", "noscript"),
    ],
)
def test_what_the_markup_says_is_no_content_stays_under_a_mask(markup: str, reason: str) -> None:
    body = f"<p>Before.</p>{markup}<p>After.</p>"
    assert seen(body) == [("paragraph", "Before."), ("paragraph", "After.")]
    assert {found for found, _ in masked(body)} == {reason}
    assert "".join(text or "" for _, text in masked(body)).replace(" ", "") == "Menu"


@pytest.mark.parametrize(
    "markup",
    [
        "<div class='sidebar'>A box that belongs to the text.</div>",
        "<aside class='note'>A note.</aside>",
        "<article><header>By someone</header><p>x</p><footer>Written in May</footer></article>",
        "<div class='related'>One <a href='a'>link</a> in a long sentence about what is related.</div>",
        "<div hidden='until-found'>Found by searching.</div>",
        "<div class='cookie-recipes'>Butter and sugar.</div>",
        "<div class='address'>At home.</div>",
        "<dialog open>Shown.</dialog>",
        "<details><summary>More</summary><p>Folded.</p></details>",
        "<ul><li><a href='a'>One</a>: what it is for</li><li><a href='b'>Two</a>: and another</li>"
        "<li><a href='c'>Three</a>: with words</li><li><a href='d'>Four</a>: beside it</li></ul>",
        "<div><pre><a href=a>import</a> <a href=b>a</a>, <a href=c>b</a>, <a href=d>c</a></pre></div>",
        "<div><h1><a href='a'>A</a></h1><a href='b'>B</a><a href='c'>C</a><a href='d'>D</a></div>",
        "<div><a href='1.jpg'><img src='1.jpg'></a><a href='2.jpg'><img src='2.jpg'></a>"
        "<a href='3.jpg'><img src='3.jpg'></a><a href='4.jpg'><img src='4.jpg'></a></div>",
    ],
)
def test_what_only_sounds_like_furniture_is_content(markup: str) -> None:
    assert masked(markup) == []


@pytest.mark.parametrize(
    "markup",
    [
        "<nav>Menu<article>" + "<p>A long text without links. </p>" * 20 + "</article>",
        "<div class='cookie-banner-shown'><main><p>The page.</p></main></div>",
        "<div class='ads'><h1>Title</h1><p>The page.</p></div>",
        "<nav>" + "<p>A long text without links. </p>" * 100,
    ],
)
def test_names_and_broken_markup_never_take_the_page_itself(markup: str) -> None:
    assert masked(markup) == []


TEXT = "<p>A sentence of the article itself, with some length.</p>" * 5


def test_what_is_outside_of_the_one_main_element_is_masked() -> None:
    body = f"<p>Banner.</p><main><h1>Title</h1>{TEXT}</main><p>Imprint.</p>"
    assert masked(body) == [("outside_main", "Banner."), ("outside_main", "Imprint.")]
    assert masked(f"<p>Banner.</p><main>{TEXT}</main><main>{TEXT}</main>") == []
    assert masked(f"<main><p>Search</p></main>{TEXT}") == []


def test_what_is_outside_of_the_body_of_an_article_is_masked_but_not_its_title() -> None:
    body = (
        f"<p>Banner.</p><h1>Title</h1><img src='lead.jpg'><div class='entry-content'>{TEXT}</div><p>Next.</p>"
    )
    assert masked(body) == [("outside_body", "Banner."), ("outside_body", "Next.")]
    assert seen(body)[:2] == [("heading", "Title"), ("figure", "guide/lead.jpg")]
    assert masked(f"<div itemprop='articleBody'>{TEXT}</div><p>Next.</p>") == [("outside_body", "Next.")]
    assert masked(f"<div class='post-body'>{TEXT}</div>" * 2 + "<p>Next.</p>") == []


def test_cards_that_lead_to_articles_are_no_articles() -> None:
    card = "<article><a href='x'><img src='t.jpg'></a><h3><a href='x'>Another story</a></h3></article>"
    assert {reason for reason, _ in masked(f"{TEXT}<div>{card * 4}</div>")} == {"link_list"}


def test_a_hidden_part_of_a_line_does_not_cut_the_line() -> None:
    body = "<p>One <span style='display:none'>secret</span>two.</p><p>Three.</p>"
    assert seen(body) == [("paragraph", "One two."), ("paragraph", "Three.")]
    assert masked(body) == [("hidden", "secret")]


def test_a_page_for_browsers_without_scripts_only_is_read() -> None:
    assert seen("<noscript><p>All of it.</p></noscript>") == [("paragraph", "All of it.")]


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


SPACER = "data:image/gif;base64,R0lGODlhAQABAAAAACw="
BLANK_SVG = "data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 3 2'%3E%3C/svg%3E"


@pytest.mark.parametrize(
    "tag",
    [
        "<img src='/spacer.gif' data-src='real.jpg'>",
        f"<img src='{SPACER}' data-lazy-src='real.jpg'>",
        f"<img src=\"{BLANK_SVG}\" data-original='real.jpg'>",
        f"<img src='{SPACER}' srcset='{SPACER} 1w' data-srcset='small.jpg 10w, real.jpg 20w'>",
        "<img src='small.jpg' data-src='real.jpg'>",
        "<img src='loading.svg' data-vendor-image='real.jpg'>",
        "<img src='small.jpg' srcset='small.jpg 320w, real.jpg 1280w,mid.jpg 640w'>",
        "<img src='small.jpg' srcset='real.jpg 1600w, huge.jpg 6000w, mid.jpg 640w'>",
        "<img src='small.jpg' srcset='real.jpg 4000w, huge.jpg 6000w'>",
        "<img src='small.jpg' srcset='small.jpg, real.jpg 2x'>",
        "<img srcset='a,b.jpg 1x, real.jpg 3x'>",
        "<img srcset='a b.jpg 300w,\n real.jpg 900w'>",
        "<picture><source srcset='real.jpg 1200w' type='image/webp'><img src='small.jpg'></picture>",
        "<picture><source srcset='x' type='image/jxl'><source srcset='real.jpg'><img src='s.jpg'></picture>",
        "<picture><source media='(max-width: 9em)' srcset='tiny.jpg'><img src='real.jpg'></picture>",
        "<picture><source media='(min-width: 60em)' srcset='real.jpg'><img src='small.jpg'></picture>",
        "<picture><source media='(prefers-color-scheme: dark)' srcset='d.png'><img src='real.jpg'></picture>",
        f"<picture><source srcset='{SPACER}' data-srcset='real.jpg'><img src='{SPACER}'></picture>",
        "<picture><source srcset='x.svg' type='image/svg+xml'><img src='real.jpg'></picture>",
        "<img src='real.jpg' srcset='https://cdn.example/real.jpg 2x'>",
        "<img src='blank.png'><noscript><img src='real.jpg'></noscript>",
        "<img data-src='real.jpg'><noscript><img src='real.jpg'></noscript>",
        "<a href='x'><span><img data-src='real.jpg'></span></a> <noscript><img src='real.jpg'></noscript>",
        "<noscript><img src='real.jpg'></noscript><img class='lazy' src='blank.gif' data-src='real.jpg'>",
        "<picture><img data-src='s.jpg'></picture><noscript><img srcset='real.jpg 90w, s.jpg 9w'></noscript>",
        "<noscript><img src='real.jpg'></noscript>",
        "<amp-img src='real.jpg' width='40' height='30'></amp-img>",
        "<object data='real.jpg' type='image/jpeg'>No picture.</object>",
    ],
)
def test_the_real_picture_is_taken_once(tag: str) -> None:
    assert seen(tag, "page.html") == [("figure", "real.jpg")]


def test_pictures_that_show_nothing_are_masked() -> None:
    assert masked(
        "<p>x<img src='t.png' width='1' height='1'><img src='/img/spacer.gif'>"
        "<img src='i.png' aria-hidden='true'></p>"
    ) == [
        ("tracking_pixel", "guide/t.png"),
        ("placeholder", "img/spacer.gif"),
        ("hidden", "guide/i.png"),
    ]
    (item,) = read(f"<img src='{SPACER}'>").items
    assert (item.mask, item.mime) == ("placeholder", "image/gif")


def test_inline_drawings_are_pictures_where_they_are_large_or_in_a_figure() -> None:
    def svg(size: str) -> str:
        return f"<svg {size} viewBox='0 0 9 9'><title>A dot</title><path d='M1 1h2'/></svg>"

    page = read(f"<p>Sign {svg('')}</p>{svg('width=300 height=200')}<figure>{svg('')}</figure>")
    assert [(i.text, i.mime) for i in page.items] == [
        ("Sign", None),
        (None, "image/svg+xml"),
        ("A dot", None),
        (None, "image/svg+xml"),
        ("A dot", None),
    ]
    decoded = image.decode(page.items[1].data or b"", max_pixels=10**6)
    assert (decoded.width, decoded.height) == (300, 200)


def test_pictures_of_signs_are_their_signs() -> None:
    assert seen("<p>Fine <img class='emoji' alt='👍' src='u.png'>!</p>") == [("paragraph", "Fine 👍!")]


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
    for base, expected in [
        ("../media/", "media/a.png"),
        ("https://cdn.example/x/", "https://cdn.example/x/a.png"),
        ("", "guide/a.png"),
    ]:
        page = html.read(f"<head><base href='{base}'><body><img src='a.png'>".encode(), "guide/page.html")
        assert [i.href for i in page.items] == [expected]


def test_on_a_page_of_the_web_every_address_is_a_url_and_none_is_nearer() -> None:
    page = html.read(
        b"<img src='s.jpg' srcset='https://cdn.example/l.jpg 2x'><img src='b.jpg'><img src='//h/c.jpg'>",
        "http://example.org/a/b.html",
    )
    assert [i.href for i in page.items] == [
        "https://cdn.example/l.jpg",
        "http://example.org/a/b.jpg",
        "http://h/c.jpg",
    ]
    assert html.read(b"x<img src='http://[bad'>", "http://example.org/").items[0].text == "x"


def test_embedded_video_names_its_first_source_and_track() -> None:
    page = read(
        "<video aria-label='A dog runs'><source src='v.m3u8'><source src='v.webm'><source src='v.mp4'>"
        "<track kind='chapters' src='c.vtt'><track src='v.fr.vtt' srclang='fr'>"
        "<track kind='captions' src='v.en.vtt' srclang='en'>none</video>"
    )
    assert [(i.kind, i.role, i.href or i.text) for i in page.items] == [
        ("video", "figure", "guide/v.webm"),
        ("text", "transcript", "guide/v.en.vtt"),
        ("text", "alt", "A dog runs"),
    ]


def test_a_video_out_of_reach_shows_its_poster_first() -> None:
    assert seen("<video poster='p.jpg' src='https://cdn.example/v.mp4'></video>") == [
        ("figure", "guide/p.jpg"),
        ("figure", "https://cdn.example/v.mp4"),
    ]
    assert seen("<video poster='p.jpg' data-src='v.mp4'></video>") == [("figure", "guide/v.mp4")]
    assert seen("<video poster='p.jpg'></video>") == [("figure", "guide/p.jpg")]


@pytest.mark.parametrize(
    "markup",
    [
        "<iframe src='https://www.youtube.com/embed/dQw4w9WgXcQ?rel=0&amp;start=5'></iframe>",
        "<iframe src='about:blank' data-src='//www.youtube-nocookie.com/embed/dQw4w9WgXcQ'></iframe>",
        "<lite-youtube videoid='dQw4w9WgXcQ'></lite-youtube>",
        "<amp-youtube data-videoid='dQw4w9WgXcQ'></amp-youtube>",
        "<object><param name='movie' value='x'><embed src='http://www.youtube.com/v/dQw4w9WgXcQ&hl=en'></object>",
    ],
)
def test_a_player_of_a_site_is_its_video(markup: str) -> None:
    assert seen(markup) == [("figure", "https://www.youtube.com/watch?v=dQw4w9WgXcQ")]
    (video,) = read(markup).items
    assert video.kind == "video"


def test_other_players_frames_and_sound() -> None:
    assert seen(
        "<iframe src='https://player.vimeo.com/video/123' title='A talk'></iframe>"
        "<iframe src='//player.bilibili.com/player.html?aid=1'></iframe><iframe src='v.mp4'></iframe>"
        "<iframe srcdoc='&lt;p&gt;Inside&lt;/p&gt;'></iframe>"
    ) == [
        ("figure", "https://vimeo.com/123"),
        ("alt", "A talk"),
        ("figure", "https://player.bilibili.com/player.html?aid=1"),
        ("figure", "guide/v.mp4"),
        ("paragraph", "Inside"),
    ]
    assert masked(
        "<p>x <audio src='a.mp3'>no</audio><iframe src='https://maps.example/?q=1' title='Map'></iframe>"
        "<iframe src='https://t.example/ns.html' width='0' height='0'></iframe></p>"
    ) == [("audio", "a.mp3"), ("frame", "Map")]


def test_formulas_are_the_tex_their_author_wrote() -> None:
    tex = "<annotation encoding='application/x-tex'>x^2</annotation>"
    for markup, expected in [
        (f"<math><semantics><msup><mi>x</mi><mn>2</mn></msup>{tex}</semantics></math>", "$x^2$"),
        ("<math alttext='x^{2}' display='block'><mi>x</mi></math>", "$$x^{2}$$"),
        ("<math><mfrac><mn>1</mn><msqrt><mi>x</mi></msqrt></mfrac></math>", r"$\frac{1}{\sqrt{x}}$"),
        (
            f"<span class='katex'><span class='katex-mathml'><math>{tex}</math></span>"
            "<span class='katex-html' aria-hidden='true'>x2</span></span>",
            "$x^2$",
        ),
        (
            "<span class='MathJax_Preview'>x2</span><span class='MathJax'>x2</span>"
            "<script type='math/tex; mode=display'>x^2</script>",
            "$$x^2$$",
        ),
        (
            f"<span class='mwe-math-element'><span style='display: none'><math>{tex}</math></span>"
            "<img alt='x^2' src='f.svg'></span>",
            "$x^2$",
        ),
        (r"<img class='latex' src='latex.php' alt='\sqrt{x}'>", r"$\sqrt{x}$"),
    ]:
        assert [i.text for i in read(f"<p>So {markup} holds.</p>").items] == [f"So {expected} holds."]


def test_indices_quotes_ruby_and_line_breaks() -> None:
    assert seen(
        "<p>2<sup>64</sup> H<sub>2</sub>O <q>so</q><sup><a href='#n'>1</a></sup></p>"
        "<p><ruby>漢<rp>(</rp><rt>かん</rt><rp>)</rp>字<rt>じ</rt></ruby>です</p>"
        "<p>Road 1<br>Town<br><br>Next.<br> <br/>Last.</p><pre>a<br>b<br><br>c</pre>"
    ) == [
        ("paragraph", "2⁶⁴ H₂O “so”1"),
        ("paragraph", "漢字(かんじ)です"),
        ("paragraph", "Road 1\nTown"),
        ("paragraph", "Next."),
        ("paragraph", "Last."),
        ("code", "a\nb\n\nc"),
    ]


def test_line_numbers_are_no_code() -> None:
    assert seen(
        "<table class='highlighttable'><tr><td class='linenos'><pre>1\n2</pre></td>"
        "<td class='code'><div class='highlight'><pre>a\nb</pre></div></td></tr></table>"
    ) == [("code", "a\nb")]


def test_spans_keep_the_columns_of_a_table() -> None:
    assert seen(
        "<table><tr><th rowspan='2'>Name</th><th colspan='2'>Size</th></tr><tr><th>w</th><th>h</th></tr>"
        "<tr><td>a</td><td>1</td><td>2</td></tr></table>"
    ) == [("table", "Name | Size | \n | w | h\na | 1 | 2")]


def test_tables_that_lay_a_page_out_are_read_cell_by_cell() -> None:
    words = "A long text that fills the main column of a page from the nineties. " * 8
    assert seen(
        f"<table><tr><td>Left</td><td>{words}<br><br>Second.<br><img src='p.gif'></td></tr></table>"
        "<table role='presentation'><tr><th>a</th><td>b</td></tr></table>"
    ) == [
        ("paragraph", "Left"),
        ("paragraph", words.strip()),
        ("paragraph", "Second."),
        ("figure", "guide/p.gif"),
        ("paragraph", "a"),
        ("paragraph", "b"),
    ]


@pytest.mark.parametrize(
    ("encoding", "meta", "charset"),
    [
        ("utf-8", "", None),
        ("utf-8-sig", "<meta charset='windows-1251'>", None),
        ("utf-16", "", None),
        ("utf-16-le", "", None),
        ("cp1252", "<meta charset='iso-8859-1'>", None),
        ("cp1252", "<meta charset='utf-8'>", "utf-8"),
        ("cp1252", "", None),
        ("cp1252", "", "no-such-charset"),
        ("utf-8", "<meta charset='iso-8859-1'>", "iso-8859-1"),
        ("shift_jis", "<meta http-equiv='Content-Type' content='text/html; charset=Shift_JIS'>", None),
        ("euc_jp", "<meta charset='iso-8859-1'>", "euc-jp"),
        ("gb18030", "<meta charset='gb2312'>", "iso-8859-1"),
        ("cp949", "", "ks_c_5601-1987"),
        ("koi8-r", "", None),
        ("koi8-r", "<?xml encoding='koi8-r'?>", None),
    ],
)
def test_encodings_declared_by_page_or_transport_rightly_or_wrongly(
    encoding: str, meta: str, charset: str | None
) -> None:
    words = {
        "s": "日本語の文章です",
        "e": "日本語の文章です",
        "g": "这是中文的网页",
        "k": "Все счастливые семьи",
    }
    text = "한국어 문장입니다" if encoding == "cp949" else words.get(encoding[0], "Un café à côté, déjà vu")
    data = f"<html><head>{meta}</head><body><p>{text}</p></body></html>".encode(encoding)
    assert [i.text for i in html.read(data, "p.html", charset).items] == [text]


def test_self_closed_elements_of_xhtml_hide_nothing() -> None:
    page = html.read(
        b"<?xml version='1.0'?><html xmlns='http://www.w3.org/1999/xhtml'><head><title/>"
        b"<script src='x.js'/></head><body><a id='top'/><p>Text</p><p><![CDATA[a < b]]></p></body></html>",
        "p.html",
    )
    assert [i.text for i in page.items] == ["Text", "a < b"]


def test_frames_leave_what_is_there_for_browsers_without() -> None:
    frames = "<html><frameset><frame src='menu.html'><frame src='main.html'>{}</frameset></html>"
    page = html.read(frames.format("<noframes><body><p>Old.</p></noframes>").encode(), "p.html")
    assert [i.text for i in page.items] == ["Old."]
    with pytest.raises(EmptyDocument, match=r"menu\.html, main\.html"):
        html.read(frames.format("").encode(), "p.html")


@pytest.mark.parametrize(
    "body",
    [
        "<div>" * 10_000 + "deep" + "</div>" * 10_000 + "<p>after</p>",
        "<ul><li>" * 5_000 + "deep" + "</li></ul>" * 5_000 + "<p>after</p>",
        "<table><tr><td>" * 2_000 + "deep" + "</table>" * 2_000 + "<p>after",
        "<b><i>" * 5_000 + "deep<p>after</p>",
        "<p>"
        + "".join(f"<font color={i}>" for i in range(3_000))
        + "deep</p>"
        + "<p></p>" * 3_000
        + "<p>after",
        "<select>"
        + "<option>x" * 20_000
        + "</select>deep<p "
        + " ".join(f"a{i}" for i in range(20_000))
        + ">after",
    ],
)
def test_markup_without_end_is_read_in_linear_time(body: str) -> None:
    assert [i.text for i in read(body).items] == ["deep", "after"]


def test_a_long_line_a_huge_table_and_many_pictures_are_read() -> None:
    sentence = "The same words again. "
    assert len(seen("<p>" + sentence * 50_000)[0][1] or "") == 50_000 * len(sentence) - 1
    ((role, table),) = seen("<table>" + "<tr><td>a<td>b" * 4_000 + "</table>")
    assert (role, (table or "").count("\n")) == ("table", 3_999)
    assert len(seen("<p>" + "<img src='a.png'>" * 4_000)) == 4_000


def test_zero_bytes_and_broken_markup_lose_nothing() -> None:
    page = html.read(
        b"<p>On\0e <b>two <i>three</b> four</p><p>fi<ve <a href='x>six</a>" + b"<p>x" * 99, "p.html"
    )
    assert page.items[0].text == "One two three four"


def test_empty_pages_and_binaries_are_refused() -> None:
    with pytest.raises(EmptyDocument):
        read("<script>only()</script>")
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


@settings(max_examples=60)
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


_PIECES = (
    "<p>|</p>|<div class=toc>|</div>|<table><tr><td rowspan=9>|</table>|<img src=|data:image/gif;base64,R0|"
    " srcset='a 1w, b'|>|<noscript>|</noscript>|<nav>|</nav>|<math><mfrac>|</math>|<video><source src=v>|"
    "<iframe src=//youtu.be/|<ruby>a<rt>b|<pre>|<br>|<figure>|</figure>|<svg>|<base href=//[>|<!--|-->|&#0;|"
    "&#xd800;|<sup>2</sup>|<dialog>|<frameset>|<?xml version='1.0'?>|<![CDATA[|\0|x "
)
_pieces = st.sampled_from([*(piece.encode() for piece in _PIECES.split("|")), b"\xff", b"\xe9"])


@settings(max_examples=150)
@given(
    st.lists(st.one_of(_pieces, st.binary(max_size=8)), max_size=40).map(b"".join),
    st.sampled_from(["p.html", "p.xhtml", "http://example.org/p"]),
    st.sampled_from([None, "utf-8", "utf-16", "iso-2022-jp", "\udcff"]),
)
def test_any_bytes_are_a_document_or_refused(data: bytes, uri: str, charset: str | None) -> None:
    try:
        page = html.read(data, uri, charset)
    except ReadError:
        return
    for item in page.items:
        assert (item.text is None) != (item.href is None and item.data is None)
        (item.text or item.href or "").encode()
