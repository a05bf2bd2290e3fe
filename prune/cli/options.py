"""Options that several verbs share, each described once."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class Dtype(StrEnum):
    """What weights load as."""

    auto = "auto"
    float32 = "float32"
    bfloat16 = "bfloat16"
    float16 = "float16"


Model = Annotated[str, typer.Argument(metavar="MODEL", help="Hub id or folder; `embedded` is the demo's model.")]
Revision = Annotated[str | None, typer.Option(help="Branch, tag or commit of a hub checkpoint: main.")]
DtypeOption = Annotated[Dtype | None, typer.Option("--dtype", help="What weights load as; auto: as they are saved.")]
Device = Annotated[
    str | None, typer.Option(help="cpu, cuda, cuda:1, mps, or auto: spread over all there are; the best if left out.")
]
Trust = Annotated[bool, typer.Option("--trust-remote-code", help="Run Python code that the checkpoint brings.")]
OutputDir = Annotated[
    Path | None,
    typer.Option("--output-dir", help="Folder of the run; runs/<model>-<what>-<UTC time> if left out."),
]
Overwrite = Annotated[
    bool, typer.Option("--overwrite", help="Replace what a run, or transformers, has written there before.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors (and what --json asks for).")]
Seed = Annotated[
    int | None,
    typer.Option(
        min=0, max=2**32 - 1, help="Seed of everything that is drawn, such as 7; 0 or the recipe's if left out."
    ),
]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with an interrupted run in --output-dir.")]


def resumable(resume: bool, output_dir: Path | None, what: str) -> None:
    """Return unless what is to go on is not named.

    Raises:
        typer.BadParameter: with what to name.
    """
    if resume and output_dir is None:
        raise typer.BadParameter(f"--resume needs the --output-dir of the interrupted {what}")
