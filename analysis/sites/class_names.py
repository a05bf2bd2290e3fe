"""What the name of a model's class says that it is for."""

from __future__ import annotations

from typing import Any


def named_for(model: Any, *endings: str) -> bool:
    """Whether the name of the model's class, or of one that it derives from, ends in one of these.

    >>> class SmallForMaskedLM: ...
    >>> class Own(SmallForMaskedLM): ...
    >>> named_for(Own(), "ForMaskedLM", "ForCTC"), named_for(Own(), "ForCausalLM")
    (True, False)
    """
    return any(kind.__name__.endswith(endings) for kind in type(model).__mro__)
