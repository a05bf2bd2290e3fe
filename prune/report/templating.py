"""The templates' environment: what they may call, and how text from data is kept text."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headwise.prune.report import formats
from headwise.prune.report.doubt import doubt, noise
from headwise.prune.report.escape import Verbatim, fenced, markdown, visible
from headwise.prune.report.meanings import METRICS
from headwise.prune.report.words import pairs

if TYPE_CHECKING:
    from jinja2 import Environment

TEMPLATES = Path(__file__).parent / "templates"
_NAMES = (
    "number",
    "fixed",
    "in_metric",
    "in_points",
    "unit",
    "p_is",
    "p_value",
    "times",
    "milliseconds",
    "count",
    "plural",
    "percent_change",
)


@cache
def html_environment() -> Environment:
    """Everything printed is escaped for HTML, control characters are shown."""
    return _environment(autoescape=True, finalize=shown)


@cache
def markdown_environment() -> Environment:
    """Everything printed is escaped for Markdown but what the template made itself."""
    return _environment(autoescape=False, finalize=_in_markdown)


def _environment(**options: Any) -> Environment:
    from jinja2 import FileSystemLoader, StrictUndefined

    from headwise.prune.report.lenient import LenientEnvironment

    environment = LenientEnvironment(
        loader=FileSystemLoader(TEMPLATES),
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
        **options,
    )
    functions: dict[str, Any] = {name: getattr(formats, name) for name in _NAMES}
    functions["broken"] = _broken
    functions |= {"pairs": pairs, "fenced": fenced, "doubt": doubt, "noise": noise}
    environment.filters.update(functions)
    environment.globals.update(functions, metrics=METRICS)
    return environment


def shown(value: Any) -> Any:
    r"""Text with its control characters made visible; anything else as it is.

    >>> shown("a\x1b"), shown(3)
    ('a␛', 3)
    """
    return visible(value) if type(value) is str else value


def _in_markdown(value: Any) -> Any:
    from jinja2 import Undefined

    # One leading or trailing blank of a separator that the template prints is kept.
    if isinstance(value, Verbatim | Undefined) or value is None or (isinstance(value, str) and not value.strip()):
        return value
    text = str(value)
    before, after = text[: text[0].isspace()], text[len(text) - text[-1].isspace() :]
    return before.replace("\n", " ") + markdown(text) + after.replace("\n", " ")


def _broken(name: str) -> Any:
    """A column's name on two lines, so that a column of short numbers stays narrow."""
    from markupsafe import Markup, escape

    first, _, rest = visible(name).partition(" ")
    return escape(first) + Markup("<br>") + escape(rest) if rest else escape(first)
