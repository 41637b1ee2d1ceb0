"""What holds for every test."""

import os

from hypothesis import settings

# Two OpenMP threads on a busy machine are ten times slower than one.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ.pop("RAY_ADDRESS", None)
# Triton asks when it is first imported, and any test may be the first; `make test-gpu` says 0.
os.environ.setdefault("TRITON_INTERPRET", "1")

# The same examples in every run; `make fuzz` draws others.
settings.register_profile("same", derandomize=True, deadline=None)
settings.register_profile("random", deadline=None)
settings.load_profile("same")


def pytest_make_parametrize_id(val: object) -> str | None:
    """A file's bytes are named by their size: archives hold the time, workers must collect equal names."""
    return f"{len(val)}-bytes" if isinstance(val, bytes) else None
