"""Office's mathematics (OMML) as LaTeX.

Owns the way from `m:oMath` to a line of LaTeX. What it does not know is written as its text.
"""

import re
from collections.abc import Callable

from lxml import etree

from datapipe.sources.office import NAMESPACES

_M = "{" + NAMESPACES["m"] + "}"
_SYMBOLS = {
    "∑": r"\sum",
    "∏": r"\prod",
    "∫": r"\int",
    "∬": r"\iint",
    "∭": r"\iiint",
    "∮": r"\oint",
    "⋃": r"\bigcup",
    "⋂": r"\bigcap",
}
_ACCENTS = {
    "\u0302": r"\hat",
    "^": r"\hat",
    "\u0303": r"\tilde",
    "~": r"\tilde",
    "\u0304": r"\bar",
    "\u0305": r"\overline",
    "\u0307": r"\dot",
    "\u0308": r"\ddot",
    "\u20d7": r"\vec",
    "→": r"\vec",
    "⏞": r"\overbrace",
    "⏟": r"\underbrace",
}
_ESCAPED = str.maketrans({"{": r"\{", "}": r"\}", "%": r"\%", "#": r"\#", "&": r"\&", "\\": r"\backslash "})
_FUNCTION = re.compile(
    r"(?:arc)?(?:sin|cos|tan)|(?:sin|cos|tan)h|cot|sec|csc|log|ln|exp|lim|max|min|sup|inf|det|dim|gcd"
)


def latex(element: etree._Element) -> str:
    """Return an equation (`m:oMath`, or `m:oMathPara` with several) as LaTeX without dollar signs."""
    equations = element.iter(_M + "oMath") if element.tag == _M + "oMathPara" else [element]
    try:
        lines = [_inner(equation) for equation in equations]
    except RecursionError:  # nested deeper than anyone writes: its letters are all there is to say
        lines = [" ".join("".join(element.itertext()).split())]
    return r" \\ ".join(line for line in lines if line)


def _inner(element: etree._Element | None) -> str:
    """Return what stands inside an element, its parts joined so that commands do not run into letters."""
    if element is None:
        return ""
    written = ""
    for child in element:
        if not isinstance(child.tag, str):
            continue
        part = _part(child)
        if part and written and part[0].isalpha() and _ends_in_command(written):
            written += " "
        written += part
    return " ".join(written.split())


def _part(element: etree._Element) -> str:
    name = etree.QName(element).localname
    if element.tag == _M + name and name in _PARTS:
        return _PARTS[name](element)
    if name == "t":
        return (element.text or "").translate(_ESCAPED)
    return "" if name.endswith("Pr") else _inner(element)


def _ends_in_command(text: str) -> bool:
    command = text[text.rfind("\\") :] if "\\" in text else ""
    return len(command) > 1 and command[1:].isalpha()


def _child(element: etree._Element, name: str) -> str:
    return _inner(element.find(_M + name))


def _group(element: etree._Element, name: str) -> str:
    return "{" + _child(element, name) + "}"


def _property(element: etree._Element, name: str, default: str) -> str:
    """Return the value of a property of an equation's part; the default where it is not set."""
    properties = element.find(_M + etree.QName(element).localname + "Pr")
    found = properties.find(_M + name) if properties is not None else None
    return default if found is None else found.get(_M + "val", "")


def _fraction(element: etree._Element) -> str:
    if _property(element, "type", "bar") == "lin":
        return _child(element, "num") + "/" + _child(element, "den")
    command = r"\binom" if _property(element, "type", "bar") == "noBar" else r"\frac"
    return command + _group(element, "num") + _group(element, "den")


def _based(element: etree._Element) -> str:
    """Return the base of a script, in braces where it is more than one sign."""
    base = _child(element, "e")
    return base if len(base) == 1 or (base.startswith("\\") and base[1:].isalpha()) else "{" + base + "}"


def _root(element: etree._Element) -> str:
    degree = _child(element, "deg")
    return r"\sqrt" + (f"[{degree}]" if degree else "") + _group(element, "e")


def _large_operator(element: etree._Element) -> str:
    sign = _property(element, "chr", "∫")
    limits = "".join(
        mark + "{" + text + "}"
        for mark, name in (("_", "sub"), ("^", "sup"))
        if (text := _child(element, name))
    )
    return _SYMBOLS.get(sign, sign) + limits + _group(element, "e")


def _delimited(element: etree._Element) -> str:
    begin, end = _property(element, "begChr", "("), _property(element, "endChr", ")")
    inside = _property(element, "sepChr", "|").join(_inner(e) for e in element.findall(_M + "e"))
    begin, end = (bracket.translate(_ESCAPED) or "." for bracket in (begin, end))
    return rf"\left{begin}{inside}\right{end}"


def _matrix(element: etree._Element) -> str:
    rows = [" & ".join(_inner(e) for e in row.findall(_M + "e")) for row in element.findall(_M + "mr")]
    return r"\begin{matrix}" + r" \\ ".join(rows) + r"\end{matrix}"


def _equations(element: etree._Element) -> str:
    return r"\begin{aligned}" + r" \\ ".join(_inner(e) for e in element.findall(_M + "e")) + r"\end{aligned}"


def _function(element: etree._Element) -> str:
    name = _child(element, "fName")
    return ("\\" + name if _FUNCTION.fullmatch(name) else name) + _group(element, "e")


def _accent(element: etree._Element) -> str:
    sign = _property(element, "chr", "\u0302")
    return _ACCENTS.get(sign, r"\hat") + _group(element, "e")


def _bar(element: etree._Element) -> str:
    return (r"\overline" if _property(element, "pos", "bot") == "top" else r"\underline") + _group(
        element, "e"
    )


def _braced(element: etree._Element) -> str:
    return _ACCENTS.get(_property(element, "chr", "⏟"), r"\underline") + _group(element, "e")


def _run(element: etree._Element) -> str:
    text = "".join(_part(child) for child in element)
    return "".join(_SYMBOLS.get(sign, sign) for sign in text)


def _limit_below(element: etree._Element) -> str:
    name = _child(element, "e")
    return ("\\" + name if _FUNCTION.fullmatch(name) else _group(element, "e")) + "_" + _group(element, "lim")


_PARTS: dict[str, Callable[[etree._Element], str]] = {
    "f": _fraction,
    "sSup": lambda e: _based(e) + "^" + _group(e, "sup"),
    "sSub": lambda e: _based(e) + "_" + _group(e, "sub"),
    "sSubSup": lambda e: _based(e) + "_" + _group(e, "sub") + "^" + _group(e, "sup"),
    "sPre": lambda e: "{}_" + _group(e, "sub") + "^" + _group(e, "sup") + _group(e, "e"),
    "rad": _root,
    "nary": _large_operator,
    "d": _delimited,
    "m": _matrix,
    "eqArr": _equations,
    "func": _function,
    "acc": _accent,
    "bar": _bar,
    "groupChr": _braced,
    "limLow": _limit_below,
    "limUpp": lambda e: _based(e) + "^" + _group(e, "lim"),
    "r": _run,
}
