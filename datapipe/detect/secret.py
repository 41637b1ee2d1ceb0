"""Keys, tokens and passwords in text.

Two kinds of sign: the form a provider gives its keys (each with its own prefix, published so that scanners
can find them), and a word such as "password" or "api_key" before a value that looks random. Left alone:
placeholders (`<your-key>`, `xxxx`, `...EXAMPLE`).
"""

import math
import re
from collections import Counter
from collections.abc import Iterator

_FORMS = re.compile(
    r"(?<![A-Za-z0-9_-])(?:"
    r"(?:AKIA|ASIA)[A-Z2-7]{16}"  # AWS access key id
    r"|gh[pousr]_[A-Za-z0-9]{36,255}|github_pat_[A-Za-z0-9_]{80,90}"
    r"|glpat-[A-Za-z0-9_-]{20,60}"  # GitLab
    r"|xox[abeprs]-[A-Za-z0-9-]{10,250}"  # Slack
    r"|sk-(?:ant-|proj-|svcacct-)?[A-Za-z0-9_-]{32,200}"  # OpenAI, Anthropic
    r"|hf_[A-Za-z0-9]{30,40}"  # Hugging Face
    r"|AIza[A-Za-z0-9_-]{35}"  # Google
    r"|[rs]k_live_[A-Za-z0-9]{24,99}"  # Stripe
    r"|npm_[A-Za-z0-9]{36}|pypi-AgEI[A-Za-z0-9_-]{50,300}"
    r"|SG\.[A-Za-z0-9_-]{22}\.[A-Za-z0-9_-]{43}"  # SendGrid
    r"|eyJ[A-Za-z0-9_-]{10,2000}\.eyJ[A-Za-z0-9_-]{10,4000}\.[A-Za-z0-9_-]{16,1000}"  # JWT, RFC 7519
    r")(?![A-Za-z0-9_-])"
)
# RFC 7468: the label of an unencrypted or encrypted private key ends in PRIVATE KEY.
_PEM = re.compile(
    r"-----BEGIN (?P<label>(?:[A-Z0-9]+ )*PRIVATE KEY(?: BLOCK)?)-----"
    r"(?:(?!-----BEGIN).){20,20000}?-----END (?P=label)-----",
    re.DOTALL,
)
_IN_URL = re.compile(r"\b[a-z][a-z0-9+.-]{1,20}://[^\s/:@'\"<>]{1,64}:(?P<value>[^\s/@'\"<>]{3,128})@[\w\[]")
_CUED = re.compile(
    r"(?:pass(?:word|wd|phrase)|pwd|secret(?:[_ -]?(?:access[_ -]?)?key)?|client[_ -]?secret|bearer"
    r"|(?:api|access|auth|private)[_ -]?(?:key|token))"
    r"[\"']?\s{0,3}(?:[:=]|=>|:=|\bis\b|(?<=bearer)\s)\s{0,3}[\"']?"
    r"(?P<value>[A-Za-z0-9+/=_.~!@#$%^&*-]{16,200})",
    re.IGNORECASE,
)
_PLACEHOLDER = re.compile(
    r"example|your|xxxx|placeholder|changeme|secret|password|dummy|test|\*\*\*|\.\.\.", re.I
)
MIN_ENTROPY_BITS = 3.5  # a character; English words have less, 16 random hexadecimal digits about as much


def find(text: str, role: str) -> Iterator[tuple[int, int]]:
    """Yield the [start, end) of each secret, in any role; of a URL or an assignment the value alone."""
    del role
    for pattern in (_FORMS, _PEM):
        for match in pattern.finditer(text):
            if not _PLACEHOLDER.search(match[0]):
                yield match.span()
    for match in _IN_URL.finditer(text):
        if not _PLACEHOLDER.search(match["value"]) and not re.fullmatch(r"\W*|\$?\{.*\}|\d+", match["value"]):
            yield match.span("value")
    for match in _CUED.finditer(text):
        if _looks_random(match["value"]):
            yield match.span("value")


def _looks_random(value: str) -> bool:
    """Return whether a value mixes letters and digits and has the entropy of random characters.

    Shannon entropy of its characters, as secret scanners use it.
    """
    if _PLACEHOLDER.search(value) or not (re.search("[A-Za-z]", value) and re.search(r"\d", value)):
        return False
    shares = [count / len(value) for count in Counter(value).values()]
    return -sum(share * math.log2(share) for share in shares) >= min(
        MIN_ENTROPY_BITS, math.log2(len(value)) - 0.5
    )
