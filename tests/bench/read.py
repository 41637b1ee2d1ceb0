"""Reading pictures from shards, in order and at random, beside HF datasets, litdata and WebDataset.

3,000 JPEG files of about 61 kB, page cache warm, one process. Every reader hands out the bytes of a picture;
one byte of each 4 KiB page is touched, so that a memory map has to bring the data too.

    python -m tests.bench.read [NUM_PICTURES]
"""

import io
import shutil
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import pyarrow as pa
from PIL import Image

from schemas import ids, media, shard
from tests.bench import report

ROWS_PER_SHARD = 500
PAGE = 4096
GOAL_RATIO = 1.5


def pictures(count: int) -> list[bytes]:
    """Return JPEG files of about 61 kB, 450 x 450, each another one; a few are made, and marked apart."""
    rng = np.random.default_rng(1)
    made = []
    for _ in range(20):
        smooth = Image.fromarray(rng.integers(0, 256, (30, 30, 3), dtype=np.uint8)).resize((450, 450))
        noisy = np.asarray(smooth, dtype=float) + rng.normal(0, 14, (450, 450, 3))
        buffer = io.BytesIO()
        Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(buffer, "JPEG", quality=79)
        made.append(buffer.getvalue())
    return [made[i % len(made)] + i.to_bytes(4) for i in range(count)]  # a JPEG ends before its last bytes


def touch(data: memoryview) -> int:
    """Read one byte of each page, and return their sum."""
    return int(np.frombuffer(data, np.uint8)[::PAGE].sum())


def write_ours(data: list[bytes], folder: Path) -> None:
    files = []
    for number, first in enumerate(range(0, len(data), ROWS_PER_SHARD)):
        rows = [
            dict.fromkeys(media.SCHEMA.names)
            | {"media_id": ids.content_id(d), "kind": "image", "mime": "image/jpeg", "bytes": d}
            for d in data[first : first + ROWS_PER_SHARD]
        ]
        table = pa.Table.from_pylist(rows, schema=media.SCHEMA)
        files.append(shard.write_table(str(folder / shard.shard_name("media", number)), table))
    shard.write_manifest(
        str(folder), shard.Manifest("media", "1", {}, [], len(data), len(data), {}, {}, files)
    )


def read_ours(folder: Path, order: Iterable[int]) -> int:
    column = shard.read_step_table(str(folder), "media", ["bytes"])["bytes"]
    return sum(touch(memoryview(column[i].as_buffer())) for i in order)


def write_datasets(data: list[bytes], folder: Path) -> None:
    import datasets

    datasets.Dataset.from_dict({"bytes": data}).save_to_disk(str(folder))


def read_datasets(folder: Path, order: Iterable[int]) -> int:
    import datasets

    rows = datasets.load_from_disk(str(folder))
    return sum(touch(memoryview(rows[i]["bytes"])) for i in order)


def read_datasets_in_order(folder: Path) -> int:
    import datasets

    return sum(touch(memoryview(row["bytes"])) for row in datasets.load_from_disk(str(folder)))


def write_litdata(data: list[bytes], folder: Path) -> None:
    from litdata.streaming.writer import BinaryWriter

    writer = BinaryWriter(str(folder), chunk_bytes="64MB")
    for index, item in enumerate(data):
        writer[index] = {"bytes": item}
    writer.done()
    writer.merge(1)


def read_litdata(folder: Path, order: Iterable[int] | None) -> int:
    import litdata

    rows = litdata.StreamingDataset(str(folder))
    chosen = (rows[i] for i in order) if order is not None else iter(rows)
    return sum(touch(memoryview(row["bytes"])) for row in chosen)


def write_webdataset(data: list[bytes], folder: Path) -> None:
    import webdataset

    with webdataset.ShardWriter(str(folder / "%05d.tar"), maxcount=ROWS_PER_SHARD, verbose=0) as writer:
        for index, item in enumerate(data):
            writer.write({"__key__": f"{index:06}", "jpg": item})


def read_webdataset(folder: Path) -> int:
    import webdataset

    tars = [str(path) for path in sorted(folder.glob("*.tar"))]
    return sum(touch(memoryview(row["jpg"])) for row in webdataset.WebDataset(tars, shardshuffle=False))


def main(count: int) -> None:
    data = pictures(count)
    root = Path(tempfile.mkdtemp(prefix="read-"))
    writers = {
        "ours": write_ours,
        "datasets": write_datasets,
        "litdata": write_litdata,
        "webdataset": write_webdataset,
    }
    try:
        for name, write in writers.items():
            (root / name).mkdir()
            write(data, root / name)
        expected = sum(touch(memoryview(d)) for d in data)
        order = np.random.default_rng(2).permutation(count).tolist()
        work: dict[str, dict[str, Callable[[], int]]] = {
            "in order": {
                "ours": lambda: read_ours(root / "ours", range(count)),
                "datasets": lambda: read_datasets_in_order(root / "datasets"),
                "litdata": lambda: read_litdata(root / "litdata", None),
                "webdataset": lambda: read_webdataset(root / "webdataset"),
            },
            "at random": {
                "ours": lambda: read_ours(root / "ours", order),
                "datasets": lambda: read_datasets(root / "datasets", order),
                "litdata": lambda: read_litdata(root / "litdata", order),
            },
        }
        rows = [row for name, readers in work.items() for row in compared(name, readers, count, expected)]
    finally:
        shutil.rmtree(root)
    report.write("read", rows, ["pyarrow", "datasets", "litdata", "webdataset"])


def compared(name: str, readers: dict[str, Callable[[], int]], count: int, expected: int) -> list[dict]:
    """Time the readers in turn; the goal is against the best of the peers."""
    right = {reader: read() == expected for reader, read in readers.items()}
    seconds = report.in_turn(readers)
    speed = {reader: count / statistics.median(times) for reader, times in seconds.items()}
    best = max(speed[reader] for reader in speed if reader != "ours")
    return [
        report.row(
            f"{count:,} pictures of 61 kB {name}",
            speed["ours"],
            "pictures/s",
            peer=speed[reader],
            peer_name=reader,
            goal_ratio=GOAL_RATIO if speed[reader] == best else None,
            quality={"bytes are right": right["ours"] and right[reader]},
        )
        for reader in readers
        if reader != "ours"
    ]


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 3000)
