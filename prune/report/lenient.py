"""Templates that read JSON from a run folder: an absent field is None, a misspelt field of ours is an error."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jinja2 import Environment


class LenientEnvironment(Environment):
    """Jinja's environment, where mappings answer None for keys that they lack, and so does None.

    >>> LenientEnvironment().from_string("{{ a.b.c is none }}").render(a={})
    'True'
    """

    def getattr(self, obj: Any, attribute: str) -> Any:
        """The key of a mapping, None of None, else the attribute."""
        return self._found(obj, attribute, super().getattr)

    def getitem(self, obj: Any, argument: Any) -> Any:
        """The key of a mapping, None of None, else the item."""
        return self._found(obj, argument, super().getitem)

    @staticmethod
    def _found(obj: Any, name: Any, otherwise: Any) -> Any:
        if obj is None:
            return None
        return obj.get(name) if isinstance(obj, Mapping) else otherwise(obj, name)
