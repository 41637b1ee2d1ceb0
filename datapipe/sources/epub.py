"""EPUB books, versions 2 and 3.

Owns the way from the archive to its pages: the package document, its spine in order, pictures and videos
from inside the archive, the cover. Each page is read as HTML (`sources.html`); the page of an item is its
place in the spine, from 1. Pages that only lead to others (contents, index, lists of figures) are masked
`contents`. Books behind digital rights management are refused; obfuscated fonts are not, for fonts are not
read.

Sources: EPUB 3.3 (package documents, OCF container), Open Packaging Format 2.0.1 (guide).
"""

import dataclasses
import re
from collections.abc import Iterator
from urllib.parse import unquote

from lxml import etree

from datapipe.errors import EmptyDocument, Encrypted, MalformedMarkup, ReadError
from datapipe.sources import html, video
from datapipe.sources.archive import Archive
from datapipe.sources.items import Item, RawDocument, document, is_remote, resolve

_CONTAINER = "META-INF/container.xml"
_ENCRYPTION = "META-INF/encryption.xml"
_FONT_OBFUSCATION = ("http://www.idpf.org/2008/embedding", "http://ns.adobe.com/pdf/enc#RC")
_CONTENTS_TYPES = frozenset(("toc", "index", "landmarks", "loi", "lot", "loa", "lov", "page-list"))
_PICTURES = ("image/svg+xml", "image/png", "image/jpeg", "image/gif", "image/webp")
_NO_PAGES = ("text/css", "application/x-dtbncx+xml", "application/pdf")
_XML_DECLARATION = b'<?xml version="1.0"?>'
_MARKS = (b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")
_SVG_PICTURE = re.compile(
    rb"<(?:\w+:)?svg\b[^>]*>(?:(?!</(?:\w+:)?svg).)*?<(?:\w+:)?image\b[^>]*?\bhref\s*=\s*"
    rb"(\"[^\"]*\"|'[^']*').*?</(?:\w+:)?svg\s*>",
    re.DOTALL,
)
_LINK = re.compile(rb"<a\b[^>]*(?<!/)>(.*?)</a\s*>", re.DOTALL)
_HEAD = re.compile(rb"<head\b.*?</head\s*>", re.DOTALL)
_TAG = re.compile(rb"<[^>]*>")
_PAGE_NUMBER = re.compile(
    rb"<(span|div|p|a)\b[^>]*?(?:epub:type\s*=\s*[\"'][^\"']*\bpagebreak\b|role\s*=\s*[\"']doc-pagebreak"
    rb"|class\s*=\s*[\"'](?:pagenum|pageno)\b)[^>]*>[^<]{0,20}</\1\s*>"
)
_NAVIGATION = re.compile(rb"<(/?)nav\b")
_TYPE = re.compile(rb"\bepub:type\s*=\s*[\"']([^\"']*)[\"']")
_BODY_START = re.compile(rb"<body\b[^>]*>(?:\s|<(?:section|div|nav)\b[^>]*>)*")


@dataclasses.dataclass(frozen=True)
class _Resource:
    """An entry of the manifest: a file in the archive."""

    path: str
    mime: str
    properties: frozenset[str]
    fallback: str | None


def read(data: bytes, uri: str) -> RawDocument:
    """Read an EPUB book.

    Raises:
        Encrypted: it is behind digital rights management or a password.
        FileTooLarge: it would unpack to more than the limits (see `sources.archive`).
        MalformedMarkup: it is no such file, or its package document is missing or broken.
        NotText: a page is no text.
        EmptyDocument: its pages hold nothing.
    """
    book = _Book(Archive(data), uri)
    pages = list(book.pages())
    items = [item for page, _ in pages for item in page]
    title, language = book.metadata("title"), book.metadata("language")
    language = language or next((lang for _, lang in pages if lang), None)
    return document("epub", title, language, [*book.cover(items), *items])


class _Book:
    """A book while its pages are read."""

    def __init__(self, archive: Archive, uri: str) -> None:
        self.archive, self.uri = archive, uri
        _check_rights(archive)
        self.path = self.package_path()
        root = archive.xml(self.path, may_declare_type=True)
        if root is None:
            raise MalformedMarkup(f"{self.path} is missing in the book")
        self.root = root
        self.manifest = {e.get("id") or "": self.resource(e) for e in _all(root, "manifest", "item")}
        self.guide = {
            resolve(self.path, e.get("href") or ""): (e.get("type") or "").lower()
            for e in _all(root, "guide", "reference")
        }

    def package_path(self) -> str:
        """Return where the package document is: where the container says, else the first that there is."""
        try:
            container = self.archive.xml(_CONTAINER, may_declare_type=True)
        except MalformedMarkup:
            container = None
        stated = [e.get("full-path") or "" for e in _all(container, "rootfiles", "rootfile")]
        found = [path for path in stated if path in self.archive]
        found += [name for name in self.archive.names() if name.lower().endswith(".opf")]
        if not found:
            raise MalformedMarkup("no package document (.opf) in the archive")
        return found[0]

    def resource(self, element: etree._Element) -> _Resource:
        path = resolve(self.path, element.get("href") or "") or ""
        properties = frozenset((element.get("properties") or "").split())
        return _Resource(path, (element.get("media-type") or "").lower(), properties, element.get("fallback"))

    def metadata(self, name: str) -> str | None:
        """Return the first value of a term of Dublin Core."""
        values = (
            e.text
            for e in self.root.iter(f"{{*}}{name}")
            if "elements/1." in (etree.QName(e).namespace or "")
        )
        return next((value for value in values if value and value.strip()), None)

    def pages(self) -> Iterator[tuple[list[Item], str | None]]:
        """Yield the items of each page of the spine that holds some, and the language the page declares."""
        seen: set[str] = set()
        for number, reference in enumerate(_all(self.root, "spine", "itemref"), start=1):
            resource = self.readable(reference.get("idref") or "")
            if resource is None or resource.path in seen:
                continue
            seen.add(resource.path)
            items, language = self.page(resource)
            yield [dataclasses.replace(item, page=number) for item in items], language

    def readable(self, id: str) -> _Resource | None:
        """Return a resource that can be read as a page, following the fallbacks of others."""
        for _ in range(len(self.manifest) + 1):
            resource = self.manifest.get(id)
            if resource is None or resource.mime not in _NO_PAGES:
                return resource
            id = resource.fallback or ""
        return None

    def page(self, resource: _Resource) -> tuple[list[Item], str | None]:
        if resource.mime in _PICTURES:
            return [self.from_archive(Item("image", "figure", href=resource.path, mime=resource.mime))], None
        data = self.archive.read(resource.path)
        if data is None:
            return [], None
        is_contents = self.is_contents(resource, data)
        if is_contents:
            data = _NAVIGATION.sub(rb"<\1div", data)  # which the reader of HTML leaves out, without a mask
        try:
            found = html.read(_as_html(data), resource.path)
        except EmptyDocument:
            return [], None
        except ReadError as error:
            raise type(error)(f"{resource.path}: {error}") from error
        items = list(self.with_media(found.items))
        return [dataclasses.replace(i, mask="contents") if is_contents else i for i in items], found.lang

    def is_contents(self, resource: _Resource, data: bytes) -> bool:
        """Return whether a page only leads to others: it is said to, and most of its words are links."""
        start = _BODY_START.search(data)
        found = _TYPE.findall(start.group()) if start is not None else []
        types = {type for value in found for type in value.decode("latin-1").split()}
        if "nav" in resource.properties or {*types, self.guide.get(resource.path)} & _CONTENTS_TYPES:
            return 2 * _num_characters(b" ".join(_LINK.findall(data))) >= _num_characters(data)
        return False

    def with_media(self, items: tuple[Item, ...]) -> Iterator[Item]:
        """Yield the items of a page with the bytes of its pictures and videos, captions put in."""
        for number, item in enumerate(items):
            if item.kind == "text" and item.text is None:
                continue  # a caption file, taken with the video before it
            if item.kind == "text" or item.href is None:
                yield item
                continue
            following = items[number + 1] if number + 1 < len(items) else None
            track = following.href if following is not None and following.role == "transcript" else None
            captions = self.captions(track) if item.kind == "video" and track else []
            found = self.from_archive(item)
            yield from video.captioned(found, captions) if captions else [found]

    def captions(self, path: str) -> list[video.Caption]:
        data = self.archive.read(unquote(path))
        try:
            return video.read_captions(data, path) if data is not None else []
        except ReadError:
            return []  # a bad caption file leaves a good video

    def from_archive(self, item: Item) -> Item:
        """Return a picture or video with its bytes; one that is not in the archive gets a link to nowhere."""
        assert item.href is not None
        if is_remote(item.href):
            return item
        data = self.archive.medium(item.href)
        if not data:
            return dataclasses.replace(item, href=f"{self.uri}#/{item.href}")
        mime = next((r.mime for r in self.manifest.values() if r.path == item.href), item.mime)
        return dataclasses.replace(item, href=None, data=data, mime=mime or None)

    def cover(self, items: list[Item]) -> list[Item]:
        """Return the picture on the cover where no page shows it."""
        named = [e.get("content") for e in self.root.iter("{*}meta") if e.get("name") == "cover"]
        found = [r for r in self.manifest.values() if "cover-image" in r.properties]
        found += [self.manifest[id] for id in named if id in self.manifest]
        for resource in found:
            data = self.archive.medium(resource.path)
            if data and resource.mime.startswith("image/") and not any(item.data == data for item in items):
                return [Item("image", "figure", data=data, mime=resource.mime)]
        return []


def _check_rights(archive: Archive) -> None:
    """Refuse a book whose content is encrypted.

    Raises:
        Encrypted: it is; the message says how many files.
    """
    if "META-INF/sinf.xml" in archive:
        raise Encrypted("the book is behind FairPlay, a digital rights management")
    try:
        root = archive.xml(_ENCRYPTION, may_declare_type=True)
    except MalformedMarkup as error:
        raise Encrypted(f"{_ENCRYPTION} cannot be read: {error}") from error
    methods = [
        method.get("Algorithm") or ""
        for data in (root.iter("{*}EncryptedData") if root is not None else ())
        for method in data.iterfind("{*}EncryptionMethod")
    ]
    if locked := [method for method in methods if method not in _FONT_OBFUSCATION]:
        raise Encrypted(f"{len(locked)} files of the book are behind digital rights management")


def _as_html(data: bytes) -> bytes:
    """Return a page of a book as the reader of HTML takes it.

    A page is XML, also where it does not declare so. An SVG that frames a picture (mostly the cover) is that
    picture. Numbers of the pages in print, which stand anywhere in the text, leave.
    """
    data = _PAGE_NUMBER.sub(b"", data)
    data = _SVG_PICTURE.sub(lambda found: b"<img src=" + found.group(1) + b" />", data)
    mark = next((mark for mark in _MARKS if data.startswith(mark)), b"")
    if mark in _MARKS[1:] or data[len(mark) :].lstrip().startswith(b"<?xml"):
        return data
    return mark + _XML_DECLARATION + data[len(mark) :]


def _num_characters(data: bytes) -> int:
    return len(b"".join(_TAG.sub(b"", _HEAD.sub(b"", data)).split()))


def _all(root: etree._Element | None, parent: str, child: str) -> Iterator[etree._Element]:
    """Yield the children of some name below the parents of some name, in any namespace."""
    for element in root.iter(f"{{*}}{parent}") if root is not None else ():
        yield from element.iterfind(f"{{*}}{child}")
