"""The program `headwise`: its verbs, and how it ends when something goes wrong."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from headwise.prune.cli import (
    analyze,
    cut,
    demo,
    evaluate,
    export,
    families,
    heads,
    plan,
    prune,
    recipes,
    report,
    rescue,
    speed,
    sweep,
    view,
)
from headwise.prune.cli.faults import explain
from headwise.prune.cli.terminal import complain, discard, put, streams
from headwise.prune.folder.signals import interrupting

DEBUG = "HEADWISE_DEBUG"

app = typer.Typer(
    name="headwise",
    help="Show what every attention head does, remove those that are not needed, measure what it costs.",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("analyze")(analyze.analyze)
app.command("prune")(prune.prune)
app.command("plan")(plan.plan)
app.command("cut")(cut.cut)
app.command("sweep")(sweep.sweep)
app.command("evaluate")(evaluate.evaluate)
app.command("speed")(speed.speed)
app.command("export")(export.export)
app.command("report")(report.report)
app.command("heads")(heads.heads)
app.command("view")(view.view)
app.command("families")(families.families)
app.command("rescue")(rescue.rescue)
app.add_typer(recipes.app, name="recipes")
app.command("demo")(demo.demo)


def _version(asked: bool) -> bool:
    if asked:
        from importlib.metadata import version

        put(f"headwise {version('headwise')}")
        raise typer.Exit
    return asked


@app.callback()
def program(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and leave.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback when something fails.")] = False,
) -> None:
    """Show what every attention head does, remove those that are not needed, measure what it costs."""
    if debug:
        os.environ[DEBUG] = "1"


def _code(left: SystemExit) -> int:
    return left.code if isinstance(left.code, int) else int(left.code is not None)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; its exit code as `headwise.prune.cli.main` says.

    >>> main(["recipes", "check", "quickstart"])
    quickstart: no mistakes
    0
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    with streams():
        try:
            with interrupting():
                code = app(args=words or ["--help"], prog_name="headwise", standalone_mode=False)
                sys.stdout.flush()
        except SystemExit as left:
            # Not standalone, typer leaves this way only where the reader has closed the pipe (`| head`), with 1.
            if not isinstance(left.__context__, OSError):
                return _code(left)
            discard(sys.stdout)
            return 0
        except BrokenPipeError:
            # The same, seen late.
            discard(sys.stdout)
            return 0
        except (KeyboardInterrupt, typer.Abort):
            code = 130
        except Exception as error:  # the one place where nothing may get through
            message, code = _told(error)
            complain(message)
            return code
        if code == 130:
            complain("interrupted")
        return code if isinstance(code, int) else 0


def _told(error: Exception) -> tuple[str, int]:
    """What to say about an exception, and the exit code."""
    if os.environ.get(DEBUG, "") not in ("", "0"):
        import traceback

        traceback.print_exc()
    return explain(error, DEBUG)
