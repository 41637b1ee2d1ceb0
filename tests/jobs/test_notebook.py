"""The inspection notebook runs on a whole run and is stored without outputs."""

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

import jobs
from tests.jobs.make_run import make_run

NOTEBOOK = Path(jobs.__file__).parent / "notebooks" / "inspect.ipynb"


@pytest.fixture(scope="module")
def executed(tmp_path_factory: pytest.TempPathFactory) -> nbformat.NotebookNode:
    run = make_run(str(tmp_path_factory.mktemp("run") / "small"))
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("OMNILOOM_RUN", run)
        NotebookClient(notebook, timeout=120, kernel_name="python3").execute()
    return notebook


def outputs(notebook: nbformat.NotebookNode, mime: str) -> list[str]:
    return [
        str(output["data"][mime])
        for cell in notebook.cells
        if cell.cell_type == "code"
        for output in cell.outputs
        if mime in output.get("data", {})
    ]


def test_masks_are_shown_in_the_text(executed: nbformat.NotebookNode) -> None:
    shown = "".join(outputs(executed, "text/html"))
    assert 'title="email">mia@example.org</mark>' in shown
    assert "masked: repeated_image drop" in shown


def test_pictures_and_frames_and_plots_are_shown_inline(executed: nbformat.NotebookNode) -> None:
    num_by_cell = [
        sum("image/png" in output.get("data", {}) for output in cell.outputs)
        for cell in executed.cells
        if cell.cell_type == "code"
    ]
    assert max(num_by_cell) == 7  # one picture of the masked document, three frames of each stretch of video
    assert num_by_cell.count(1) == 3  # histograms, loss and gradient norm, reward


def test_dropped_documents_are_counted_by_reason(executed: nbformat.NotebookNode) -> None:
    shown = "".join(outputs(executed, "text/plain"))
    assert "exact_duplicate" in shown
    assert "too_short" in shown


def test_the_stored_notebook_has_no_outputs() -> None:
    for cell in nbformat.read(NOTEBOOK, as_version=4).cells:
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None
