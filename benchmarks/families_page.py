"""The page of the walk: its verdicts as Markdown."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections import Counter
from typing import Any


def page(rows: list[dict[str, Any]], counts: Counter[str]) -> str:
    """Every type under its verdict, with why it is not exact and what it was measured with."""
    installed = [name for name in ("transformers", "torch", "timm") if importlib.util.find_spec(name)]
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in installed)
    order = ("exact", "refused", "not reached", "not buildable", "no attention", "no model class", "FAILED", "WRONG")
    commits = Counter(r["commit"] for r in rows)
    walked = ", ".join(f"{count} types at {commit}" for commit, count in commits.most_common())
    lines = [
        "# Model types",
        "",
        f"Written by `benchmarks/families.py` ({versions}, float64, tiny random models; {walked}).",
        "",
    ]
    lines += ["| verdict | model types |", "|---|---|", *(f"| {v} | {counts[v]} |" for v in order), ""]
    for verdict in ("exact", "refused", "not reached", "not buildable", "no attention", "FAILED", "WRONG"):
        lines += [f"## {verdict}", ""]
        mine = [r for r in rows if r["verdict"] == verdict]
        if verdict in ("exact", "no attention"):
            lines += [", ".join(r["type"] + _marks(r) for r in mine), ""]
            left = {kind: r["type"] for r in mine for kind in r.get("missed") or []}
            if verdict == "exact" and left:
                told = ", ".join(f"{kind} ({name})" for kind, name in sorted(left.items()))
                lines += [f"Attention in these models that is no site, so neither gated nor cut: {told}.", ""]
            if verdict == "exact":
                lines += ["¹ measured on a part of the model; ² measured on its attention blocks alone", ""]
            if any(r.get("partly") for r in mine):
                lines += [
                    "`*` some sites of this type are refused: "
                    + "; ".join(sorted({r["partly"] for r in mine if r.get("partly")})),
                    "",
                ]
        else:
            lines += [
                "| type | why |",
                "|---|---|",
                *(f"| {r['type']} | {r['why'].replace('|', '/')} |" for r in mine),
                "",
            ]
    return "\n".join(lines)


def _marks(row: dict[str, Any]) -> str:
    return ("*" if row.get("partly") else "") + ("¹" if row.get("part") else "") + ("²" if row.get("alone") else "")
