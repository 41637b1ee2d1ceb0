"""Mask text: e-mail addresses, phone numbers and IP addresses become masks over their characters.

Owns the three detectors and their policy. Changes no text. Rules, not a model: what only context could tell
(names, postal addresses, numbers written without any sign of a phone) is not found.

What is left alone, because it names nobody:
- e-mail: addresses at reserved example domains (RFC 2606), `git@host` logins, and what has the form of an
  address and is none (`icon@2x.png`, `getty@tty1.service`, `a@b.to(c)` in code).
- phone: the fictional 555-01xx range. Forms that may be other numbers (digits without separators, 3-3-4 with
  spaces) need a word such as "Tel." before them. In code and tables so do all forms but `+` international
  and, in tables, North American with hyphens or brackets. Digits other than 0 to 9 are not read.
- IP: networks (`/24`), and addresses that are not globally routed: private, loopback, link-local,
  documentation, multicast, reserved (RFC 6890). IPv4 is read as a version or section number after a word
  such as "version", after `name/` or `==`, where it numbers a heading or a line, and where all four parts are
  below 32 (one address in 4,096 is like that). IPv6 counts inside 2000::/3 only.
"""

import re
from collections.abc import Callable, Iterator
from ipaddress import AddressValueError, IPv4Address, IPv4Network, IPv6Address, IPv6Network
from typing import Any

import pyarrow as pa

from datapipe.spec import MaskTextSpec
from schemas import document

VERSION = "2"
DETECTOR = "regex"

Mask = dict[str, Any]
Hit = tuple[int, int, str]  # start, end, reason
Span = tuple[int, int]


def mask_text(batch: pa.RecordBatch, spec: MaskTextSpec) -> pa.RecordBatch:
    """Return the documents with a mask appended for each hit that no mask of the same effect covers yet."""
    column = []
    for row in batch.select(["segments", "masks"]).to_pylist():
        masks = list(row["masks"])
        for number, segment in enumerate(row["segments"]):
            if segment["kind"] == "text":
                hits = find(segment["text"], segment["role"], spec)
                new = [_mask(number, hit, spec) for hit in hits]
                masks += [mask for mask in new if not any(_covers(old, mask) for old in row["masks"])]
        column.append(masks)
    index, field = document.SCHEMA.get_field_index("masks"), document.SCHEMA.field("masks")
    return batch.set_column(index, field, pa.array(column, type=field.type))


def find(text: str, role: str, spec: MaskTextSpec) -> list[Hit]:
    """Return the personal data in a text of this role: (start, end, reason) in order, without overlap.

    Hits that overlap become one over both, with the reason of the longer.
    """
    hits = sorted(
        (start, end, f"pii_{name}")
        for name in dict.fromkeys(spec.detectors)
        for start, end in _DETECTORS[name](text, role)
    )
    merged: list[Hit] = []
    for start, end, reason in hits:
        if merged and start < merged[-1][1]:
            first, last, first_reason = merged[-1]
            longer = reason if end - start > last - first else first_reason
            merged[-1] = (first, max(end, last), longer)
        else:
            merged.append((start, end, reason))
    return merged


def _mask(segment: int, hit: Hit, spec: MaskTextSpec) -> Mask:
    start, end, reason = hit
    return {
        "segment": segment,
        "start": start,
        "end": end,
        "box": None,
        "reason": reason,
        "action": spec.action,
        "detector": DETECTOR,
    }


def _covers(old: Mask, new: Mask) -> bool:
    """Return whether a mask already does to all of these characters what the new one would, or drops them."""
    return (
        old["segment"] == new["segment"]
        and old["action"] in (new["action"], "drop")
        and (old["start"] is None or old["start"] <= new["start"])
        and (old["end"] is None or old["end"] >= new["end"])
    )


# ---- e-mail

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


def _emails(text: str, role: str) -> Iterator[Span]:
    for match in _EMAIL.finditer(text):
        top, domain = match["top"].lower(), re.sub(r"\s?[\[(]\s?dot\s?[\])]\s?", ".", match["domain"].lower())
        is_name = top in _NO_TOP_LEVEL or (role == "code" and len(top) > 2 and top not in _TOP_LEVEL_IN_CODE)
        is_login = match[0].lower().startswith("git@")
        if not (is_name or is_login or _RESERVED_DOMAIN.search(domain)):
            yield match.span()


# ---- phone

_SEPARATOR = "[ \u00a0\u202f.\u2010\u2011\u2013-]"
_START = r"(?<![\w+.,/\u2013-])(?<!\d[ (])"  # not inside a word, a longer number or a row of numbers
_CONTINUES = re.compile(r"\w|[.,:/\u2013-]\d|[ ]?%")
_GROUP_END = re.compile(r"\d(?!\d)")
_DATE = re.compile(r"(?:\d{1,2}([-./ ])\d{1,2}\1(?:19|20)\d\d|(?:19|20)\d\d([-./ ])\d{1,2}\2\d{1,2})(?!\d)")

_PLUS = (
    rf"(?P<number>\+[1-9][0-9]{{0,14}}(?:{_SEPARATOR}?\(0\))?"
    rf"(?:{_SEPARATOR}?\(?[0-9]{{1,8}}\)?){{0,8}})"
)
_INTERNATIONAL = re.compile(rf"(?<![\w+]){_PLUS}")
_INTERNATIONAL_IN_CODE = re.compile(rf"(?<=[^\w+\n]){_PLUS}")  # a plus that begins a line marks a change
_DOUBLE_ZERO = re.compile(
    rf"{_START}(?P<number>00[1-9][0-9]{{0,2}}"
    rf"(?:{_SEPARATOR}\(?[0-9]{{1,8}}\)?){{1,8}})"
)
_NORTH_AMERICAN = re.compile(
    rf"{_START}(?P<number>(?:1[-. ])?(?:\([2-9][0-9]{{2}}\)[ -]?[2-9][0-9]{{2}}[-. \u2011]"
    rf"|[2-9][0-9]{{2}}(?P<mark>[-.\u2011])[2-9][0-9]{{2}}(?P=mark))[0-9]{{4}})"
)
_TRUNK = re.compile(
    rf"{_START}(?P<number>(?:\(0[1-9][0-9]{{0,4}}\)|0[1-9][0-9]{{0,4}})"
    rf"(?:{_SEPARATOR}|[ ]?/[ ]?)?[0-9]{{2,8}}(?:{_SEPARATOR}[0-9]{{2,8}}){{0,5}})"
)
# Five pairs are a French number; more or fewer are a row of numbers.
_PAIRS = re.compile(
    rf"{_START}(?P<number>0[1-9](?P<mark>{_SEPARATOR})[0-9]{{2}}(?:(?P=mark)[0-9]{{2}}){{3}})"
    rf"(?!{_SEPARATOR}?[0-9])"
)
_CUE = (
    r"(?:(?<!\w)(?:(?:tele)?(?:phone|fon|fax|faks)|tel|tél|tlf|téléphone|teléfono|telefono|telefone"
    r"|telefoon|puhelin|телефон|тел|факс|whatsapp|(?:mobile|mobil|cell|handy|call)(?=\s?:))|電話|电话|手机|传真|전화)"
)
_CUED = re.compile(
    rf"{_CUE}(?:\.|[ ]?(?:no|nr|number|num|n°)\.?(?!\w))?[\s:：.|#=]{{0,3}}"
    rf"(?P<number>\+?\(?[0-9](?:(?:{_SEPARATOR}|[/()]){{0,2}}[0-9]){{6,16}})",
    re.IGNORECASE,
)


def _is_international(number: str) -> bool:
    digits = re.sub(r"\(0\)|\D", "", number).removeprefix("00")
    if digits.startswith("1"):
        return len(digits) == 11 and digits[1] in "23456789" and not _is_fictional(number)
    is_amount = len(digits) <= 9 and re.fullmatch(r"\+\d{1,3}(?:[ \u00a0\u202f.]\d{3})+", number) is not None
    return 9 <= len(digits) <= 15 and not is_amount


def _is_fictional(number: str) -> bool:
    """Return whether a North American number is of the range kept for fiction, 555-0100 to 555-0199."""
    return re.sub(r"\D", "", number)[-7:-2] == "55501"


def _is_north_american(number: str) -> bool:
    return len(re.sub(r"\D", "", number)) >= 10 and not _is_fictional(number)


def _is_pairs(number: str) -> bool:
    pairs = [int(pair) for pair in re.findall(r"\d\d", number)]
    return len(number) == 14 and pairs != list(range(pairs[0], pairs[0] + 5))


def _is_trunk(number: str) -> bool:
    """Tell a number with a trunk zero from dates, serial numbers, decimals and rows of numbers."""
    groups, digits = re.findall(r"\d+", number), re.sub(r"\D", "", number)
    separators = re.findall(r"(?<=\d)\D(?=\d)", number[len(groups[0]) + 1 :])
    if not 9 <= len(digits) <= 12 or len(groups) < 2 or len(set(separators)) > 1 or _DATE.match(number):
        return False
    lengths = [len(group) for group in groups]
    is_postcode = re.fullmatch(r"\d{5}-\d{4}", number) is not None  # American, as in 02111-1307
    if is_postcode or lengths == [4, 4, 4] or max(lengths) == 2:
        return False
    return "." not in number or len(groups) >= 4


def _is_cued(number: str) -> bool:
    digits = re.sub(r"\D", "", number)
    is_version = re.fullmatch(r"\d{1,2}\.\d{1,2}\.\d+(?:\.\d+)?|\d{1,3}(?:\.\d{1,3}){3}", number) is not None
    return 7 <= len(digits) <= 15 and not (is_version or _DATE.match(number) or _is_fictional(number))


_Phone = tuple[re.Pattern[str], Callable[[str], bool]]
_IN_CODE: list[_Phone] = [(_INTERNATIONAL_IN_CODE, _is_international), (_CUED, _is_cued)]
_IN_TABLES: list[_Phone] = [
    (_INTERNATIONAL, _is_international),
    (_CUED, _is_cued),
    (_NORTH_AMERICAN, _is_north_american),
]
_IN_PROSE = [*_IN_TABLES, (_DOUBLE_ZERO, _is_international), (_TRUNK, _is_trunk), (_PAIRS, _is_pairs)]
_PHONES_BY_ROLE = {"code": _IN_CODE, "tool_call": _IN_CODE, "tool_result": _IN_CODE, "table": _IN_TABLES}


def _phones(text: str, role: str) -> Iterator[Span]:
    for pattern, accepts in _PHONES_BY_ROLE.get(role, _IN_PROSE):
        for match in pattern.finditer(text):
            start, end = match.span("number")
            ends = [group.end() for group in _GROUP_END.finditer(text, start, end)]
            # The longest run of whole groups that makes a number: what follows it may be another number.
            for stop in reversed(ends):
                if accepts(text[start:stop]) and not _CONTINUES.match(text, stop):
                    yield start, stop
                    break


# ---- IP

_IPV4 = re.compile(r"(?<![\w.-])(?<![^/]/)(?P<address>[0-9]{1,3}(?:\.[0-9]{1,3}){3})(?!\w|\.\w|/\d|-\d)")
_IPV6 = re.compile(r"(?<![\w:.])(?P<address>[23][0-9A-Fa-f]{3}:[0-9A-Fa-f:]{1,34}[0-9A-Fa-f:])(?![\w:]|/\d)")
_VERSION_CUE = re.compile(
    r"(?:(?:version|ver|release|build|firmware|kernel|driver|rev|revision|section|"
    r"chapter|figure|table|example|oid|objectidentifier)[\s.:=('\"v]{0,3}|[=<>~!]=\s?)$",
    re.IGNORECASE,
)
_VERSION_PART_LIMIT = 32
# Not globally routed (IANA special-purpose address registries, RFC 6890, RFC 9637).
_IPV4_NOT_PERSONAL = [
    IPv4Network(n)
    for n in (
        "0.0.0.0/8",
        "10.0.0.0/8",
        "100.64.0.0/10",
        "127.0.0.0/8",
        "169.254.0.0/16",
        "172.16.0.0/12",
        "192.0.0.0/24",
        "192.0.2.0/24",
        "192.88.99.0/24",
        "192.168.0.0/16",
        "198.18.0.0/15",
        "198.51.100.0/24",
        "203.0.113.0/24",
        "224.0.0.0/4",
        "240.0.0.0/4",
    )
]
_IPV6_NOT_PERSONAL = [IPv6Network(n) for n in ("2001:db8::/32", "3fff::/20")]


def _ips(text: str, role: str) -> Iterator[Span]:
    for match in _IPV4.finditer(text):
        before = text[max(0, match.start() - 24) : match.start()]
        begins_line = not before or before.endswith("\n")
        is_number = begins_line and (role == "heading" or text.startswith(". ", match.end()))
        if not is_number and not _VERSION_CUE.search(before) and _is_personal_ipv4(match["address"]):
            yield match.span("address")
    for match in _IPV6.finditer(text):
        address = match["address"] if match["address"].endswith("::") else match["address"].rstrip(":")
        if _is_personal_ipv6(address):
            yield match.start(), match.start() + len(address)


def _is_personal_ipv4(text: str) -> bool:
    try:
        address = IPv4Address(text)
    except AddressValueError:
        return False
    is_version = all(part < _VERSION_PART_LIMIT for part in address.packed)
    return not is_version and not any(address in network for network in _IPV4_NOT_PERSONAL)


def _is_personal_ipv6(text: str) -> bool:
    try:
        address = IPv6Address(text)
    except AddressValueError:
        return False
    return not any(address in network for network in _IPV6_NOT_PERSONAL)


_DETECTORS: dict[str, Callable[[str, str], Iterator[Span]]] = {"email": _emails, "phone": _phones, "ip": _ips}
