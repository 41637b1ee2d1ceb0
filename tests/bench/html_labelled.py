"""Real pages with the text of their article, labelled by others.

Owns where they come from: the tests of newspaper4k (MIT), fetched by name. The label is the running text of
the article only; titles count neither way, and captions, authors' lines and comments count as wrong, so
nobody can reach precision 1.0 here who keeps them.
"""

import json

from jobs.fetch import fetch
from tests.bench.html_pages import Page


def labelled_pages() -> list[Page]:
    """Return the real pages, with one item of text each."""
    data = fetch("sdist:newspaper4k")[0] / "tests" / "data"
    pages = []
    for path in sorted((data / "html").glob("*.html")):
        label, about = data / "txt" / f"{path.stem}.txt", data / "metadata" / f"{path.stem}.json"
        if label.exists():
            title = json.loads(about.read_text())["title"] if about.exists() else ""
            optional = frozenset([title] if title else [])
            pages.append(Page(path.stem, "real", path.read_bytes(), (("text", label.read_text()),), optional))
    return pages
