"""Overlong: texts that are longer than what the model reads, counted and told before they are cut off."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from torch import nn

from headwise.analysis.corpus.batching import batches
from headwise.analysis.corpus.texts import Corpus
from headwise.prune.tasks import choose_task

log = logging.getLogger("headwise")

#: Tasks that read a long text in windows: nothing of it is cut off where they judge.
_WINDOWED = ("causal-lm", "lm-eval", "question-answering")


def overlong(
    model: nn.Module, tokenizer: Any, parts: Mapping[str, Corpus], *, max_length: int | None = None, task: Any = None
) -> dict[str, int]:
    """How many texts of each part are cut off at the length that the model reads, or that was asked for.

    A warning says so, unless that length was asked for.

    Args:
        model: says how many tokens it reads.
        tokenizer: its tokenizer.
        parts: corpora by name; `evaluation` is left out for a task that reads it in windows.
        max_length: the most tokens a text, as the user asked.
        task: what `evaluation` is judged on; chosen as a run chooses it if None.
    """
    found: dict[str, int] = {}
    limit: int | None = None
    for name, corpus in parts.items():
        if name == "evaluation" and (task or choose_task(model, tokenizer, corpus)).kind in _WINDOWED:
            continue
        read = batches(corpus, tokenizer, model=model, max_length=max_length)
        found[name], limit = read.truncated, read.limit
    told = [f"{count} of {len(parts[name])} {name} texts" for name, count in found.items() if count]
    if told and limit != max_length:
        log.warning(
            "texts longer than the %s tokens that the model reads are cut off there: %s", limit, ", ".join(told)
        )
    return found
