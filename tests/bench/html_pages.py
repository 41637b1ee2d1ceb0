"""Pages made by code for the benchmark of HTML, each with the items that a careful reader would list.

Owns the words, the record of what was written, and the pages that show one feature of HTML each. Pages like
those of real sites are in `html_sites`. The expected list has every block of text (a row of a table is one),
every picture by its real address, and every video; what a reader would leave out (menus, advertisements) is
not in it, and what could be argued about (an author's line, tags, comments) counts neither way.
"""

# ruff: noqa: E501  # markup stays in one piece

import base64
import dataclasses
import hashlib
import random
from collections.abc import Callable

from tests import make

URL = "https://site.example/2024/05/page.html"
VARIANTS = 4  # of each kind of page

_ADJECTIVES = (
    "quiet narrow bright early wooden distant careful frozen northern hollow steady golden broken gentle heavy "
    "hidden modern patient rapid silver"
)
_NOUNS = (
    "river harbour engine teacher garden window market bridge letter mountain sailor kitchen forest camera village "
    "museum captain library orchard station"
)
_VERBS = (
    "follows repairs remembers crosses paints measures describes carries watches builds leaves finds opens teaches "
    "moves collects"
)
_PLACES = "Lisbon Oslo Nairobi Quito Kyoto Tallinn Cork Ghent Izmir Porto Turku Perth"
ADJECTIVES, NOUNS, VERBS, PLACES = (s.split() for s in (_ADJECTIVES, _NOUNS, _VERBS, _PLACES))


@dataclasses.dataclass(frozen=True)
class Page:
    """A page and what is on it: pairs of `text`, `image` or `video` and the text or address."""

    name: str
    group: str
    data: bytes
    items: tuple[tuple[str, str], ...]
    optional: frozenset[str]


class Maker:
    """Writes parts of a page and keeps the list of what a reader would see."""

    def __init__(self, seed: str) -> None:
        self.random = random.Random(seed)
        self.items: list[tuple[str, str]] = []
        self.optional: set[str] = set()
        self.num_pictures = 0

    def sentence(self) -> str:
        pick = self.random.choice
        return self.random.choice(
            (
                f"The {pick(ADJECTIVES)} {pick(NOUNS)} {pick(VERBS)} the {pick(NOUNS)} near {pick(PLACES)}.",
                f"In {pick(PLACES)}, a {pick(NOUNS)} {pick(VERBS)} every {pick(ADJECTIVES)} {pick(NOUNS)} in sight.",
                f"Nobody in the {pick(NOUNS)} {pick(VERBS)} a {pick(ADJECTIVES)} {pick(NOUNS)} like this one.",
                f"Since {self.random.randrange(1890, 2020)} the {pick(NOUNS)} of {pick(PLACES)} {pick(VERBS)} its "
                f"{pick(ADJECTIVES)} {pick(NOUNS)}, whatever the {pick(NOUNS)} says.",
            )
        )

    def words(self, number: int) -> str:
        return " ".join(self.sentence() for _ in range(number))

    def phrase(self) -> str:
        pick = self.random.choice
        return f"{pick(ADJECTIVES).title()} {pick(NOUNS)} of {pick(PLACES)} {self.random.randrange(100, 999)}"

    def saw(self, text: str) -> str:
        """Return a text, which a reader sees here."""
        self.items.append(("text", text))
        return text

    def maybe(self, text: str) -> str:
        """Return a text that may be listed or not."""
        self.optional.add(text)
        return text

    def h(self, level: int = 2) -> str:
        return f"<h{level}>{self.saw(self.phrase())}</h{level}>\n"

    def p(self, sentences: int | None = None) -> str:
        return f"<p>{self.saw(self.words(sentences or self.random.randrange(2, 5)))}</p>\n"

    def links(self, number: int = 5, item: str = "<li><a href='/{0}'>{0}</a></li>") -> str:
        """Return links that lead elsewhere, which no reader would list."""
        return "".join(item.format(self.phrase()) for _ in range(number))

    def picture(self, shown: bool = True) -> str:
        """Return the address of a new picture, which a reader sees here."""
        self.num_pictures += 1
        noun = self.random.choice(NOUNS)
        address = f"/media/{noun}-{self.random.randrange(10**6):06d}.jpg"
        if shown:
            self.items.append(("image", address))
        return address

    def img(self, attributes: str = "width='800' height='600'") -> str:
        return f"<img src='{self.picture()}' {attributes}>\n"

    def figure(self) -> str:
        return f"<figure>{self.img()}<figcaption>{self.saw(self.sentence())}</figcaption></figure>\n"

    def list(self, number: int = 3, tag: str = "ul") -> str:
        items = "".join(f"<li>{self.saw(self.sentence())}</li>\n" for _ in range(number))
        return f"<{tag}>{items}</{tag}>\n"

    def table(self, rows: int = 3) -> str:
        def row(tag: str) -> str:
            cells = [self.phrase() for _ in range(3)]
            self.saw(" ".join(cells))
            return "<tr>" + "".join(f"<{tag}>{cell}</{tag}>" for cell in cells) + "</tr>\n"

        return "<table>" + row("th") + "".join(row("td") for _ in range(rows)) + "</table>\n"

    def article(self, parts: int = 5) -> str:
        """Return prose with headings, lists and figures among it."""
        kinds: list[Callable[[], str]] = [self.p, self.p, self.figure, self.list, self.h]
        return "".join(self.random.choice(kinds)() + self.p() for _ in range(parts))


def document(body: str, head: str = "", lang: str = "en") -> str:
    return (
        f"<!DOCTYPE html>\n<html lang='{lang}'><head><meta charset='utf-8'>{head}<title>A page</title>"
        f"<style>p {{ margin: 1em }}</style><script>var ready = true;</script></head>\n<body>{body}</body></html>"
    )


def feature_pages() -> list[Page]:
    """Return the pages that show one feature each, some in a plain frame of header and footer."""
    kinds = (
        plain, lazy, noscript_twins, srcset, picture_sources, inline_data, data_tables, layout_tables, videos,
        line_breaks, definitions_and_code, formulas, broken, mid_sentence, encodings, more_encodings,
    )  # fmt: skip
    return [page(kind, "feature", number) for kind in kinds for number in range(VARIANTS)]


def page(kind: Callable[[Maker, int], str | bytes], group: str, number: int) -> Page:
    maker = Maker(f"{kind.__name__} {number}")
    made = kind(maker, number)
    data = made if isinstance(made, bytes) else made.encode()
    name = f"{kind.__name__}-{number}"
    return Page(name, group, data, tuple(maker.items), frozenset(maker.optional))


def plain(m: Maker, number: int) -> str:
    return document(f"<article>{m.h(1)}{m.p()}{m.article(6)}</article>")


def lazy(m: Maker, number: int) -> str:
    spacer = "data:image/gif;base64,R0lGODlhAQABAIAAAAAAAP///yH5BAEAAAAALAAAAAABAAEAAAIBRAA7"
    shapes = [
        "<img src='/img/spacer.gif' data-src='{0}' class='lazyload'>",
        f"<img src='{spacer}' data-lazy-src='{{0}}' class='lazy'>",
        "<img data-original='{0}' src='/assets/placeholder.png'>",
        "<img loading='lazy' src='{0}' width='900'>",
        f"<img src='{spacer}' data-srcset='{{0}} 1200w' sizes='auto'>",
        "<img class='js-lazy' src='/assets/loading.svg' data-img-src='{0}'>",
        "<img src='/static/blank.gif' data-hi-res-src='{0}' data-src='/media/small/x.jpg'>",
    ]
    m.random.shuffle(shapes)
    body = m.h(1) + "".join(m.p() + shape.format(m.picture()) for shape in shapes[: 4 + number % 3])
    return document(f"<main>{body}{m.p()}</main>")


def noscript_twins(m: Maker, number: int) -> str:
    body = m.h(1)
    for shape in range(5):
        body += m.p()
        address = m.picture()
        body += (
            f"<img class='lazy' src='/blank.gif' data-src='{address}'><noscript><img src='{address}'></noscript>",
            f"<noscript><img src='{address}' alt=''></noscript><img src='data:,' data-src='{address}'>",
            f"<a href='#'><img data-lazy-src='{address}'></a><noscript><a href='#'><img src='{address}'></a></noscript>",
            f"<figure><picture><img data-src='{address}'></picture><noscript><img src='{address}'></noscript></figure>",
            f"<div class='wrap'><img src='/blank.gif'></div><noscript><img src='{address}'></noscript>",
        )[(shape + number) % 5]
    body += "<noscript><p>Please turn on JavaScript.</p></noscript>" + m.p()
    tracker = "<noscript><img height='1' width='1' style='display:none' src='https://track.example/x.gif'></noscript>"
    return document(f"<main>{body}</main>{tracker}")


def srcset(m: Maker, number: int) -> str:
    body = m.h(1)
    for shape in range(4):
        body += m.p()
        address = m.picture()
        stem = address.removesuffix(".jpg")
        body += (
            f"<img src='{stem}-300.jpg' srcset='{stem}-300.jpg 300w, {stem}-768.jpg 768w, {address} 1600w'>",
            f"<img src='{stem}-1x.jpg' srcset='{stem}-1x.jpg 1x,{address} 2x'>",
            f"<img srcset='/cdn/w_300,h_200{stem}.jpg 300w,\n   {address} 1200w' src='{stem}-s.jpg'>",
            f"<img src='/blank.gif' data-srcset='{stem}-400.jpg 400w, {address} 1400w' data-sizes='auto'>",
        )[(shape + number) % 4]
    return document(f"<article>{body}{m.p()}</article>")


def picture_sources(m: Maker, number: int) -> str:
    body = m.h(1)
    for shape in range(4):
        body += m.p()
        address = m.picture()
        stem = address.removesuffix(".jpg")
        body += (
            f"<picture><source media='(max-width: 600px)' srcset='{stem}-phone.jpg'><img src='{address}'></picture>",
            f"<picture><source media='(min-width: 900px)' srcset='{address}'><img src='{stem}-s.jpg'></picture>",
            f"<picture><source type='image/jxl' srcset='{stem}.jxl'><img src='{address}'></picture>",
            f"<picture><source media='(prefers-color-scheme: dark)' srcset='{stem}-dark.jpg'>"
            f"<source srcset='{stem}-s.jpg 400w, {address} 1500w'><img src='{stem}-s.jpg'></picture>",
        )[(shape + number) % 4]
    return document(f"<article>{body}{m.p()}</article>")


def inline_data(m: Maker, number: int) -> str:
    body = m.h(1)
    for side in (40 + number, 60 + number):
        picture = make.picture(side * 3, side * 2, seed=side)
        body += m.p()
        m.items.append(("image", data_address(picture)))
        body += f"<img src='data:image/png;base64,{base64.b64encode(picture).decode()}'>"
    return document(f"<main>{body}{m.p()}{m.figure()}</main>")


def data_address(data: bytes) -> str:
    return "data:" + hashlib.sha256(data).hexdigest()[:16]


def data_tables(m: Maker, number: int) -> str:
    nested = f"<table><tr><td>{m.saw(m.phrase())}</td></tr><tr><td>{m.saw(m.phrase())}</td></tr></table>"
    outer = f"<table border='0'><tr><td>{nested}</td><td>{m.p()}{m.p()}</td></tr></table>"
    return document(f"<article>{outer}{m.h(1)}{m.p()}{m.table(4)}{m.p()}{m.table(2)}{m.p()}</article>")


def layout_tables(m: Maker, number: int) -> str:
    menu = "<br>".join(f"<a href='{i}.htm'>{m.phrase()}</a>" for i in range(6))
    text = f"<h1>{m.saw(m.phrase())}</h1><font face='arial'>{m.saw(m.words(4))}</font><p>{m.saw(m.words(3))}"
    text += f"<br><br>{m.saw(m.words(3))}<br><center><img src='{m.picture()}' border=0></center>{m.p()}"
    cells = (
        f"<td width=150 class='menu' valign=top>{menu}</td><td><img src='/spacer.gif' width=1 height=1></td>"
    )
    table = f"<table width='100%' cellspacing=0><tr>{cells}<td valign=top>{text}</td></tr></table>"
    return f"<html><head><title>Old</title></head><body bgcolor=white>{table}</body></html>"


def videos(m: Maker, number: int) -> str:
    def video(address: str) -> str:
        m.items.append(("video", address))
        return address

    name = m.random.choice(NOUNS)
    key = "".join(m.random.choice("abcdefghijkXYZ0123456789_-") for _ in range(11))
    tag = (
        f"<video controls><source src='{video(f'/media/{name}.mp4')}' type='video/mp4'>"
        f"<track kind='captions' src='/media/{name}.en.vtt' srclang='en'>Your browser shows no video.</video>"
    )
    tag += (
        m.p() + f"<figure><video src='{video(f'/media/{name}-2.webm')}' loop muted></video></figure>" + m.p()
    )
    watch = video(f"https://www.youtube.com/watch?v={key}")
    player = watch.replace("watch?v=", "embed/")
    tag += (f"<iframe src='{player}?rel=0' title='YouTube video player'></iframe>",
            f"<iframe data-src='{player}' src='about:blank'></iframe>")[number % 2]  # fmt: skip
    return document(f"<main>{tag}{m.h(1)}{m.p()}{m.figure()}{m.p()}<audio src='/a.mp3'></audio></main>")


def line_breaks(m: Maker, number: int) -> str:
    body = m.h(1)
    for _ in range(4):
        body += f"{m.saw(m.words(2))}<br><br>\n"
    body += f"<div>{m.saw(m.words(2))}</div><div>{m.saw(m.words(1))}<p>{m.saw(m.words(2))}</div>"
    return document(f"<div id='content'>{body}</div>")


def definitions_and_code(m: Maker, number: int) -> str:
    body = m.h(1) + m.p()
    pairs = [f"<dt>{m.saw(m.phrase())}</dt><dd>{m.saw(m.sentence())}</dd>" for _ in range(3)]
    code = "\n".join(f"{m.random.choice(NOUNS)} = {m.random.choice(VERBS)}({i})" for i in range(4))
    body += f"<dl>{''.join(pairs)}</dl>{m.p()}<pre><code>{m.saw(code)}</code></pre>{m.p()}"
    body += (
        f"<details><summary>{m.saw(m.phrase())}</summary>{m.p()}</details><blockquote>{m.p()}</blockquote>"
    )
    return document(f"<article>{body}{m.list(3, 'ol')}</article>")


def formulas(m: Maker, number: int) -> str:
    letters = "xyzabc"[number], "mnkpqr"[number]
    tex = f"{letters[0]}^2 + {letters[1]} = {number + 3}"
    annotation = f"<annotation encoding='application/x-tex'>{tex}</annotation>"
    mathml = f"<math><semantics><mrow><mi>{letters[0]}</mi></mrow>{annotation}</semantics></math>"
    katex = (
        f"<span class='katex'><span class='katex-mathml'>{mathml}</span><span class='katex-html' "
        f"aria-hidden='true'><span class='base'>{tex.replace('^', '')}</span></span></span>"
    )
    mathjax = f"<span class='MathJax_Preview'>{letters[0]}2</span><script type='math/tex'>{tex}</script>"
    body = m.h(1) + m.p()
    for formula in (mathml, katex, mathjax):
        before, after = m.sentence().rstrip("."), m.sentence()
        m.saw(f"{before}, so {tex} holds. {after}")
        body += f"<p>{before}, so {formula} holds. {after}</p>"
    m.saw("漢字(かんじ) " + (last := m.words(2)))
    body += f"<p><ruby>漢字<rp>(</rp><rt>かんじ</rt><rp>)</rp></ruby> {last}</p>"
    return document(f"<article>{body}{m.p()}</article>")


def broken(m: Maker, number: int) -> str:
    body = f"<H1>{m.saw(m.phrase())}</h1><P>{m.saw(m.words(3))}<p>{m.saw(m.words(2))}<ul><li>{m.saw(m.sentence())}"
    body += f"<li>{m.saw(m.sentence())}</ul><p><b>{m.saw(m.words(2))}</p><p>{m.saw(m.words(2))}</b></i></p>"
    body += f"<img src={m.picture()} width=300><div><p>{m.saw(m.words(2))}</span></div></div></td>"
    body += f"<table><tr><td>{m.saw('A' + m.phrase())}<tr><td>{m.saw('B' + m.phrase())}</table><p>{m.saw(m.words(3))}"
    return f"<html><body>{body}".replace("near", "ne\0ar" if number % 2 else "near")


def mid_sentence(m: Maker, number: int) -> str:
    body = m.h(1)
    for _ in range(3):
        start, end = m.sentence().rstrip("."), m.sentence()
        m.saw(f"{start} and then {end[0].lower()}{end[1:]}")
        icon = m.picture()
        body += f"<p>{start} and <img src='{icon}' alt='' width='90' height='90'> then {end[0].lower()}{end[1:]}</p>"
        body += m.p()
    return document(f"<main>{body}</main>")


PROSE = {
    "cp1252": ("fr", "Les élèves étaient déjà rentrés quand la forêt a brûlé près du château de l’Évêque."),
    "iso8859-2": ("cs", "Příliš žluťoučký kůň úpěl ďábelské ódy a všichni sousedé to dobře slyšeli až domů."),
    "cp1251": ("ru", "Все счастливые семьи похожи друг на друга, каждая несчастливая семья несчастлива."),
    "koi8-r": ("ru", "Старый учитель каждое утро выходил в сад и подолгу смотрел на замёрзшую реку."),
    "shift_jis": ("ja", "古い図書館の窓から、静かな港と北の山がよく見えた。先生は毎朝そこで手紙を書いた。"),
    "gb18030": ("zh", "老师每天早上都会走到河边，看着远处的山和安静的村庄，然后开始一天的工作。"),
    "euc_kr": ("ko", "선생님은 매일 아침 강가로 걸어가 먼 산과 조용한 마을을 바라보며 하루를 시작한다."),
    "cp1254": ("tr", "Öğretmen her sabah nehrin kıyısına yürür, uzaktaki dağlara ve sessiz köye bakardı."),
}


def encodings(m: Maker, number: int) -> bytes:
    return in_encoding(m, list(PROSE)[2 * number], (None, "utf-8", "iso-8859-1", "right")[number])


def more_encodings(m: Maker, number: int) -> bytes:
    return in_encoding(m, list(PROSE)[2 * number + 1], ("iso-8859-1", None, "right", "utf-8")[number])


def in_encoding(m: Maker, encoding: str, declared: str | None) -> bytes:
    """Return a page in an old encoding, declared rightly, wrongly or not."""
    lang, sentence = PROSE[encoding]
    label = encoding.replace("_", "-").replace("cp125", "windows-125") if declared == "right" else declared
    meta = f"<meta charset='{label}'>" if label else ""
    texts = [f"{i}. {sentence} {sentence}" for i in range(1, 5)]
    body = "".join(f"<p>{m.saw(text)}</p>" for text in texts) + f"<img src='{m.picture()}'>"
    page = f"<html lang='{lang}'><head>{meta}<title>x</title></head><body><main>{body}</main></body></html>"
    return page.encode(encoding)
