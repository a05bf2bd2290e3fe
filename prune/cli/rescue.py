"""`headwise rescue`: checkpoints that cannot be opened as they are: pruned by transformers 4, or nothing but a pickle."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headwise.prune.cli.options import AsJson, Overwrite, Quiet, Revision
from headwise.prune.cli.terminal import put, put_json, speaking

Source = Annotated[str, typer.Argument(metavar="CHECKPOINT", help="Folder or hub id.")]
Target = Annotated[Path, typer.Argument(metavar="OUT", help="New folder for the checkpoint in today's form.")]
Pickle = Annotated[bool, typer.Option("--allow-pickle", help="Read pytorch_model.bin, which can run code when opened.")]


def rescue(
    checkpoint: Source,
    out: Target,
    allow_pickle: Pickle = False,
    revision: Revision = None,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Write a checkpoint that transformers 4 pruned, or that is only a pickle, so that it opens again, bit for bit."""
    with speaking(quiet):
        from headwise.prune.checkpoint.rescue import rescue as save_again
        from headwise.prune.folder import check_target

        check_target(out, checkpoint, overwrite=overwrite)
        model = save_again(checkpoint, out, revision=revision, allow_pickle=allow_pickle, overwrite=overwrite)
        record = getattr(model.config, "headwise", None) or {"sites": {}}
        gone = {name: site["heads"] - len(site["kept"]) for name, site in record["sites"].items()}
        total = sum(site["heads"] for site in record["sites"].values())
        if as_json:
            put_json(
                {"out": str(out), "class": type(model).__name__, "heads_removed": sum(gone.values()), "sites": gone}
            )
        elif not quiet and not gone:
            put(f"{out}: {type(model).__name__}, saved as safetensors; no heads were pruned")
        elif not quiet:
            put(f"{out}: {type(model).__name__}, {sum(gone.values())} of {total} heads were pruned")
