"""The report as one HTML page that needs nothing else."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from typing import Any

from headwise.prune.report.colours import RoleColour, shown_roles
from headwise.prune.report.document import Report
from headwise.prune.report.head_map import head_maps
from headwise.prune.report.matrix import draw_matrix
from headwise.prune.report.page import page_of
from headwise.prune.report.scales import drop_scale, speed_scale
from headwise.prune.report.templating import TEMPLATES, html_environment


def html(report: Report) -> str:
    """The report as a page: works offline, light and dark, prints, runs no script but its own.

    >>> from headwise.prune.report.document import Verdict
    >>> report = Report("analyze", "run", {"id": "<tiny>"}, Verdict("2 heads."))
    >>> "<h1>&lt;tiny&gt;</h1>" in html(report)
    True
    """
    colours = shown_roles(report.heads)
    values = {"report": report} | page_of(report, colours) | _drawings(report, colours)
    return render("report.html.j2", values, role_style(colours))


def render(template: str, values: Mapping[str, Any], style: str = "") -> str:
    """A page from a template: style and script inside, allowed by their hashes alone."""
    from markupsafe import Markup

    css = (TEMPLATES / "style.css").read_text(encoding="utf-8") + style
    script = (TEMPLATES / "readout.js").read_text(encoding="utf-8")
    frame = {
        # Our own files and colour table; nothing from data is in them.
        "style": Markup(css),
        "script": Markup(script),
        "style_hash": hashed(css),
        "script_hash": hashed(script),
    }
    return html_environment().get_template(template).render(**values, **frame) + "\n"


def role_style(colours: Mapping[str, RoleColour]) -> str:
    """One CSS class for each role, on light and on dark pages.

    >>> from headwise.prune.report.colours import role_colours
    >>> role_style(role_colours(["self"])).splitlines()[0]
    '.role-0{--c:#4a3f9f}'
    """
    light = "".join(f".{colour.css}{{--c:{colour.light}}}" for colour in colours.values())
    dark = "".join(f".{colour.css}{{--c:{colour.dark}}}" for colour in colours.values())
    return f"{light}\n@media (prefers-color-scheme: dark){{{dark}}}\n" if colours else ""


def _drawings(report: Report, colours: Mapping[str, RoleColour]) -> dict[str, Any]:
    rows = report.speed.get("rows", [])
    return {
        "maps": head_maps(report.heads, colours, report.score_name),
        "matrix": draw_matrix(report.similarity, report.heads) if report.similarity else None,
        "speed_axis": speed_scale(rows) if rows else None,
        "drop": _drop(report),
    }


def _drop(report: Report) -> dict[str, Any]:
    accuracy = report.accuracy
    low, high = accuracy.get("interval") or (None, None)
    limit = next((limit.allowed for limit in report.verdict.limits if limit.name == "drop"), None)
    drawn = None not in (accuracy.get("drop"), low, high)
    scale = drop_scale(accuracy, limit) if drawn else None
    return {"low": low, "high": high, "limit": limit, "drawn": drawn, "scale": scale}


def hashed(text: str) -> str:
    """A text as a content-security policy names it.

    >>> hashed("")
    'sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU='
    """
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii")
