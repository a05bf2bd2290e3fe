"""`headwise analyze`: what every head of a checkpoint does, without changing it."""

from __future__ import annotations

import re
from collections.abc import Mapping
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
    Resume,
    Revision,
    Seed,
    Trust,
    resumable,
)
from headwise.prune.cli.terminal import put, put_json, speaking, stdout

TextsFile = Annotated[
    Path | None, typer.Option("--texts", help="A text a line; or a CSV, TSV, JSONL, parquet or Arrow file.")
]
Dataset = Annotated[
    str | None, typer.Option("--dataset", metavar="NAME[:CONFIG]", help="A data set of the hub: nyu-mll/glue:sst2.")
]
Split = Annotated[str | None, typer.Option(help="The data set's split: validation; train if left out.")]
TextColumn = Annotated[str | None, typer.Option(help="The column of the text, by name or number: sentence.")]
BatchSize = Annotated[int | None, typer.Option(min=1, help="Texts a batch; as many as fit if left out.")]
MaxLength = Annotated[int | None, typer.Option(min=2, help="Tokens a text; the model's limit if left out.")]
MaxSamples = Annotated[int, typer.Option(min=1, help="Texts drawn at most, such as 200.")]
Roles = Annotated[
    str | None, typer.Option(metavar="NAME,…", help="Roles to look for: previous,coreference; all if left out.")
]
AnnotationFiles = Annotated[
    list[Path] | None,
    typer.Option(
        "--annotations",
        metavar="[KIND:]FILE",
        help="Texts with links (JSONL, CoNLL-U, CoNLL-2012, GAP, WinoBias), such as links.jsonl; may be repeated. "
        "The name tells the kind, or a kind before it does: gap:names.txt.",
    ),
]
Similarity = Annotated[
    str | None,
    typer.Option(
        metavar="NAME,…", help="Measures of likeness: pearson, cosine, hellinger, jensen_shannon, cka, replaceability."
    ),
]
PerText = Annotated[bool, typer.Option("--per-text", help="Average likeness over texts instead of pooling their rows.")]
Ordinary = Annotated[bool, typer.Option("--ordinary", help="Compare heads without special tokens and the first token.")]
Intervene = Annotated[bool, typer.Option("--intervene", help="Silence the heads of each role and see what it does.")]
Pairs = Annotated[
    Path | None,
    typer.Option(help="Sentence pairs as BLiMP has them, for --intervene on coreference; generated if left out."),
]
Memory = Annotated[
    str | None,
    typer.Option(
        "--memory-budget", metavar="SIZE", help="For attention maps, such as 512MB or 2GB; longer texts go in tiles."
    ),
]
Null = Annotated[
    str,
    typer.Option(
        metavar="analytic|permutation|random-copy",
        help="What a role must beat beside its exact chance: nothing, tokens permuted, a copy with random weights.",
    ),
]
Effect = Annotated[
    float | None,
    typer.Option(min=0, max=1, help="Least excess over chance that makes a role: of attention mass or accuracy; 0.1."),
]
Threshold = Annotated[
    float | None,
    typer.Option(min=-1, max=1, help="Mean likeness at which heads count as interchangeable; 0.8 if left out."),
]
Clusters = Annotated[int | None, typer.Option(min=1, help="Number of clusters, such as 20, instead of --threshold.")]
DoorOption = Annotated[str, typer.Option("--door", help="auto, eager or tiles: how maps are come by.")]


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
    roles: Roles = None,
    annotations: AnnotationFiles = None,
    similarity: Similarity = None,
    per_text: PerText = False,
    ordinary: Ordinary = False,
    intervene: Intervene = False,
    pairs: Pairs = None,
    memory_budget: Memory = None,
    door: DoorOption = "auto",
    threshold: Threshold = None,
    clusters: Clusters = None,
    null: Null = "analytic",
    effect: Effect = None,
    seed: Seed = None,
    trust_remote_code: Trust = False,
    output_dir: OutputDir = None,
    overwrite: Overwrite = False,
    resume: Resume = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Statistics, similarity and roles of every head, on texts of yours or on English that Python carries."""
    _refuse({
        "got both --texts and --dataset; give one of them": texts is not None and dataset is not None,
        "--split needs --dataset": split is not None and dataset is None,
        "--pairs needs --intervene": pairs is not None and not intervene,
        "got both --threshold and --clusters; give one of them": threshold is not None and clusters is not None,
    })  # fmt: skip
    resumable(resume, output_dir, "analysis")
    with speaking(quiet):
        from headwise.prune.inspection import Looking, inspect

        looking = Looking(
            roles=_listed(roles),
            measures=_listed(similarity),
            annotations=tuple(annotations or ()),
            per_text=per_text,
            ordinary=ordinary,
            intervene=intervene,
            pairs=pairs,
            memory=None if memory_budget is None else _bytes(memory_budget),
            door=door,
            threshold=threshold,
            clusters=clusters,
            null=null,
            effect=effect,
        )

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
            resume=resume,
            looking=looking,
        )
        from headwise.analysis.capture.processes import world

        # Of several processes one speaks.
        if not world()[0]:
            _show(folder, as_json=as_json, quiet=quiet)


def _refuse(mistakes: Mapping[str, bool]) -> None:
    """Refuse options that do not go together, with the message of the first that do not."""
    from headwise.analysis.errors import BadInput

    for message, made in mistakes.items():
        if made:
            raise BadInput(message)


def _show(folder: Path, *, as_json: bool, quiet: bool) -> None:
    """What was found, and where it is."""
    from headwise.analysis.evidence import Evidence
    from headwise.prune.cli.findings import findings, findings_table, left_out

    evidence = Evidence.load(folder / "evidence")
    if as_json:
        said = {"run": str(folder), "report": str(folder / "report.html")}
        put_json(said | {"roles": findings(evidence)})
    elif not quiet:
        stdout().print(findings_table(evidence))
        put(left_out(evidence))
        put(f"run: {folder}")
        put(f"report: {folder / 'report.html'}")


_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}


def _bytes(size: str) -> int:
    """Bytes of a size such as 512MB, 1.5GB or 2GiB."""
    from headwise.analysis.errors import BadInput

    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMG]?I?B?)\s*", size.upper())
    unit = found and (found[2] if found[2].endswith("B") or not found[2] else f"{found[2]}B")
    if found is None or unit not in _UNITS or float(found[1]) * _UNITS[unit] < 1:
        raise BadInput(f"--memory-budget: got {size!r}, expected a size such as 512MB or 2GB")
    return int(float(found[1]) * _UNITS[unit])


def _listed(names: str | None) -> tuple[str, ...] | None:
    return None if names is None else tuple(name.strip() for name in names.split(",") if name.strip())
