"""The report as JSON: the same content, for programs."""

from __future__ import annotations

import dataclasses
import json as standard
from typing import Any

import numpy as np

from headwise.analysis.plain import plain as numbers


def json(report: Any) -> str:
    """The report (or a comparison) as JSON; numbers that are not finite become null, matrices stay in the evidence.

    >>> from headwise.prune.report.document import Figure
    >>> json(Figure("Cost", "0")).splitlines()[1]
    ' "label": "Cost",'
    """
    return standard.dumps(plain(report), indent=1, allow_nan=False) + "\n"


def plain(value: Any) -> Any:
    """`value` as JSON knows it, records as mappings.

    >>> plain({"a": (1.0, float("nan")), "b": np.float32(0.5)})
    {'a': [1.0, None], 'b': 0.5}
    """
    return numbers(_mappings(value))


def _mappings(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        return {name: _mappings(part) for name, part in fields.items() if not isinstance(part, np.ndarray)}
    if isinstance(value, dict):
        return {name: _mappings(part) for name, part in value.items()}
    return [_mappings(part) for part in value] if isinstance(value, list | tuple) else value
