"""IP addresses in text that may be somebody's.

Left alone: networks (`/24`), and addresses that are not globally routed: private, loopback, link-local,
documentation, multicast, reserved (RFC 6890). IPv4 is read as a version or section number after a word such
as "version", after `name/` or `==`, where it numbers a heading or a line, and where all four parts are below
32 (one address in 4,096 is like that). IPv6 counts inside 2000::/3 only.
"""

import re
from collections.abc import Iterator
from ipaddress import AddressValueError, IPv4Address, IPv4Network, IPv6Address, IPv6Network

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


def find(text: str, role: str) -> Iterator[tuple[int, int]]:
    """Yield the [start, end) of each address in a text of this role."""
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
