"""The page of `headwise view`: one head's map over the words of a text."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from headwise.analysis.evidence import Evidence
from headwise.analysis.roles import ROLES
from headwise.analysis.view import View, rounded
from headwise.prune.report.html import hashed
from headwise.prune.report.templating import shown

#: What each statistic is, in words.
SAYS = {
    "entropy": "entropy of its attention, in nats",
    "normalised_entropy": "entropy over that of an even spread (1 = even)",
    "below_uniform": "nats below an even spread",
    "distance": "mean distance to what it looks at, in tokens",
    "confidence": "mean largest weight of a row",
    "first": "share on the first token",
    "special": "share on other special tokens",
    "punctuation": "share on punctuation",
    "context_norm": "mean length of what it hands on",
    "missing_mass": "share that goes to no token (a sink)",
    "replaceability": "what the other heads of its block cannot rebuild (0 = all of it can be)",
    "dormant": "dormant: hands on nearly nothing",
    "rows": "rows looked at",
}
#: Smaller numbers are rounding.
_NOTHING = 5e-5


def view_page(view: View, model: str, evidence: Evidence | None = None) -> str:
    """One self-contained HTML page; numbers come from the evidence of a run if there is one, else from the text.

    Args:
        view: what the head does on the text.
        model: how the model is called on the page.
        evidence: of `headwise analyze`, for the same model.
    """
    import jinja2

    folder = Path(__file__).parent / "templates"
    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(folder), autoescape=True, trim_blocks=False, finalize=shown
    )
    made.globals["hashed"] = hashed
    if evidence is None:
        statistics = view.statistics
        roles = {name: {"score": score, "chance": chance} for name, (score, chance) in view.roles.items()}
        source = "Measured on this text alone, without a test; pass --run, a run of headwise analyze, for tested roles."
        summary = ""
    else:
        at = evidence.heads.index((view.site, view.head))
        statistics, roles = _measured(evidence, at)
        count = evidence.facts.get("texts", {}).get("count", "the")
        source = f"Measured on {count} texts of the run and tested there."
        played = evidence.roles()[at]
        summary = f"Its roles: {', '.join(played)}." if played else "It plays no role that was looked for."
    if view.cut:
        summary += " The text was longer than the model's limit and is cut."
    rows = sorted((_role(name, parts) for name, parts in roles.items()), key=lambda row: -row["over"])
    return made.get_template("view.html.j2").render(
        head=f"{view.site}.{view.head}",
        model=model,
        words=view.words,
        glued=view.glued or (False,) * len(view.words),
        map=rounded(view.map),
        shown=_telling_word(view),
        statistics=[(SAYS.get(name, name.replace("_", " ")), _said(value)) for name, value in statistics.items()],
        roles=[row for row in rows if row["score"]],
        inapplicable=[row["name"] for row in rows if not row["score"]],
        tested=evidence is not None,
        silenced=_silenced(evidence, f"{view.site}.{view.head}"),
        summary=summary.strip(),
        source=source,
    )


def _measured(evidence: Evidence, at: int) -> tuple[dict[str, float], dict[str, dict[str, float]]]:
    """The statistics of a head, and the parts of every role that was tested."""
    statistics: dict[str, float] = {}
    roles: dict[str, dict[str, float]] = {}
    for name, array in evidence.arrays.items():
        kind, _, rest = name.partition("/")
        if kind == "statistics" and array.ndim == 1:
            statistics[rest] = float(array[at])
        role, _, part = rest.rpartition("/")
        if kind == "roles" and f"roles/{role}/assigned" in evidence.arrays:
            roles.setdefault(role, {})[part] = float(array[at])
    return statistics, roles


def _role(name: str, parts: Mapping[str, float]) -> dict[str, Any]:
    score, chance = parts.get("score", np.nan), parts.get("chance", np.nan)
    over = parts.get("excess", score - chance)
    low, high = (parts.get(end, np.nan) for end in ("low", "high"))
    says = ROLES[name].says if name in ROLES else "chooses the linked word"
    return {
        "name": name,
        "says": says,
        "score": f"{score:.3f}" if np.isfinite(score) else "",
        "chance": f"{chance:.3f}" if np.isfinite(chance) else "",
        "excess": f"{over:+.3f}" if np.isfinite(over) else "",
        "interval": f"{low:+.3f} to {high:+.3f}" if np.isfinite(low) else "",
        "played": bool(parts.get("assigned", 0.0)),
        "over": over if np.isfinite(over) else -np.inf,
    }


def _said(number: float) -> str:
    if not np.isfinite(number):
        return ""
    return "0" if abs(number) < _NOTHING else f"{number:.3g}" if abs(number) < 1000 else f"{number:,.0f}"


def _silenced(evidence: Evidence | None, label: str) -> list[str]:
    """What silencing this head along with others of a role did, where that was tried."""
    tested = {} if evidence is None else evidence.facts.get("interventions") or {}
    return [f"{role}: {one['says']}" for role, one in tested.items() if label in one.get("heads", ()) and "says" in one]


def _telling_word(view: View) -> int:
    """The word to show first: the one that looks hardest at another word of the text."""
    weights = np.nan_to_num(view.map)
    plain = np.array([not (word.startswith("[") and word.endswith("]")) for word in view.words])
    weights = weights * plain[None] * plain[:, None] * (1 - np.eye(len(weights)))
    # Not the first word either: it is where attention is parked.
    weights[:, 0] = 0
    return int(weights.max(1).argmax())
