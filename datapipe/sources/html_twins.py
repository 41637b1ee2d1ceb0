"""A lazy picture and its twin in a `<noscript>` are one picture.

Owns finding the twin, before or behind, and the choice between the two addresses.
"""

from selectolax.lexbor import LexborNode

from datapipe.sources.html_pictures import Address, best_address

_WRAPPERS = frozenset(("picture", "a", "span", "div", "figure"))
_MAX_WRAPPED = 3  # elements around a lazy picture, behind which its <noscript> may stand


class Twins:
    """What is known of the pictures of one page."""

    def __init__(self, base: str) -> None:
        self._base = base
        self._taken: set[int] = set()  # <noscript> elements whose picture a lazy one before them stood for
        self._before: dict[int, LexborNode] = {}  # by lazy <img>, the picture in a <noscript> before it

    def address(self, node: LexborNode) -> Address | None:
        """Return where the picture of an <img> is, its twin taken into account."""
        address = best_address(node, self._base)
        if address is not None and not address.is_lazy and not address.is_placeholder:
            return address
        twin = self._before.pop(node.mem_id, None) or self._behind(node)
        other = best_address(twin, self._base) if twin is not None else None
        if other is None or other.is_placeholder:
            return address
        if address is None or address.is_placeholder or other.width > address.width:
            return other
        return address

    def is_twin(self, node: LexborNode, images: list[LexborNode]) -> bool:
        """Return whether a <noscript> with these pictures only repeats a lazy one, before or behind it."""
        if node.mem_id in self._taken:
            return True
        lazy = self._lazy_behind(node) if len(images) == 1 else None
        if lazy is not None:
            self._before[lazy.mem_id] = images[0]
        return lazy is not None

    def _behind(self, node: LexborNode) -> LexborNode | None:
        """Return the <img> of a <noscript> right behind a lazy one, or behind what wraps that."""
        for _ in range(_MAX_WRAPPED):
            following = _next_shown(node)
            if following is not None:
                twin = following.css_first("img") if following.tag == "noscript" else None
                if twin is not None:
                    self._taken.add(following.mem_id)
                return twin
            if node.parent is None or node.parent.tag not in _WRAPPERS:
                return None
            node = node.parent
        return None

    def _lazy_behind(self, node: LexborNode) -> LexborNode | None:
        following = _next_shown(node)
        if following is None or following.tag not in ("img", "picture", "a"):
            return None
        image = following if following.tag == "img" else following.css_first("img")
        address = best_address(image, self._base) if image is not None else None
        return image if address is None or address.is_lazy or address.is_placeholder else None


def _next_shown(node: LexborNode) -> LexborNode | None:
    """Return the next sibling that is an element or holds text."""
    following = node.next
    while following is not None:
        tag = following.tag or "-"
        if tag[0].isalpha() or (tag == "-text" and (following.text_content or "").strip()):
            return following
        following = following.next
    return None
