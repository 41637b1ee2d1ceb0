"""Which address is the real picture of an `<img>`.

Owns `srcset`, `<picture>`, lazy-loading attributes, placeholders and `data:` addresses. A page offers a
picture in many ways at once: what a wide screen would finally show is taken, once, in the best size worth
having.
"""

import base64
import dataclasses
import re
import struct
from collections.abc import Callable, Iterable, Iterator
from urllib.parse import unquote_to_bytes

from selectolax.lexbor import LexborNode

from datapipe.sources.items import Item, is_remote, resolve

MIN_DRAWING_SIDE = 100  # pixels; smaller inline drawings are signs
MAX_DRAWING_CHARS = 1_000_000
MAX_WIDTH = 2048  # pixels; of a `srcset`, the widest picture up to this, as training shows none larger

_LAZY = (  # attributes that scripts copy to `src`, the better ones first
    "data-orig-file",
    "data-large-file",
    "data-hi-res-src",
    "data-full-src",
    "data-src",
    "data-original",
    "data-lazy-src",
    "data-lazy",
    "data-lazyload",
    "data-original-src",
    "data-src-fg",
    "data-gt-lazy-src",
    "data-lateloadsrc",
    "data-img-src",
    "data-scroll-image",
    "data-image",
    "data-actualsrc",
    "data-delayed-url",
    "data-echo",
    "data-cfsrc",
    "data-ks-lazyload",
    "data-url",
    "data-src2",
    "src2",
    "lazy-src",
)
_SOURCES = {name: place for place, name in enumerate((*_LAZY, "src"))}
_SETS = ("data-srcset", "data-lazy-srcset", "data-original-set", "lazy-srcset", "srcset")
_TYPES = frozenset(
    f"image/{name}"
    for name in ("jpeg", "jpg", "pjpeg", "png", "apng", "gif", "webp", "avif", "bmp", "tiff", "svg+xml")
)
_PICTURE_FILE = re.compile(r"\.(?:jpe?g|png|gif|webp|avif|bmp|tiff?)(?:[?#]|$)", re.IGNORECASE)
_PLACEHOLDER = re.compile(
    r"(?:(?:^|[/._-])(?:spacer|blank|placeholder|transparent|loading|loader|preloader|lazy|lazyload|1x1)"
    r"|(?:^|/)(?:pixel|clear|dummy|empty|gr[ea]y|spinner|[stbx](?=\.gif)))"
    r"(?:[._-][^/]*)?\.(?:gif|png|svg|jpe?g|webp)$",
    re.IGNORECASE,
)
_BLANK = re.compile(
    r"(?:^|/)(?:spacer|blank|pixel|transparent|1x1|clear|cleardot|dot_clear|shim)\.(?:gif|png)$",
    re.IGNORECASE,
)
_NO_PICTURE = re.compile(r"(?:#|javascript:|about:|mailto:|data:,|data:;)", re.IGNORECASE)
_MAX_PLACEHOLDER_CHARS = 1024
_SVG_DRAWS = re.compile(
    rb"<(?:[\w-]+:)?(?:path|rect|circle|ellipse|line|poly\w+|text|image|use|foreignObject)\b", re.IGNORECASE
)
_SVG_NAMES = {"xmlns": "http://www.w3.org/2000/svg", "xmlns:xlink": "http://www.w3.org/1999/xlink"}
_WORDS = re.compile(r"\S+")
_DESCRIPTOR = re.compile(r"(\d+(?:\.\d*)?|\.\d+)([wx])")
_SCREEN = {
    "width": 1920.0,
    "height": 1080.0,
    "device-width": 1920.0,
    "device-height": 1080.0,
    "resolution": 2.0,
    "device-pixel-ratio": 2.0,
}
_TRUE_CONDITIONS = frozenset(
    (
        "color",
        "hover",
        "orientation:landscape",
        "prefers-color-scheme:light",
        "prefers-reduced-motion:no-preference",
    )
)
_CONDITION = re.compile(r"(?:(min|max)-)?([a-z-]+)(:|[<>]=?|=)([\d.]+)([a-z]*)")
_UNITS = {"em": 16.0, "rem": 16.0, "cm": 37.8, "dpi": 1 / 96, "pt": 4 / 3}  # in pixels, or pixels for one


@dataclasses.dataclass(frozen=True)
class Address:
    """Where the picture of an `<img>` is. `width` is what the page declares, in pixels; 0 for nothing.

    `is_placeholder`: it only keeps the place of a picture that a script puts there. `is_lazy`: an attribute
    that only scripts read named it.
    """

    link: str
    width: float = 0.0
    is_placeholder: bool = False
    is_lazy: bool = False


def best_address(node: LexborNode, base: str) -> Address | None:
    """Return the address of the real picture of an `<img>`, or None when it names none.

    A `<source>` that suits a wide screen wins over the `srcset` of the `<img>`, this over lazy attributes,
    these over `src`. Whatever its place, a placeholder loses against anything, a drawing (SVG, which may lack
    its fonts) against a picture, and on a page in a folder a picture on the web against one in the folder,
    for the web is never read.
    """
    found = [address for address in _addresses(node) if not _NO_PICTURE.match(address.link)]
    if len(found) == 1 and not found[0].is_placeholder:
        return found[0]
    if not found or all(address.is_placeholder for address in found):
        found += [Address(link, is_lazy=True) for link in _other_data(node)]
    return min(found, key=_order(is_remote(base)), default=None)


def _order(is_web_page: bool) -> Callable[[Address], tuple[bool, bool, bool]]:
    def order(address: Address) -> tuple[bool, bool, bool]:
        link = address.link
        is_away = is_remote(link) and not link.startswith("data:")
        return address.is_placeholder, link.split("?")[0].endswith(".svg"), is_away and not is_web_page

    return order


def _addresses(node: LexborNode) -> Iterator[Address]:
    attributes = node.attributes
    parent = node.parent
    if parent is not None and parent.tag == "picture":
        for source in parent.css("source"):
            if (found := _of_source(source.attributes)) is not None:
                yield found
    for name in sorted(attributes.keys() & _SETS, key=_SETS.index):
        if (found := _best_of_set(attributes[name], name != "srcset")) is not None:
            yield found
    for name in sorted(attributes.keys() & _SOURCES.keys(), key=lambda name: _SOURCES[name]):
        if link := (attributes[name] or "").strip():
            yield Address(link, _number(attributes.get("width")), is_placeholder(link), name != "src")


def _of_source(attributes: dict[str, str | None]) -> Address | None:
    """Return the best address of a <source> of a <picture>, if it suits a wide screen and can be decoded."""
    type = (attributes.get("type") or "").split(";")[0].strip().lower()
    if (type and type not in _TYPES) or not media_suits(attributes.get("media")):
        return None
    for name in _SETS:
        found = _best_of_set(attributes.get(name), name != "srcset")
        if found is not None and not found.is_placeholder:
            return found
    return None


def _other_data(node: LexborNode) -> Iterator[str]:
    """Yield what looks like a picture's address in any other attribute made for scripts."""
    for name, value in node.attributes.items():
        if name.startswith("data-") and value and len(value) < 2000 and " " not in value.strip():
            link = value.strip()
            if _PICTURE_FILE.search(link) and not is_placeholder(link):
                yield link


def _best_of_set(value: str | None, is_lazy: bool) -> Address | None:
    """Return the best candidate of a `srcset`: the largest up to `MAX_WIDTH`, or the smallest above."""
    parsed = [(size, link) for link, size in parse_srcset(value or "")]
    if not parsed:
        return None
    candidates = [c for c in parsed if not is_placeholder(c[1])]
    if not candidates:
        return Address(parsed[0][1], is_placeholder=True, is_lazy=is_lazy)
    allowed = [c for c in candidates if c[0] <= MAX_WIDTH]
    size = max(size for size, _ in allowed) if allowed else min(size for size, _ in candidates)
    link = next(link for s, link in candidates if s == size)
    return Address(link, size if size > 16 else 0.0, is_lazy=is_lazy)


def parse_srcset(value: str) -> list[tuple[str, float]]:
    """Return the candidates of a `srcset` with their width in pixels or their density (1 where none is said).

    Addresses may hold commas, and, against the rules, spaces.

    *Source*: https://html.spec.whatwg.org/multipage/images.html#parsing-a-srcset-attribute
    """
    candidates: list[tuple[str, float]] = []
    words: list[str] = []
    for word in _WORDS.findall(value):
        if not words and not (word := word.lstrip(",")):
            continue
        descriptor, rest = _descriptor_first(word)
        if words and descriptor is not None:
            candidates.append((" ".join(words), descriptor))
            words = [rest] if rest else []
        elif word.endswith(","):
            candidates.append((" ".join([*words, word.rstrip(",")]).strip(), 1.0))
            words = []
        else:
            words.append(word)
    if words:
        candidates.append((" ".join(words), 1.0))
    return candidates


def _descriptor_first(word: str) -> tuple[float | None, str]:
    """Split `2x,next.jpg` into 2 and the address that follows without a space."""
    first, _, rest = word.partition(",")
    found = _DESCRIPTOR.fullmatch(first)
    return (float(found.group(1)) if found else None), rest.lstrip(",")


def media_suits(query: str | None) -> bool:
    """Return whether a media query holds on a wide, light, high-resolution screen."""
    return not query or any(_holds(part) for part in query.lower().split(","))


def _holds(query: str) -> bool:
    if re.search(r"\b(?:not|print|speech)\b", query):
        return False
    return all(_condition_holds(condition) for condition in re.findall(r"\(([^()]*)\)", query))


def _condition_holds(condition: str) -> bool:
    condition = re.sub(r"\s|-webkit-", "", condition)
    found = _CONDITION.fullmatch(condition)
    if found is None or found.group(2) not in _SCREEN:
        return condition in _TRUE_CONDITIONS
    bound, feature, sign, number, unit = found.groups()
    try:
        value = float(number) * _UNITS.get(unit, 1.0)
    except ValueError:
        return False
    if bound == "min" or sign.startswith(">"):
        return _SCREEN[feature] >= value
    return _SCREEN[feature] <= value if bound == "max" or sign.startswith("<") else _SCREEN[feature] == value


def is_placeholder(link: str) -> bool:
    """Return whether an address looks like what stands in for a picture until a script puts it there."""
    if link.startswith("data:"):
        return len(link) < _MAX_PLACEHOLDER_CHARS
    return _NO_PICTURE.match(link) is not None or _PLACEHOLDER.search(link.split("?")[0]) is not None


def shows_nothing(link: str) -> bool:
    """Return whether a picture is surely blank: a file named so, one pixel, or a drawing without a stroke."""
    if not link.startswith("data:"):
        return _BLANK.search(link.split("?")[0]) is not None
    data, mime = from_data_uri(link)
    if data is None:
        return True
    if "svg" in (mime or ""):
        return _SVG_DRAWS.search(data) is None
    return max(_size(data)) <= 2


def _size(data: bytes) -> tuple[int, int]:
    """Return the width and height of a GIF or PNG; a large one for anything else."""
    if data.startswith(b"GIF8") and len(data) >= 10:
        return struct.unpack("<HH", data[6:10])
    if data.startswith(b"\x89PNG") and len(data) >= 24:
        return struct.unpack(">II", data[16:24])
    return (1 << 16, 1 << 16)


def drawing(node: LexborNode, is_in_figure: bool) -> Item | None:
    """Return an inline `<svg>` as a picture if it is as large as one or in a figure; others are signs."""
    attributes = node.attributes
    sides = [_number(attributes.get(name)) for name in ("width", "height")]
    if not is_in_figure and min(sides) < MIN_DRAWING_SIDE:
        return None
    markup = node.html or ""
    if len(markup) > MAX_DRAWING_CHARS:
        return None
    names = "".join(f' {name}="{uri}"' for name, uri in _SVG_NAMES.items() if name not in attributes)
    data = markup.replace("<svg", f"<svg{names}", 1).replace("&nbsp;", "&#160;").encode()
    return Item("image", "figure", data=data, mime="image/svg+xml") if _SVG_DRAWS.search(data) else None


def is_tracker(attributes: dict[str, str | None]) -> bool:
    """Return whether an <img> or <iframe> says that it is at most one pixel or two."""
    sizes = [attributes.get(name) for name in ("width", "height")]
    if all(sizes):
        return all(re.fullmatch(r"[012](?:px)?", (size or "").strip()) for size in sizes)
    style = (attributes.get("style") or "").replace(" ", "").lower()
    return bool(re.search(r"(?:^|;)width:[01]px", style) and re.search(r"(?:^|;)height:[01]px", style))


def from_address(base: str, link: str, kind: str, mask: str | None = None) -> Item | None:
    """Return the item of an address on a page, with its bytes where the address holds them; None for none."""
    if not link.startswith("data:"):
        href = resolve(base, re.sub(r"[\t\n\r]", "", link))
        return Item(kind, "figure", href=href, mask=mask) if href else None
    data, mime = from_data_uri(link)
    if data is None:  # damaged: it keeps its place
        return Item(kind, "figure", href=f"{link.partition(',')[0]},", mask=mask)
    return Item(kind, "figure", data=data, mime=mime, mask=mask)


def from_data_uri(link: str) -> tuple[bytes | None, str | None]:
    """Return the bytes and type that a `data:` address holds; no bytes where it is damaged."""
    header, _, body = link[len("data:") :].partition(",")
    mime = header.split(";")[0].strip().lower() or None
    try:
        data = unquote_to_bytes(body)
        if header.rstrip().lower().endswith("base64"):
            data = b"".join(data.split())
            data = base64.b64decode(data + b"=" * (-len(data) % 4))
    except ValueError:
        return None, mime
    return data or None, mime


def first_of(links: Iterable[str | None]) -> str | None:
    """Return the first address that is one and no placeholder."""
    stripped = (link.strip() for link in links if link)
    return next((link for link in stripped if link and not is_placeholder(link)), None)


def _number(value: str | None) -> float:
    found = re.match(r"\s*(\d{1,6})(?:px)?\s*$", value or "")
    return float(found.group(1)) if found else 0.0
