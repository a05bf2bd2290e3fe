"""onnxruntime, which is told to keep what it is used for to itself."""

from __future__ import annotations

import os
from typing import Any


def onnxruntime() -> Any:
    """The module onnxruntime, without its reports to its makers.

    Its releases write a number for the machine into the home folder and send it, with what is done, as soon as they
    are imported, unless a variable says no. Whoever has set that variable is followed.

    Raises:
        ImportError: it is not installed.

    >>> onnxruntime().__name__, os.environ["ORT_DISABLE_TELEMETRY"]
    ('onnxruntime', '1')
    """
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    import onnxruntime as runtime

    return runtime
