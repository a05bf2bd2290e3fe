"""`headwise view`: one head's map over the words of a text, as a page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headwise.prune.cli.options import AsJson, Device, DtypeOption, Model, Overwrite, Quiet, Revision, Trust
from headwise.prune.cli.terminal import put, put_json, speaking

TextOption = Annotated[str, typer.Option("--text", help="The text to look at.")]
Head = Annotated[str, typer.Option("--head", metavar="SITE.HEAD", help="The head, such as 4.7.")]
Run = Annotated[
    Path | None, typer.Option("--run", help="A run of `headwise analyze`, for tested roles and numbers: runs/mine.")
]
Output = Annotated[Path | None, typer.Option("--output", "-o", help="The page; view-<head>.html if left out.")]


def view(
    model: Model,
    text: TextOption,
    head: Head,
    run: Run = None,
    output: Output = None,
    revision: Revision = None,
    dtype: DtypeOption = None,
    device: Device = None,
    trust_remote_code: Trust = False,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Write a page that shows where a head looks, word by word, with its roles and numbers."""
    from headwise.analysis.errors import BadInput

    target = output if output is not None else Path(f"view-{head}.html")
    if target.exists() and not overwrite:
        raise BadInput(f"{target} exists; choose another --output, or say --overwrite")
    if not target.parent.is_dir():
        raise BadInput(f"{target.parent}: no such folder; make it, or choose another --output")
    with speaking(quiet):
        from headwise.analysis.evidence import Evidence
        from headwise.analysis.view import look_at
        from headwise.prune.begun import began_with, other_weights
        from headwise.prune.folder import new_file
        from headwise.prune.opening import open_checkpoint
        from headwise.prune.view_page import view_page

        evidence = Evidence.load(run / "evidence") if run is not None else None
        kind = dtype.value if dtype else "auto"
        opened = open_checkpoint(
            model, revision=revision, dtype=kind, device=device, trust_remote_code=trust_remote_code
        )
        began = began_with(run) if run is not None else {}
        if other_weights(began, opened.facts):
            raise BadInput(
                f"{run}: it is of {began.get('id')} with the weights {began['hash']}, those of {model} are "
                f"{opened.facts['hash']}; give a run of this model, or leave --run out"
            )
        seen = look_at(opened.model, opened.tokenizer, text, head)
        if evidence is not None and (seen.site, seen.head) not in evidence.heads:
            raise BadInput(f"{run}: its evidence has no head {head}; it belongs to another model")
        with new_file(target) as path:
            path.write_text(view_page(seen, opened.name, evidence), encoding="utf-8")
    if as_json:
        put_json({"page": str(target)})
    elif not quiet:
        put(f"page: {target}")
