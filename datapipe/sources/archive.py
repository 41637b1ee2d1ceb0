"""Zip archives that documents come in (Office packages, EPUB), opened without trust.

Owns the limits on what an archive may unpack to, names without regard to case, and XML without entities.
Knows no document format.
"""

import io
import posixpath
import re
import zipfile
import zlib

from lxml import etree

from datapipe.errors import Encrypted, FileTooLarge, MalformedMarkup, UnsupportedFormat

MAX_UNPACKED_BYTES = (
    1 << 30
)  # all members together, as announced; zipfile unpacks no byte more than announced
MAX_XML_BYTES = 1 << 27  # one member parsed as XML, which takes several times its size
MAX_MEMBERS = 100_000

_OLE_CONTAINER = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
_ENCRYPTED_PACKAGE = "EncryptedPackage".encode("utf-16-le")
_STRICT_NAMESPACE = re.compile(rb"http://purl\.oclc\.org/ooxml/(\w+)/")
_FAULTS = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, OSError, ValueError)


class Archive:
    """A zip archive in memory. Member names are paths without a leading slash; their case does not matter."""

    def __init__(self, data: bytes) -> None:
        """Open an archive.

        Raises:
            Encrypted: it is an Office file behind a password.
            UnsupportedFormat: it is an OLE compound file, as Office files of before 2007 are.
            MalformedMarkup: it is no zip archive, or its directory is damaged.
            FileTooLarge: it would unpack to more than the limits.
        """
        if data.startswith(_OLE_CONTAINER):
            if _ENCRYPTED_PACKAGE in data:
                raise Encrypted("the file is behind a password")
            raise UnsupportedFormat("an OLE compound file (.doc, .ppt of before 2007): not read here")
        try:
            self._zip = zipfile.ZipFile(io.BytesIO(data))
            infos = self._zip.infolist()
        except _FAULTS as error:
            raise MalformedMarkup(f"no zip archive: {error}") from error
        unpacked_bytes = sum(info.file_size for info in infos)
        if unpacked_bytes > MAX_UNPACKED_BYTES or len(infos) > MAX_MEMBERS:
            raise FileTooLarge(
                f"{len(infos)} members of {unpacked_bytes} bytes when unpacked, more than {MAX_MEMBERS} or "
                f"{MAX_UNPACKED_BYTES}"
            )
        self._media: dict[str, bytes | None] = {}
        self._infos = {_key(info.filename): info for info in infos if not info.is_dir()}

    def __contains__(self, name: str) -> bool:
        return _key(name) in self._infos

    def names(self) -> list[str]:
        """Return the members' names as written, in the archive's order."""
        return [info.filename for info in self._infos.values()]

    def read(self, name: str) -> bytes | None:
        """Return the bytes of a member; None where it is missing or damaged.

        Raises:
            Encrypted: the member is behind a password.
        """
        info = self._infos.get(_key(name))
        if info is None:
            return None
        if info.flag_bits & 1:
            raise Encrypted(f"{info.filename} is behind a password")
        try:
            return self._zip.read(info)
        except _FAULTS:
            return None

    def medium(self, name: str) -> bytes | None:
        """Return the bytes of a picture or video, as `read` does; for the same member the same object.

        A logo on every slide is then in memory once.
        """
        key = _key(name)
        if key not in self._media:
            self._media[key] = self.read(name)
        return self._media[key]

    def xml(self, name: str, may_declare_type: bool = False) -> etree._Element | None:
        """Return the root element of a member; None where it is missing.

        ISO Strict namespaces of Office become the Transitional ones, which all readers know.

        Args:
            may_declare_type: whether a document type is allowed; its entities stay unread.
                Office files must not declare one.

        Raises:
            MalformedMarkup: it is damaged, no well-formed XML, or declares a document type.
            FileTooLarge: it is larger than the limit for XML.
        """
        if name not in self:
            return None
        if (size_bytes := self._infos[_key(name)].file_size) > MAX_XML_BYTES:
            raise FileTooLarge(f"{name}: {size_bytes} bytes of XML, more than {MAX_XML_BYTES}")
        data = self.read(name)
        if data is None:
            raise MalformedMarkup(f"{name}: damaged in the archive")
        root = parse_xml(_STRICT_NAMESPACE.sub(rb"http://schemas.openxmlformats.org/\1/2006/", data), name)
        if root.getroottree().docinfo.doctype and not may_declare_type:
            raise MalformedMarkup(f"{name}: declares a document type, which Office files must not")
        return root


def parse_xml(data: bytes, name: str) -> etree._Element:
    """Return the root element of XML; entities that it declares stay unread, and nothing is fetched.

    Raises:
        MalformedMarkup: it is not well-formed; the message names the member and the line.
    """
    parser = etree.XMLParser(
        resolve_entities=False, no_network=True, load_dtd=False, remove_comments=True, remove_pis=True
    )
    try:
        return etree.fromstring(data, parser)
    except etree.XMLSyntaxError as error:
        raise MalformedMarkup(f"{name}: {error.msg}") from error


def _key(name: str) -> str:
    return posixpath.normpath(name.replace("\\", "/").lstrip("/")).lower()
