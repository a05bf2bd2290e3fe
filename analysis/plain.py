"""Plain data: what JSON can say, from numbers that it cannot."""

from __future__ import annotations

import math
from typing import Any

import numpy as np


def plain(value: Any) -> Any:
    """`value` as JSON knows it: names are strings, numbers are Python's own, and what is not finite is null.

    >>> plain({"a": (1.0, float("nan")), 3: np.float32(0.5)})
    {'a': [1.0, None], '3': 0.5}
    """
    if isinstance(value, dict):
        return {str(key): plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    if isinstance(value, np.generic):
        return plain(value.item())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
