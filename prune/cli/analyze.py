"""`headwise analyze`: what every head of a checkpoint does, without changing it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headwise.prune.cli.options import (
    AsJson,
    Device,
    DtypeOption,
    Model,
    OutputDir,
    Overwrite,
    Quiet,
    Revision,
    Seed,
    Trust,
)
from headwise.prune.cli.terminal import put, put_json, speaking

TextsFile = Annotated[Path | None, typer.Option("--texts", help="A text a line; or a CSV, TSV, JSONL or parquet file.")]
Dataset = Annotated[str | None, typer.Option("--dataset", metavar="NAME[:CONFIG]", help="A data set of the hub.")]
Split = Annotated[str | None, typer.Option(help="The data set's split; train if left out.")]
TextColumn = Annotated[str | None, typer.Option(help="The column of the text.")]
BatchSize = Annotated[int | None, typer.Option(min=1, help="Texts a batch; as many as fit if left out.")]
MaxLength = Annotated[int | None, typer.Option(min=2, help="Tokens a text; the model's limit if left out.")]
MaxSamples = Annotated[int, typer.Option(min=1, help="Texts drawn at most.")]


def analyze(
    model: Model,
    texts: TextsFile = None,
    dataset: Dataset = None,
    split: Split = None,
    text_column: TextColumn = None,
    revision: Revision = None,
    dtype: DtypeOption = None,
    device: Device = None,
    batch_size: BatchSize = None,
    max_length: MaxLength = None,
    max_samples: MaxSamples = 1024,
    seed: Seed = None,
    trust_remote_code: Trust = False,
    output_dir: OutputDir = None,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Statistics, similarity and roles of every head, on texts of yours or on English that Python carries."""
    from headwise.analysis.errors import BadInput

    if texts is not None and dataset is not None:
        raise BadInput("got both --texts and --dataset; give one of them")
    if split is not None and dataset is None:
        raise BadInput("--split needs --dataset")
    with speaking(quiet):
        from headwise.prune.inspection import inspect

        folder = inspect(
            model,
            source=str(texts) if texts is not None else dataset or "embedded",
            split=split,
            text=text_column,
            samples=max_samples,
            batch_size=batch_size,
            max_length=max_length,
            seed=seed or 0,
            revision=revision,
            dtype=dtype.value if dtype else "auto",
            device=device,
            trust_remote_code=trust_remote_code,
            output_dir=output_dir,
            overwrite=overwrite,
        )
        if as_json:
            put_json({"run": str(folder), "report": str(folder / "report.html")})
        elif not quiet:
            put(f"run: {folder}")
            put(f"report: {folder / 'report.html'}")
