"""The report as JSON: the same content, for programs."""

from __future__ import annotations

import dataclasses
import json as standard
import math
from typing import Any

import numpy as np


def json(report: Any) -> str:
    """The report (or a comparison) as JSON; numbers that are not finite become null, matrices stay in the evidence.

    >>> from headwise.prune.report.document import Figure
    >>> json(Figure("Cost", "0")).splitlines()[1]
    ' "label": "Cost",'
    """
    return standard.dumps(plain(report), indent=1, allow_nan=False) + "\n"


def plain(value: Any) -> Any:
    """`value` as JSON knows it.

    >>> plain({"a": (1.0, float("nan")), "b": np.float32(0.5)})
    {'a': [1.0, None], 'b': 0.5}
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        return {name: plain(part) for name, part in fields.items() if not isinstance(part, np.ndarray)}
    if isinstance(value, dict):
        return {str(key): plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    if isinstance(value, np.generic):
        return plain(value.item())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
