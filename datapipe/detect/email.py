"""E-mail addresses in text.

Left alone, because they name nobody: addresses at reserved example domains (RFC 2606), `git@host` logins, and
what has the form of an address and is none (`icon@2x.png`, `getty@tty1.service`, `a@b.to(c)` in code).
"""

import re
from collections.abc import Iterator

_LETTER = "A-Za-z0-9À-ÖØ-öø-ɏͰ-ӿ"  # Latin, Greek and Cyrillic; Chinese may stand next to an address
_EMAIL = re.compile(
    rf"(?<![{_LETTER}._%+@-])[{_LETTER}](?:[{_LETTER}._%+'-]{{0,62}}[{_LETTER}_+-])?"
    rf"(?:[@＠]|\s?[\[(]\s?at\s?[\])]\s?)"
    rf"(?P<domain>(?:[{_LETTER}](?:[{_LETTER}-]{{0,61}}[{_LETTER}])?(?:\.|\s?[\[(]\s?dot\s?[\])]\s?)){{1,6}}"
    rf"(?P<top>xn--[A-Za-z0-9-]{{2,59}}|[A-Za-zÀ-ÖØ-öø-ɏͰ-ӿ]{{2,24}}))(?![{_LETTER}@(]|\.[{_LETTER}]|:[\w~/.])",
    re.IGNORECASE,
)
_RESERVED_DOMAIN = re.compile(r"(?:^|\.)(?:example\.(?:com|org|net|edu)|example|test|invalid|localhost)$")
# Last parts of file and unit names that are no top-level domains.
_NO_TOP_LEVEL = frozenset(
    [
        "png",
        "jpg",
        "jpeg",
        "gif",
        "svg",
        "webp",
        "bmp",
        "ico",
        "tif",
        "tiff",
        "css",
        "js",
        "ts",
        "jsx",
        "tsx",
        "html",
        "htm",
        "xml",
        "json",
        "yaml",
        "yml",
        "toml",
        "txt",
        "csv",
        "pdf",
        "doc",
        "docx",
        "tar",
        "gz",
        "xz",
        "deb",
        "rpm",
        "exe",
        "dll",
        "jar",
        "service",
        "socket",
        "target",
        "timer",
        "mount",
        "slice",
        "scope",
    ]
)
# In code `a@b.name` may be a product of matrices; there only these and two-letter domains count.
_TOP_LEVEL_IN_CODE = frozenset(["com", "org", "net", "edu", "gov", "mil", "int", "info", "biz", "dev", "app"])


def find(text: str, role: str) -> Iterator[tuple[int, int]]:
    """Yield the [start, end) of each address in a text of this role."""
    for match in _EMAIL.finditer(text):
        top, domain = match["top"].lower(), re.sub(r"\s?[\[(]\s?dot\s?[\])]\s?", ".", match["domain"].lower())
        is_name = top in _NO_TOP_LEVEL or (role == "code" and len(top) > 2 and top not in _TOP_LEVEL_IN_CODE)
        is_login = match[0].lower().startswith("git@")
        if not (is_name or is_login or _RESERVED_DOMAIN.search(domain)):
            yield match.span()
