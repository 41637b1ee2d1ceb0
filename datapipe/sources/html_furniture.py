"""What on a page is not its content, where the markup says so.

Owns the judgement on one element by its tag, role, classes, id and style: navigation, the page's header and
footer, sidebars, advertisements, cookie notices, rows of buttons, lists of other articles, hidden parts.
Words that only hint at it (`menu`, `sidebar`) count where most of the element's text is links, which is known
when the walk leaves it (`html_masks`). A page keeps what is judged here, under a mask with the reason.
"""

import dataclasses
import enum
import functools
import re

Attributes = dict[str, str | None]


class When(enum.Enum):
    """What must hold too; the walk knows when it leaves the element. What holds the article stays anyway."""

    ALWAYS = "nothing more"
    IF_NO_TITLE = "it does not hold the page's title"
    IF_LINKS = "it does not hold the page's title, and most of its text is links"
    IF_ONLY_LINKS = "it does not hold the page's title, and has many links and hardly any other text"


@dataclasses.dataclass(frozen=True)
class Verdict:
    """Why an element is to leave the stream, and on which condition."""

    reason: str
    when: When = When.ALWAYS


LINK_LIST = Verdict("link_list", When.IF_ONLY_LINKS)  # of blocks that nothing else is known of

# Signs beside the text that leave no trace: a heading's link to itself, line numbers, a tool's messages.
SIGNS = frozenset(
    (
        "headerlink",
        "header-anchor",
        "hash-link",
        "anchorjs-link",
        "octicon-link",
        "mw-editsection",
        "footnote-backref",
        "linenos",
        "lineno",
        "linenodiv",
        "line-numbers-rows",
        "rouge-gutter",
        "hljs-ln-numbers",
        "blob-num",
        "system-message",
        "copybtn",
    )
)

_CLASSES = {
    **dict.fromkeys(
        (
            "navheader",
            "navfooter",
            "toc",
            "sphinxsidebar",
            "sphinxsidebarwrapper",
            "breadcrumb",
            "breadcrumbs",
        ),
        Verdict("navigation"),
    ),
    **dict.fromkeys(("navbar", "navbar-nav", "breadcrumb-trail", "site-navigation"), Verdict("navigation")),
    **dict.fromkeys(
        (
            "sr-only",
            "visually-hidden",
            "visuallyhidden",
            "screen-reader-text",
            "screen-reader-only",
            "assistive-text",
            "skip-link",
            "skip-nav",
            "skip-to-content",
            "skiplink",
        ),
        Verdict("hidden"),
    ),
}
_PAGE_FOOTER = frozenset(
    ("footer", "site-footer", "page-footer", "global-footer", "main-footer", "footer-wrapper", "colophon")
)
_PAGE_HEADER = frozenset(("header", "site-header", "page-header", "global-header", "main-header", "masthead"))
_COOKIE_NOTICE = re.compile(
    r"(?:.*[-_])?cookies?[-_]?(?:banner|notice|notification|consent|bar|popup|law|message|overlay|modal|dialog|warning|"
    r"alert|info|disclaimer|wall|container|settings|preferences|compliance|box|layer|hint|policy-(?:banner|bar))"
    r"(?:[-_].*)?|(?:banner|notice|consent|bar|modal|popup)[-_]cookies?|cookie[-_]?consent.*|"
    r"(?:gdpr|ccpa|privacy)[-_](?:banner|consent|cookie|notice|popup|bar|modal)(?:[-_].*)?|"
    r"onetrust-.*|cybotcookiebot.*|qc-cmp2?-.*|cmplz-.*|cc-(?:window|banner|revoke)|truste[-_].*|didomi-.*|"
    r"usercentrics-.*|osano-cm-.*|termly-.*|borlabs-?cookie.*|iubenda-cs-.*|sp_message_container.*|moove_gdpr.*|"
    r"eu-?cookie.*"
)
_ADVERTISEMENT = re.compile(
    r"ads?|advert(?:s|isements?|ising)?|"
    r"ad[sv]?[-_](?:container|slot|unit|wrap|wrapper|banner|box|block|label|placeholder|space|zone|area|sidebar|top|"
    r"bottom|inner|leaderboard|mpu|rail|widget)(?:[-_].*)?|"
    r"adsbygoogle|(?:div-)?gpt-ad.*|google[-_]ads?.*|dfp[-_].*|taboola.*|outbrain.*|ob-widget.*|trc_related.*|"
    r"sponsored-(?:content|links|posts?)|adthrive.*|mv-ad-.*"
)
_SHARING = re.compile(  # plugins that put such a row under a text
    r"sharedaddy|sd-sharing.*|addtoany.*|a2a[-_]kit.*|sharethis.*|st-inline-share.*|social-shar(?:e|ing).*|"
    r"share-(?:buttons|bar|tools|links|icons)|post-share.*|jp-relatedposts|yarpp.*|crp_related"
)
_RELATED = re.compile(
    r"(?:.*[-_])?(?:related|recommended|trending|popular|latest)[-_]{1,2}(?:posts?|articles?|stor(?:y|ies)|news|"
    r"content|links?|items?|products?|topics?|videos?)(?:[-_].*)?|(?:.*[-_])?recirc(?:[-_].*)?|"
    r"(?:.*[-_])?most[-_](?:read|viewed|popular|recent|shared)(?:[-_].*)?|"
    r"(?:.*[-_])?(?:more[-_](?:from|stories|news|on)|read[-_]next|up[-_]next|you[-_]may|also[-_]like)(?:[-_].*)?"
)
_SIGN_UP = re.compile(
    r"(?:.*[-_])?(?:newsletter|subscribe|subscription|mailing-list)[-_]{1,2}(?:sign-?up|form|box|promo|widget|block|"
    r"module|container|wrapper|cta|banner|modal|popup|inline|embed)(?:[-_].*)?"
)
_HINT = re.compile(
    r"(?:.*[-_])?(?:navi?|navbar|navigation|menus?|menubar|submenu|breadcrumbs?|pagination|pager|paging|toc|sitemap|"
    r"side-?bar|footer|header|masthead|top-?bar|toolbar|quick-?links|blogroll|related(?:posts)?|recommended|"
    r"recommendations|trending|popular|latest|recent|shar(?:e|ing)|sharedaddy|addtoany|a2a|social|tags?|tagcloud|"
    r"categories|widgets?|languages?|mw-panel|catlinks|tabs?)(?:[-_].*)?"
)
_BOTH_CASES = re.compile(r"(?<=[a-z])(?=[A-Z])")

_SAYING = frozenset(("role", "itemtype", "data-ad-slot", "data-ad-client"))
_ROLES = {
    "navigation": Verdict("navigation"),
    "menu": Verdict("navigation"),
    "menubar": Verdict("navigation"),
    "search": Verdict("search"),
    "contentinfo": Verdict("footer"),
    "banner": Verdict("header", When.IF_NO_TITLE),
}
_TAGS = {
    "nav": Verdict("navigation"),
    "amp-sidebar": Verdict("navigation"),
    "amp-ad": Verdict("advertisement"),
    "amp-consent": Verdict("cookie_notice"),
}
_MICRODATA = {
    "SiteNavigationElement": Verdict("navigation"),
    "WPHeader": Verdict("header", When.IF_NO_TITLE),
    "WPFooter": Verdict("footer"),
    "WPSideBar": Verdict("sidebar"),
    "WPAdBlock": Verdict("advertisement"),
}
_NOT_SHOWN = re.compile(r"(?:^|;)\s*(?:display\s*:\s*none|visibility\s*:\s*hidden)\b", re.IGNORECASE)
_ROOTS = frozenset(("html", "body", "main", "article", "h1"))  # what is masked by no name it bears


def judge(tag: str, attributes: Attributes, is_in_article: bool) -> Verdict | None:
    """Return why an element is no content; None for content.

    Args:
        is_in_article: it stands in an <article>, <main> or <section>, whose header and footer are content.
    """
    if is_hidden(tag, attributes):
        return Verdict("hidden")
    if (verdict := _TAGS.get(tag)) is not None:
        return verdict
    if not is_in_article and tag in ("header", "footer"):
        return Verdict(tag, When.IF_NO_TITLE) if tag == "header" else Verdict(tag)
    if tag in _ROOTS:
        return None
    if (verdict := _by_role(tag, attributes, is_in_article)) is not None:
        return verdict
    classes, id = attributes.get("class") or "", attributes.get("id") or ""
    return by_names(tag, classes[:1000], id, is_in_article)


def is_hidden(tag: str, attributes: Attributes) -> bool:
    """Return whether an element is not shown, or said to be decoration."""
    if tag in ("html", "body"):
        return False  # until a script has run
    if "hidden" in attributes:
        return attributes["hidden"] != "until-found"
    if tag == "dialog" and "open" not in attributes:
        return True
    if attributes.get("aria-hidden") == "true":
        return True
    return "style" in attributes and _NOT_SHOWN.search(attributes["style"] or "") is not None


def _by_role(tag: str, attributes: Attributes, is_in_article: bool) -> Verdict | None:
    if _SAYING.isdisjoint(attributes):
        return None
    if "data-ad-slot" in attributes or "data-ad-client" in attributes:
        return Verdict("advertisement")
    role = attributes.get("role")
    if role == "complementary" and not is_in_article:
        return Verdict("sidebar", When.IF_NO_TITLE)
    label = (attributes.get("aria-label") or "").lower()
    if role in ("dialog", "alertdialog", "region") and "cookie" in label:
        return Verdict("cookie_notice")
    kind = (attributes.get("itemtype") or "").rpartition("/")[2]
    return _ROLES.get(role or "") or _MICRODATA.get(kind)


@functools.lru_cache(maxsize=4096)
def by_names(tag: str, classes: str, id: str, is_in_article: bool) -> Verdict | None:
    """Return why an element with these classes and this id is no content; None for content."""
    names = [name for name in (*classes.split()[:50], id) if 0 < len(name) < 100]
    for name in names:
        if (verdict := _CLASSES.get(name)) is not None:
            return verdict
    names = [_BOTH_CASES.sub("-", name).lower() for name in names]
    if any(_COOKIE_NOTICE.fullmatch(name) for name in names):
        return Verdict("cookie_notice", When.IF_NO_TITLE)
    if any(_ADVERTISEMENT.fullmatch(name) for name in names):
        return Verdict("advertisement", When.IF_NO_TITLE)
    for reason, pattern in (("sharing", _SHARING), ("related", _RELATED), ("sign_up", _SIGN_UP)):
        if any(pattern.fullmatch(name) for name in names):
            return Verdict(reason, When.IF_NO_TITLE)
    if tag == "div" and not is_in_article:
        if _PAGE_FOOTER.intersection(names):
            return Verdict("footer", When.IF_NO_TITLE)
        if _PAGE_HEADER.intersection(names):
            return Verdict("header", When.IF_NO_TITLE)
    if any(_HINT.fullmatch(name) for name in names):
        return Verdict("navigation", When.IF_LINKS)
    return Verdict("sidebar", When.IF_LINKS) if tag == "aside" and not is_in_article else None
