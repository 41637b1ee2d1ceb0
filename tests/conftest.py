"""One thread a process in all tests: two OpenMP threads on a busy machine are ten times slower."""

import os

os.environ["OMP_NUM_THREADS"] = "1"
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ.pop("RAY_ADDRESS", None)
