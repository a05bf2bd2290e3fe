"""What was timed beside whole forward passes, and under which conditions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from headwise.prune.report import formats
from headwise.prune.report.doubt import doubt


@dataclass(frozen=True)
class Timed:
    """One thing that was timed in both models, as both pages print it."""

    what: str
    where: str
    dense: str
    cut: str
    ratio: str
    interval: str
    predicted: str
    doubt: str


def timings(speed: Mapping[str, Any]) -> list[Timed]:
    """Attention blocks by themselves, and for a model that writes its first and its further tokens.

    >>> row = {"ratio": {"median": 1.5, "low": 1.4, "high": 1.6}, "dense_ms": {"median": 3.0}, "significant": True}
    >>> [(t.what, t.ratio, t.predicted) for t in timings({"attention": row | {"operation_ratio": 1.6}})]
    [('attention blocks alone', '1.50×', '1.60×')]
    """
    return list(_timings(speed))


def _timings(speed: Mapping[str, Any]) -> Iterator[Timed]:
    if speed.get("attention"):
        largest = max(speed.get("rows", []), key=lambda row: row["batch"] * row["length"], default=None)
        place = f"{largest['batch']} × {largest['length']}" if largest else formats.MISSING
        yield _timed("attention blocks alone", place, speed["attention"])
    for row in speed.get("generation") or ():
        place = f"{row['batch']} × {row['length']}"
        yield _timed("time to the first token", place, row["prefill"])
        yield _timed("each further token", place, row["decode"])


def _timed(what: str, where: str, row: Mapping[str, Any]) -> Timed:
    ratio = row["ratio"]
    return Timed(
        what=what,
        where=where,
        dense=formats.milliseconds((row.get("dense_ms") or {}).get("median")),
        cut=formats.milliseconds((row.get("cut_ms") or {}).get("median")),
        ratio=formats.times(ratio.get("median")),
        interval=f"{formats.fixed(ratio.get('low'))} to {formats.fixed(ratio.get('high'))}",
        predicted=formats.times(row.get("operation_ratio")),
        doubt=doubt(row),
    )


def writing(speed: Mapping[str, Any]) -> list[tuple[str, str, str, str]]:
    """(what, dense, cut, change) of generation: pace, and what the cache of a prompt holds.

    >>> row = {"batch": 1, "length": 32, "tokens_per_second": {"dense": 10.0, "cut": 12.0},
    ...        "cache_bytes": {"dense": 2000, "cut": 1000}}
    >>> writing({"generation": [row]})
    [('tokens a second, 1 × 32', '10.0', '12.0', '+20.0 %'), ('cache of the prompt, 1 × 32', '2.0 kB', '1.0 kB', '−50.0 %')]
    """
    rows = []
    for row in speed.get("generation") or ():
        place = f"{row['batch']} × {row['length']}"
        for name, label, form in (
            ("tokens_per_second", "tokens a second", formats.number),
            ("cache_bytes", "cache of the prompt", formats.size),
        ):
            found = row.get(name) or {}
            dense, cut = found.get("dense"), found.get("cut")
            if dense is not None:
                change = formats.percent_change(dense, cut)
                rows.append((f"{label}, {place}", form(dense), form(cut), change))
    return rows


def conditions(speed: Mapping[str, Any]) -> str:
    """How both models were run, in a sentence.

    >>> conditions({"kernel": "sdpa", "dtype": "float32", "device": "cpu", "threads": 2, "compiled": None})
    'Attention kernel sdpa, float32, on cpu with 2 threads, not compiled.'
    """
    parts = [f"in {speed['runtime']}"] if speed.get("runtime") else []
    parts += [f"attention kernel {speed['kernel']}"] if speed.get("kernel") else []
    parts += [str(speed["dtype"])] if speed.get("dtype") else []
    if speed.get("device"):
        threads = int(speed.get("threads") or 0) if speed["device"] == "cpu" else 0
        parts.append(f"on {speed['device']}" + (f" with {formats.plural(threads, 'thread')}" if threads else ""))
    if not parts:
        return ""
    if not speed.get("runtime"):
        parts.append(f"compiled ({speed['compiled']})" if speed.get("compiled") else "not compiled")
    text = ", ".join(parts)
    return f"{text[:1].upper()}{text[1:]}."
