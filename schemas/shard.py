"""Shards on disk: how a table becomes a file, how a step's files are committed, how they are read back.

Owns the file format (Arrow IPC files, uncompressed, record batches of 64 rows), the atomic write (temporary
file, fsync, rename) and the manifests. Does not know what a stage is or who runs it.

A step is a directory. Each finished partition leaves its shards and then a `partition-00007.json` naming them
with their hashes; when all are there, `manifest.json` is written last. A reader trusts what a manifest names
and nothing else, so a killed writer leaves garbage at worst, never half a shard. Manifests hold no time, host
or worker count: the same input gives the same bytes.

Paths are local or `s3://bucket/key` (region, keys and endpoint from the usual AWS variables, such as
`AWS_ENDPOINT_URL`). An S3 object appears whole or not at all, so no rename is needed there.
"""

import dataclasses
import errno
import glob
import json
import os
import re
import tempfile
import uuid
from collections.abc import Callable, Iterable
from pathlib import PurePosixPath
from types import ModuleType
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs

from schemas import document, files, ids, media, plan, quarantine, rollout, scores, tokens
from schemas.errors import ShardError

BATCH_ROWS = 64
MANIFEST = "manifest.json"

# The kinds of table a step may hold, by the name its files start with.
TABLES: dict[str, ModuleType] = {
    "files": files,
    "documents": document,
    "dropped": document,
    "media": media,
    "tokens": tokens,
    "scores": scores,
    "plan": plan,
    "heldout": plan,
    "rollouts": rollout,
    "quarantine": quarantine,
}


@dataclasses.dataclass(frozen=True)
class ShardFile:
    """A written file: its name inside the step, number of rows, size and content hash."""

    name: str
    num_rows: int
    size_bytes: int
    content_id: str


@dataclasses.dataclass(frozen=True)
class Manifest:
    """What a finished step holds and what made it."""

    step: str  # step id, also the directory's name
    version: str
    spec: Any  # resolved spec, plain data
    inputs: list[str]  # ids of the steps (or corpora) it was made from
    rows_in: int
    rows_out: int
    dropped: dict[str, int]  # rows by drop reason
    metrics: dict[str, Any]  # counts and measures a stage reports, deterministic
    files: list[ShardFile]

    def shards(self, table: str) -> list[str]:
        """Return the names of the files of one table, in partition order."""
        return [f.name for f in self.files if table_of(f.name) == table]


def shard_name(table: str, partition: int) -> str:
    """Return the file name of a table's shard, e.g. `tokens-00003.arrow`."""
    return f"{table}-{partition:05d}.arrow"


def table_of(name: str) -> str:
    """Return the table a shard's file name stands for."""
    return name.rpartition("-")[0]


def join(*parts: str) -> str:
    """Join path parts with `/`, keeping a scheme such as `s3://`."""
    return "/".join([parts[0].rstrip("/"), *(p.strip("/") for p in parts[1:])])


def check_address(path: str) -> str:
    """Return a path or address as it is.

    Raises:
        ValueError: it looks like an address, but names no bucket.
    """
    if re.match(r"\w+:/", path) and not re.match(r"\w+://[^/]|file:///", path):
        raise ValueError("must be a folder or an address such as s3://bucket/folder")
    return path


def filesystem(path: str) -> tuple[pafs.FileSystem, str]:
    """Return the file system of a local path or `s3://` URI, and the path in it.

    Raises:
        ShardError: no file system has such addresses.
    """
    if "://" in path:
        try:
            return pafs.FileSystem.from_uri(path)
        except (pa.ArrowException, OSError) as error:
            raise ShardError(f"{path!r} is no usable address: {error}") from error
    return pafs.LocalFileSystem(), os.path.abspath(os.path.expanduser(path))


def exists(path: str) -> bool:
    """Return whether a file or directory is at `path`."""
    fs, inner = filesystem(path)
    return fs.get_file_info(inner).type != pafs.FileType.NotFound


def names_in(path: str) -> set[str]:
    """Return the names of the files of a directory; none where there is no such directory."""
    fs, inner = filesystem(path)
    infos = fs.get_file_info(pafs.FileSelector(inner, allow_not_found=True))
    return {info.base_name for info in infos if info.type == pafs.FileType.File}


def write_bytes(path: str, data: bytes | pa.Buffer) -> None:
    """Write a file so that it is either wholly there or not at all, and survives a power cut once this
    returns.

    Raises:
        ShardError: the disk is full, or the file cannot be written; the message names the path.
    """
    _write_atomically(path, lambda sink: sink.write(data))


def _write_atomically(path: str, fill: Callable[[Any], Any]) -> tuple[int, str]:
    """Fill a temporary file, then publish it under its name: by renaming it, or by one upload.

    Returns its size in bytes and its content id.
    """
    fs, inner = filesystem(path)
    is_local = isinstance(fs, pafs.LocalFileSystem)
    folder = os.path.dirname(inner) if is_local else tempfile.gettempdir()
    temporary = os.path.join(folder, f"{os.path.basename(inner)}.tmp-{uuid.uuid4().hex[:8]}")
    try:
        os.makedirs(folder, exist_ok=True)
        with open(temporary, "wb") as sink:
            fill(sink)
            sink.flush()
            if is_local:
                os.fsync(sink.fileno())
        written = _size_and_hash(temporary)
        if is_local:
            os.replace(temporary, inner)
            _sync_directory(folder)
        else:
            pafs.copy_files(temporary, inner, pafs.LocalFileSystem(), fs)
        return written
    except OSError as error:
        raise ShardError(_write_failure(path, error)) from error
    finally:
        if os.path.exists(temporary):
            os.unlink(temporary)


def _size_and_hash(path: str) -> tuple[int, str]:
    with open(path, "rb") as file:
        return os.path.getsize(path), ids.content_id_of(file)


def _sync_directory(path: str) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _write_failure(path: str, error: OSError) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return (
            f"disk full while writing {path}: free some space and start again; finished partitions are kept"
        )
    return f"cannot write {path}: {error.strerror or error}"


def write_table(path: str, table: pa.Table) -> ShardFile:
    """Validate a table by the name of its file and write it as a shard.

    The same table gives the same bytes however its chunks were split.

    Raises:
        SchemaError: the table breaks its schema.
        ShardError: it could not be written.
    """
    name = PurePosixPath(path).name
    module = TABLES.get(table_of(name))
    if module is not None:
        module.validate(table)
    table = table.replace_schema_metadata(None).combine_chunks()

    def fill(sink: Any) -> None:
        with pa.ipc.new_file(sink, table.schema) as writer:
            for batch in table.to_batches(max_chunksize=BATCH_ROWS):
                writer.write_batch(batch)

    return ShardFile(name, table.num_rows, *_write_atomically(path, fill))


def open_buffer(path: str) -> pa.NativeFile:
    """Open a file for reading: memory-mapped when local, streamed otherwise.

    Raises:
        ShardError: there is no such file.
    """
    fs, inner = filesystem(path)
    try:
        return pa.memory_map(inner) if isinstance(fs, pafs.LocalFileSystem) else fs.open_input_file(inner)
    except FileNotFoundError as error:
        raise ShardError(f"missing shard {path}") from error


def read_table(path: str, columns: list[str] | None = None) -> pa.Table:
    """Read a shard, without copying when it is a local file.

    Raises:
        ShardError: the file is missing, cut short or no Arrow file; the message names it.
    """
    try:
        table = pa.ipc.open_file(open_buffer(path)).read_all()
    except pa.ArrowInvalid as error:
        raise ShardError(f"damaged shard {path}: {error}") from error
    return table.select(columns) if columns is not None else table


def read_step_table(step_path: str, table: str, columns: list[str] | None = None) -> pa.Table:
    """Read and join all shards of one table of a finished step, in partition order."""
    names = read_manifest(step_path).shards(table)
    parts = [read_table(join(step_path, name), columns) for name in names]
    if parts:
        return pa.concat_tables(parts)
    schema = TABLES[table].SCHEMA
    return (schema if columns is None else pa.schema([schema.field(c) for c in columns])).empty_table()


def write_json(path: str, value: Any) -> None:
    """Write plain data as JSON, atomically, with sorted keys."""
    write_bytes(path, (json.dumps(value, sort_keys=True, indent=1, ensure_ascii=False) + "\n").encode())


def read_json(path: str) -> Any:
    """Read a JSON file.

    Raises:
        ShardError: it is missing or no JSON.
    """
    try:
        with open_buffer(path) as source:
            return json.loads(source.read())
    except ValueError as error:
        raise ShardError(f"damaged file {path}: {error}") from error


def write_manifest(step_path: str, manifest: Manifest) -> None:
    """Commit a step: after this its output is finished and never changes.

    What killed writers left half done is removed first.
    """
    fs, inner = filesystem(step_path)
    if isinstance(fs, pafs.LocalFileSystem):
        for leftover in glob.glob(glob.escape(inner) + "/*.tmp-*"):
            os.unlink(leftover)
    write_json(join(step_path, MANIFEST), dataclasses.asdict(manifest))


def read_manifest(step_path: str) -> Manifest:
    """Return the manifest of a finished step.

    Raises:
        ShardError: the step is not finished, or its manifest is damaged.
    """
    value = read_json(join(step_path, MANIFEST))
    return Manifest(**{**value, "files": [ShardFile(**f) for f in value["files"]]})


def is_finished(step_path: str) -> bool:
    """Return whether a step was committed."""
    return exists(join(step_path, MANIFEST))


def verify(step_path: str, files: Iterable[ShardFile]) -> None:
    """Check that files are there with the bytes the manifest names.

    Raises:
        ShardError: naming the first file that is missing or differs.
    """
    for file in files:
        path = join(step_path, file.name)
        with open_buffer(path) as source:
            data = source.read_buffer()
        if ids.content_id(memoryview(data)) != file.content_id:
            raise ShardError(f"damaged shard {path}: its bytes are not those its manifest names")
