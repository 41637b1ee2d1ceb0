"""Content hashes and the identifiers made from them.

Owns how bytes, documents and steps get their names. Does not read files: callers hand in bytes or plain data.
All identifiers are lower-case hexadecimal BLAKE2b digests, so the same input has the same name on every
machine.
"""

import hashlib
import json
from collections.abc import Iterable
from typing import Any, BinaryIO

CONTENT_ID_BYTES = 16
STEP_HASH_CHARS = 12
_CHUNK_BYTES = 1 << 20


def content_id(data: bytes | memoryview) -> str:
    """Return the 32-character hash of `data`; equal bytes have equal ids."""
    return hashlib.blake2b(data, digest_size=CONTENT_ID_BYTES).hexdigest()


def content_id_of(file: BinaryIO) -> str:
    """Return the content id of what is left to read of a binary file, in bounded memory."""
    digest = hashlib.blake2b(digest_size=CONTENT_ID_BYTES)
    while chunk := file.read(_CHUNK_BYTES):
        digest.update(chunk)
    return digest.hexdigest()


def document_id(collection: str, uri: str, source_id: str) -> str:
    """Return the id of the document read from `uri` (relative to its collection) whose bytes hash to
    `source_id`.

    Two files with the same bytes are two documents: exact duplicates are found by comparing content, not ids.
    """
    return content_id("\0".join((collection, uri, source_id)).encode())


def fingerprint(value: Any) -> str:
    """Return the hash of plain data (dicts, lists, strings, numbers, booleans, None), independent of key
    order.
    """
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return content_id(text.encode())


def step_id(name: str, version: str, spec: Any, inputs: Iterable[str]) -> str:
    """Return `name-<hash>` for a step: the hash covers its code version, resolved spec and the ids of its
    inputs.
    """
    made_from = {"name": name, "version": version, "spec": spec, "inputs": list(inputs)}
    return f"{name}-{fingerprint(made_from)[:STEP_HASH_CHARS]}"
