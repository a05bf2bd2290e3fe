"""`headwise demo`: the whole loop on the embedded model, no network needed."""

from __future__ import annotations

from headwise.prune.cli.options import AsJson, OutputDir, Overwrite, Quiet, Resume
from headwise.prune.cli.prune import resume_into, run_recipe


def demo(
    output_dir: OutputDir = None,
    overwrite: Overwrite = False,
    resume: Resume = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Analyse, prune and re-measure the embedded model by the recipe `quickstart`: under three minutes."""
    run_recipe(
        "quickstart",
        [],
        output_dir=output_dir,
        overwrite=overwrite,
        resume=resume_into(output_dir, resume),
        as_json=as_json,
        quiet=quiet,
    )
