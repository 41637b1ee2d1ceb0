"""Mask text: personal data and secrets become masks over their characters, and what tools print in an
agent's session becomes context.

Owns the policy: which detectors run, what a hit does, which roles train nothing. What is a hit, and what is
left alone because it names nobody, stands with each detector in `datapipe.detect`. Changes no text. Rules,
not a model: what only context could tell (names, postal addresses) is not found.
"""

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa

from datapipe.detect import email, ip, payment, phone, secret
from datapipe.spec import MaskTextSpec
from schemas import document

VERSION = "3"
DETECTOR = "regex"

Mask = dict[str, Any]
Hit = tuple[int, int, str]  # start, end, reason

# Reason and detector by the name in the spec.
_DETECTORS: dict[str, tuple[str, Callable[[str, str], Iterator[tuple[int, int]]]]] = {
    "email": ("pii_email", email.find),
    "phone": ("pii_phone", phone.find),
    "ip": ("pii_ip", ip.find),
    "card": ("pii_card", payment.find_cards),
    "iban": ("pii_iban", payment.find_ibans),
    "secret": ("secret", secret.find),
}


def mask_text(batch: pa.RecordBatch, spec: MaskTextSpec) -> pa.RecordBatch:
    """Return the documents with a mask appended for each hit that no mask of the same effect covers yet.

    A text whose role is in `roles` gets one mask over all of it, with reason `role_<role>`.
    """
    column = []
    for row in batch.select(["segments", "masks"]).to_pylist():
        masks = list(row["masks"])
        for number, segment in enumerate(row["segments"]):
            if segment["kind"] == "text":
                new = _masks(number, segment, spec)
                masks += [mask for mask in new if not any(_covers(old, mask) for old in row["masks"])]
        column.append(masks)
    index, field = document.SCHEMA.get_field_index("masks"), document.SCHEMA.field("masks")
    return batch.set_column(index, field, pa.array(column, type=field.type))


def find(text: str, role: str, spec: MaskTextSpec) -> list[Hit]:
    """Return the personal data and secrets in a text of this role: (start, end, reason) in order, without
    overlap.

    Hits that overlap become one over both, with the reason of the longer.
    """
    detectors = [_DETECTORS[name] for name in dict.fromkeys(spec.detectors)]
    hits = sorted((start, end, reason) for reason, detect in detectors for start, end in detect(text, role))
    merged: list[Hit] = []
    for start, end, reason in hits:
        if merged and start < merged[-1][1]:
            first, last, first_reason = merged[-1]
            longer = reason if end - start > last - first else first_reason
            merged[-1] = (first, max(end, last), longer)
        else:
            merged.append((start, end, reason))
    return merged


def _masks(number: int, segment: dict[str, Any], spec: MaskTextSpec) -> list[Mask]:
    """Return the masks of a text: hits first, so that a token's reason is the narrower one."""
    masks = [
        _mask(number, start, end, reason, spec.action)
        for start, end, reason in find(segment["text"], segment["role"], spec)
    ]
    action = spec.roles.get(segment["role"])
    if action is not None:
        masks.append(_mask(number, None, None, f"role_{segment['role']}", action))
    return masks


def _mask(segment: int, start: int | None, end: int | None, reason: str, action: str) -> Mask:
    return {
        "segment": segment,
        "start": start,
        "end": end,
        "box": None,
        "reason": reason,
        "action": action,
        "detector": "role" if start is None else DETECTOR,
    }


def _covers(old: Mask, new: Mask) -> bool:
    """Return whether a mask already does to all of these characters what the new one would, or drops them."""
    if old["segment"] != new["segment"] or old["action"] not in (new["action"], "drop"):
        return False
    if new["start"] is None:
        return old["start"] is None and old["end"] is None
    return (old["start"] is None or old["start"] <= new["start"]) and (
        old["end"] is None or old["end"] >= new["end"]
    )
