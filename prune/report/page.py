"""What the HTML and the Markdown page show beside the report itself: tables made from it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headwise.prune.report.choice import chance
from headwise.prune.report.colours import RoleColour
from headwise.prune.report.cost import bound_in_words, no_spread, significant
from headwise.prune.report.document import Report, Similarity
from headwise.prune.report.firm import firmness, strayed, trained
from headwise.prune.report.meanings import meaning
from headwise.prune.report.timings import conditions, timings, writing
from headwise.prune.report.tried import ended, foreseen, tried
from headwise.prune.report.words import (
    about,
    against,
    beside,
    changed,
    decided_by,
    drift,
    flips,
    per_class,
    reasons,
    sizes,
)

ROLE_ROWS = 100
CLUSTER_ROWS = 20
BAR = 260.0


def page_of(report: Report, colours: Mapping[str, RoleColour]) -> dict[str, Any]:
    """Everything both templates print that is not in the report itself."""
    similarity = report.similarity
    clusters = sorted(similarity.clusters, key=lambda c: -len(c.members)) if similarity else []
    played = [head.role for head in report.heads]
    legend: list[tuple[RoleColour | None, int]]
    legend = [(colour, played.count(role)) for role, colour in colours.items() if role in played]
    legend += [(None, played.count(""))] if report.roles and "" in played else []
    return {
        "about": about(report),
        "legend_roles": legend,
        "grouped": any(s.kv_heads is not None and s.kv_heads != s.heads for s in report.stacks),
        "reasons": reasons(report),
        "different": significant(report.accuracy),
        "drift": drift(report.speed),
        "decided_by": decided_by(report),
        "trained": trained(report),
        "flips": flips(report.accuracy),
        "meaning": meaning(report.accuracy),
        "against": against(report.accuracy),
        "beside": beside(report.accuracy),
        "bound": bound_in_words(report.accuracy.get("upper"), str(report.accuracy.get("metric", ""))),
        "no_spread": no_spread(report.accuracy),
        "by_chance": chance(report.accuracy),
        "a_changed": changed(report.accuracy),
        "with_chance": bool(similarity and any(pair.chance is not None for pair in similarity.pairs)),
        "per_class": per_class(report.accuracy),
        "sizes": [*sizes(report.speed), *writing(report.speed)],
        "timings": timings(report.speed),
        "conditions": conditions(report.speed),
        "firmness": firmness(report),
        "foreseen": foreseen(report),
        "tried": tried(report),
        "ended": ended(report),
        "strayed": strayed(report),
        "other_measures": list(similarity.pairs[0].others) if similarity and similarity.pairs else [],
        "by_context": _by_context(similarity),
        "clusters": clusters[:CLUSTER_ROWS],
        "more_clusters": max(0, len(clusters) - CLUSTER_ROWS),
        "gone": {head.label for head in report.removed},
        "role_rows": ROLE_ROWS,
        "explained": any(role.says for role in report.roles),
        "unseen": [role.name for role in report.roles if role.strongest is None],
        "flagged": any("trust_remote_code" in snippet.code for snippet in report.loading),
    } | _repairs(report)


def _by_context(similarity: Similarity | None) -> str:
    """The column that compares what heads hand on, where the main measure compares where they look."""
    if similarity is None or not similarity.pairs or "contexts" in similarity.measure:
        return ""
    return next((name for name in similarity.pairs[0].others if name.endswith("of contexts")), "")


def _repairs(report: Report) -> dict[str, Any]:
    """Bars of the error at every site before and after compensation."""
    found = report.compensation.get("sites") or {}
    rows = [(site, e.get("error_before"), e.get("error_after")) for site, e in found.items()]
    largest = max((v for row in rows for v in row[1:] if v is not None), default=0.0) or 1.0
    drawn = [
        {
            "site": site,
            "before": before,
            "after": after,
            "before_width": round(BAR * (before or 0.0) / largest, 1),
            "after_width": round(BAR * (after or 0.0) / largest, 1),
        }
        for site, before, after in rows
    ]
    return {"repairs": drawn, "repair_scale": largest}
