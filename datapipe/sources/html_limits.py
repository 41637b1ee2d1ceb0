"""Pages that would keep the parser busy for minutes, made harmless before it sees them.

Owns the limits. The parser follows the standard to the letter, which for some markup takes time or memory
that grows with its square: elements nested without end, hundreds of formatting elements left open, thousands
of options or attributes. Browsers have limits for these as well. No text is lost: an element beyond a limit
becomes a line across (`<hr>`), so that what it held is still a block of its own.
"""

import re
from collections import Counter

MAX_DEPTH = 512  # elements open at once, as in browsers
MAX_FORMATTING = 32  # formatting elements open at once: each is repeated in every paragraph that follows
MAX_OPTIONS = 2000
MAX_ATTRIBUTES = 500  # of one element
MAX_ROOTS = 10  # times that <html> or <body> add attributes to the root
_FEW_TAGS = 2000  # with fewer nothing can go wrong
_LONG_TAG_CHARS = 8000

_TAG = re.compile(r"<(/?)([a-zA-Z][^\s/>]*)")
_LONG_TAG = re.compile(rf"<[a-zA-Z][^<>]{{{_LONG_TAG_CHARS},}}>?")
_ATTRIBUTE = re.compile(r"[^\s\"'<>/=]+(?:\s*=\s*(?:\"[^\"]*\"|'[^']*'|[^\s\"'>]+))?")
_FORMATTING_TAGS = "a b big code em font i nobr s small strike strong tt u"
_FLAT_TAGS = (  # never nested in themselves, or empty
    "html head body p li dt dd tr td th tbody thead tfoot caption colgroup option optgroup rp rt area base "
    "br col embed hr img input link meta param source track wbr script style title textarea noscript"
)
_SCOPE_TAGS = (
    "table template select object applet marquee"  # end tags of what is around them do not reach out
)
_FORMATTING = frozenset(_FORMATTING_TAGS.split())
_FLAT = frozenset(_FLAT_TAGS.split())
_SCOPES = frozenset(_SCOPE_TAGS.split())
_MAX_REPEATED = {"option": MAX_OPTIONS, "html": MAX_ROOTS, "body": MAX_ROOTS}


def tame(text: str) -> str:
    """Return a page that the parser reads in time linear in its length; most pages unchanged."""
    if len(text) > _LONG_TAG_CHARS:
        text = _LONG_TAG.sub(_with_few_attributes, text)
    if text.count("<") <= _FEW_TAGS:
        return text
    counter = _Counter()
    if not any(counter.is_beyond(tag) for tag in _TAG.finditer(text)):
        return text
    counter = _Counter()
    return _TAG.sub(lambda tag: f"<{tag[1]}hr" if counter.is_beyond(tag) else tag[0], text)


class _Counter:
    """Counts what is open while the tags of a page pass by."""

    def __init__(self) -> None:
        self.scopes: list[tuple[str, Counter[str]]] = [("", Counter())]  # what is open, by enclosing scope
        self.open_scopes: Counter[str] = Counter()
        self.replaced: Counter[str] = Counter()
        self.repeated: Counter[str] = Counter()
        self.depth = self.num_formatting = 0

    def is_beyond(self, tag: re.Match[str]) -> bool:
        """Return whether a tag goes beyond a limit, or closes one that did."""
        is_closing, name = bool(tag[1]), tag[2].lower()
        if name in _FLAT:
            self.repeated[name] += 1
            return not is_closing and self.repeated[name] > _MAX_REPEATED.get(name, 1 << 62)
        if is_closing:
            return self.closes_replaced(name)
        if self.num_formatting >= MAX_FORMATTING if name in _FORMATTING else self.depth >= MAX_DEPTH:
            self.replaced[name] += 1
            return True
        self.count(name, 1)
        self.scopes[-1][1][name] += 1
        if name in _SCOPES:
            self.scopes.append((name, Counter()))
            self.open_scopes[name] += 1
        return False

    def closes_replaced(self, name: str) -> bool:
        if self.replaced[name]:
            self.replaced[name] -= 1
            return True
        while self.open_scopes[name]:
            scope, inside = self.scopes.pop()
            self.open_scopes[scope] -= 1
            for left_open, number in inside.items():
                self.count(left_open, -number)
            if scope == name:
                break
        _, opened = self.scopes[-1]
        if opened[name]:
            opened[name] -= 1
            self.count(name, -1)
        return False

    def count(self, name: str, step: int) -> None:
        if name in _FORMATTING:
            self.num_formatting += step
        else:
            self.depth += step


def _with_few_attributes(tag: re.Match[str]) -> str:
    end = 0
    for number, attribute in enumerate(_ATTRIBUTE.finditer(tag[0])):
        if number > MAX_ATTRIBUTES:
            return tag[0][:end] + ">"
        end = attribute.end()
    return tag[0]
