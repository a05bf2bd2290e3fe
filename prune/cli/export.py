"""`headwise export`: a checkpoint as an ONNX file, a `torch.export` program, or a plain checkpoint."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from headwise.prune.cli.options import AsJson, Overwrite, Quiet, Revision, Trust
from headwise.prune.cli.terminal import put, put_json, speaking


class Form(StrEnum):
    """What a checkpoint can be exported to."""

    onnx = "onnx"
    torch = "torch"
    native = "native"


Folder = Annotated[str, typer.Argument(metavar="FOLDER", help="A run, a checkpoint's folder, or a hub id.")]
Out = Annotated[Path, typer.Argument(metavar="OUT", help="A file (.onnx, .pt2); for native, a folder.")]
To = Annotated[
    Form,
    typer.Option("--to", help="onnx; torch: a torch.export program; native: a checkpoint for any serving engine."),
]


def export(
    folder: Folder,
    out: Out,
    to: To = Form.onnx,
    revision: Revision = None,
    overwrite: Overwrite = False,
    trust_remote_code: Trust = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Write a checkpoint in another form, for any batch and length, once it has given the same numbers."""
    with speaking(quiet):
        from headwise.prune.folder import check_target
        from headwise.prune.judgement import checkpoint_of
        from headwise.prune.opening import open_checkpoint

        source = checkpoint_of(folder)
        if to is Form.native:
            check_target(out, source, overwrite=overwrite)
        opened = open_checkpoint(source, revision=revision, device="cpu", trust_remote_code=trust_remote_code)
        difference = None
        if to is Form.native:
            from headwise.prune.checkpoint import save

            save(opened.model, out, processor=opened.tokenizer, form="native", overwrite=overwrite)
        else:
            from headwise.prune.export import to_onnx, to_program

            difference = (to_onnx if to is Form.onnx else to_program)(opened.model, out, overwrite=overwrite)
        if as_json:
            put_json({"out": str(out), "form": to.value, "difference": difference})
        elif not quiet:
            put(f"{to.value}: {out}")
            if difference is not None:
                put(f"on another batch and length its output differs by {difference:.1e} of the model's own")
