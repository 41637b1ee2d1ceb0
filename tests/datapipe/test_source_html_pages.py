"""Whole pages made by code: exactly what a careful reader would list is in the stream, in that order."""

import re
import unicodedata
from urllib.parse import urljoin

import pytest

from datapipe.sources import html
from tests.bench.html_pages import URL, Page, data_address, feature_pages
from tests.bench.html_sites import site_pages

# Pages whose menus and notices nothing in the markup tells from content; what is read there stays a superset.
UNMARKED = ("nineties-1", "nineties-3", "framework-3", "magazine-2", "news-3")


def signs(text: str) -> str:
    return "".join(re.findall(r"\w+", unicodedata.normalize("NFKC", text).casefold()))


def stream(page: Page) -> list[str]:
    optional = {signs(text) for text in page.optional}
    found = []
    for item in html.read(page.data, URL).items:
        if item.mask is None and item.kind == "text" and item.role not in ("alt", "transcript"):
            rows = (item.text or "").split("\n") if item.role == "table" else [item.text or ""]
            found += [signs(row) for row in rows if signs(row) and signs(row) not in optional]
        elif item.mask is None and item.kind != "text":
            found.append(item.href or data_address(item.data or b""))
    return found


def listed(page: Page) -> list[str]:
    return [
        signs(value) if kind == "text" else value if value.startswith("data:") else urljoin(URL, value)
        for kind, value in page.items
    ]


@pytest.mark.parametrize("page", [*feature_pages(), *site_pages()], ids=lambda page: page.name)
def test_the_stream_is_what_a_careful_reader_lists(page: Page) -> None:
    found, wanted = stream(page), listed(page)
    if page.name in UNMARKED:
        found = [value for value in found if value in wanted]
    assert found == wanted
