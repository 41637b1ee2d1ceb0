"""The words of a PDF page with their places, as pdfium reports the glyphs.

Owns the way from glyphs to words: which glyphs touch, their font and size, and the frame in which they are
upright. Knows nothing of lines and columns (`pdf_lines`, `pdf_order`).

The page's main frame is the one in which most of its text is upright.
"""

import ctypes
import math
import unicodedata
from typing import Any, NamedTuple

import pypdfium2 as pdfium
import pypdfium2.raw as pdfium_c

from datapipe.sources.pdf_geometry import Box, Frame

HYPHEN = "\N{SOFT HYPHEN}"  # stands for every hyphen that pdfium takes for one at a line's end
ASCENT, DESCENT = 0.75, 0.25  # of the size: from capital letters' tops to descenders
MAX_GLYPHS = 400_000  # of one page; beyond them it is no text to read
_SLANT_DEGREES = 7.0  # text turned further from every quarter turn is slanted: a watermark, a label
_PDFIUM_HYPHENS = (0x02, 0xFFFE)
_SPACES = frozenset(
    (
        0x09,
        0x0A,
        0x0D,
        0x20,
        0xA0,
        0x1680,
        *range(0x2000, 0x200C),
        0x2028,
        0x2029,
        0x202F,
        0x205F,
        0x3000,
        0xFEFF,
    )
)
_SYMBOLS = {
    0xF0B7: "•",
    0xF0A7: "▪",
    0xF0D8: "➢",
    0xF0FC: "✓",
    0xF0E0: "→",
    0xF0DE: "⇒",
    0xF02D: "-",
    0xF076: "❖",
}
_GAP = 0.2  # of the size; glyphs further apart are not of one word
_SHIFT = 0.15  # of the size; glyphs shifted further across the line are raised, or of another font
_FORCE_BOLD, _ITALIC, _FIXED_PITCH = 1 << 18, 1 << 6, 1  # PDF 32000-1, table 123: font flags
_BOLD_NAMES = ("bold", "black", "heavy", "semibold", "demi", "cmbx", "sfbx", "cmssbx")
_MONO_NAMES = (
    "mono",
    "courier",
    "consol",
    "menlo",
    "monaco",
    "cmtt",
    "typewriter",
    "inconsolata",
    "lettergothic",
    "sftt",
    "ectt",
    "cmsltt",
    "lmtt",
    "nimbusmon",
    "txtt",
    "pcr",
    "fixed",
)
_MATH_NAMES = (
    "cmmi",
    "cmsy",
    "cmex",
    "cmbsy",
    "cmmib",
    "msam",
    "msbm",
    "lasy",
    "eufm",
    "rsfs",
    "math",
    "mtmi",
    "mtsy",
    "mtex",
    "rmtmi",
    "stixsize",
    "stixnonuni",
    "txsy",
    "txmi",
    "pxsy",
    "pxmi",
    "symbol",
    "euler",
    "eurm",
)
_INVISIBLE = 3  # PDF 32000-1, table 106: text rendering mode


class Style(NamedTuple):
    """How a word is set. `size` is what the page shows, in points."""

    size: float
    bold: bool = False
    italic: bool = False
    mono: bool = False
    hidden: bool = False
    math: bool = False


class Word(NamedTuple):
    """Glyphs that touch, in one style, on one baseline.

    `number` counts the words of a page in the order they were drawn; `spaced` is whether a space parts it
    from the word drawn before.
    """

    text: str
    x0: float
    x1: float
    baseline: float
    style: Style
    number: int
    spaced: bool

    @property
    def box(self) -> Box:
        """What the word covers, from capital letters' tops to descenders."""
        size = self.style.size
        return Box(self.x0, self.baseline - ASCENT * size, self.x1, self.baseline + DESCENT * size)


class Text(NamedTuple):
    """The words of a page by the quarter turns of their frames, and what was found on the way."""

    frame: Frame  # the main one
    words: dict[int, list[Word]]
    slanted: list[str]
    num_glyphs: int
    num_unmapped: int  # glyphs that stand for no known character


def words(page: pdfium.PdfPage) -> Text:
    """Return the words of a page.

    Raises:
        pypdfium2.PdfiumError: the page's text cannot be had.
    """
    edges = page.get_bbox()
    rotation = page.get_rotation() // 90
    textpage = page.get_textpage()
    try:
        num_glyphs = textpage.count_chars()
        if num_glyphs > MAX_GLYPHS:
            return Text(Frame(rotation, *edges), {}, [], num_glyphs, num_glyphs)
        reader = _Reader(textpage, edges)
        reader.read(num_glyphs)
    finally:
        textpage.close()
    frame = Frame(_main_turns(reader.words, rotation), *edges)
    return Text(frame, reader.words, reader.slanted(), num_glyphs, reader.num_unmapped)


def _main_turns(words: dict[int, list[Word]], rotation: int) -> int:
    """Return the quarter turns by which most of the text is upright; visible text counts before hidden."""
    lengths = [
        (
            sum(len(w.text) for w in words[turns] if not w.style.hidden),
            sum(len(w.text) for w in words[turns]),
            -turns,
        )
        for turns in words
    ]
    return -max(lengths)[2] if lengths else rotation


def _fast(function: Any, result: Any, *arguments: Any) -> Any:
    """Return a function of pdfium that takes plain pointers: each glyph costs some calls, at half price."""
    address = ctypes.cast(function, ctypes.c_void_p).value or 0
    return ctypes.CFUNCTYPE(result, *arguments)(address)


_POINTER, _INT = ctypes.c_void_p, ctypes.c_int
_unicode = _fast(pdfium_c.FPDFText_GetUnicode, ctypes.c_uint, _POINTER, _INT)
_loose_box = _fast(pdfium_c.FPDFText_GetLooseCharBox, _INT, _POINTER, _INT, _POINTER)
_text_object = _fast(pdfium_c.FPDFText_GetTextObject, _POINTER, _POINTER, _INT)


class _Font(NamedTuple):
    bold: bool
    italic: bool
    mono: bool
    math: bool


class _Run(NamedTuple):
    """How the glyphs of a text object are set: `quarter_turns` is None where they are slanted."""

    style: Style
    quarter_turns: int | None


class _Open:
    """The word that is being read. Places are along its line, growing in drawing direction.

    `begin` and `end` are those of its last glyph, `near` and `far` the sides of its first across the line.
    """

    __slots__ = ("baseline", "begin", "end", "far", "high", "low", "near", "run", "spaced", "text")

    def __init__(self, run: _Run, baseline: float, near: float, far: float, spaced: bool) -> None:
        self.run, self.baseline, self.near, self.far, self.spaced = run, baseline, near, far, spaced
        self.text: list[str] = []
        self.low = self.begin = math.inf
        self.high = self.end = -math.inf


class _Reader:
    """Collects glyphs to words, in the order in which they were drawn."""

    def __init__(self, textpage: pdfium.PdfTextPage, edges: tuple[float, float, float, float]) -> None:
        self.textpage, self.edges = textpage, edges
        self.address = ctypes.cast(textpage.raw, _POINTER).value
        self.words: dict[int, list[Word]] = {}
        self.num_unmapped = 0
        self._num_words = 0
        self._slanted: list[list[str]] = []
        self._runs: dict[int, tuple[_Run, float]] = {}
        self._fonts: dict[int, _Font] = {}
        self._rect = pdfium_c.FS_RECTF()

    def read(self, num_glyphs: int) -> None:
        """Read all glyphs of the page. This loop is most of the time of reading a PDF."""
        rect, address, where = self._rect, self.address, ctypes.addressof(self._rect)
        word: _Open | None = None
        spaced = True
        gap = shift = 0.0
        for index in range(num_glyphs):
            code = _unicode(address, index)
            if code in _SPACES:
                spaced = True
                continue
            _loose_box(address, index, where)
            if word is not None:
                low, high, near, far = _along(word.run.quarter_turns, rect)
                touches = not spaced and low - word.end <= gap and word.begin - high <= gap
                if near != word.near or far != word.far:  # the same for all of a font but for what sticks out
                    touches = touches and abs(near - word.near) <= shift and abs(far - word.far) <= shift
                if not touches and (spaced or not unicodedata.combining(chr(code))):
                    self._finish(word)
                    word = None
            if word is None:
                run, baseline = self._run(index)
                low, high, near, far = _along(run.quarter_turns, rect)
                word = _Open(run, baseline, near, far, spaced)
                spaced = False
                gap, shift = _GAP * run.style.size, _SHIFT * run.style.size
            word.text.append(chr(code) if 32 < code < 0xE000 else self._strange(code))
            word.begin, word.end = low, high
            if low < word.low:
                word.low = low
            if high > word.high:
                word.high = high
        if word is not None:
            self._finish(word)

    def slanted(self) -> list[str]:
        """Return the slanted texts, each as it was drawn."""
        return [" ".join(words) for words in self._slanted]

    def _finish(self, word: _Open) -> None:
        """Add a word to those of its frame."""
        text = _tidy("".join(word.text))
        turns, style = word.run.quarter_turns, word.run.style
        if not text or not math.isfinite(word.low) or not math.isfinite(word.high - word.low):
            return
        if turns is None:
            if word.spaced or not self._slanted:
                self._slanted.append([])
            self._slanted[-1].append(text)
            return
        left, bottom, right, top = self.edges
        shift = (-left, -bottom, right, top)[turns]
        length = (right - left, top - bottom)[turns % 2]
        across = (top - bottom, right - left)[turns % 2]
        x0, x1 = word.low + shift, word.high + shift
        if x1 < 0 or x0 > length or word.baseline < 0 or word.baseline - style.size > across:
            style = style._replace(hidden=True)  # outside of what the page shows
        self.words.setdefault(turns, []).append(
            Word(text, x0, x1, word.baseline, style, self._num_words, word.spaced)
        )
        self._num_words += 1

    def _strange(self, code: int) -> str:
        """Return what a code stands for that is no plain character."""
        if code in _PDFIUM_HYPHENS:
            return HYPHEN
        if code < 32 or code <= 0xF8FF or 0xFFFD <= code <= 0xFFFF:
            known = _SYMBOLS.get(code)
            self.num_unmapped += known is None
            return known or "\N{REPLACEMENT CHARACTER}"
        return chr(code)

    def _run(self, index: int) -> tuple[_Run, float]:
        """Return how a glyph is set and on which baseline, which its whole text object shares."""
        key = _text_object(self.address, index) or 0
        found = self._runs.get(key)
        if found is None:
            run = self._new_run(index)
            found = self._runs[key] = run, self._baseline(index, run)
        return found

    def _baseline(self, index: int, run: _Run) -> float:
        """Return where in its frame the line of a glyph stands, downwards."""
        x, y = ctypes.c_double(), ctypes.c_double()
        pdfium_c.FPDFText_GetCharOrigin(self.textpage.raw, index, x, y)
        left, bottom, right, top = self.edges
        return (top - y.value, x.value - left, y.value - bottom, right - x.value)[run.quarter_turns or 0]

    def _new_run(self, index: int) -> _Run:
        matrix = pdfium_c.FS_MATRIX()
        raw = self.textpage.raw
        pdfium_c.FPDFText_GetMatrix(raw, index, matrix)
        degrees = math.degrees(math.atan2(matrix.b, matrix.a))
        turns = round(degrees / 90)
        is_slanted = abs(degrees - 90 * turns) > _SLANT_DEGREES
        size = abs(pdfium_c.FPDFText_GetFontSize(raw, index)) * math.hypot(matrix.c, matrix.d)
        rect = self._rect
        height = rect.right - rect.left if turns % 2 else rect.top - rect.bottom
        if not is_slanted and not 0.3 * height < size < 3 * height:  # fonts made of drawings count otherwise
            size = height
        text_object = pdfium_c.FPDFText_GetTextObject(raw, index)
        hidden, font = False, _Font(False, False, False, False)
        if text_object:
            hidden = pdfium_c.FPDFTextObj_GetTextRenderMode(text_object) == _INVISIBLE
            font = self._font(text_object)
        style = Style(round(size, 1), font.bold, font.italic, font.mono, hidden, font.math)
        return _Run(style, None if is_slanted else turns % 4)

    def _font(self, text_object: Any) -> _Font:
        """Return what kind of font a text object has."""
        font = pdfium_c.FPDFTextObj_GetFont(text_object)
        key = ctypes.cast(font, _POINTER).value or 0
        if key not in self._fonts:
            self._fonts[key] = _font_kind(font)
        return self._fonts[key]


def _along(quarter_turns: int | None, rect: Any) -> tuple[float, float, float, float]:
    """Return where a glyph begins and ends along its line, and its sides across it."""
    if not quarter_turns:
        return rect.left, rect.right, rect.bottom, rect.top
    if quarter_turns == 1:
        return rect.bottom, rect.top, rect.left, rect.right
    if quarter_turns == 2:
        return -rect.right, -rect.left, rect.bottom, rect.top
    return -rect.top, -rect.bottom, rect.left, rect.right


def _font_kind(font: Any) -> _Font:
    length = pdfium_c.FPDFFont_GetBaseFontName(font, None, 0)
    buffer = ctypes.create_string_buffer(max(1, length))
    pdfium_c.FPDFFont_GetBaseFontName(font, buffer, length)
    name = buffer.value.decode("latin-1").lower().split("+")[-1].replace(" ", "")
    flags = max(0, pdfium_c.FPDFFont_GetFlags(font))
    is_bold = bool(flags & _FORCE_BOLD) or any(part in name for part in _BOLD_NAMES)
    is_italic = bool(flags & _ITALIC) or "italic" in name or "oblique" in name
    is_mono = bool(flags & _FIXED_PITCH) or any(part in name for part in _MONO_NAMES)
    return _Font(is_bold, is_italic, is_mono, any(part in name for part in _MATH_NAMES))


def _tidy(text: str) -> str:
    """Return text with surrogate pairs, ligatures and letters' presentation forms as plain characters."""
    if text.isascii():
        return text
    if any("\ud800" <= c <= "\udfff" for c in text):
        text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return "".join(unicodedata.normalize("NFKC", c) if _is_presentation_form(c) else c for c in text)


def _is_presentation_form(character: str) -> bool:
    return "\ufb00" <= character <= "\ufdff" or "\ufe70" <= character <= "\ufefc"
