"""`headwise report`: a run's report again, or several runs side by side, without any model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from headwise.prune.cli.options import AsJson, Device, Quiet, Trust
from headwise.prune.cli.terminal import complain, note, put, put_json, speaking

Runs = Annotated[list[Path], typer.Argument(metavar="RUN…", help="Folders that prune, analyze or sweep wrote.")]
Target = Annotated[
    Path | None,
    typer.Option("--output-dir", help="Where the comparison of several runs goes; a new one in runs/ if left out."),
]


Verify = Annotated[
    bool,
    typer.Option(
        "--verify", help="Carry the recipe of a run or sweep out again, compare plans and weights; exit code 1."
    ),
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
    if output_dir is not None and (verify or len(runs) == 1):
        raise typer.BadParameter(
            "--output-dir is where several runs are compared; one run's report stays in its folder"
        )
    if not verify and (device is not None or trust_remote_code):
        raise typer.BadParameter(
            "--device and --trust-remote-code go with --verify; a report is made without the model"
        )
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
        typer.Exit: with code 1, if a plan or weights came out otherwise.
    """
    with speaking(quiet):
        from headwise.prune.verifying import verify

        found = [verify(run, device=device, trust_remote_code=trust_remote_code) for run in runs]
        if as_json:
            put_json(found)
    wrong = [one for one in found if not one["same"]]
    for one in wrong:
        weights = one["weights"]
        files = ", ".join(name for name, same in one["files"].items() if not same)
        since = ", ".join(f"{name}: {was['run']}, now {was['now']}" for name, was in one["differs"].items())
        parts = [f"weights {weights['run']}, now {weights['again']}"] if weights["run"] != weights["again"] else []
        parts += [f"files: {files}"] if files else []
        parts += [f"changed since: {since}"] if since else []
        complain(f"{one['run']} does not repeat: {'; '.join(parts)}")
    if wrong:
        raise typer.Exit(1)
    if not quiet and not as_json:
        for one in found:
            put(f"{one['run']}: {_same(one)}")


def _same(found: Mapping[str, Any]) -> str:
    """What a repetition gave again, in words."""
    budgets, weights = found.get("budgets"), found["weights"]["run"]
    if budgets is None:
        return f"the same plan and, bit for bit, the same weights ({weights})"
    plans = f"the same plans of {budgets['planned']} budget{'s' if budgets['planned'] > 1 else ''}"
    if weights is None:
        return f"{plans}; none was cut"
    return f"{plans} and, bit for bit, the same weights of the {budgets['cut']} that were cut ({weights})"
