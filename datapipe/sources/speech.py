"""What is said in a video, by a Whisper model that the user has.

Owns the transcript of a video's sound as timed words. Optional: without `faster-whisper` (extra `speech`),
`available` is False. No weights are fetched: the model is a folder on disk, in CTranslate2's format.

A beam of five, without the random retries of Whisper, so the same sound gives the same words. Stretches
without speech are left out before (voice activity detection), and after where the model itself doubts that
anything was said.
"""

import functools
import importlib.util
import io
from pathlib import Path
from typing import Any

from datapipe.errors import DetectorMissing
from datapipe.sources.items import prose
from datapipe.sources.video import Caption

PACKAGE = "faster_whisper"
INSTALL = "pip install 'omniloom[speech]'"
MAX_NO_SPEECH_PROB = 0.6  # Whisper's own limit (Radford et al., 2022, section 4.5)


def available() -> bool:
    """Return whether the package is installed."""
    return importlib.util.find_spec(PACKAGE) is not None


def check_available(model: str) -> None:
    """Check that the package and the model are there, before hours of other work.

    Raises:
        DetectorMissing: naming the command that installs the package, or the folder that holds no model.
    """
    if not available():
        raise DetectorMissing(f"speech_model: needs {PACKAGE}; {INSTALL}")
    if not Path(model, "model.bin").is_file():
        raise DetectorMissing(f"speech_model: no Whisper model for CTranslate2 (model.bin) in {model}")


def transcribe(data: bytes, model: str) -> list[Caption]:
    """Return what is said in a video, as captions; none where it has no sound or nobody speaks.

    Args:
        model: folder of the model.

    Raises:
        DetectorMissing: the package is not installed, or the folder holds no model.
    """
    check_available(model)
    from faster_whisper import decode_audio

    try:
        sound = decode_audio(io.BytesIO(data))
    except (IndexError, ValueError):  # no sound in the file
        return []
    if len(sound) == 0:
        return []
    segments, _ = _model(model).transcribe(
        sound, beam_size=5, temperature=0.0, vad_filter=True, condition_on_previous_text=False
    )
    return [
        Caption(float(segment.start), float(segment.end), prose(segment.text))
        for segment in segments
        if segment.no_speech_prob <= MAX_NO_SPEECH_PROB
        and segment.end > segment.start
        and prose(segment.text)
    ]


@functools.lru_cache(maxsize=1)
def _model(path: str) -> Any:
    from faster_whisper import WhisperModel

    try:
        return WhisperModel(path, device="cpu", compute_type="int8", cpu_threads=1, local_files_only=True)
    except Exception as error:  # CTranslate2 raises RuntimeError, ValueError and what a hub client has
        raise DetectorMissing(f"speech_model: no Whisper model for CTranslate2 in {path}: {error}") from error
