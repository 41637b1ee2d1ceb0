"""Payment card and bank account numbers in text, told from other numbers by issuer, length and check digits.

Left alone, because they name nobody: the test numbers that card networks publish, and the examples of the
IBAN registry.
"""

import re
from collections.abc import Iterator

# Groups of digits with one kind of separator; what stands next must not continue the number.
_CARD = re.compile(
    r"(?<![\w.,+/-])[2-6](?:\d{11,18}|\d{3}(?P<mark>[ -])\d{4,6}(?:(?P=mark)\d{4,5}){1,3})(?![\w/]|[-.,]\d)"
)
_CARD_CUE = re.compile(
    r"(?:card|visa|master|amex|credit|debit|kreditkarte|carte|tarjeta)\W{0,3}\w{0,12}\W{0,4}$", re.I
)
# Issuer ranges and lengths by first digits (ISO/IEC 7812-1; the networks' published ranges).
_ISSUERS = re.compile(
    r"4(?:\d{12}|\d{15}|\d{18})"  # Visa
    r"|(?:5[1-5]\d{2}|222[1-9]|22[3-9]\d|2[3-6]\d{2}|27[01]\d|2720)\d{12}"  # Mastercard
    r"|3[47]\d{13}"  # American Express
    r"|3(?:0[0-5]|[689]\d)\d{11}"  # Diners Club
    r"|35(?:2[89]|[3-8]\d)\d{12}"  # JCB
    r"|(?:6011|64[4-9]\d|65\d{2})\d{12}"  # Discover
    r"|62\d{14,17}"  # UnionPay
)
_TEST_CARDS = frozenset(
    (
        "4111111111111111",
        "4012888888881881",
        "4222222222222",
        "4242424242424242",
        "4000056655665556",
        "5555555555554444",
        "5105105105105100",
        "5200828282828210",
        "2223003122003222",
        "378282246310005",
        "371449635398431",
        "6011111111111117",
        "6011000990139424",
        "30569309025904",
        "38520000023237",
        "3530111333300000",
        "3566002020360505",
    )
)

_IBAN = re.compile(
    r"(?<![A-Za-z0-9])[A-Z]{2}\d{2}(?:[ ]?[A-Z0-9]{4}){2,7}(?:[ ]?[A-Z0-9]{1,3})?(?![A-Za-z0-9])"
)
# Length by country: SWIFT, IBAN Registry.
_IBAN_LENGTHS = {
    country: length
    for length, countries in {
        15: "NO",
        16: "BE",
        18: "DK FO FI GL NL SD",
        19: "MK SI",
        20: "AT BA EE KZ XK LT LU",
        21: "HR LV LI CH",
        22: "BH BG CR GE DE IE ME RS GB VA",
        23: "GI IQ IL TL AE",
        24: "AD CZ MD PK RO SA SK ES SE TN VG",
        25: "LY PT ST",
        26: "IS TR",
        27: "FR GR IT MR MC SM",
        28: "AL AZ BY CY DO SV GT HU LB PL",
        29: "BR EG PS QA UA",
        30: "JO KW MU",
        31: "MT SC",
        32: "LC",
    }.items()
    for country in countries.split()
}
_EXAMPLE_IBANS = frozenset(
    (
        "DE89370400440532013000",
        "GB82WEST12345698765432",
        "GB29NWBK60161331926819",
        "GB33BUKB20201555555555",
        "FR1420041010050500013M02606",
        "CH9300762011623852957",
        "AT611904300234573201",
        "NL91ABNA0417164300",
        "ES9121000418450200051332",
        "IT60X0542811101000000123456",
        "BE68539007547034",
    )
)


def find_cards(text: str, role: str) -> Iterator[tuple[int, int]]:
    """Yield the [start, end) of each payment card number; in code and tables only after a word for a card.

    Source: the check digit is that of ISO/IEC 7812-1 annex B (Luhn).
    """
    for match in _CARD.finditer(text):
        digits = re.sub(r"\D", "", match[0])
        if not _ISSUERS.fullmatch(digits) or digits in _TEST_CARDS or not _has_luhn_digit(digits):
            continue
        needs_cue = role in ("code", "table", "tool_call", "tool_result") or match["mark"] is None
        if not needs_cue or _CARD_CUE.search(text[max(0, match.start() - 40) : match.start()]):
            yield match.span()


def find_ibans(text: str, role: str) -> Iterator[tuple[int, int]]:
    """Yield the [start, end) of each international bank account number, in any role.

    Source: ISO 13616-1 (letters count from A = 10, the first four characters go last, modulo 97 is 1).
    """
    del role
    for match in _IBAN.finditer(text):
        length = _IBAN_LENGTHS.get(match[0][:2], 0)
        found = _first_characters(match[0], length)
        number = found.replace(" ", "")
        if number and len(number) == length and number not in _EXAMPLE_IBANS and _has_iban_check(number):
            yield match.start(), match.start() + len(found)


def _first_characters(text: str, count: int) -> str:
    """Return the beginning of a text with `count` characters other than spaces, if a word ends there."""
    places = [place for place, character in enumerate(text) if character != " "]
    if not 0 < count <= len(places):
        return ""
    end = places[count - 1] + 1
    return text[:end] if text[end : end + 1] in ("", " ") else ""


def _has_luhn_digit(digits: str) -> bool:
    doubled = [int(digit) * (2 if place % 2 else 1) for place, digit in enumerate(reversed(digits))]
    return sum(number - 9 if number > 9 else number for number in doubled) % 10 == 0


def _has_iban_check(number: str) -> bool:
    return int("".join(str(int(character, 36)) for character in number[4:] + number[:4])) % 97 == 1
