"""metrics.jsonl: rows are appended, and cut back to a checkpoint."""

import math
from pathlib import Path

from trainer.metrics import MetricsWriter, read_metrics


def test_rows_after_the_checkpoint_and_half_a_line_are_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    writer = MetricsWriter(str(path), 0)
    for step in (1, 2, 3):
        writer.write(step, {"loss/text_nats": step / 3})
    writer.close()
    whole = path.read_text()
    path.write_text(whole + '{"step": 4, "loss/te')

    assert [row["step"] for row in read_metrics(str(path))] == [1, 2, 3]
    MetricsWriter(str(path), 2).close()
    assert path.read_text() == "".join(whole.splitlines(keepends=True)[:2])
    assert read_metrics(str(path))[1] == {"step": 2, "loss/text_nats": 2 / 3}
    MetricsWriter(str(path), 0).close()
    assert path.read_text() == ""


def test_what_is_no_number_becomes_null(tmp_path: Path) -> None:
    path = str(tmp_path / "metrics.jsonl")
    MetricsWriter(path, 0).write(1, {"loss/text_nats": math.nan, "grad_norm/vision": math.inf})
    assert read_metrics(path) == [{"step": 1, "loss/text_nats": None, "grad_norm/vision": None}]
