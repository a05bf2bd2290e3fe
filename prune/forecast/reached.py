"""Reached: whether texts alone come by every site, and by what a score looks at, before anything is measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from headwise.analysis.corpus.batching import batches
from headwise.analysis.corpus.texts import Corpus
from headwise.analysis.errors import BadInput, named
from headwise.analysis.gates.hooked import hooked
from headwise.analysis.gates.still import still
from headwise.analysis.sites import Site

_NAMED = 6


def require_reached(model: nn.Module, tokenizer: Any, sites: Mapping[str, Site], corpus: Corpus) -> None:
    """Return if one of the texts comes by every site, or the model has one stack, where it always does.

    Models that read images or clips beside their text run towers and cross-attention only for those.

    Args:
        model: on its device; run once.
        tokenizer: its tokenizer or processor.
        sites: the model's.
        corpus: what is going to be looked at.

    Raises:
        BadInput: some sites are not reached; with what to do about it.
    """
    if len({site.stack for site in sites.values()}) < 2:
        return
    seen: set[str] = set()

    def noted(path: str) -> Callable[..., None]:
        return lambda *_: seen.add(path)

    paths = {site.module for site in sites.values()}
    watches = (model.get_submodule(path).register_forward_hook(noted(path)) for path in paths)
    one = Corpus(list(corpus.texts[:1]), corpus.source)
    with hooked(watches), still(model), torch.no_grad():
        model(**next(iter(batches(one, tokenizer, model=model, batch_size=1, max_length=16))).inputs)
    missed = [name for name, site in sites.items() if site.module not in seen]
    # Where no block is called as a module, a fused path computes them all: that is told by who looks at them.
    if not missed or len(missed) == len(sites):
        return
    raise BadInput(
        f"{len(missed)} of {len(sites)} sites are not reached by these texts: {named(missed, _NAMED)}. {type(model).__name__} "
        "runs them for images or clips beside the text, which no command reads together. Sites that text reaches can be cut by a plan "
        "of your own (`headwise cut MODEL plan.json`); in Python, `headwise.analysis.capture(model, batches, …)` looks at "
        "all of them with batches that hold the other inputs, and `cut(model, heads, inputs=…)` tries a cut with them"
    )


def require_loss(model: nn.Module, tokenizer: Any, score: Any, corpus: Corpus) -> None:
    """Return if the model gives what a score's loss without labels looks at.

    Args:
        model: on its device; run once if the score has such a loss.
        tokenizer: its tokenizer or processor.
        score: of a recipe.
        corpus: what is going to be looked at.

    Raises:
        BadInput: the model predicts nothing, or puts out nothing; with what to do about it.
    """
    from headwise.prune.importance.outputs import put_out
    from headwise.prune.importance.predictions import logits_of

    ask = {"predictions": logits_of, "outputs": put_out}.get(getattr(score, "loss", ""))
    if ask is None:
        return
    one = Corpus(list(corpus.texts[:1]), corpus.source)
    with still(model), torch.no_grad():
        ask(model, next(iter(batches(one, tokenizer, model=model, batch_size=1))))
