"""`headwise report`: a run's report again, or several runs side by side, without any model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headwise.prune.cli.options import AsJson, Device, Quiet, Trust
from headwise.prune.cli.terminal import complain, note, put, put_json, speaking

Runs = Annotated[list[Path], typer.Argument(metavar="RUN…", help="Folders that prune, analyze or sweep wrote.")]
Target = Annotated[
    Path | None,
    typer.Option("--output-dir", help="Where the comparison of several runs goes; a new one in runs/ if left out."),
]


Verify = Annotated[
    bool, typer.Option("--verify", help="Carry the run's recipe out again and compare plan and weights; exit code 1.")
]


def report(
    runs: Runs,
    output_dir: Target = None,
    verify: Verify = False,
    device: Device = None,
    trust_remote_code: Trust = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Rebuild the report of a run or a sweep; with several runs, compare them in one table and one plot."""
    if verify:
        _verify(runs, device=device, trust_remote_code=trust_remote_code, as_json=as_json, quiet=quiet)
        return
    from headwise.prune import report as pages
    from headwise.prune.folder import check_place, settled
    from headwise.prune.inspection import run_folder

    with speaking(quiet):
        if len(runs) == 1:
            written = pages.write_again(runs[0])
            for line in pages.unfinished(runs[0]):
                note(line)
        else:
            target = output_dir or run_folder("comparison", "report")
            check_place(settled(target) / "comparison.html")
            written = pages.write_comparison(runs, target)
        if as_json:
            put_json({ending: str(path) for ending, path in written.items()})
        elif not quiet:
            put(f"report: {written['html']}")


def _verify(runs: list[Path], *, device: str | None, trust_remote_code: bool, as_json: bool, quiet: bool) -> None:
    """Say for every run whether its recipe gives the same again.

    Raises:
        typer.Exit: with code 1, if plan or weights came out otherwise.
    """
    with speaking(quiet):
        from headwise.prune.verifying import verify

        found = [verify(run, device=device, trust_remote_code=trust_remote_code) for run in runs]
        if as_json:
            put_json(found)
    wrong = [one for one in found if not one["same"]]
    for one in wrong:
        what = ", ".join(name for name, same in one["files"].items() if not same)
        changed = "; ".join(f"{name}: {was['run']}, now {was['now']}" for name, was in one["differs"].items())
        complain(
            f"{one['run']} does not repeat: weights {one['weights']['run']}, now {one['weights']['again']}"
            f"{f'; other files: {what}' if what else ''}{f'; changed since: {changed}' if changed else ''}"
        )
    if wrong:
        raise typer.Exit(1)
    if not quiet and not as_json:
        for one in found:
            put(f"{one['run']}: the same plan and, bit for bit, the same weights ({one['weights']['run']})")
