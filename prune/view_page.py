"""The page of `headwise view`: one head's map over the words of a text."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from headwise.analysis.evidence import Evidence
from headwise.analysis.view import View, rounded


def view_page(view: View, model: str, evidence: Evidence | None = None) -> str:
    """One self-contained HTML page; numbers come from the evidence of a run if there is one, else from the text.

    Args:
        view: what the head does on the text.
        model: how the model is called on the page.
        evidence: of `headwise analyze`, for the same model.
    """
    import jinja2

    folder = Path(__file__).parent / "templates"
    made = jinja2.Environment(loader=jinja2.FileSystemLoader(folder), autoescape=True, trim_blocks=False)
    label = f"{view.site}.{view.head}"
    if evidence is None:
        rows, roles = _from_text(view), []
        source = "Measured on this text alone: shares of attention, without a test. Pass --run for tested roles."
    else:
        at = evidence.heads.index((view.site, view.head))
        rows, roles = _from_evidence(evidence, at), evidence.roles()[at]
        source = (
            f"Measured on {evidence.facts.get('texts', {}).get('count', 'the')} texts of the run; roles are tested."
        )
    summary = (
        f"Its roles: {', '.join(roles)}." if roles else ("It plays no role that was looked for." if evidence else "")
    )
    if view.cut:
        summary += " The text was longer than the model's limit and is cut."
    return made.get_template("view.html.j2").render(
        head=label, model=model, words=view.words, map=rounded(view.map), rows=rows, summary=summary, source=source
    )


def _from_text(view: View) -> list[Mapping[str, str]]:
    rows = [_row(name, value) for name, value in view.statistics.items()]
    return rows + [_row(name, score, chance) for name, (score, chance) in view.roles.items()]


def _from_evidence(evidence: Evidence, at: int) -> list[Mapping[str, str]]:
    rows = []
    for name, array in evidence.arrays.items():
        kind, _, rest = name.partition("/")
        if kind == "statistics":
            rows.append(_row(rest, float(array[at])))
        elif kind == "roles" and rest.endswith("/score"):
            role = rest.removesuffix("/score")
            assigned = evidence.arrays.get(f"roles/{role}/assigned")
            chance = evidence.arrays.get(f"roles/{role}/chance")
            if assigned is not None:
                level = np.nan if chance is None else float(chance[at])
                rows.append(_row(role, float(array[at]), level, "yes" if assigned[at] else ""))
    return rows


def _row(name: str, value: float, chance: float = np.nan, role: str = "") -> Mapping[str, str]:
    def said(number: float) -> str:
        return f"{number:.3g}" if np.isfinite(number) else ""

    shown = said(value) or "not applicable"
    return {"name": name, "value": shown, "chance": said(chance), "excess": said(value - chance), "role": role}
