"""Phone numbers in text: rules, not a model.

Left alone: the fictional 555-01xx range. Forms that may be other numbers (digits without separators, 3-3-4
with spaces) need a word such as "Tel." before them. In code and tables so do all forms but `+` international
and, in tables, North American with hyphens or brackets. Digits other than 0 to 9 are not read.
"""

import re
from collections.abc import Callable, Iterator

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


def find(text: str, role: str) -> Iterator[tuple[int, int]]:
    """Yield the [start, end) of each phone number in a text of this role."""
    for pattern, accepts in _PHONES_BY_ROLE.get(role, _IN_PROSE):
        for match in pattern.finditer(text):
            start, end = match.span("number")
            ends = [group.end() for group in _GROUP_END.finditer(text, start, end)]
            # The longest run of whole groups that makes a number: what follows it may be another number.
            for stop in reversed(ends):
                if accepts(text[start:stop]) and not _CONTINUES.match(text, stop):
                    yield start, stop
                    break
