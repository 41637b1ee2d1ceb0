"""One walk over the tree of a page, in reading order, which tells `Flow` what it meets.

Owns what becomes of blocks, tables, line breaks, quotes, ruby and indices, and the masks over what
`html_furniture` judges to be no content. Scripts, styles, form controls and small inline drawings leave
no trace.
"""

import dataclasses
import re

from selectolax.lexbor import LexborHTMLParser, LexborNode

from datapipe.sources import html_embeds, html_masks, html_math
from datapipe.sources.html_furniture import LINK_LIST, Verdict, When, is_hidden, judge
from datapipe.sources.html_limits import tame
from datapipe.sources.html_pictures import best_address, drawing, from_address, is_tracker, shows_nothing
from datapipe.sources.html_shapes import (
    ARTICLES,
    EMOJI_CLASSES,
    JUDGED,
    LISTS,
    PLAIN,
    PREFORMATTED,
    SKIPPED,
    TAKEN,
    Shape,
    is_block,
    role_of,
    shape_of,
)
from datapipe.sources.html_tables import Grid, holds_data
from datapipe.sources.html_twins import Twins
from datapipe.sources.items import Flow, Item, prose

Attributes = dict[str, str | None]

_INDEX = re.compile(r"[0-9+\-\u2212=()]{1,6}")
_SUPERSCRIPT = str.maketrans("0123456789+-\u2212=()", "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁻⁼⁽⁾")
_SUBSCRIPT = str.maketrans("0123456789+-\u2212=()", "₀₁₂₃₄₅₆₇₈₉₊₋₋₌₍₎")
_TEX = re.compile(r"[\\^_={}]")
_MAX_OPEN_HINTS = 8  # elements that may be furniture, one in the other; more are not looked at


@dataclasses.dataclass(slots=True)
class _Element:
    """A block that is open and has to be closed."""

    node: LexborNode | None
    tag: str
    role: str | None = None
    is_figure: bool = False
    is_table: bool = False
    is_main: bool = False
    is_body: bool = False
    verdict: Verdict | None = None
    start: int = 0  # the state when it was entered: items, ...
    counts: tuple[int, ...] = ()


_INLINE, _LINK, _QUOTE = _Element(None, ""), _Element(None, "a"), _Element(None, "q")


class Walk:
    """The walk over a page, without recursion: pages nest deeper than Python does."""

    def __init__(self, base: str, lang: str | None) -> None:
        self.base, self.lang = base, lang
        self.flow = Flow()
        self.aside: list[Item] = []  # of parts within a line that leave: they wait for the end of the block
        self.twins = Twins(base)
        self.last_href: str | None = None
        self.is_inner = False
        self.regions = html_masks.Regions()
        self.grid: Grid | None = None  # of the open table of data
        self.after_break = self.has_text = False  # since the block began
        self.num_pre = self.num_articles = self.num_tables = self.num_figures = self.num_links = 0
        self.num_headings = self.num_bodies = self.num_masks = self.num_hints = 0  # how many are open
        self.counts = [0] * len(html_masks.Counts._fields)  # so far

    def run(self, root: LexborNode) -> None:
        """Take in an element and all that is in it."""
        opened: list[tuple[LexborNode, _Element]] = []
        node = root
        while True:
            element = self.enter(node)
            if element is not None:
                child = node.child
                if child is not None:
                    opened.append((node, element))
                    node = child
                    continue
                self.leave(element)
            while opened and node.next is None:
                node, element = opened.pop()
                self.leave(element)
            if not opened:
                return
            node = node.next  # type: ignore[assignment]  # not None after the loop

    # ---- what an element is

    def enter(self, node: LexborNode) -> _Element | None:
        """Take in a node; return what it opened, or None where its children are not to be walked."""
        tag = node.tag or "-"
        if tag == "-text":
            self.text(node.text_content or "")
            return None
        if tag in SKIPPED or not tag[0].isalpha():
            return None
        attributes = node.attributes
        if tag in TAKEN:
            return self.take(tag, node, attributes)
        shape = shape_of(attributes.get("class") or "") if attributes else PLAIN
        if shape.is_left_out:
            if shape.is_formula:
                self.text(html_math.of_wiki(node))
            return None
        is_a_block = is_block(tag, attributes)
        verdict = None
        if (attributes or tag in JUDGED) and not self.num_masks:
            verdict = self.judged(tag, attributes, is_a_block)
            if verdict is not None and (self.grid is not None or not is_a_block):
                self.put_aside(node, verdict.reason)
                return None
        if is_a_block:
            return self.open(_Element(node, tag, verdict=verdict), shape, attributes)
        return self.open_inline(tag)

    def judged(self, tag: str, attributes: Attributes, is_block: bool) -> Verdict | None:
        verdict = judge(tag, attributes, self.num_articles > 0)
        if verdict is None or verdict.when == When.ALWAYS:
            return verdict if verdict is None or self.grid is None or verdict.reason == "hidden" else None
        is_looked_at = is_block and self.grid is None and self.num_hints < _MAX_OPEN_HINTS
        return verdict if is_looked_at else None

    # ---- blocks

    def open_inline(self, tag: str) -> _Element:
        if tag == "a":
            self.num_links += 1
            self.counts[2] += 1
            return _LINK
        if tag == "q":
            self.flow.write("“")
            return _QUOTE
        return _INLINE

    def open(self, element: _Element, shape: Shape, attributes: Attributes) -> _Element:
        self.boundary()
        self.open_block(element, shape, attributes)
        element.start, element.counts = len(self.flow.items), tuple(self.counts)
        if element.verdict is None:
            element.is_main = element.tag == "main" or attributes.get("role") == "main"
            element.is_body = not self.num_bodies and (
                shape.is_body or attributes.get("itemprop") == "articleBody"
            )
            self.num_bodies += element.is_body
            if element.tag == "h1" and not self.num_bodies and not self.regions.bodies:
                self.regions.title = element.start
            if element.tag in LISTS and not element.is_table and not element.is_main and self.is_looked_at():
                element.verdict = LINK_LIST
        elif element.verdict.when == When.ALWAYS:
            self.num_masks += 1
        else:
            self.num_hints += 1
        return element

    def is_looked_at(self) -> bool:
        return self.grid is None and not self.num_masks and not self.num_figures

    def open_block(self, element: _Element, shape: Shape, attributes: Attributes) -> None:
        tag = element.tag
        self.counts[3] += tag == "h1"
        self.counts[4] += tag == "article"
        self.counts[5] += tag == "main"
        if self.grid is not None:
            if tag in ("td", "th"):
                self.end_cells(self.grid.before())
            return
        if tag == "table":
            self.num_tables += 1
            assert element.node is not None
            if holds_data(element.node, self.num_tables - 1):
                element.is_table, self.grid = True, Grid()
                self.flow.open_table()
                return
        if tag == "figure" or shape.is_figure:
            element.is_figure = True
            self.num_figures += 1
            self.flow.open_figure()
        self.num_pre += tag in PREFORMATTED
        self.num_articles += tag in ARTICLES
        element.role = role_of(tag, shape, attributes, self.num_figures > 0)
        if element.role is not None:
            self.flow.open(element.role)
            self.num_headings += element.role == "heading" or tag == "dt"

    def leave(self, element: _Element) -> None:
        if element is _LINK:
            self.num_links -= 1
        elif element is _QUOTE:
            self.flow.write("”")
        elif element is not _INLINE:
            self.leave_block(element)
            if element.verdict is not None:
                self.mask(element, element.verdict)
            if element.is_main:
                self.regions.mains.append((element.start, len(self.flow.items)))
            if element.is_body:
                self.num_bodies -= 1
                self.regions.bodies.append((element.start, len(self.flow.items)))

    def leave_block(self, element: _Element) -> None:
        tag = element.tag
        if element.role is not None:
            self.flow.close()
            self.num_headings -= element.role == "heading" or tag == "dt"
        if element.is_table:
            self.flow.close_table()
            self.grid = None
        if self.grid is not None:
            self.leave_table_part(element)
            return
        self.boundary()
        if element.is_figure:
            self.num_figures -= 1
            self.flow.close_figure()
        self.num_tables -= tag == "table"
        self.num_pre -= tag in PREFORMATTED
        self.num_articles -= tag in ARTICLES

    def leave_table_part(self, element: _Element) -> None:
        assert self.grid is not None and element.node is not None
        if element.tag in ("td", "th"):
            self.flow.end_cell()
            self.end_cells(self.grid.behind(element.node))
        elif element.tag == "caption":
            self.flow.end_table_caption()
        elif element.tag == "tr":
            self.flow.end_row()
            self.grid.end_row()
        else:
            self.flow.settle()

    def end_cells(self, number: int) -> None:
        for _ in range(number):
            self.flow.end_cell()

    def boundary(self) -> None:
        """End the text of a block; what was put aside in it follows."""
        self.flow.settle()
        self.after_break = self.has_text = False
        if self.aside and self.grid is None:
            self.flow.items += self.aside
            self.aside = []

    # ---- what leaves

    def mask(self, element: _Element, verdict: Verdict) -> None:
        """Lay the mask of an element over its items, if the condition holds."""
        if verdict.when == When.ALWAYS:
            self.num_masks -= 1
        elif verdict is not LINK_LIST:
            self.num_hints -= 1
        inside = [now - before for before, now in zip(element.counts, self.counts)]
        if html_masks.holds(verdict, html_masks.Counts(*inside)):
            html_masks.lay(self.flow.items, element.start, verdict.reason, only_text=verdict is _NO_SCRIPT)

    def finish(self) -> list[Item]:
        """End the walk; return its items, with what is outside of the article masked."""
        self.boundary()
        html_masks.lay_outside(self.flow.items, self.regions)
        return self.flow.items

    def put_aside(self, node: LexborNode, reason: str) -> None:
        """Keep a part of a line that leaves, without cutting the line."""
        text = prose(node.text(separator=" ") or "")
        if text:
            self.aside.append(Item("text", "paragraph", text=text, mask=reason))
        for image in node.css("img"):
            address = best_address(image, self.base)
            item = from_address(self.base, address.link, "image", reason) if address else None
            if item is not None:
                self.aside.append(item)

    # ---- text

    def text(self, text: str) -> None:
        if text and not text.isspace():
            self.after_break, self.has_text = False, True
            self.counts[0] += len(text)
            if self.num_pre:
                self.counts[6] += 1
            elif self.num_links:
                self.counts[1] += len(text)
            elif len(text) > html_masks.SENTENCE_CHARS:
                self.counts[6] += 1
        elif not self.has_text and not self.num_pre:
            return  # between blocks
        self.flow.write(text)

    def line_break(self) -> None:
        """Two line breaks one after the other part paragraphs."""
        if self.after_break and not self.num_pre and self.grid is None:
            self.boundary()
        else:
            self.flow.line_break()
            self.after_break = True

    def take(self, tag: str, node: LexborNode, attributes: Attributes) -> _Element | None:
        """Take in an element that is more, or less, than the text in it."""
        if tag == "br":
            self.line_break()
        elif tag in ("img", "amp-img"):
            self.picture(node, attributes)
        elif tag == "math":
            self.text(html_math.of_math(node))
        elif tag == "svg":
            self.drawing(node, attributes)
        elif tag == "script":
            self.text(html_math.of_script(node) if "type" in attributes else "")
        elif tag == "ruby":
            self.text(_with_reading(node))
        elif tag in ("sup", "sub"):
            return self.index(tag, node)
        elif tag == "noscript":
            return self.without_scripts(node)
        elif tag == "button":
            return _INLINE if self.num_headings else None
        elif tag == "object":
            items = html_embeds.of_object(node, self.base)
            self.embed(items)
            return None if items else _INLINE
        elif tag == "iframe" and attributes.get("srcdoc"):
            self.inner_page(attributes["srcdoc"] or "")
        elif tag != "wbr":
            self.embed(html_embeds.items_of(node, self.base, self.lang))
        return None

    def index(self, tag: str, node: LexborNode) -> _Element | None:
        text = (node.text() or "").strip()
        if not _INDEX.fullmatch(text) or node.css_first("a") is not None or self.num_pre:
            return _INLINE
        self.text(text.translate(_SUPERSCRIPT if tag == "sup" else _SUBSCRIPT))
        return None

    def embed(self, items: list[Item]) -> None:
        self.aside += [item for item in items if item.mask is not None]
        shown = [item for item in items if item.mask is None]
        if shown and self.grid is None:
            self.flow.add(shown)
        elif shown:
            for item in shown:
                if item.kind != "text":
                    self.flow.medium(item)

    def inner_page(self, text: str) -> None:
        """Take in the page that a frame holds in an attribute, as far as it holds no further one."""
        body = LexborHTMLParser(tame(text)).body
        if body is not None and not self.is_inner:
            self.is_inner = True
            self.boundary()
            self.run(body)
            self.boundary()
            self.is_inner = False

    # ---- pictures

    def picture(self, node: LexborNode, attributes: Attributes) -> None:
        alt = attributes.get("alt") or ""
        classes = (attributes.get("class") or "").split()
        if self.num_pre or (alt and EMOJI_CLASSES.intersection(classes)):
            self.text(alt)  # a callout: code stays whole
            return
        if html_math.FORMULA_PICTURES.intersection(classes) and _TEX.search(alt):
            self.text(html_math.dollars(alt))
            return
        address = self.twins.address(node)
        if address is None:
            return
        mask = None
        if is_tracker(attributes):
            mask = "tracking_pixel"
        elif address.is_placeholder and shows_nothing(address.link):
            mask = "placeholder"
        elif is_hidden("img", attributes):
            mask = "hidden"
        item = from_address(self.base, address.link, "image", mask)
        if item is not None:
            self.last_href = item.href
            self.flow.medium(item, alt if mask is None else None)

    def drawing(self, node: LexborNode, attributes: Attributes) -> None:
        item = None if self.num_pre or is_hidden("svg", attributes) else drawing(node, self.num_figures > 0)
        if item is not None:
            title = node.css_first("title")
            said = attributes.get("aria-label") or (title.text() if title is not None else "")
            self.flow.medium(item, said)

    def without_scripts(self, node: LexborNode) -> _Element | None:
        """Take in a <noscript>: its pictures, unless they are there already; its text is masked."""
        images = node.css("img")
        if self.twins.is_twin(node, images):
            return None
        if not (node.text() or "").strip():
            for image in images:
                address = best_address(image, self.base)
                item = from_address(self.base, address.link, "image") if address else None
                if item is None or item.href is None or item.href != self.last_href:
                    self.picture(image, image.attributes)
            return None
        if self.grid is not None or self.num_masks:
            self.put_aside(node, _NO_SCRIPT.reason)
            return None
        return self.open(_Element(node, "noscript", verdict=_NO_SCRIPT), PLAIN, {})


_NO_SCRIPT = Verdict("noscript")


def _with_reading(node: LexborNode) -> str:
    """Return a <ruby> as its words with the reading in brackets behind them."""
    words, reading = "", ""
    for child in node.iter(include_text=True):
        text = (child.text_content if child.tag == "-text" else child.text()) or ""
        if child.tag in ("rt", "rtc"):
            reading += text.strip()
        elif child.tag != "rp":
            words += text
    return f"{words.strip()}({reading})" if reading else words
