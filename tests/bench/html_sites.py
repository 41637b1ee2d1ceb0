"""Pages as sites really write them: menus, advertisements, cookie notices and footers around what is read.

Owns these frames. Their classes and shapes are those of news sites, WordPress, Sphinx, MediaWiki, shops and
forums, of pages from the nineties, and of frameworks whose classes tell nothing. The menu of the last is not
marked as one: whoever reads the page by its markup cannot know.
"""

# ruff: noqa: E501  # markup stays in one piece

from tests.bench.html_pages import VARIANTS, Maker, Page, document, page


def site_pages() -> list[Page]:
    """Return the pages like those of sites."""
    kinds = (
        news, blog, nineties, framework, documentation, wiki, shop, forum, recipe, mobile, photo_essay, magazine,
    )  # fmt: skip
    return [page(kind, "site", number) for kind in kinds for number in range(VARIANTS)]


COOKIES = (
    "<div id='onetrust-consent-sdk'><div class='otPcTab'><p>We and our 734 partners store cookies.</p>"
    "<button>Accept all</button></div></div>",
    "<div class='cookie-banner' role='region'><p>This site uses cookies to make it better for you.</p>"
    "<a href='/privacy'>Learn more</a><button>OK</button></div>",
    "<div class='cc-window cc-floating' role='dialog' aria-label='cookieconsent'><span>We use cookies.</span>"
    "<a class='cc-btn'>Got it!</a></div>",
    "<div class='fixed bottom-0 p-4 bg-white'><p>By going on you agree that we keep small files with you.</p>"
    "<button class='px-2'>Fine</button></div>",
)


def news(m: Maker, number: int) -> str:
    menu = f"<header class='site-header'><a href='/'><img src='/logo.svg' alt='The Daily'></a><nav><ul>{m.links(8)}"
    menu += "</ul></nav><form role='search'><input name='q'><button>Search</button></form></header>"
    head = f"<h1>{m.saw(m.phrase())}</h1><p class='standfirst'>{m.saw(m.words(1))}</p>"
    byline = f"<div class='byline'>{m.maybe('By Jane Doe, ' + m.random.choice(('London', 'Paris')))}</div>"
    share = "<div class='share-tools'><a href='#'>Share on Facebook</a> <a href='#'>Share on X</a> <a>Email</a></div>"
    ad = "<div class='ad-slot' data-ad-slot='7'><span>Advertisement</span><img src='/ads/banner.jpg'></div>"
    body = m.p() + m.figure() + m.p() + ad + m.article(4) + m.p()
    related = f"<section class='related-stories'><h2>Read next</h2><ul>{m.links(4)}</ul></section>"
    aside = f"<aside class='most-read'><h2>Most read</h2><ol>{m.links(5)}</ol></aside>"
    newsletter = (
        "<div class='newsletter-signup'><h3>Get our newsletter</h3><p>The best stories, every day.</p></div>"
    )
    foot = f"<footer><ul>{m.links(6)}</ul><p>© 2024 The Daily. All rights reserved.</p></footer>"
    article = f"<article>{head}{byline}{share}{body}</article>"
    return document(
        f"{COOKIES[number]}{menu}<main>{article}</main>{related}{aside}{newsletter if number == 3 else ''}{foot}"
    )


def blog(m: Maker, number: int) -> str:
    menu = "<header id='masthead' class='site-header'><div class='site-branding'><p class='site-title'>"
    menu += "<a href='/' rel='home'>A blog</a></p></div><nav id='site-navigation' class='main-navigation'>"
    menu += f"<ul id='primary-menu' class='menu'>{m.links(6, '<li class=menu-item><a href=/x>{0}</a></li>')}</ul></nav></header>"
    post = "<article class='post-12 post type-post hentry'><header class='entry-header'>"
    post += (
        f"<h1 class='entry-title'>{m.saw(m.phrase())}</h1><div class='entry-meta'><span class='posted-on'>"
    )
    post += f"{m.maybe('Posted on May 12, 2024')}</span></div></header><div class='entry-content'>{m.p()}"
    address = m.picture()
    stem = address.removesuffix(".jpg")
    post += (
        f"<div class='wp-caption aligncenter'><img src='{stem}-300x200.jpg' srcset='{stem}-300x200.jpg 300w, "
    )
    post += f"{stem}-768x512.jpg 768w, {address} 1024w'><p class='wp-caption-text'>{m.saw(m.sentence())}</p></div>"
    post += m.article(4) + m.p()
    post += (
        "<div class='sharedaddy sd-sharing-enabled'><h3>Share this:</h3><ul><li><a href='#'>Tweet</a></li>"
    )
    post += "<li><a href='#'>Print</a></li></ul></div><div id='jp-relatedposts' class='jp-relatedposts'>"
    post += f"<h3>Related</h3>{m.links(3, '<p><a href=/x>{0}</a></p>')}</div></div>"
    post += f"<footer class='entry-footer'><span class='tags-links'>{m.maybe('Tagged travel, boats')}</span></footer></article>"
    comments = (
        f"<div id='comments'><h2>{m.maybe('2 thoughts on this')}</h2><p>{m.maybe(m.sentence())}</p></div>"
    )
    side = f"<aside id='secondary' class='widget-area'><section class='widget'><h2>Recent</h2><ul>{m.links(5)}</ul>"
    side += f"</section><section class='widget'><h2>Archives</h2><ul>{m.links(6)}</ul></section></aside>"
    foot = "<footer id='colophon' class='site-footer'><div class='site-info'>Proudly powered by WordPress</div></footer>"
    return document(
        f"<div id='page' class='site'><a class='skip-link screen-reader-text' href='#content'>Skip to content</a>"
        f"{menu}<div id='content'><main id='main'>{post}{comments}</main>{side}</div>{foot}</div>{COOKIES[number]}"
    )


def nineties(m: Maker, number: int) -> str:
    menu = "".join(f"<a href='{i}.htm'><font size=2>{m.phrase()}</font></a><br>\n" for i in range(7))
    text = f"<h1>{m.saw(m.phrase())}</h1><p>{m.saw(m.words(4))}<p>{m.saw(m.words(3))}"
    text += f"<center><img src='{m.picture()}' width=400><br><small>{m.saw(m.sentence())}</small></center>"
    text += f"<p>{m.saw(m.words(3))}<h3>{m.saw(m.phrase())}</h3><p>{m.saw(m.words(4))}<ul><li>{m.saw(m.sentence())}"
    text += f"<li>{m.saw(m.sentence())}</ul><p>{m.saw(m.words(3))}"
    bar = "<tr><td colspan=2 bgcolor=navy><img src='/images/header.gif' width=600></td></tr>" * (number % 2)
    foot = (
        f"<hr><center><font size=1>{m.maybe('Last updated 5/12/1998. You are visitor 1042.')}</font></center>"
    )
    return (
        f"<HTML><HEAD><TITLE>Old</TITLE></HEAD><BODY BGCOLOR=#ffffff><TABLE WIDTH=100% BORDER=0>{bar}<TR>"
        f"<TD WIDTH=140 VALIGN=TOP BGCOLOR=#cccccc>{menu}</TD><TD VALIGN=TOP>{text}</TD></TR></TABLE>{foot}</BODY></HTML>"
    )


def framework(m: Maker, number: int) -> str:
    if number % 2:
        menu = f"<div class='flex p-4 gap-2 shadow'>{m.links(6, '<a class=text-sm href=/x>{0}</a> ')}</div>"
        foot = f"<div class='grid mt-12 text-xs'>{m.links(4, '<a href=/x>{0}</a> ')}<span>© 2024 Example Inc.</span></div>"
    else:
        menu = f"<div class='Header_root__x7f2a'><div class='Nav_list__b91'>{m.links(6, '<a href=/x>{0}</a>')}</div></div>"
        foot = f"<footer class='Footer_root__c33'>{m.links(4, '<a href=/x>{0}</a>')}<span>© 2024 Example</span></footer>"
    body = f"<div class='Hero__a1'><h1>{m.saw(m.phrase())}</h1></div>"
    for _ in range(5):
        body += f"<div class='Block__q9'><div>{m.saw(m.words(3))}</div></div>"
        body += f"<div class='Image__z2'><span><img src='data:image/gif;base64,R0lGODlhAQABAAAAACw=' data-src='{m.picture()}'>"
        body += "</span></div>"
    body += f"<div class='Block__q9'><div>{m.saw(m.words(3))}</div></div>"
    script = (
        '<script id=\'__NEXT_DATA__\' type=\'application/json\'>{"props": {"text": "not content"}}</script>'
    )
    return document(
        f"<div id='__next'>{menu}<div class='Page__w3'>{body}</div>{foot}</div>{script}{COOKIES[number]}"
    )


def documentation(m: Maker, number: int) -> str:
    crumbs = "<div role='navigation' aria-label='breadcrumbs'><ul class='wy-breadcrumbs'><li><a href='/'>Docs</a></li>"
    crumbs += "<li>Guide</li></ul></div>"
    side = (
        f"<nav class='wy-nav-side'><div class='wy-menu wy-menu-vertical'><ul>{m.links(12)}</ul></div></nav>"
    )
    code = "\n".join(f"client.{m.random.choice(['open', 'read', 'close'])}({i})" for i in range(3))
    body = f"<h1>{m.saw(m.phrase())}<a class='headerlink' href='#a' title='Permalink'>¶</a></h1>{m.p()}"
    body += (
        f"<div class='highlight-python'><div class='highlight'><pre>{m.saw(code)}</pre></div></div>{m.p()}"
    )
    body += f"<div class='admonition note'><p class='admonition-title'>{m.maybe('Note')}</p>{m.p(1)}</div>"
    body += f"<section id='x'><h2>{m.saw(m.phrase())}<a class='headerlink'>¶</a></h2>{m.p()}{m.table(3)}{m.figure()}"
    body += (
        f"<dl class='py function'><dt>{m.saw('client.open(path, mode)')}</dt><dd>{m.p(1)}</dd></dl></section>"
    )
    foot = "<footer><div class='rst-footer-buttons'><a href='p' rel='prev'>Previous</a> <a href='n'>Next</a></div>"
    foot += "<div role='contentinfo'><p>© Copyright 2024, The Authors. Built with Sphinx.</p></div></footer>"
    return document(
        f"{side}<section class='wy-nav-content-wrap'>{crumbs}<div role='main' class='document'>{body}</div>{foot}</section>"
    )


def wiki(m: Maker, number: int) -> str:
    box = "<table class='infobox'><tbody><tr><th colspan='2'>" + m.saw(m.phrase()) + "</th></tr>"
    box += f"<tr><td colspan='2'><a href='/File'><img src='{m.picture()}' width='250'></a></td></tr>"
    for _ in range(3):
        name, value = m.phrase(), m.phrase()
        m.saw(f"{name} {value}")
        box += f"<tr><th>{name}</th><td>{value}</td></tr>"
    box += "</tbody></table>"
    title = f"<h1 id='firstHeading'>{m.saw(m.phrase())}</h1>"
    m.items.insert(0, m.items.pop())  # the title stands before the box
    body = f"{box}{m.p()}{m.p()}<div id='toc' class='toc' role='navigation'><h2>Contents</h2><ul>{m.links(4)}</ul></div>"
    for _ in range(3):
        body += f"<h2><span class='mw-headline'>{m.saw(m.phrase())}</span><span class='mw-editsection'>"
        body += f"[<a href='#'>edit</a>]</span></h2>{m.p()}<div class='thumb tright'><div class='thumbinner'>"
        body += f"<a href='/File'><img src='{m.picture()}'></a><div class='thumbcaption'>{m.saw(m.sentence())}</div></div></div>{m.p()}"
    navbox = f"<div class='navbox' role='navigation'><ul>{m.links(8)}</ul></div>"
    cats = f"<div id='catlinks' class='catlinks'><a href='/C'>Categories</a>: <ul>{m.links(3)}</ul></div>"
    side = f"<div id='mw-navigation'><h2>Navigation menu</h2><div id='mw-panel'><ul>{m.links(9)}</ul></div></div>"
    foot = "<footer id='footer' role='contentinfo'><ul><li>This page was last edited in May 2024.</li></ul></footer>"
    return document(
        f"<div id='content' role='main'>{title}<div id='bodyContent'><div class='mw-parser-output'>{body}{navbox}"
        f"</div>{cats}</div></div>{side}{foot}"
    )


def shop(m: Maker, number: int) -> str:
    menu = f"<header role='banner'><div class='top-bar'>{m.links(3, '<a href=/x>{0}</a>')}</div><nav><ul>{m.links(8)}</ul></nav></header>"
    crumbs = "<ol class='breadcrumb'><li><a href='/'>Home</a></li><li><a href='/b'>Boats</a></li></ol>"
    gallery = "".join(f"<li><img data-src='{m.picture()}' src='/img/placeholder.png'></li>" for _ in range(3))
    body = (
        f"<div class='product-gallery'><ul>{gallery}</ul></div><h1 itemprop='name'>{m.saw(m.phrase())}</h1>"
    )
    price = f"{m.random.randrange(10, 99)}.00 €"
    body += (
        f"<p class='price'>{m.maybe(price)}</p><form><select><option>S</option><option>M</option></select>"
    )
    body += (
        f"<button>Add to cart</button></form><div class='description'>{m.p()}{m.list(3)}</div>{m.table(4)}"
    )
    body += f"<h2>{m.maybe('Customer reviews')}</h2><div class='review'><p>{m.maybe(m.words(2))}</p></div>"
    related = "<section class='related-products'><h2>Customers also bought</h2>" + "".join(
        f"<div class='card'><a href='/p'><img src='{m.picture(shown=False)}'><span>{m.phrase()}</span></a></div>"
        for _ in range(4)
    )
    foot = f"<div id='footer'><ul>{m.links(8)}</ul><p>Payment by card or invoice. © 2024 Shop.</p></div>"
    return document(f"{COOKIES[number]}{menu}{crumbs}<main>{body}</main>{related}</section>{foot}")


def forum(m: Maker, number: int) -> str:
    menu = f"<div id='page-header'><div class='navbar'><ul class='linklist'>{m.links(5)}</ul></div></div>"
    body = f"<h2 class='topic-title'><a href='#'>{m.saw(m.phrase())}</a></h2>"
    for post in range(4):
        who = m.random.choice(("skipper", "gardener", "anna_k"))
        body += (
            f"<div class='post' id='p{post}'><dl class='postprofile'><dt><a href='/u'>{m.maybe(who)}</a></dt>"
        )
        body += f"<dd>{m.maybe('Posts: 512')}</dd></dl><div class='postbody'><div class='content'>{m.saw(m.words(3))}"
        body += f"<br><br>{m.saw(m.words(2))}</div>"
        if post == 1:
            body += f"<img src='{m.picture()}' class='postimage'>"
        body += f"<div class='signature'>{m.maybe('Fair winds.')}</div></div></div>"
    pages = f"<div class='pagination'><ul>{m.links(4, '<li><a href=/p>{0}</a></li>')}</ul></div>"
    foot = "<div id='page-footer' class='page-footer'>Powered by a forum © 2024</div>"
    return document(f"<div id='wrap'>{menu}<div id='page-body'>{body}{pages}</div>{foot}</div>")


def recipe(m: Maker, number: int) -> str:
    ad = "<div class='adthrive-ad adthrive-content'><iframe src='https://ads.example/x' title='Advertisement'></iframe></div>"
    body = f"<h1>{m.saw(m.phrase())}</h1><a class='jump-to-recipe button' href='#r'>{m.maybe('Jump to recipe')}</a>"
    for _ in range(4):
        body += m.p()
        address = m.picture()
        body += f"<p><img class='aligncenter lazyload' data-src='{address}' "
        body += "src=\"data:image/svg+xml,%3Csvg%20viewBox='0%200%20800%20600'%3E%3C/svg%3E\">"
        body += f"<noscript><img src='{address}'></noscript></p>{ad}"
    body += f"<div class='recipe-card' id='r'><h2>{m.saw(m.phrase())}</h2>{m.list(5)}{m.list(4, 'ol')}</div>"
    side = f"<aside class='sidebar'><h3>Hi, I am Ann</h3><p>Welcome.</p><ul>{m.links(4)}</ul></aside>"
    menu = f"<nav class='nav-primary'><ul>{m.links(6)}</ul></nav>"
    foot = f"<footer class='site-footer'><p>© 2024</p><ul>{m.links(4)}</ul></footer>"
    return document(
        f"{menu}<main class='content'><article>{body}</article></main>{side}{foot}{COOKIES[number]}"
    )


def mobile(m: Maker, number: int) -> str:
    head = "<script async src='https://cdn.ampproject.org/v0.js'></script><style amp-boilerplate>body{visibility:hidden}</style>"
    menu = f"<header><a href='/'>Site</a></header><amp-sidebar id='s' layout='nodisplay'><ul>{m.links(6)}</ul></amp-sidebar>"
    key = "".join(m.random.choice("abcdefghijkXYZ0123456789_-") for _ in range(11))
    body = f"<h1>{m.saw(m.phrase())}</h1>{m.p()}<amp-img src='{m.picture()}' width='800' height='600'></amp-img>{m.p()}"
    m.items.append(("video", f"https://www.youtube.com/watch?v={key}"))
    body += f"<amp-youtube data-videoid='{key}' width='480' height='270'></amp-youtube>{m.p()}"
    body += "<amp-ad width='300' height='250' type='x'><div placeholder>Sponsored</div></amp-ad>" + m.article(
        3
    )
    return document(f"{menu}<main><article>{body}</article></main><footer><p>© 2024 Site</p></footer>", head)


def photo_essay(m: Maker, number: int) -> str:
    body = f"<h1>{m.saw(m.phrase())}</h1>{m.p()}"
    for _ in range(8):
        address = m.picture()
        stem = address.removesuffix(".jpg")
        body += (
            f"<figure class='full-bleed'><picture><source media='(max-width: 700px)' srcset='{stem}-m.jpg'>"
        )
        body += f"<source srcset='{stem}-1000.jpg 1000w, {address} 2000w, {stem}-4000.jpg 4000w'>"
        body += f"<img src='{stem}-600.jpg' loading='lazy'></picture><figcaption>{m.saw(m.sentence())}</figcaption></figure>"
    menu = f"<nav><ul>{m.links(5)}</ul></nav>"
    return document(f"{menu}<article>{body}</article><footer>{m.links(3, '<a href=/x>{0}</a> ')}</footer>")


def magazine(m: Maker, number: int) -> str:
    menu = f"<div id='mainMenu'><ul>{m.links(7)}</ul></div>"
    body = f"<div id='article'><h1>{m.saw(m.phrase())}</h1><p class='lead'>{m.saw(m.words(2))}</p>"
    body += m.p() + m.figure() + m.p() + f"<aside class='pullquote'>{m.saw(m.sentence())}</aside>" + m.p()
    body += f"<div class='box'><h3>{m.saw(m.phrase())}</h3>{m.p()}</div>"
    body += f"{m.p()}<p style='display:none'>Hidden words for machines.</p></div>"
    popup = "<div class='modal' hidden><h2>Subscribe now</h2><p>Read everything for one euro.</p></div>"
    side = f"<div id='sidebar'><h4>Latest</h4><ul>{m.links(5)}</ul><div class='ads'><img src='/ads/box.gif'></div></div>"
    foot = f"<div class='footer'><ul>{m.links(5)}</ul><p>© Magazine</p></div>"
    return document(f"{popup}{menu}{body}{side}{foot}{COOKIES[(number + 1) % 4]}")
