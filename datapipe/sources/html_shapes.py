"""What tags and classes say of an element's shape: block or not, figure, caption, the role of its text.

Owns these lists: HTML's own elements, and the classes by which DocBook, AsciiDoc, Sphinx, MediaWiki and
WordPress write figures and captions. What an element that is no content is called stands in `html_furniture`.
"""

import dataclasses
import functools
import re

from datapipe.sources import html_embeds, html_math
from datapipe.sources.html_furniture import SIGNS

Attributes = dict[str, str | None]

_BLOCK_TAGS = (
    "address article aside blockquote body caption center dd details dialog dir div dl dt fieldset "
    "figcaption figure footer form frameset h1 h2 h3 h4 h5 h6 header hgroup hr html legend li listing main "
    "marquee menu nav ol optgroup p plaintext pre search section summary table tbody td tfoot th thead tr ul "
    "xmp amp-sidebar amp-ad amp-consent"
)
_SKIPPED_TAGS = (
    "head style template select textarea input datalist canvas map area annotation annotation-xml param "
    "source track link meta title base noframes progress meter"
)
_TAKEN_TAGS = "img amp-img br wbr script math svg noscript ruby object button sup sub"
BLOCKS = frozenset(_BLOCK_TAGS.split())
SKIPPED = frozenset(_SKIPPED_TAGS.split())
TAKEN = frozenset(_TAKEN_TAGS.split()) | html_embeds.EMBEDS
JUDGED = frozenset(("nav", "header", "footer", "aside", "dialog", "amp-sidebar", "amp-ad", "amp-consent"))
PREFORMATTED = frozenset(("pre", "xmp", "listing", "plaintext"))
ARTICLES = frozenset(("article", "main", "section"))
LISTS = frozenset(("ul", "ol", "dl", "menu", "div", "p", "section", "aside", "table", "td", "form", "center"))
_SHOWN_AS_BLOCK = re.compile(r"display\s*:\s*(?:block|flex|grid|table)\b", re.IGNORECASE)

_FIGURE_CLASSES = frozenset(
    (
        "figure",
        "informalfigure",
        "mediaobject",
        "imageblock",
        "videoblock",
        "wp-caption",
        "thumb",
        "gallerybox",
        "screenshot",
        "equation",
        "example",
        "listingblock",
        "tableblock",
        "exampleblock",
    )
)
_CAPTION_CLASSES = frozenset(("caption", "wp-caption-text", "thumbcaption", "figure-caption", "gallerytext"))
_TEXT_BODY = re.compile(  # what sites call the element that holds the text of an article
    r"(?:article|story|post|entry|news|blog)[-_]{0,2}(?:body|content|text)(?:[-_]{1,2}(?:main|inner|wrapper))?",
    re.IGNORECASE,
)
EMOJI_CLASSES = frozenset(("emoji", "wp-smiley", "twemoji"))
_LEFT_OUT = SIGNS | html_math.RENDERED
_FORMULA_CLASS = "mwe-math-element"
_ROLES = {
    **dict.fromkeys(("h1", "h2", "h3", "h4", "h5", "h6"), "heading"),
    **dict.fromkeys(PREFORMATTED, "code"),
    **dict.fromkeys(("li", "dt"), "list_item"),
    **dict.fromkeys(("figcaption", "caption"), "caption"),
    **dict.fromkeys(("dd", "blockquote", "td", "th"), "paragraph"),
}
_ARIA_ROLES = {"heading": "heading", "listitem": "list_item"}


@dataclasses.dataclass(frozen=True, slots=True)
class Shape:
    """What the classes of an element say of its shape."""

    is_left_out: bool = False
    is_formula: bool = False
    is_figure: bool = False
    is_caption: bool = False
    is_title: bool = False
    is_body: bool = False


@functools.lru_cache(maxsize=4096)
def shape_of(classes: str) -> Shape:
    """Return what the value of a `class` attribute says."""
    names = frozenset(classes.split())
    is_formula = _FORMULA_CLASS in names
    return Shape(
        is_formula or not names.isdisjoint(_LEFT_OUT),
        is_formula,
        not names.isdisjoint(_FIGURE_CLASSES),
        not names.isdisjoint(_CAPTION_CLASSES),
        "title" in names,
        any(_TEXT_BODY.fullmatch(name) for name in names if len(name) < 60),
    )


PLAIN = Shape()


def is_block(tag: str, attributes: Attributes) -> bool:
    """Return whether an element is a block, by itself or by its style."""
    if tag in BLOCKS:
        return True
    return "style" in attributes and _SHOWN_AS_BLOCK.search(attributes["style"] or "") is not None


def role_of(tag: str, shape: Shape, attributes: Attributes, is_in_figure: bool) -> str | None:
    """Return the role of the text of a block; None for that of the block around it."""
    if shape.is_caption:
        return "caption"
    if shape.is_title and tag in ("p", "div"):
        return "caption" if is_in_figure else "heading"
    return _ARIA_ROLES.get(attributes.get("role") or "") or _ROLES.get(tag)
