"""How firm the decision is, and what was trained and what the heads that stayed do after it, in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headwise.prune.report import formats
from headwise.prune.report.document import Report

#: Statistics of heads in words.
_STATISTICS = {
    "entropy": "entropy, nats",
    "distance": "distance looked, tokens",
    "confidence": "largest weight of a row",
    "first": "weight on the first token",
    "special": "weight on other special tokens",
    "punctuation": "weight on punctuation",
    "context_norm": "length of the context",
}


def firmness(report: Report) -> list[str]:
    """Sentences about how well the decision would repeat: on other texts, and on another day.

    >>> from headwise.prune.report.document import Verdict
    >>> facts = {"tau": 0.8, "low": 0.75, "high": 0.85, "resamples": 20, "score": "gradient"}
    >>> firmness(Report("prune", "run", {}, Verdict(""), stability=facts))[0][:60]
    'How firm is the ranking? On resampled texts (20 times) the o'
    """
    found = []
    if report.stability:
        found.append(_ranking(report.stability))
        found += _again(report.stability, _searched(report.plan.get("budget")))
        found += _even(report.stability)
    found += _by_table(report.latency)
    if _stopped_by_the_clock(report.plan.get("expected") or {}):
        found.append(
            "The search for this plan was stopped by the clock: another run, or another machine, may get further "
            "and decide otherwise. It is not reproducible."
        )
    return found


def _stopped_by_the_clock(expected: Mapping[str, Any]) -> bool:
    parts = [expected, *(part for part in expected.values() if isinstance(part, Mapping))]
    return any(part.get("reproducible") is False for part in parts)


def _by_table(latency: Mapping[str, Any]) -> list[str]:
    """Which latency table decided, and how well it fits."""
    if not latency:
        return []
    setting = ", ".join(
        f"{name} {value}" for name, value in (latency.get("setting") or {}).items() if value is not None
    )
    off = latency.get("off")
    fit = "" if off is None else f" The table misses times that were measured by at most {100 * off:.1f} %."
    steady = "" if latency.get("steady") is not False else " The machine was not steady when it was taken."
    return [f"The plan was made with a latency table, which lies beside it ({setting}).{fit}{steady}"]


def _ranking(found: Mapping[str, Any]) -> str:
    if found.get("tau") is None or not found.get("resamples"):
        return f"How firm is the ranking? {_sentence(str(found.get('how') or 'it was not tried on other texts'))}"
    tau, low, high = (formats.fixed(found.get(name)) for name in ("tau", "low", "high"))
    score = f" by {found['score']}" if found.get("score") else ""
    often = f" ({found['resamples']} times)" if found.get("resamples") else ""
    how = f" {_sentence(str(found['how']))}" if found.get("how") else ""
    return (
        f"How firm is the ranking? On resampled texts{often} the order of the heads{score} agrees with the one that "
        f"decided by Kendall's tau {tau} (95 % of them {low} to {high}; 1 = the same order, 0 = unrelated).{how}"
    )


def _searched(budget: Any) -> bool:
    """Whether the plan was looked for beyond greedy removal."""
    search = budget.get("search") if isinstance(budget, Mapping) else None
    return isinstance(search, Mapping) and search.get("kind") not in (None, "greedy")


def _again(stability: Mapping[str, Any], searched: bool = False) -> list[str]:
    """How many of the heads that went would go again; nothing where that was not asked, or was answered already.

    Where a search went on from the greedy removal (`searched`), that removal is what was made again.

    >>> found = {"times": 6, "removed": 43, "share": 0.875, "least": 0.8, "most": 1.0, "chance": 0.6, "always": 30}
    >>> _again({"again": found})[0][:92]
    'Would the same heads go again? Chosen on one half of the texts or another (6 halves), 87.5 %'
    """
    found = stability.get("again") or {}
    if not found.get("times"):
        why = str(found.get("how") or "")
        return [] if why in ("", stability.get("how")) else [f"Would the same heads go again? {_sentence(why)}"]
    share, least, most, chance = (
        formats.in_metric(found.get(name), "accuracy") for name in ("share", "least", "most", "chance")
    )
    which = "that greedy removal takes, before any search," if searched else "that went"
    return [
        f"Would the same heads go again? Chosen on one half of the texts or another ({found['times']} halves), {share} of "
        f"the {formats.plural(int(found.get('removed') or 0), 'head')} {which} go again ({least} to {most}; {chance} "
        f"would by chance), {found.get('always')} of them every time."
    ]


def _even(stability: Mapping[str, Any]) -> list[str]:
    """That the score did not tell heads apart of which some went, if so.

    >>> _even({"even": 1})
    ['1 head that stayed scores exactly as one that went: between these the score decided nothing.']
    """
    count = stability.get("even")
    if not isinstance(count, int) or count < 1:
        return []
    stayed = "1 head that stayed scores" if count == 1 else f"{count:,} heads that stayed score"
    return [f"{stayed} exactly as one that went: between these the score decided nothing."]


def _sentence(text: str) -> str:
    text = text.strip().rstrip(".")
    return f"{text[:1].upper()}{text[1:]}."


def trained(report: Report) -> str:
    """What was trained after the cut and what it brought, in a sentence; empty where nothing was.

    >>> from headwise.prune.report.document import Verdict
    >>> facts = {"kind": "distil", "epochs": 2, "texts": 70, "held_out": 10, "loss": {"before": 0.5, "after": 0.25}}
    >>> trained(Report("prune", "run", {}, Verdict(""), recovery=facts))
    'After the cut it was trained (distil) for 2 epochs on 70 texts: the loss on 10 held-out texts went from 0.500 to 0.250.'
    """
    found = report.recovery
    if not found.get("kind") or found["kind"] == "none":
        return ""
    lora = f", updates of rank {found['lora']} merged in" if found.get("lora") else ""
    loss = found.get("loss") or {}
    before, after = loss.get("before"), loss.get("after")
    what = (
        f"After the cut it was trained ({found['kind']}{lora}) for {formats.plural(int(found.get('epochs') or 0), 'epoch')} "
        f"on {formats.count(found.get('texts'))} texts: "
    )
    on = f"the loss on {formats.count(found.get('held_out'))} held-out texts"
    if before is not None and before == after:
        return f"{what}no epoch lowered {on} ({formats.number(before)}), so the weights stayed as they were."
    return f"{what}{on} went from {formats.number(before)} to {formats.number(after)}.{_gained(found, report.accuracy)}"


def _gained(recovery: Mapping[str, Any], accuracy: Mapping[str, Any]) -> str:
    """What the training brought on the texts that judge, as a further sentence."""
    untrained, metric = recovery.get("untrained") or {}, str(accuracy.get("metric", ""))
    if untrained.get("drop") is None or accuracy.get("drop") is None:
        return ""
    then, now = (
        f"{formats.in_metric((found.get('cut') or {}).get('value'), metric)} (drop {formats.in_points(found['drop'], metric)})"
        for found in (untrained, accuracy)
    )
    return f" On the texts that judge, {metric} was {then} before the training and is {now} after it."


def strayed(report: Report) -> dict[str, Any]:
    """What the kept heads do before and after the cut, as tables; {} where nobody looked.

    >>> from headwise.prune.report.document import Verdict
    >>> facts = {"texts": 64, "heads": 3, "changed": [{"head": "0.1", "before": ["self"], "after": []}]}
    >>> strayed(Report("prune", "run", {}, Verdict(""), drift=facts))["headline"]
    'Of the 3 heads that stayed, 1 has other roles in the cut model than in the dense one.'
    """
    found = report.drift
    if not found:
        return {}
    changed = found.get("changed") or []
    missed = [role.name for role in report.roles if role.strongest and role.name not in found.get("looked_for", ())]
    has = "has" if len(changed) == 1 else "have"
    numbers = f"{len(changed)} {has} other roles in the cut model than in the dense one"
    headline = f"Of the {formats.plural(int(found['heads']), 'head')} that stayed, {numbers if changed else 'none has'}"
    return {
        "headline": f"{headline}." if changed else f"{headline} other roles in the cut model than in the dense one.",
        "missed": ", ".join(missed) if found.get("looked_for") else "",
        "changed": [
            {
                "head": row["head"],
                "before": ", ".join(row.get("before") or ()) or "none",
                "after": ", ".join(row.get("after") or ()) or "none",
                "excess": "; ".join(_excess(role, pair) for role, pair in (row.get("excess") or {}).items()),
            }
            for row in changed
        ],
        "roles": [(role, n["before"], n["after"]) for role, n in (found.get("roles") or {}).items()],
        "statistics": [_statistic(name, said) for name, said in (found.get("statistics") or {}).items()],
    }


def _excess(role: str, pair: Sequence[formats.Number]) -> str:
    before, after = (formats.fixed(value) for value in pair)
    return f"{role} {before} → {after}"


def _statistic(name: str, said: Mapping[str, Any]) -> dict[str, str]:
    most = said.get("most") or {}
    before, after = (formats.number(most.get(side)) for side in ("before", "after"))
    return {
        "name": _STATISTICS.get(name, name.replace("_", " ")),
        "before": formats.number(said.get("before")),
        "after": formats.number(said.get("after")),
        "moved": formats.number(said.get("moved")),
        "most": f"{most['head']}: {before} → {after}" if most.get("head") else formats.MISSING,
    }
