"""`headwise demo`: the whole loop on the embedded model, no network needed."""

from __future__ import annotations

from headwise.prune.cli.options import AsJson, OutputDir, Overwrite, Quiet, Resume, resumable
from headwise.prune.cli.prune import run_recipe


def demo(
    output_dir: OutputDir = None,
    overwrite: Overwrite = False,
    resume: Resume = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Analyse, prune and re-measure the embedded model by the recipe `quickstart`: under three minutes."""
    resumable(resume, output_dir, "run")
    run_recipe(
        "quickstart", [], output_dir=output_dir, overwrite=overwrite, resume=resume, as_json=as_json, quiet=quiet
    )
