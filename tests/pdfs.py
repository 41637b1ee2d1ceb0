"""PDF files made by code: pages of words, lines and pictures at known places.

Owns the file format only as far as tests need it. Places are in points from the lower left corner, as in PDF.
"""

import hashlib
import io
import zlib
from collections.abc import Sequence

from PIL import Image

FONTS = {"F1": "Helvetica", "F2": "Helvetica-Bold", "F3": "Courier", "F4": "Times-Italic"}
_PADDING = bytes.fromhex("28BF4E5E4E758A4164004E56FFFA01082E2E00B6D0683E802F0CA9FE6453697A")


def text(x: float, y: float, words: str, size: float = 10, font: str = "F1", mode: int = 0) -> str:
    """Words at a place. `mode` 3 is invisible."""
    escaped = words.replace("\\", r"\\").replace("(", r"\(").replace(")", r"\)")
    return f"BT /{font} {size} Tf {mode} Tr {x} {y} Td ({escaped}) Tj ET\n"


def turned_text(x: float, y: float, words: str, quarter_turns: int, size: float = 10) -> str:
    """Words that run upwards (1), upside down (2) or downwards (3)."""
    a, b = [(1, 0), (0, 1), (-1, 0), (0, -1)][quarter_turns]
    return f"BT /F1 {size} Tf {a} {b} {-b} {a} {x} {y} Tm ({words}) Tj ET\n"


def rule(x0: float, y0: float, x1: float, y1: float) -> str:
    """A thin line."""
    return f"0.5 w {x0} {y0} m {x1} {y1} l S\n"


def picture(name: str, x: float, y: float, width: float, height: float) -> str:
    """A picture of the page's `images`, upright."""
    return f"q {width} 0 0 {height} {x} {y} cm /{name} Do Q\n"


class Picture:
    """A picture object: the entries of its dictionary, its bytes, and its mask."""

    def __init__(self, entries: str, data: bytes, soft_mask: "Picture | None" = None) -> None:
        self.entries, self.data, self.soft_mask = entries, data, soft_mask

    @classmethod
    def jpeg(cls, pixels: Image.Image, entries: str = "") -> "Picture":
        """A JPEG file as it is; `data` is the file."""
        buffer = io.BytesIO()
        pixels.save(buffer, "JPEG", quality=90)
        space = {"RGB": "DeviceRGB", "L": "DeviceGray", "CMYK": "DeviceCMYK"}[pixels.mode]
        return cls(
            _size(pixels) + f"/ColorSpace /{space} /BitsPerComponent 8 /Filter /DCTDecode {entries}",
            buffer.getvalue(),
        )

    @classmethod
    def raw(cls, pixels: Image.Image, entries: str = "") -> "Picture":
        """Compressed pixels; those of mode RGBA with their alpha as soft mask."""
        mask = cls.raw(pixels.getchannel("A")) if pixels.mode == "RGBA" else None
        pixels = pixels.convert("RGB") if mask else pixels
        space, bits = {
            "RGB": ("DeviceRGB", 8),
            "L": ("DeviceGray", 8),
            "CMYK": ("DeviceCMYK", 8),
            "1": ("DeviceGray", 1),
        }[pixels.mode]
        packed = zlib.compress(pixels.tobytes())
        return cls(
            _size(pixels) + f"/ColorSpace /{space} /BitsPerComponent {bits} /Filter /FlateDecode {entries}",
            packed,
            mask,
        )


def _size(pixels: Image.Image) -> str:
    return f"/Type /XObject /Subtype /Image /Width {pixels.width} /Height {pixels.height} "


class Page:
    """What a page draws, and what it names."""

    def __init__(
        self,
        content: str,
        width: float = 612,
        height: float = 792,
        images: dict[str, Picture] | None = None,
        entries: str = "",
    ) -> None:
        self.content, self.width, self.height = content, width, height
        self.images, self.entries = images or {}, entries


class _Objects:
    def __init__(self) -> None:
        self.bodies: list[bytes] = []

    def add(self, body: str | bytes) -> int:
        self.bodies.append(body.encode("latin-1") if isinstance(body, str) else body)
        return len(self.bodies)

    def stream(self, entries: str, data: bytes) -> int:
        return self.add(
            f"<< {entries} /Length {len(data)} >>\nstream\n".encode("latin-1") + data + b"\nendstream"
        )

    def picture(self, picture: Picture) -> int:
        mask = f" /SMask {self.picture(picture.soft_mask)} 0 R" if picture.soft_mask else ""
        return self.stream(picture.entries + mask, picture.data)


def pdf(
    pages: Sequence[Page | str],
    title: str | None = None,
    catalog: str = "",
    to_unicode: dict[str, str] | None = None,
    objects: Sequence[str] = (),
    password: str | None = None,
) -> bytes:
    """A PDF file.

    Args:
        catalog: further entries of the document catalog, such as `/Lang (de)`.
        to_unicode: what the characters of the font F1 mean, where not themselves.
        objects: further objects, numbered from 1.
        password: encrypts the file (RC4, 40 bits) for this user password.
    """
    made = _Objects()
    for body in objects:
        made.add(body)
    mapping = f" /ToUnicode {made.stream('', _cmap(to_unicode))} 0 R" if to_unicode else ""
    fonts = " ".join(
        f"/{name} {made.add(_font(base, mapping if name == 'F1' else ''))} 0 R"
        for name, base in FONTS.items()
    )
    kids = []
    for page in pages:
        page = Page(page) if isinstance(page, str) else page
        names = " ".join(f"/{name} {made.picture(image)} 0 R" for name, image in page.images.items())
        content = made.stream("", page.content.encode("latin-1"))
        kids.append(
            made.add(
                f"<< /Type /Page /Parent @PARENT@ 0 R /MediaBox [0 0 {page.width} {page.height}] "
                f"/Contents {content} 0 R "
                f"/Resources << /Font << {fonts} >> /XObject << {names} >> >> {page.entries} >>"
            )
        )
    parent = made.add(f"<< /Type /Pages /Count {len(kids)} /Kids [{' '.join(f'{k} 0 R' for k in kids)}] >>")
    made.bodies = [body.replace(b"@PARENT@", str(parent).encode()) for body in made.bodies]
    root = made.add(f"<< /Type /Catalog /Pages {parent} 0 R {catalog} >>")
    info = made.add(f"<< /Title ({title}) >>") if title and not password else None
    return _file(made.bodies, root, info, password)


def _font(base: str, mapping: str) -> str:
    return f"<< /Type /Font /Subtype /Type1 /BaseFont /{base} /Encoding /WinAnsiEncoding{mapping} >>"


def _cmap(meaning: dict[str, str]) -> bytes:
    lines = "\n".join(f"<{ord(a):02x}> <{b.encode('utf-16-be').hex()}>" for a, b in meaning.items())
    return (
        "/CIDInit /ProcSet findresource begin 12 dict begin begincmap /CMapName /X def /CMapType 2 def "
        "1 begincodespacerange <00> <ff> endcodespacerange\n"
        f"{len(meaning)} beginbfchar\n{lines}\nendbfchar endcmap end end"
    ).encode()


def _file(bodies: Sequence[bytes], root: int, info: int | None, password: str | None) -> bytes:
    trailer = f"/Root {root} 0 R" + (f" /Info {info} 0 R" if info else "")
    if password is not None:
        bodies, entry = _encrypted(list(bodies), password)
        trailer += entry
    out = bytearray(b"%PDF-1.4\n")
    offsets = []
    for number, body in enumerate(bodies, start=1):
        offsets.append(len(out))
        out += f"{number} 0 obj\n".encode() + body + b"\nendobj\n"
    start = len(out)
    out += f"xref\n0 {len(bodies) + 1}\n0000000000 65535 f \n".encode()
    out += "".join(f"{offset:010} 00000 n \n" for offset in offsets).encode()
    out += f"trailer\n<< /Size {len(bodies) + 1} {trailer} >>\nstartxref\n{start}\n%%EOF\n".encode("latin-1")
    return bytes(out)


def _encrypted(bodies: list[bytes], password: str) -> tuple[list[bytes], str]:
    """Encrypt the streams (PDF 32000-1, 7.6, revision 2); the strings outside of them are none here."""
    padded = (password.encode() + _PADDING)[:32]
    owner = _rc4(hashlib.md5(padded).digest()[:5], padded)
    identifier, permissions = b"0123456789abcdef", -4
    key = hashlib.md5(padded + owner + permissions.to_bytes(4, "little", signed=True) + identifier).digest()[
        :5
    ]
    user = _rc4(key, _PADDING)
    result = []
    for number, body in enumerate(bodies, start=1):
        head, separator, rest = body.partition(b"\nstream\n")
        if separator:
            data = rest.removesuffix(b"\nendstream")
            own = hashlib.md5(key + number.to_bytes(3, "little") + b"\0\0").digest()[:10]
            body = head + separator + _rc4(own, data) + b"\nendstream"
        result.append(body)
    result.append(
        f"<< /Filter /Standard /V 1 /R 2 /P {permissions} /O <{owner.hex()}> /U <{user.hex()}> >>".encode()
    )
    return result, f" /Encrypt {len(result)} 0 R /ID [<{identifier.hex()}> <{identifier.hex()}>]"


def _rc4(key: bytes, data: bytes) -> bytes:
    state, j = list(range(256)), 0
    for i in range(256):
        j = (j + state[i] + key[i % len(key)]) % 256
        state[i], state[j] = state[j], state[i]
    out, i, j = bytearray(), 0, 0
    for byte in data:
        i = (i + 1) % 256
        j = (j + state[i]) % 256
        state[i], state[j] = state[j], state[i]
        out.append(byte ^ state[(state[i] + state[j]) % 256])
    return bytes(out)
