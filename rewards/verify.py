"""Verifiers: judge an answer against the truth by rule, as a reward for RL.

Owns what counts as right. Does not know tasks, prompts or advantages. A verifier that cannot judge says so in
`error` and gives no reward; it never turns a failure into 0."""

import math
import re
from dataclasses import dataclass

RELATIVE_TOLERANCE = 1e-6
_NUMBER = re.compile(r"[+-]?((\d{1,3}(,\d{3})+|\d+)(\.\d*)?|\.\d+)(e[+-]?\d+)?", re.ASCII | re.IGNORECASE)


@dataclass(frozen=True)
class Verdict:
    """One judgement: a reward from 0 (wrong) to 1 (right), or the kind of error that prevented one."""

    verifier: str
    reward: float | None
    error: str | None


def exact(answer: str, truth: str) -> Verdict:
    """Reward 1 when answer and truth are the same text, whatever the case and the white space around and
    between words.

    An empty truth is an error: anything could be right.
    """
    if not truth.strip():
        return Verdict("exact", None, "empty_truth")
    return Verdict("exact", float(_plain(answer) == _plain(truth)), None)


def numeric(answer: str, truth: str) -> Verdict:
    """Reward 1 when both are the same number within a relative 1e-6; text that is no number is an error.

    Example: `numeric("1,000.0", "1e3")` gives 1; `numeric("a thousand", "1e3")` gives `answer_not_a_number`.
    """
    said, expected = _number(answer), _number(truth)
    if expected is None:
        return Verdict("numeric", None, "truth_not_a_number")
    if said is None:
        return Verdict("numeric", None, "answer_not_a_number")
    return Verdict("numeric", float(math.isclose(said, expected, rel_tol=RELATIVE_TOLERANCE)), None)


def _plain(text: str) -> str:
    return " ".join(text.casefold().split())


def _number(text: str) -> float | None:
    stripped = text.strip()
    if not _NUMBER.fullmatch(stripped):
        return None
    value = float(stripped.replace(",", ""))
    return value if math.isfinite(value) else None
