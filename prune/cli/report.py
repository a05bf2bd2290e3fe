"""`headwise report`: a run's report again, or several runs side by side, without any model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headwise.prune.cli.options import AsJson, Quiet
from headwise.prune.cli.terminal import put, put_json, speaking

Runs = Annotated[list[Path], typer.Argument(metavar="RUN…", help="Folders that prune or analyze wrote.")]
Target = Annotated[
    Path | None,
    typer.Option("--output-dir", help="Where the comparison of several runs goes; a new one in runs/ if left out."),
]


def report(runs: Runs, output_dir: Target = None, as_json: AsJson = False, quiet: Quiet = False) -> None:
    """Rebuild the report of a run; with several runs, compare them in one table and one plot."""
    from headwise.prune import report as pages
    from headwise.prune.inspection import run_folder

    with speaking(quiet):
        if len(runs) == 1:
            written = pages.write(runs[0])
        else:
            written = pages.write_comparison(runs, output_dir or run_folder("comparison", "report"))
        if as_json:
            put_json({ending: str(path) for ending, path in written.items()})
        elif not quiet:
            put(f"report: {written['html']}")
