"""HTML to ordered items, beside trafilatura and resiliparse: how much is found, in order, and how fast.

    .venv/bin/python -m tests.bench.html

Owns the measure. Each extractor's answer and the list of a careful reader are sequences of blocks of text,
picture addresses and video addresses; their longest common subsequence gives precision, recall and F1. A
block counts as found when its letters and digits are the same, so that no separator or bullet matters. Since
resiliparse only gives text, and extractors cut blocks differently, the words alone are compared as well; and
since not every extractor looks for the best size of a picture, pictures are also compared whatever the size.
Of the settings of a peer the best one counts.

Pages made by code and the reader have the same authors: an F1 of 1.0 says that the reader does what was
meant, not that no page of the web can fool it. So real pages, labelled by others, are compared too.
"""

import functools
import re
import statistics
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from typing import Any
from urllib.parse import urljoin

import trafilatura
from lxml import etree
from resiliparse.extract.html2text import extract_plain_text
from resiliparse.parse.encoding import detect_encoding
from resiliparse.parse.html import HTMLTree

from datapipe.errors import ReadError
from datapipe.sources import html as ours
from tests.bench import report
from tests.bench.html_labelled import labelled_pages
from tests.bench.html_pages import URL, Page, data_address, feature_pages
from tests.bench.html_sites import site_pages

Items = list[tuple[str, str]]
Extractor = Callable[[bytes], Items]

_WITHOUT_SPACES = "\u0e00-\u0e7f\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af"  # each letter counts as a word
_WORD = re.compile(rf"[{_WITHOUT_SPACES}]|[^\W{_WITHOUT_SPACES}]+")
_SIZE = re.compile(r"(?:/cdn/w_\d+,h_\d+)?(/media/[a-z]+-\d{6})(?:-\w+)?\.\w+$")
_TRAFILATURA_BLOCKS = (
    "p",
    "head",
    "item",
    "quote",
    "code",
    "row",
    "list",
    "table",
    "main",
    "doc",
    "div",
    "figure",
    "ab",
)


WITH_PICTURES = {
    "items": "ordered blocks of text, pictures and videos",
    "without videos": "ordered blocks of text and pictures",
    "pictures": "pictures in order, by address",
    "pictures, any size": "pictures in order, any of their sizes",
}
TEXT_ONLY = {"text": "ordered blocks of text", "words": "words in order"}


def of_ours(data: bytes) -> Items:
    """Return what stays in the stream: items without a mask, alternative texts left out."""
    try:
        page = ours.read(data, URL)
    except ReadError:
        return []
    items: Items = []
    for item in page.items:
        if item.mask is not None or item.role in ("alt", "transcript"):
            continue
        if item.kind == "text":
            items += [
                ("text", row)
                for row in ((item.text or "").split("\n") if item.role == "table" else [item.text or ""])
            ]
        else:
            items.append((item.kind, item.href or data_address(item.data or b"")))
    return items


def of_trafilatura(data: bytes, favor_recall: bool = False) -> Items:
    found = trafilatura.extract(
        data,
        url=URL,
        output_format="xml",
        include_images=True,
        include_tables=True,
        include_comments=False,
        favor_recall=favor_recall,
    )
    if not found:
        return []
    items: Items = []
    _walk(etree.fromstring(found.encode()), items, [])
    return items


def _walk(element: etree._Element, items: Items, pending: list[str]) -> None:
    """Collect trafilatura's blocks; the pictures in one follow its text."""
    is_block = element.tag in _TRAFILATURA_BLOCKS
    text: list[str] = [] if is_block else pending
    pictures: Items | None = [] if is_block else None
    text.append(element.text or "")
    for child in element:
        if child.tag == "graphic":
            items_before = pictures if pictures is not None else items
            items_before.append(("image", child.get("src") or ""))
        elif child.tag in _TRAFILATURA_BLOCKS:
            _flush(items, text, pictures)
            _walk(child, items, [])
        else:
            text.append(" " * (child.tag == "cell"))
            _walk(child, items, text)
        text.append(child.tail or "")
    if is_block:
        _flush(items, text, pictures)


def _flush(items: Items, text: list[str], pictures: Items | None) -> None:
    if (words := "".join(text)).strip():
        items.append(("text", words))
    text.clear()
    items += pictures or []
    if pictures is not None:
        pictures.clear()


def of_resiliparse(data: bytes, main_content: bool) -> Items:
    tree = HTMLTree.parse_from_bytes(data, detect_encoding(data) or "utf-8")
    text = extract_plain_text(tree, main_content=main_content, alt_texts=False, list_bullets=False)
    return [("text", line) for line in text.split("\n") if line.strip()]


EXTRACTORS: dict[str, Extractor] = {
    "ours": of_ours,
    "trafilatura": of_trafilatura,
    "trafilatura, favor_recall": lambda data: of_trafilatura(data, True),
    "resiliparse, main content": lambda data: of_resiliparse(data, True),
    "resiliparse, whole page": lambda data: of_resiliparse(data, False),
}


def normalised(items: Iterable[tuple[str, str]]) -> list[str]:
    """Return items so that equal ones compare equal: letters and digits of a text, or a full address."""
    result = []
    for kind, value in items:
        if kind == "text":
            value = "".join(re.findall(r"\w+", unicodedata.normalize("NFKC", value).casefold()))
        elif not value.startswith("data:"):
            value = urljoin(URL, value)
        elif "," in value:
            value = "data:"  # an address with its bytes, which ours never gives
        if value:
            result.append(f"{kind} {value}")
    return result


def common(a: Sequence[str], b: Sequence[str]) -> int:
    """Return the length of the longest common subsequence.

    *Source*: Hyyrö 2004, "Bit-parallel LCS-length computation revisited", a row of the table as an integer.
    """
    places: dict[str, int] = {}
    for place, value in enumerate(a):
        places[value] = places.get(value, 0) | 1 << place
    everything = row = (1 << len(a)) - 1
    for value in b:
        matched = row & places.get(value, 0)
        row = ((row + matched) | (row - matched)) & everything
    return len(a) - row.bit_count()


class Score:
    """Precision, recall and F1 over many pages, each page counting alike."""

    def __init__(self) -> None:
        self.values: list[tuple[float, float, float]] = []

    def add(self, expected: Sequence[str], found: Sequence[str]) -> None:
        if not expected:
            return
        num = common(expected, found)
        precision, recall = num / max(1, len(found)), num / len(expected)
        self.values.append((2 * num / (len(expected) + len(found)), precision, recall))

    def f1(self) -> float:
        return statistics.fmean(f1 for f1, _, _ in self.values)

    def __str__(self) -> str:
        f1, precision, recall = (statistics.fmean(column) for column in zip(*self.values))
        return f"{f1:.3f} (precision {precision:.3f}, recall {recall:.3f})"


def measures(page: Page, found: Items) -> dict[str, tuple[list[str], list[str]]]:
    """Return what is compared, as the expected and the found sequence by the name of the measure."""
    optional = {normalised([("text", text)])[0] for text in page.optional}
    expected = normalised(page.items)
    answer = [value for value in normalised(found) if value not in optional or value in expected]
    wordless = {re.sub(r"\W+", "", text.casefold()) for text in page.optional}
    words = [
        [
            w
            for kind, text in items
            if kind == "text" and re.sub(r"\W+", "", text.casefold()) not in wordless
            for w in _words(text)
        ]
        for items in (page.items, found)
    ]
    return {
        "items": (expected, answer),
        "without videos": _of_kinds(expected, answer, "text", "image"),
        "text": _of_kinds(expected, answer, "text"),
        "pictures": _of_kinds(expected, answer, "image"),
        "pictures, any size": (_whatever_size(expected), _whatever_size(answer)),
        "words": (words[0], words[1]),
    }


def _of_kinds(expected: list[str], answer: list[str], *kinds: str) -> tuple[list[str], list[str]]:
    starts = tuple(f"{kind} " for kind in kinds)
    return [v for v in expected if v.startswith(starts)], [v for v in answer if v.startswith(starts)]


def _whatever_size(items: list[str]) -> list[str]:
    """Return the pictures by what they show: `-300`, `-s` and the like behind a name are its sizes."""
    return [_SIZE.sub(r"\1", value) for value in items if value.startswith("image ")]


def _words(text: str) -> list[str]:
    return _WORD.findall(unicodedata.normalize("NFKC", text).casefold())


def scores(pages: Sequence[Page]) -> dict[str, dict[str, Score]]:
    """Return the scores by extractor and measure; measures of one group of pages have it in their name."""
    result: dict[str, dict[str, Score]] = {}
    for name, extract in EXTRACTORS.items():
        by_measure = result.setdefault(name, {})
        for page in pages:
            for measure, (expected, found) in measures(page, extract(page.data)).items():
                for key in (
                    measure,
                    f"{measure}, {page.group} pages",
                    f"{measure}, {page.name.rpartition('-')[0]}",
                ):
                    by_measure.setdefault(key, Score()).add(expected, found)
    return result


def main() -> None:
    pages = feature_pages() + site_pages()
    found = scores(pages)
    timed = {name: functools.partial(_extract_all, extract, pages) for name, extract in EXTRACTORS.items()}
    seconds = {name: statistics.median(times) for name, times in report.in_turn(timed).items()}
    names = list(EXTRACTORS)
    rows = [_quality_row(measure, names[1:3], found, len(pages)) for measure in WITH_PICTURES]
    for measure in TEXT_ONLY:
        rows += [_quality_row(measure, peers, found, len(pages)) for peers in (names[1:3], names[3:])]
    rows += _labelled_rows([names[1:3], names[3:]])
    rows += [_speed_row(peer, found, seconds, pages) for peer in names[1:]]
    report.write("html", rows, ["trafilatura", "resiliparse", "selectolax", "lxml"])


def _extract_all(extract: Extractor, pages: Sequence[Page]) -> None:
    for page in pages:
        extract(page.data)


def _quality_row(
    measure: str, peers: Sequence[str], found: dict[str, dict[str, Score]], num_pages: int
) -> dict[str, Any]:
    """Return the row of a measure beside the best of some settings of a peer; its quality has them all."""
    mine = found["ours"]
    best = max(peers, key=lambda peer: found[peer][measure].f1())
    quality = {name: str(found[name][measure]) for name in ("ours", *peers)}
    for group in ("feature", "site"):
        key = f"{measure}, {group} pages"
        quality[f"{group} pages"] = f"ours {mine[key].f1():.3f}, {best} {found[best][key].f1():.3f}"
    if measure == "items":
        kinds = {
            key.rpartition(", ")[2]: score.f1() for key, score in mine.items() if key.startswith("items, ")
        }
        weak = sorted((f1, kind) for kind, f1 in kinds.items() if f1 < 0.99 and not kind.endswith("pages"))
        quality["ours falls short on"] = ", ".join(f"{kind} {f1:.2f}" for f1, kind in weak)
    return report.row(
        f"{(WITH_PICTURES | TEXT_ONLY)[measure]}; {num_pages} pages made by code",
        mine[measure].f1(),
        "F1",
        peer=found[best][measure].f1(),
        peer_name=best,
        goal_ratio=1.0,
        quality=quality,
    )


def _labelled_rows(peers: Sequence[Sequence[str]]) -> list[dict[str, Any]]:
    """Return the rows of real pages, of which only the text of the article is known."""
    pages = labelled_pages()
    found = scores(pages)
    rows = []
    for names in peers:
        best = max(names, key=lambda name: found[name]["words"].f1())
        rows.append(
            report.row(
                f"words in order; {len(pages)} real pages labelled by others (the running text only)",
                found["ours"]["words"].f1(),
                "F1",
                peer=found[best]["words"].f1(),
                peer_name=best,
                goal_ratio=1.0,
                quality={name: str(found[name]["words"]) for name in ("ours", *names)},
            )
        )
    return rows


def _speed_row(
    peer: str, found: dict[str, dict[str, Score]], seconds: dict[str, float], pages: Sequence[Page]
) -> dict[str, Any]:
    size = sum(len(page.data) for page in pages)
    is_text_only = peer.startswith("resiliparse")
    return report.row(
        f"{len(pages)} pages of {size / len(pages) / 1e3:.1f} kB to items"
        + " (the peer to text)" * is_text_only,
        len(pages) / seconds["ours"],
        "pages/s",
        peer=len(pages) / seconds[peer],
        peer_name=peer,
        goal_ratio=None if is_text_only else 1.0,
        quality={f"words, {name}": round(found[name]["words"].f1(), 3) for name in ("ours", peer)},
    )


if __name__ == "__main__":
    main()
