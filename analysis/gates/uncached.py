"""Uncached: how a model is called that is to keep no keys and values."""

from __future__ import annotations

import inspect
from typing import Any

from torch import nn


def uncached(model: nn.Module) -> dict[str, bool]:
    """What to say beside the inputs of a pass after which nothing is written.

    A cache that nobody reads takes memory and time, and layers that are called again with what they were told would
    lengthen it. It is said where the forward names it, or hands on what it does not name (question answering on a
    language model) while the configuration asks for a cache; a forward that knows no such word is left alone.

    >>> from transformers import GPT2Config, GPT2ForQuestionAnswering, GPT2LMHeadModel
    >>> small = GPT2Config(n_layer=1, n_head=2, n_embd=8, vocab_size=9)
    >>> uncached(GPT2LMHeadModel(small)), uncached(GPT2ForQuestionAnswering(small)), uncached(nn.Linear(1, 1))
    ({'use_cache': False}, {'use_cache': False}, {})
    """
    takes = inspect.signature(model.forward).parameters
    config: Any = getattr(model, "config", None)
    anything = any(one.kind is one.VAR_KEYWORD for one in takes.values())
    said = "use_cache" in takes or (anything and getattr(config, "use_cache", False))
    return {"use_cache": False} if said else {}
