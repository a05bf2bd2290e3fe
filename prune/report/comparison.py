"""Several runs side by side: one table, and accuracy against speed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headwise.analysis.errors import BadInput
from headwise.prune.report.cost import significant
from headwise.prune.report.document import SCHEMA
from headwise.prune.report.doubt import doubt
from headwise.prune.report.folder import Folder, read_folder
from headwise.prune.report.formats import Number
from headwise.prune.report.heads import removed_heads, scores_of


@dataclass(frozen=True)
class Run:
    """One run as a row of the table.

    Attributes:
        number: from 1, the mark in the plot.
        cost_significant: whether the data tell the dense and the cut model apart.
        gain_doubt: why the two times do not count as different; empty if they do.
        setting: (batch, length) that the speed is from.
        plotted: whether the plot can show it beside the others.
    """

    number: int
    name: str
    model: str
    score: str
    heads: int
    removed: int
    metric: str
    higher_is_better: bool
    dense: Number
    cut: Number
    cut_low: Number
    cut_high: Number
    drop: Number
    drop_low: Number
    drop_high: Number
    upper: Number
    p: Number
    cost_significant: bool
    setting: tuple[int, int] | None
    ratio: Number
    ratio_low: Number
    ratio_high: Number
    operation_ratio: Number
    gain_doubt: str
    parameters: tuple[int, int] | None
    proof_passed: bool | None
    plotted: bool


@dataclass(frozen=True)
class Comparison:
    """Runs side by side.

    Attributes:
        runs: in the order given.
        metric: what the plot's vertical axis shows: the metric of the first run that was judged.
        setting: (batch, length) that all speeds are from, or None where the runs share none.
        notes: why rows are not comparable, in words.
    """

    runs: tuple[Run, ...]
    metric: str
    setting: tuple[int, int] | None
    notes: tuple[str, ...]
    schema: int = SCHEMA


def compare(run_folders: Sequence[str | Path]) -> Comparison:
    """The runs' accuracy and speed side by side, with a note on everything that keeps them from comparing.

    Args:
        run_folders: pruned runs, two or more to be of use.

    Raises:
        BadInput: no folder given, a folder is no run, or holds no plan.

    >>> compare([])
    Traceback (most recent call last):
    headwise.analysis.errors.BadInput: no run folder given; name the folders of finished runs
    """
    if not run_folders:
        raise BadInput("no run folder given; name the folders of finished runs")
    folders = [read_folder(Path(path)) for path in run_folders]
    for folder in folders:
        if not folder.plan:
            raise BadInput(f"{folder.path}: holds an analysis, not a pruned run; compare runs of `headwise prune`")
    metric = next((str(f.accuracy["metric"]) for f in folders if f.accuracy.get("metric")), "")
    setting = shared_setting(folders)
    runs = tuple(_run(i, folder, metric, setting) for i, folder in enumerate(folders, 1))
    return Comparison(runs, metric, setting, tuple(_notes(folders, runs, setting)))


def write_comparison(run_folders: Sequence[str | Path], out: str | Path) -> dict[str, Path]:
    """Write comparison.html, comparison.md and comparison.json into the folder `out`; returns their paths by ending.

    Raises:
        BadInput: as `compare`, or nothing can be written.
    """
    from headwise.prune.report.comparison_page import comparison_html, comparison_markdown
    from headwise.prune.report.json import json
    from headwise.prune.report.write import write_all

    found = compare(run_folders)
    pages = {"html": comparison_html(found), "md": comparison_markdown(found), "json": json(found)}
    return write_all(Path(out), {f"comparison.{ending}": text for ending, text in pages.items()})


def shared_setting(folders: Sequence[Folder]) -> tuple[int, int] | None:
    """The largest (batch, length) at which every timed run was timed."""
    timed = [{(int(r["batch"]), int(r["length"])) for r in f.speed["rows"]} for f in folders if f.speed.get("rows")]
    shared = set.intersection(*timed) if timed else set()
    return max(shared, key=lambda s: (s[0] * s[1], s[0])) if shared else None


def _run(number: int, folder: Folder, metric: str, setting: tuple[int, int] | None) -> Run:
    accuracy, speed = folder.accuracy, folder.speed
    row = _row(speed, setting)
    ratio = row.get("ratio", {})
    cut = accuracy.get("cut") or {}
    low, high = accuracy.get("interval") or (None, None)
    parameters = speed.get("parameters") or {}
    before, after = parameters.get("dense"), parameters.get("cut")
    return Run(
        number=number,
        name=folder.name,
        model=str((folder.environment.get("model") or {}).get("id") or folder.plan.get("model") or ""),
        score=scores_of(folder)[1],
        heads=len(folder.heads),
        removed=len(removed_heads(folder.plan)),
        metric=str(accuracy.get("metric", "")),
        higher_is_better=accuracy.get("higher_is_better") is not False,
        dense=(accuracy.get("dense") or {}).get("value"),
        cut=cut.get("value"),
        cut_low=cut.get("low"),
        cut_high=cut.get("high"),
        drop=accuracy.get("drop"),
        drop_low=low,
        drop_high=high,
        upper=accuracy.get("upper"),
        p=accuracy.get("p"),
        cost_significant=significant(accuracy),
        setting=(int(row["batch"]), int(row["length"])) if row else None,
        ratio=ratio.get("median"),
        ratio_low=ratio.get("low"),
        ratio_high=ratio.get("high"),
        operation_ratio=row.get("operation_ratio"),
        gain_doubt=doubt(row) if row else "",
        parameters=None if before is None or after is None else (int(before), int(after)),
        proof_passed=bool(folder.proof["passed"]) if "passed" in folder.proof else None,
        plotted=bool(metric) and accuracy.get("metric") == metric and bool(ratio) and cut.get("value") is not None,
    )


def _row(speed: Mapping[str, Any], setting: tuple[int, int] | None) -> Mapping[str, Any]:
    """The timing at the shared setting, else the run's own largest."""
    from headwise.prune.report.gain import leading_row

    found = [row for row in speed.get("rows", []) if (row["batch"], row["length"]) == setting]
    return found[0] if found else leading_row(speed)


def _notes(folders: Sequence[Folder], runs: Sequence[Run], setting: tuple[int, int] | None) -> Iterator[str]:
    asked = {
        "The runs start from different models": [run.model for run in runs],
        "The runs were judged by different metrics": [run.metric for run in runs if run.metric],
        "The runs were judged on different texts": [h for f in folders if (h := _evaluation(f))],
        "The runs were timed on different devices": [d for f in folders if (d := f.environment.get("device"))],
    }
    for words, values in asked.items():
        if len(set(values)) > 1:
            yield f"{words}: compare with care."
    if setting is None and sum(run.ratio is not None for run in runs) > 1:
        yield "The runs share no batch and length: every speed is from the run's own largest setting."
    left_out = [str(run.number) for run in runs if not run.plotted]
    if left_out:
        yield f"Not in the plot, because accuracy or speed is missing or measured otherwise: {', '.join(left_out)}."


def _evaluation(folder: Folder) -> str:
    texts = folder.environment.get("texts") or {}
    return str((texts.get("evaluation") or {}).get("hash") or "")
