"""`headwise rescue`: checkpoints that cannot be opened as they are: pruned by transformers 4, or nothing but a pickle."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headwise.prune.cli.options import Overwrite, Quiet, Revision
from headwise.prune.cli.terminal import put, speaking

Source = Annotated[str, typer.Argument(metavar="CHECKPOINT", help="Folder or hub id.")]
Target = Annotated[Path, typer.Argument(metavar="OUT", help="New folder for the checkpoint in today's form.")]
Pickle = Annotated[bool, typer.Option("--allow-pickle", help="Read pytorch_model.bin, which can run code when opened.")]


def rescue(
    checkpoint: Source,
    out: Target,
    allow_pickle: Pickle = False,
    revision: Revision = None,
    overwrite: Overwrite = False,
    quiet: Quiet = False,
) -> None:
    """Write a checkpoint that transformers 4 pruned, or that is only a pickle, so that it opens again, bit for bit."""
    with speaking(quiet):
        from headwise.prune.rescue import rescue as save_again

        model = save_again(checkpoint, out, revision=revision, allow_pickle=allow_pickle, overwrite=overwrite)
        if not quiet and getattr(model.config, "headwise", None) is None:
            put(f"{out}: {type(model).__name__}, saved as safetensors; no heads were pruned")
        elif not quiet:
            sites = model.config.headwise["sites"].values()
            gone = sum(site["heads"] - len(site["kept"]) for site in sites)
            put(f"{out}: {type(model).__name__}, {gone} of {sum(site['heads'] for site in sites)} heads were pruned")
