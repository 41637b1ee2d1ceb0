"""What a viewer sees of a decoded frame: upright, square pixels, sRGB, eight bits, one policy for all files.

Owns rotation and mirroring, sample aspect, the colour matrix and range, HDR, transparency and interlacing.
What was applied is noted, e.g. `rotation=90 aspect=64:45 matrix=bt709 hdr=pq alpha=white fields=top`. Decodes
nothing.

    matrix   as tagged; untagged frames of more than 1279 columns or 576 rows are BT.709, others BT.601 (what
             players do: mpv, `mp_csp_guess_colorspace`)
    hdr      PQ and HLG are mapped to SDR with diffuse white (203 cd/m2, ITU-R BT.2408) as white and the
             highlights rolled off (ITU-R BT.2390-11, section 5.4.1); BT.2020 colours become BT.709's
    alpha    on white, as for pictures
    fields   of an interlaced frame that shows combs, the first field, its lines interpolated
"""

import dataclasses
import struct
from fractions import Fraction
from typing import Any

import numpy as np
from av.video.reformatter import VideoReformatter
from PIL import Image

MAX_ASPECT = 8  # a sample aspect outside 1:8 to 8:1 is a fault of the header
_UNTAGGED, _BT709, _BT601, _BT2020 = 2, 1, 6, (9, 10)
_PQ, _HLG = 16, 18
_COMB_FRAC = 0.01  # of the 16 x 16 blocks of a frame
_COMB_LEVELS = 8.0
_BT2020_TO_BT709 = np.array(  # ITU-R BT.2087, annex 2: linear light
    [[1.6605, -0.5876, -0.0728], [-0.1246, 1.1329, -0.0083], [-0.0182, -0.1006, 1.1187]]
)


@dataclasses.dataclass(frozen=True)
class Geometry:
    """How the columns and rows of a decoded frame lie in what a viewer sees.

    First rows and columns are swapped (`is_transposed`), then mirrored left to right and top to bottom;
    `pixel_aspect` is the width of a decoded pixel over its height, before that.
    """

    is_transposed: bool = False
    is_mirrored: bool = False
    is_upside_down: bool = False
    pixel_aspect: Fraction = Fraction(1)
    note: str = ""

    @property
    def is_plain(self) -> bool:
        """Whether frames are shown as they are decoded."""
        return self == Geometry()

    def shown_size(self, width: int, height: int) -> tuple[int, int]:
        """Return (width, height) as shown. Non-square pixels enlarge one side, so nothing is lost."""
        if self.pixel_aspect >= 1:
            width = max(1, round(width * self.pixel_aspect))
        else:
            height = max(1, round(height / self.pixel_aspect))
        return (height, width) if self.is_transposed else (width, height)


def geometry(frame: Any, stream: Any) -> Geometry:
    """Read the display matrix of a frame and the sample aspect of its stream."""
    notes = []
    matrix, (is_transposed, is_mirrored, is_upside_down) = _display_matrix(frame), (False, False, False)
    if matrix is not None:
        found = _quarter_turn(matrix)
        if found is None:
            notes.append("rotation=ignored")
        else:
            is_transposed, is_mirrored, is_upside_down = found
            notes += _turn_note(*found)
    aspect = stream.sample_aspect_ratio
    aspect = Fraction(aspect) if aspect and Fraction(1, MAX_ASPECT) <= aspect <= MAX_ASPECT else Fraction(1)
    if aspect != 1:
        notes.append(f"aspect={aspect.numerator}:{aspect.denominator}")
    return Geometry(is_transposed, is_mirrored, is_upside_down, aspect, " ".join(notes))


def _display_matrix(frame: Any) -> tuple[int, ...] | None:
    """Return the 3 x 3 display matrix of a frame in 16.16 fixed point, row by row."""
    for side_data in frame.side_data:
        if side_data.type.name == "DISPLAYMATRIX" and side_data.buffer_size >= 36:
            return struct.unpack("=9i", bytes(side_data)[:36])
    return None


def _quarter_turn(matrix: tuple[int, ...]) -> tuple[bool, bool, bool] | None:
    """Return how rows and columns move, or None where the matrix does more than turn and mirror.

    A point (x, y) is shown at (a x + c y, b x + d y) for the matrix rows (a, b, .) and (c, d, .), both axes
    down and to the right (ISO/IEC 14496-12, section 6.2.2).
    """
    a, b, c, d = (matrix[i] / 65536 for i in (0, 1, 3, 4))
    if abs(b) < 0.01 and abs(c) < 0.01 and a and d:
        return False, a < 0, d < 0
    if abs(a) < 0.01 and abs(d) < 0.01 and b and c:
        return True, c < 0, b < 0
    return None


def _turn_note(is_transposed: bool, is_mirrored: bool, is_upside_down: bool) -> list[str]:
    """Return the clockwise turn in degrees, and a mirror where there is one."""
    if is_transposed:
        turns = {(True, False): "rotation=90", (False, True): "rotation=270"}
        return [turns.get((is_mirrored, is_upside_down), "rotation=90 mirrored")]
    if is_mirrored and is_upside_down:
        return ["rotation=180"]
    return ["mirrored"] if is_mirrored or is_upside_down else []


def is_plain(frame: Any) -> bool:
    """Return whether any decoder makes the same picture of such a frame: 8 bits, no alpha, no guesses."""
    return (
        frame.format.name in ("yuv420p", "yuvj420p", "yuv422p", "yuv444p")
        and not frame.interlaced_frame
        and frame.color_trc not in (_PQ, _HLG)
        and frame.color_primaries not in _BT2020
        and _guessed_matrix(frame) != _BT709
    )


class Painter:
    """Turns decoded frames into pictures, keeping FFmpeg's scaler from one frame to the next."""

    def __init__(self, geometry: Geometry) -> None:
        self._geometry = geometry
        self._reformatter = VideoReformatter()

    def picture(self, frame: Any) -> tuple[Image.Image, str]:
        """Return what a viewer sees of a frame, mode RGB, and what was applied."""
        pixels, notes = self._rgb(frame)
        if frame.interlaced_frame and _is_combed(pixels):
            pixels = _first_field(pixels)
            notes.append("fields=top")
        image = Image.fromarray(self._upright(pixels))
        size = self._geometry.shown_size(frame.width, frame.height)
        if image.size != size:
            image = image.resize(size, Image.Resampling.LANCZOS)
        return image, " ".join([*filter(None, [self._geometry.note]), *notes])

    def _upright(self, pixels: np.ndarray) -> np.ndarray:
        """Turn an array [height, width, channels] as the geometry says."""
        if self._geometry.is_transposed:
            pixels = pixels.swapaxes(0, 1)
        if self._geometry.is_mirrored:
            pixels = pixels[:, ::-1]
        if self._geometry.is_upside_down:
            pixels = pixels[::-1]
        return np.ascontiguousarray(pixels)

    def _rgb(self, frame: Any) -> tuple[np.ndarray, list[str]]:
        notes = []
        guessed = _guessed_matrix(frame)
        if guessed is not None:
            frame.colorspace = guessed
            notes += ["matrix=bt709"] if guessed == _BT709 else []
        if frame.format.name == "pal8" or any(part.is_alpha for part in frame.format.components):
            return self._on_white(frame), [*notes, "alpha=white"]
        is_hdr = frame.color_trc in (_PQ, _HLG)
        if is_hdr or frame.color_primaries == 9:
            wide = self._converted(frame, "rgb48le").astype(np.float32) / 65535
            name = {_PQ: "hdr=pq", _HLG: "hdr=hlg"}.get(frame.color_trc, "colours=bt2020")
            return _to_sdr(wide, frame.color_trc), [*notes, name]
        return self._converted(frame, "rgb24"), notes

    def _converted(self, frame: Any, format: str) -> np.ndarray:
        return self._reformatter.reformat(frame, format=format, threads=1).to_ndarray()

    def _on_white(self, frame: Any) -> np.ndarray:
        rgba = self._converted(frame, "rgba").astype(np.uint16)
        alpha = rgba[..., 3:]
        return ((rgba[..., :3] * alpha + 255 * (255 - alpha) + 127) // 255).astype(np.uint8)


def _guessed_matrix(frame: Any) -> int | None:
    """Return the colour matrix of an untagged frame; None where it is tagged or is no YCbCr."""
    if frame.colorspace != _UNTAGGED or not frame.format.name.startswith(("yuv", "nv", "p0")):
        return None
    return _BT709 if frame.width >= 1280 or frame.height > 576 else _BT601


# ---- interlacing


def _is_combed(pixels: np.ndarray) -> bool:
    """Return whether the two fields of a frame show different times.

    A block has combs where rows differ from both their neighbours, and by more than rows of the same field
    do.
    """
    grey = pixels[: pixels.shape[0] // 16 * 16, : pixels.shape[1] // 16 * 16].mean(2, dtype=np.float32)
    if grey.size == 0:
        return False
    padded = np.pad(grey, ((2, 2), (0, 0)), mode="edge")
    across = np.abs(2 * grey - padded[1:-3] - padded[3:-1])
    within = np.abs(2 * grey - padded[:-4] - padded[4:])
    blocks = [
        plane.reshape(grey.shape[0] // 16, 16, grey.shape[1] // 16, 16).mean((1, 3))
        for plane in (across, within)
    ]
    is_combed = (blocks[0] > _COMB_LEVELS) & (blocks[0] > 1.5 * blocks[1])
    return bool(is_combed.mean() > _COMB_FRAC)


def _first_field(pixels: np.ndarray) -> np.ndarray:
    """Return the frame with its odd rows made from the even ones around them."""
    rows = pixels.astype(np.uint16)
    above, below = rows[0:-1:2], rows[2::2]
    odd = (above[: len(below)] + below + 1) // 2
    result = pixels.copy()
    result[1 : 2 * len(odd) : 2] = odd
    if len(pixels) % 2 == 0:
        result[-1] = pixels[-2]
    return result


# ---- high dynamic range

_WHITE_NITS = 203.0  # diffuse white (ITU-R BT.2408-7, table 1)
_HDR_PEAK_NITS = 1000.0
_SDR_GAMMA = 2.4  # of cameras' BT.709 material as shown (ITU-R BT.1886)
_PQ_M1, _PQ_M2 = 2610 / 16384, 2523 / 4096 * 128  # SMPTE ST 2084
_PQ_C1, _PQ_C2, _PQ_C3 = 3424 / 4096, 2413 / 4096 * 32, 2392 / 4096 * 32


def _to_sdr(wide: np.ndarray, transfer: int) -> np.ndarray:
    """Return BT.2020 signal values, [height, width, 3] of 0 to 1, as 8-bit sRGB with BT.709's colours."""
    if transfer == _PQ:
        linear = _rolled_off(_pq_to_nits(wide)) / _WHITE_NITS
    elif transfer == _HLG:
        linear = _rolled_off(_hlg_to_nits(wide)) / _WHITE_NITS
    else:
        linear = wide**_SDR_GAMMA
    linear = np.clip(linear @ _BT2020_TO_BT709.T.astype(np.float32), 0, 1)
    if transfer in (_PQ, _HLG):
        signal = np.where(linear <= 0.0031308, 12.92 * linear, 1.055 * linear ** (1 / 2.4) - 0.055)
    else:
        signal = linear ** (1 / _SDR_GAMMA)
    return np.round(signal * 255).astype(np.uint8)


def _pq_to_nits(signal: np.ndarray) -> np.ndarray:
    power = np.clip(signal, 0, 1) ** (1 / _PQ_M2)
    return 10000 * (np.maximum(power - _PQ_C1, 0) / (_PQ_C2 - _PQ_C3 * power)) ** (1 / _PQ_M1)


def _nits_to_pq(nits: np.ndarray) -> np.ndarray:
    power = (np.clip(nits, 0, 10000) / 10000) ** _PQ_M1
    return ((_PQ_C1 + _PQ_C2 * power) / (1 + _PQ_C3 * power)) ** _PQ_M2


def _hlg_to_nits(signal: np.ndarray) -> np.ndarray:
    """Return the light of a 1,000 cd/m2 display (ITU-R BT.2100-2, table 5)."""
    a, b, c = 0.17883277, 0.28466892, 0.55991073
    scene = np.where(signal <= 0.5, signal**2 / 3, (np.exp((signal - c) / a) + b) / 12)
    luma = scene @ np.array([0.2627, 0.6780, 0.0593], dtype=np.float32)
    return _HDR_PEAK_NITS * np.maximum(luma, 1e-6)[..., None] ** 0.2 * scene


def _rolled_off(nits: np.ndarray) -> np.ndarray:
    """Map light of up to `_HDR_PEAK_NITS` into `_WHITE_NITS` (the EETF of ITU-R BT.2390-11, section 5.4.1).

    The scale comes from the largest channel, so hues stay.
    """
    peak = np.maximum(nits.max(axis=-1, keepdims=True), 1e-4)
    top, target = (float(_nits_to_pq(np.array(n))) for n in (_HDR_PEAK_NITS, _WHITE_NITS))
    value, largest = np.minimum(_nits_to_pq(peak) / top, 1), target / top
    knee = 1.5 * largest - 0.5
    t = np.clip((value - knee) / (1 - knee), 0, 1)
    curve = (
        (2 * t**3 - 3 * t**2 + 1) * knee
        + (t**3 - 2 * t**2 + t) * (1 - knee)
        + (3 * t**2 - 2 * t**3) * largest
    )
    mapped = np.where(value < knee, value, curve) * top
    return nits * (_pq_to_nits(mapped) / peak)
