"""What the HTML and the Markdown page say in the same words."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from headwise.prune.recipe_text import read
from headwise.prune.report import formats
from headwise.prune.report.document import Report
from headwise.prune.report.doubt import noise


def pairs(found: Mapping[str, Any]) -> str:
    """A small mapping as words.

    >>> pairs({"fraction": 0.5, "scope": "model", "left_out": None, "search": {"kind": "greedy"}})
    'fraction 0.5, scope model, search greedy'
    """
    parts = []
    for name, value in found.items():
        if value is None:
            continue
        if isinstance(value, bool | str):
            text = str(value)
        elif isinstance(value, int):
            text = formats.count(value)
        elif isinstance(value, float):
            text = formats.number(value) if not math.isfinite(value) or abs(value) < 1e-4 else f"{value:.3g}"
        elif isinstance(value, Mapping) and isinstance(value.get("kind"), str):
            rest = pairs({key: part for key, part in value.items() if key != "kind"})
            text = f"{value['kind']} ({rest})" if rest else value["kind"]
        else:
            text = json.dumps(value, ensure_ascii=False)
        parts.append(f"{str(name).replace('_', ' ')} {text}")
    return ", ".join(parts)


def about(report: Report) -> list[str]:
    """The line under the title.

    >>> from headwise.prune.report.document import Verdict
    >>> about(Report("prune", "run", {"class": "BertModel"}, Verdict("")))
    ['class BertModel']
    """
    model = report.model
    facts = dict(report.environment)
    parts = [f"{key} {model[key]}" for key in ("class", "revision") if model.get(key)]
    parts += [f"recipe: {line}" for line in _description(report.recipe)]
    parts += [_moment(facts["finished"])] if facts.get("finished") else []
    return [str(part) for part in parts]


def reasons(report: Report) -> list[tuple[str, tuple[Any, ...]]]:
    """Removed heads, then kept ones for which the plan gives a reason, lowest score first."""
    found = []
    removed = sorted(report.removed, key=lambda head: -(head.rank or 0))
    if removed:
        words = "head went" if len(removed) == 1 else f"of the {len(removed):,} heads went"
        found.append((f"Why {'the' if len(removed) == 1 else 'each'} {words}", tuple(removed)))
    kept = sorted((h for h in report.heads if h.kept and h.reason), key=lambda head: head.rank or 0)
    if kept and report.kind == "prune":
        found.append((f"Why {formats.plural(len(kept), 'head')} stayed", tuple(kept)))
    return found


def per_class(accuracy: Mapping[str, Any]) -> dict[str, Any]:
    """The table by class: columns are whatever numbers the task gives.

    >>> per_class({"per_class": {"yes": {"n": 3}}})
    {'columns': ['n'], 'rows': [('yes', [3])]}
    """
    found = accuracy.get("per_class") or {}
    items = [(str(label), values) for label, values in found.items() if isinstance(values, Mapping)]
    columns = list(dict.fromkeys(key for _, values in items for key, v in values.items() if _plain(v)))
    return {
        "columns": columns,
        "rows": [(label, [v if _plain(v := values.get(c)) else None for c in columns]) for label, values in items],
    }


def flips(accuracy: Mapping[str, Any]) -> str:
    """How many examples changed, in both directions.

    >>> flips({"n": 636, "flips": {"lost": 21, "gained": 16}, "test": "McNemar, exact"})
    'Of 636 answers, 21 went from right to wrong and 16 from wrong to right.'
    >>> flips({"n": 40, "flips": {"lost": 30, "gained": 10}})
    'Of 40 examples, 30 got worse and 10 got better.'
    """
    found = accuracy.get("flips")
    if not isinstance(found, Mapping):
        return ""
    total, lost, gained = (formats.count(v) for v in (accuracy.get("n"), found.get("lost"), found.get("gained")))
    if accuracy.get("metric") == "agreement":
        return f"Of {total} answers, {lost} are not those of the dense model."
    if "mcnemar" in str(accuracy.get("test", "")).lower():
        return f"Of {total} answers, {lost} went from right to wrong and {gained} from wrong to right."
    return f"Of {total} examples, {lost} got worse and {gained} got better."


def changed(accuracy: Mapping[str, Any]) -> list[dict[str, str]]:
    """The examples whose judgement moved most: text, label, and what each model said (else its score).

    >>> changed({"changed": [{"text": "a", "dense": None, "cut": None, "score": {"dense": 1.0, "cut": 0.5}}]})
    [{'text': 'a', 'label': '–', 'dense': '1.00', 'cut': '0.500'}]
    """
    rows = []
    for example in accuracy.get("changed") or ():
        scores = example.get("score") or {}
        said = {side: example.get(side) for side in ("dense", "cut")}
        shown = {side: _said(scores.get(side) if value is None else value) for side, value in said.items()}
        rows.append({"text": str(example.get("text", "")), "label": _said(example.get("label"))} | shown)
    return rows


def _said(value: Any) -> str:
    """An answer or a label; those that are no whole numbers as numbers are shown everywhere."""
    return formats.number(value) if value is None or isinstance(value, float) else str(value)


def against(accuracy: Mapping[str, Any]) -> str:
    """How the cut model does against the dense one, in words; empty where that is not known or is the metric.

    >>> against({"metric": "accuracy", "against_dense": {"agreement": 0.948, "kl": 0.0158}})
    'the same answer for 94.8 %, divergence of the outputs (KL) 0.0158 nats'
    """
    found = dict(accuracy.get("against_dense") or {})
    parts = []
    if isinstance(same := found.pop("agreement", None), float | int) and accuracy.get("metric") != "agreement":
        parts.append(f"the same answer for {formats.in_metric(same, 'agreement')}")
    if isinstance(moved := found.pop("kl", None), float | int):
        parts.append(f"divergence of the outputs (KL) {formats.number(moved)} nats")
    return ", ".join([*parts, *([pairs(found)] if found else [])])


def beside(accuracy: Mapping[str, Any]) -> str:
    """Metrics that were taken beside the one that judges, and examples that could not be judged, in a sentence.

    >>> beside({"beside": {"exact-match": {"dense": 0.5, "cut": 0.25}}, "skipped": {"empty": 2}})
    'Beside it: exact-match 50.0 % → 25.0 %. Not judged: 2 empty.'
    """
    told = [
        f"{name} {formats.in_metric(pair.get('dense'), name)} → {formats.in_metric(pair.get('cut'), name)}"
        for name, pair in (accuracy.get("beside") or {}).items()
    ]
    left = [f"{formats.count(count)} {why}" for why, count in (accuracy.get("skipped") or {}).items() if count]
    parts = [f"Beside it: {'; '.join(told)}."] * bool(told) + [f"Not judged: {', '.join(left)}."] * bool(left)
    return " ".join(parts)


def drift(speed: Mapping[str, Any]) -> str:
    """What timing the dense model against itself says of the machine.

    >>> drift({"drift": {"steady": True}})
    'The dense model timed against itself shows no difference.'
    >>> drift({"drift": {"steady": False, "unsteady": [[8, 32]]}, "rows": [{"drift": {"low": 0.8, "high": 1.1}}]})
    'The dense model timed against itself differs at 8 × 32: the machine was not steady there. Its own 99 % intervals \
reach up to 1.25×; only what goes beyond that at a setting counts as a difference there.'
    """
    found = speed.get("drift")
    if not isinstance(found, Mapping):
        return ""
    where = ", ".join(f"{batch} × {length}" for batch, length in found.get("unsteady") or ())
    said = (
        f"The dense model timed against itself differs at {where}: the machine was not steady there."
        if where
        else "The dense model timed against itself shows no difference."
    )
    alone = [ratios[1] for row in speed.get("rows") or () if (ratios := noise(row))]
    if not alone:
        return said
    return (
        f"{said} Its own 99 % intervals reach up to {formats.times(max(alone))}; only what goes beyond that at a setting "
        "counts as a difference there."
    )


def decided_by(report: Report) -> str:
    """Which texts decided and which judged, in a sentence.

    >>> from headwise.prune.report.document import Verdict
    >>> facts = (("texts calibration count", "512"), ("texts calibration source", "train.tsv"))
    >>> decided_by(Report("prune", "run", {}, Verdict(""), environment=facts))
    'Decided on 512 texts of train.tsv.'
    """
    facts = dict(report.environment)
    parts = []
    for name, verb in (("calibration", "decided"), ("evaluation", "judged")):
        number, source = (facts.get(f"texts {name} {key}") for key in ("count", "source"))
        if number and source:
            parts.append(f"{verb} on {_grouped(number)} texts of {source}{_read(facts, name)}")
    text = ", ".join(parts)
    return f"{text[:1].upper()}{text[1:]}." if text else ""


def _read(facts: Mapping[str, str], name: str) -> str:
    """How many rows the texts were drawn from, and what was left out, where that is known."""
    before = f"texts {name} skipped "
    left = [f"{_grouped(number)} {why.removeprefix(before)}" for why, number in facts.items() if why.startswith(before)]
    rows = facts.get(f"texts {name} rows")
    told = [f"{_grouped(str(rows))} rows read"] * bool(rows) + [f"left out: {', '.join(left)}"] * bool(left)
    return f" ({'; '.join(told)})" if told else ""


def _grouped(number: str) -> str:
    """A whole number with separators; other text as it stands."""
    return formats.count(int(number)) if number.isascii() and number.isdigit() else number


def sizes(speed: Mapping[str, Any]) -> list[tuple[str, str, str, str]]:
    """(what, dense, cut, change) for everything counted once a model.

    >>> sizes({"parameters": {"dense": 200, "cut": 150}})
    [('parameters', '200', '150', '−25.0 %')]
    """
    shown = {
        "parameters": formats.count,
        "operations": formats.large,
        "bytes": formats.size,
        "memory": formats.size,
        "cache_bytes": formats.size,
    }
    names = {"memory": "peak memory of a forward pass"}
    rows = []
    for name, form in shown.items():
        found = speed.get(name)
        if isinstance(found, Mapping) and found.get("dense") is not None:
            dense, cut = found["dense"], found.get("cut")
            label = names.get(name, name.replace("_", " "))
            rows.append((label, form(dense), form(cut), formats.percent_change(dense, cut)))
    return rows


def _description(recipe: str) -> list[str]:
    """The first line of the recipe's description, if it has one."""
    found = read(recipe).data.get("description") if recipe else None
    return [line for line in map(str.strip, str(found or "").splitlines()) if line][:1]


def _plain(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _moment(text: str) -> str:
    """An ISO time to the minute; other text as it stands."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return text
    zone = " UTC" if moment.utcoffset() == timedelta(0) else f" {moment:%z}".rstrip()
    return f"{moment:%Y-%m-%d %H:%M}{zone}"
