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


def chance(accuracy: Mapping[str, Any]) -> str:
    """What as many heads drawn at random would have cost, beside the plan's.

    >>> found = {"all": 0.8, "plan": 0.75, "drawn": [0.7, 0.6], "mean": 0.65, "spread": 0.07, "worse": 2}
    >>> chance({"metric": "accuracy", "chance": {**found, "n": 256, "heads": 24}})[:68]
    'Is the choice worth it? With 24 heads silenced and nothing repaired,'
    >>> chance({"metric": "accuracy", "chance": {**found, "heads": 24, "repair": "bias"}})[24:72]
    'With 24 heads silenced and the rest repaired, as'
    >>> moved = {"plan": 0.01, "drawn": [0.03, 0.02]}
    >>> chance({"metric": "accuracy", "chance": {**found, "n": 9, "moved": moved}})[-70:]
    '(KL): 0.0100 nats as the plan chose, 0.0200 to 0.0300 drawn at random.'
    """
    found = accuracy.get("chance")
    if not isinstance(found, Mapping) or not found.get("drawn"):
        return ""
    metric = str(accuracy.get("metric", ""))
    shown = {name: formats.in_metric(found.get(name), metric) for name in ("all", "plan", "mean")}
    low, high = (formats.in_metric(end(found["drawn"]), metric) for end in (min, max))
    repaired = "nothing" if found.get("repair", "none") == "none" else "the rest"
    heads = formats.plural(int(found.get("heads") or 0), "head")
    return (
        f"Is the choice worth it? With {heads} silenced and {repaired} repaired, as the plan chose them: "
        f"{shown['plan']}; drawn at random: {shown['mean']} on average, {low} to {high} "
        f"in {len(found['drawn'])} draws, {found.get('worse')} of them worse than the plan; with all heads: "
        f"{shown['all']} ({metric}, {formats.count(found.get('n'))} examples).{_moved(found.get('moved'))}"
    )


def _moved(found: Any) -> str:
    """How far outputs are from the dense model's, which few answers do not show."""
    if not isinstance(found, Mapping) or not found.get("drawn"):
        return ""
    plan, low, high = (formats.number(value) for value in (found.get("plan"), min(found["drawn"]), max(found["drawn"])))
    return (
        f" Divergence of the outputs from the dense model's (KL): {plan} nats as the plan chose, {low} to {high} drawn "
        "at random."
    )


def changed(accuracy: Mapping[str, Any]) -> list[dict[str, str]]:
    """The examples whose judgement moved most: text, label, and what each model said (else its score).

    >>> changed({"changed": [{"text": "a", "dense": None, "cut": None, "score": {"dense": 1.0, "cut": 0.5}}]})
    [{'text': 'a', 'label': '–', 'dense': '1.00', 'cut': '0.500'}]
    """
    rows = []
    for example in accuracy.get("changed") or ():
        scores = example.get("score") or {}
        said = {side: example.get(side, None) for side in ("dense", "cut")}
        shown = {s: formats.number(scores.get(s)) if said[s] is None else str(said[s]) for s in said}
        label = example.get("label")
        rows.append({"text": str(example.get("text", "")), "label": "–" if label is None else str(label)} | shown)
    return rows


def drift(speed: Mapping[str, Any]) -> str:
    """What timing the dense model against itself says of the machine.

    >>> drift({"drift": {"steady": True}})
    'The dense model timed against itself shows no difference.'
    >>> drift({"drift": {"steady": False, "unsteady": [[8, 32]]}, "rows": [{"drift": {"low": 0.8, "high": 1.1}}]})
    'The dense model timed against itself differs at 8 × 32: the machine was not steady there. By itself the machine \
moved by up to 1.25× (99 % intervals); only what goes beyond that at a setting counts as a difference there.'
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
    ends = [row.get("drift") or {} for row in speed.get("rows") or ()]
    alone = [end for d in ends for end in (d.get("high"), 1 / d["low"] if d.get("low") else None) if end is not None]
    if not alone:
        return said
    return (
        f"{said} By itself the machine moved by up to {formats.times(max(alone))} (99 % intervals); only what goes "
        "beyond that at a setting counts as a difference there."
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
            parts.append(f"{verb} on {number} texts of {source}{_read(facts, name)}")
    text = ", ".join(parts)
    return f"{text[:1].upper()}{text[1:]}." if text else ""


def _read(facts: Mapping[str, str], name: str) -> str:
    """How many rows the texts were drawn from, and what was left out, where that is known."""
    before = f"texts {name} skipped "
    left = [f"{number} {why.removeprefix(before)}" for why, number in facts.items() if why.startswith(before)]
    rows = facts.get(f"texts {name} rows")
    told = [f"{rows} rows read"] * bool(rows) + [f"left out: {', '.join(left)}"] * bool(left)
    return f" ({'; '.join(told)})" if told else ""


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
