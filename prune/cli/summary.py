"""What a run came to, in a few lines: read from its folder, so that a finished run can be shown again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headwise.prune.report.content import content
from headwise.prune.report.document import Report
from headwise.prune.report.doubt import doubt
from headwise.prune.report.formats import (
    count,
    in_metric,
    in_points,
    milliseconds,
    percent_change,
    times,
    unit,
)

if TYPE_CHECKING:
    from rich.table import Table


def summary(folder: Path) -> dict[str, Any]:
    """Heads removed, accuracy, speed and limits of a run, as plain data."""
    report = content(folder)
    return {
        "run": str(folder),
        "report": str(Path(folder) / "report.html"),
        "heads": {"dense": len(report.heads), "removed": sum(not head.kept for head in report.heads)},
        "accuracy": report.accuracy,
        "speed": report.speed,
        "limits_broken": broken_limits(folder),
    }


def broken_limits(folder: Path) -> list[str]:
    """The recipe's limits that the run does not keep, in words."""
    return [limit.words for limit in content(folder).verdict.limits if limit.kept is False]


def summary_table(folder: Path) -> Table:
    """The end of a run on the terminal: before and after, each with its interval."""
    from headwise.prune.cli.terminal import table

    report = content(folder)
    rows = [_heads(report), *_accuracy(report.accuracy), *_speed(report.speed)]
    return table("", ["", ">before", ">after", "change (95 % interval)", "beside it"], rows)


def _heads(report: Report) -> list[str]:
    total = len(report.heads)
    kept = sum(head.kept for head in report.heads)
    parameters = report.speed.get("parameters") or {}
    change = percent_change(parameters.get("dense"), parameters.get("cut"))
    beside = f"{count(parameters.get('cut'))} parameters left ({change})" if parameters else ""
    return ["heads", str(total), str(kept), f"{total - kept} removed ({percent_change(total, kept)})", beside]


def _accuracy(accuracy: Mapping[str, Any]) -> Iterator[list[str]]:
    if not accuracy:
        return
    metric = str(accuracy.get("metric", "accuracy"))
    low, high = accuracy.get("interval") or (None, None)
    drop, upper = accuracy.get("drop"), accuracy.get("upper")
    yield [
        metric.replace("_", " "),
        in_metric(accuracy.get("dense", {}).get("value"), metric),
        in_metric(accuracy.get("cut", {}).get("value"), metric),
        f"drop {in_points(drop, metric)} ({in_points(low, metric)} to {in_points(high, metric)}) {unit(metric)}",
        f"the data cannot exclude a drop of {in_points(upper, metric)} {unit(metric)}",
    ]


def _speed(speed: Mapping[str, Any]) -> Iterator[list[str]]:
    for row in speed.get("rows", []):
        ratio = row.get("ratio", {})
        change = f"{times(ratio.get('median'))} ({times(ratio.get('low'))} to {times(ratio.get('high'))})"
        if not row.get("significant"):
            change += f", {doubt(row)}"
        yield [
            f"batch {row['batch']} × {row['length']} tokens",
            milliseconds(row.get("dense_ms", {}).get("median")),
            milliseconds(row.get("cut_ms", {}).get("median")),
            change,
            f"the removed operations alone predict {times(row.get('operation_ratio'))}",
        ]
