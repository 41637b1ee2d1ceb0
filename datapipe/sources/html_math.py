r"""Mathematics on a page as TeX between dollar signs.

Owns the ways formulas are written into HTML: MathML (with the TeX it was made from, or without), KaTeX,
MathJax, MediaWiki, and pictures of formulas. The TeX that an author wrote is taken; MathML without it is
turned into TeX: `<msup><mi>x</mi><mn>2</mn></msup>` is `x^{2}`.
"""

import re

from selectolax.lexbor import LexborNode

RENDERED = frozenset(  # what a script drew from a formula that stands beside it
    (
        "katex-html",
        "MathJax",
        "MathJax_Display",
        "MathJax_Preview",
        "MathJax_SVG",
        "MathJax_CHTML",
        "MJX_Assistive_MathML",
        "mjx-chtml",
        "mjx-math",
        "MJX-TEX",
    )
)
FORMULA_PICTURES = frozenset(
    ("latex", "tex", "math", "mwe-math-fallback-image-inline", "mwe-math-fallback-image-display")
)
_MAX_DEPTH = 60
_TEX_TYPES = ("application/x-tex", "application/x-latex", "text/x-tex", "TeX", "LaTeX")
_DISPLAY_STYLE = re.compile(r"^\{\\(?:display|text|script)style\s+(.*)\}$", re.DOTALL)
_SYMBOLS = {
    "∑": r"\sum",
    "∏": r"\prod",
    "∫": r"\int",
    "√": r"\surd",
    "±": r"\pm",
    "×": r"\times",
    "⋅": r"\cdot",
    "≤": r"\leq",
    "≥": r"\geq",
    "≠": r"\neq",
    "≈": r"\approx",
    "∞": r"\infty",
    "→": r"\to",
    "∈": r"\in",
    "∂": r"\partial",
    "−": "-",
    "\u2061": "",  # function application, and its invisible relatives
    "\u2062": "",
    "\u2063": "",
    "\u2064": "",
}
_ACCENTS = {
    "^": r"\hat",
    "ˆ": r"\hat",
    "¯": r"\bar",
    "‾": r"\bar",
    "~": r"\tilde",
    "˜": r"\tilde",
    "→": r"\vec",
}
_SHAPES = {  # how many parts make a shape, and the TeX of it; the first part comes grouped
    "mfrac": (2, r"\frac{}{{{}}}"),
    "mroot": (2, r"\sqrt[{1}]{0}"),
    "msup": (2, "{}^{{{}}}"),
    "msub": (2, "{}_{{{}}}"),
    "msubsup": (3, "{}_{{{}}}^{{{}}}"),
    "munder": (2, "{}_{{{}}}"),
    "mover": (2, "{}^{{{}}}"),
    "munderover": (3, "{}_{{{}}}^{{{}}}"),
}
_FUNCTIONS = frozenset(("sin", "cos", "tan", "log", "ln", "exp", "lim", "max", "min", "sup", "inf", "det"))
_ESCAPED = str.maketrans({"{": r"\{", "}": r"\}", "%": r"\%", "#": r"\#", "&": r"\&"})


def of_math(node: LexborNode) -> str:
    """Return a `<math>` element as TeX between dollar signs; an empty text for an empty one."""
    is_display = node.attributes.get("display") == "block" or node.attributes.get("mode") == "display"
    return dollars(_annotation(node) or node.attributes.get("alttext") or _to_tex(node, 0), is_display)


def of_script(node: LexborNode) -> str:
    """Return the formula of MathJax's `<script type="math/tex">`; an empty text for any other script."""
    type = (node.attributes.get("type") or "").lower()
    if not type.startswith("math/tex"):
        return ""
    return dollars(node.text() or "", "mode=display" in type.replace(" ", ""))


def of_wiki(node: LexborNode) -> str:
    """Return the formula of MediaWiki, which writes it as hidden MathML beside a picture of it."""
    tex = _annotation(node)
    if not tex:
        picture = node.css_first("img[alt]")
        tex = (picture.attributes.get("alt") or "") if picture is not None else ""
    return dollars(tex, node.css_first("math[display=block]") is not None)


def dollars(tex: str, is_display: bool = False) -> str:
    """Return TeX between dollar signs: one for a formula in a line, two for one that stands alone."""
    tex = " ".join(tex.split())
    if (found := _DISPLAY_STYLE.match(tex)) is not None:
        tex = found.group(1).strip()
    tex = tex.removeprefix("$").removesuffix("$").strip()
    mark = "$$" if is_display else "$"
    return f"{mark}{tex}{mark}" if tex else ""


def _annotation(node: LexborNode) -> str:
    for annotation in node.css("annotation"):
        if annotation.attributes.get("encoding") in _TEX_TYPES:
            return (annotation.text() or "").strip()
    return ""


def _to_tex(node: LexborNode, depth: int) -> str:
    """Return MathML as TeX; below some depth, which no formula reaches, as its letters."""
    tag = node.tag or ""
    if depth > _MAX_DEPTH:
        return node.text() or ""
    if tag in ("mi", "mn", "mo", "mtext", "ms"):
        return _token(tag, (node.text() or "").strip())
    children = [child for child in node.iter() if not (child.tag or "").startswith("annotation")]
    return _composed(tag, [_to_tex(child, depth + 1) for child in children], node.attributes)


def _composed(tag: str, parts: list[str], attributes: dict[str, str | None]) -> str:
    num_parts, shape = _SHAPES.get(tag, (0, ""))
    if shape and len(parts) == num_parts:
        if tag in ("mover", "munder") and parts[1].strip() in _ACCENTS:
            return f"{_ACCENTS[parts[1].strip()]}{{{parts[0]}}}"
        first = f"{{{parts[0]}}}" if tag in ("mfrac", "mroot") else _grouped(parts[0])
        return shape.format(first, *parts[1:])
    if tag == "mfenced":
        separator = (attributes.get("separators") or ",")[0]
        return (attributes.get("open") or "(") + separator.join(parts) + (attributes.get("close") or ")")
    if tag == "mtable":
        return r"\begin{matrix}" + r" \\ ".join(parts) + r"\end{matrix}"
    if tag in ("mtr", "mlabeledtr"):
        return " & ".join(parts)
    return rf"\sqrt{{{''.join(parts)}}}" if tag == "msqrt" else "".join(parts)


def _grouped(base: str) -> str:
    """Return what an index is put to, in braces unless it is one sign or one command."""
    return base if len(base) < 2 or re.fullmatch(r"\\[a-z]+ ?", base) else f"{{{base}}}"


def _token(tag: str, text: str) -> str:
    if text in _SYMBOLS:
        return _SYMBOLS[text] + " " * _SYMBOLS[text].startswith("\\")
    text = text.translate(_ESCAPED)
    if tag == "mtext":
        return rf"\text{{{text}}}" if text else " "
    if tag == "mi" and len(text) > 1 and text.isalpha():
        return rf"\{text} " if text in _FUNCTIONS else rf"\mathrm{{{text}}}"
    return f" {text} " if tag == "mo" and text in "=<>+" else text
