"""PDF files, read with pdfium: text and pictures in reading order.

Owns opening a file, its title and language, and which pages are read how. The parts, in the order in which
they work: `pdf_words` and `pdf_objects` (what pdfium draws), `pdf_grids`, `pdf_figures`, `pdf_rows`,
`pdf_tables` and `pdf_lines` (what it is), `pdf_page` (one page), `pdf_furniture` (what repeats over pages),
`pdf_order`, `pdf_prose` and `pdf_flow` (how it is read).

pdfium is not safe for threads: one thread of a process at a time may read.
"""

import ctypes
import logging
import re
from typing import Any

import pypdfium2 as pdfium
import pypdfium2.raw as pdfium_c

from datapipe.errors import Encrypted, MalformedMarkup
from datapipe.sources import pdf_flow, pdf_furniture, pdf_page
from datapipe.sources.items import Item, RawDocument, document
from datapipe.sources.pdf_pictures import File

MAX_OCR_PAGES = 2  # a page takes 10 to 20 s of one core, and a file has a minute by default
_MAX_TITLE_CHARS = 300
_NO_TITLE = re.compile(
    r"(?:microsoft (?:word|powerpoint|excel)\b.*|untitled.*|title|document\d*|powerpoint presentation|"
    r"slide \d+|doc\d*|"
    r".*\.(?:docx?|dvi|tex|indd|pptx?|xlsx?|rtf|odt|odp|pdf|qxd|pmd|ps|html?|png|jpe?g|tiff?|wpd|ai|fm))",
    re.IGNORECASE,
)

_log = logging.getLogger(__name__)


def read(data: bytes, uri: str, max_ocr_pages: int = MAX_OCR_PAGES) -> RawDocument:
    """Read a PDF file.

    Args:
        max_ocr_pages: pages without text that are read by OCR, where it is installed; later ones are
            pictures only.

    Raises:
        Encrypted: it needs a password.
        MalformedMarkup: it cannot be opened, or none of its pages can.
        EmptyDocument: its pages are empty.
    """
    opened = _open(data)
    try:
        pages = _pages(opened, uri, max_ocr_pages)
        how = pdf_flow.setting(pages)
        repeated = pdf_furniture.furniture(pages, how.size)
        items = pdf_flow.items(pages, repeated, how)
        return document("pdf", _title(opened, items, pages, how), _language(opened), items)
    finally:
        opened.close()


def _open(data: bytes) -> pdfium.PdfDocument:
    try:
        opened = pdfium.PdfDocument(data)
    except pdfium.PdfiumError as error:
        if getattr(error, "err_code", None) == pdfium_c.FPDF_ERR_PASSWORD:
            raise Encrypted("the PDF needs a password") from error
        raise MalformedMarkup(f"PDF: {error}") from error
    if len(opened) < 1:
        opened.close()
        raise MalformedMarkup("PDF: it has no pages")
    return opened


def _pages(opened: pdfium.PdfDocument, uri: str, max_ocr_pages: int) -> list[pdf_page.Page]:
    """Return the pages that can be loaded; a broken one leaves the others."""
    pages: list[pdf_page.Page] = []
    seen: dict[Any, File | None] = {}
    num_ocr = 0
    for index in range(len(opened)):
        try:
            page = pdf_page.page(opened, index, seen, num_ocr < max_ocr_pages)
        except pdfium.PdfiumError as error:
            _log.warning("%s: page %d cannot be read: %s", uri, index + 1, error)
            continue
        num_ocr += page.is_ocr
        pages.append(page)
    if not pages:
        raise MalformedMarkup(f"PDF: none of its {len(opened)} pages can be loaded")
    return pages


def _title(
    opened: pdfium.PdfDocument, items: list[Item], pages: list[pdf_page.Page], how: pdf_flow.Setting
) -> str | None:
    """Return the title that the file states, if it is one, else its largest heading on the first pages."""
    stated = " ".join(opened.get_metadata_value("Title").split())
    if len(stated) > 1 and len(stated) <= _MAX_TITLE_CHARS and not _NO_TITLE.fullmatch(stated):
        return stated
    first = pages[0].number
    words = [w for page in pages if page.number <= first + 1 for row in page.rows for w in row.words]
    headings = [item.text for item in items if item.role == "heading" and (item.page or 0) <= first + 1]
    for size in sorted({w.style.size for w in words if w.style.size >= 1.15 * how.size}, reverse=True):
        starts = {word.text for word in words if word.style.size == size}
        for heading in headings:
            if heading and heading.split()[0] in starts:
                return heading
    return headings[0] if headings else None


def _language(opened: pdfium.PdfDocument) -> str | None:
    length = pdfium_c.FPDFCatalog_GetLanguage(opened, None, 0)
    if length <= 2:
        return None
    buffer = ctypes.create_string_buffer(length)
    pdfium_c.FPDFCatalog_GetLanguage(opened, ctypes.cast(buffer, ctypes.POINTER(ctypes.c_ushort)), length)
    return buffer.raw[: length - 2].decode("utf-16-le", "replace")
