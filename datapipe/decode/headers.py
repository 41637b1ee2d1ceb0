"""What the first bytes of a picture file tell before a decoder sees it.

Owns which formats are opened at all, the names of known ones that are not, sizes that Pillow would allocate
before it can be asked, and PNG chunks: their checksums, and the texts that are taken out. Decodes no pixels.
"""

import re
import struct
import zlib
from collections.abc import Iterator

from datapipe.errors import DamagedMedium, TruncatedMedium

# fmt: off
FORMATS = (
    "AVIF", "BLP", "BMP", "CUR", "DCX", "DDS", "DIB", "FITS", "FLI", "FTEX", "GBR", "GIF", "ICNS", "ICO",
    "JPEG", "JPEG2000", "MSP", "PCX", "PNG", "PPM", "PSD", "QOI", "SGI", "SUN", "TIFF", "WEBP", "XBM",
    "XPM",
)
# fmt: on
"""Formats that Pillow decodes here. Left out: EPS and WMF, which Pillow hands to other programs; formats
without pictures or without a signature, for which noise passes (TGA is among these where it has no footer);
and Photo CD, whose colours come out wrong."""

_PNG = b"\x89PNG\r\n\x1a\n"
_PNG_TEXTS = (b"tEXt", b"zTXt", b"iTXt")
_PNG_CHECKED = (b"IHDR", b"PLTE", b"IDAT", b"fdAT")
_TGA_FOOTER = b"TRUEVISION-XFILE.\x00"
_MAX_SCANS = 500  # libjpeg-turbo's own limit in its fuzzers; a file of real scans has ten

_SIGNATURES = re.compile(
    rb"\x89PNG|\xff\xd8\xff|GIF8[79]a|RIFF....WEBP|II\*\x00|MM\x00\*|II\+\x00|MM\x00\+|BM|8BPS|qoif|DDS "
    rb"|icns|\x00\x00\x00\x0cjP  |\xff\x4f\xff\x51|....ftypavi[fs]|\x00\x00[\x01\x02]\x00|P[1-7fF]\s|BLP[12]"
    rb"|/\* XPM",
    re.DOTALL,
)
_NOT_DECODED = (
    ("HEIC", rb"....ftyp(?:hei[cxms]|hev[cxms]|mif[12]|msf1)"),
    ("JPEG XL", rb"\xff\x0a|\x00\x00\x00\x0cJXL "),
    ("JPEG XR", rb"II\xbc"),
    ("EPS", rb"%!PS|\xc5\xd0\xd3\xc6"),
    ("PDF", rb"%PDF"),
    ("WMF", rb"\xd7\xcd\xc6\x9a|\x01\x00\x09\x00\x00\x03"),
    ("EMF", rb"\x01\x00\x00\x00.{36} EMF"),
    ("XCF", rb"gimp xcf"),
    ("Photo CD", rb".{2048}PCD_"),
    ("DjVu", rb"AT&TFORM"),
    ("OpenEXR", rb"v/1\x01"),
    ("Radiance HDR", rb"#\?RADIANCE|#\?RGBE"),
    ("DICOM", rb".{128}DICM"),
    ("HDF5", rb"\x89HDF"),
    ("GRIB", rb".{0,4}GRIB"),
    ("BUFR", rb"BUFR|ZCZC"),
)
_NOT_DECODED_PATTERNS = tuple((name, re.compile(pattern, re.DOTALL)) for name, pattern in _NOT_DECODED)


def unsupported_format(data: bytes) -> str | None:
    """Return the name of a picture format that is known and not decoded here, None for all other bytes."""
    for name, pattern in _NOT_DECODED_PATTERNS:
        if pattern.match(data):
            return None if b"avif" in data[8:32] else name
    return None


def is_known(data: bytes) -> bool:
    """Return whether the bytes begin as a picture in one of `FORMATS` does."""
    return _SIGNATURES.match(data) is not None or is_tga(data)


def is_tga(data: bytes) -> bool:
    """Return whether the bytes end as a TGA picture of version 2 does."""
    return data.endswith(_TGA_FOOTER)


def is_cut(data: bytes) -> bool:
    """Return whether a file that could not be read announces more bytes than there are."""
    if data[:4] == b"RIFF":
        return 8 + int.from_bytes(data[4:8], "little") > len(data)
    if data[:4] in (b"II*\x00", b"MM\x00*"):
        return int.from_bytes(data[4:8], "little" if data[:1] == b"I" else "big") + 2 > len(data)
    if data[:4] in (b"\x00\x00\x01\x00", b"\x00\x00\x02\x00"):  # ICO and CUR: a directory of pictures
        entries = [
            struct.unpack_from("<8xII", data, at)
            for at in range(6, min(6 + 16 * data[4], len(data) - 15), 16)
        ]
        return any(offset + size > len(data) for size, offset in entries)
    if data[4:8] in (b"ftyp", b"jP  "):
        return _end_of_boxes(data) > len(data)
    return data.startswith(b"\xff\x4f\xff\x51") and not data.endswith(b"\xff\xd9")  # JPEG 2000 codestream


def _end_of_boxes(data: bytes) -> int:
    """Return where the last box of an AVIF or JPEG 2000 file ends (ISO/IEC 14496-12, section 4.2)."""
    at = 0
    while at + 8 <= len(data):
        size, header = int.from_bytes(data[at : at + 4], "big"), 8
        if size == 1:
            size, header = int.from_bytes(data[at + 8 : at + 16], "big"), 16
        if size < header:  # 0: to the end of the file
            return len(data)
        at += size
    return at


def announced_size(data: bytes) -> tuple[int, int] | None:
    """Return the canvas of a WebP file, whose decoder allocates it when opened; None for other files.

    Source: RFC 9649, sections 2.5 to 2.7.
    """
    if data[:4] != b"RIFF" or data[8:12] != b"WEBP" or len(data) < 30:
        return None
    if data[12:16] == b"VP8X":
        return 1 + int.from_bytes(data[24:27], "little"), 1 + int.from_bytes(data[27:30], "little")
    if data[12:16] == b"VP8L":
        bits = int.from_bytes(data[21:25], "little")
        return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    width, height = struct.unpack("<HH", data[26:30])
    return width & 0x3FFF, height & 0x3FFF


def check_scans(data: bytes) -> None:
    """Refuse a progressive JPEG of so many scans that it can only be there to keep a decoder busy.

    Raises:
        DamagedMedium: naming their number.
    """
    num_scans = data.count(b"\xff\xda")  # inside a scan, a zero byte follows each 0xff
    if num_scans > _MAX_SCANS:
        raise DamagedMedium(f"a JPEG of {num_scans} scans, more than {_MAX_SCANS}")


def without_texts(data: bytes) -> bytes:
    """Return a PNG without its texts, other files as they are.

    A few bytes of text can unpack to gigabytes, and no pixel depends on them. Checksums are compared on the
    way, which Pillow does not do for pixels.

    Raises:
        DamagedMedium: the checksum of a chunk that holds pixels is wrong.
        TruncatedMedium: a chunk that holds pixels reaches beyond the file.
    """
    if not data.startswith(_PNG):
        return data
    parts, kept_from = [], 0
    for kind, start, end in _png_chunks(data):
        if kind in _PNG_TEXTS:
            parts.append(data[kept_from:start])
            kept_from = end
        elif kind in _PNG_CHECKED and zlib.crc32(memoryview(data)[start + 4 : end - 4]) != _checksum(
            data, end
        ):
            raise DamagedMedium(f"the checksum of the {kind.decode()} chunk at byte {start} is wrong")
    return b"".join([*parts, data[kept_from:]]) if parts else data


def _checksum(data: bytes, end: int) -> int:
    return int.from_bytes(data[end - 4 : end], "big")


def _png_chunks(data: bytes) -> Iterator[tuple[bytes, int, int]]:
    """Yield the kind, start and end of each chunk, up to the last one."""
    at = len(_PNG)
    while at + 12 <= len(data):
        size, kind = struct.unpack_from(">I4s", data, at)
        end = at + 12 + size
        if end > len(data):
            if kind in _PNG_CHECKED:
                raise TruncatedMedium(f"{len(data)} of {end} bytes in the file")
            return
        yield kind, at, end
        if kind == b"IEND":
            return
        at = end
