"""Roles that show on random tokens said twice: induction, duplicate token, previous token."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor, nn

from headwise.analysis.capture.seen import is_causal
from headwise.analysis.corpus.batching import Batch, Tokens
from headwise.analysis.corpus.texts import Text
from headwise.analysis.roles.relation import View
from headwise.analysis.sites import Site

#: Random tokens of a sequence before it is said again, sequences, and sequences a batch.
LENGTH, COUNT, TOGETHER = 32, 32, 8


def induction(view: View) -> Bool[Tensor, "batch query key"] | None:
    """The token after an earlier place of the query's token: what came next last time (Olsson et al. 2022).

    >>> ids = torch.tensor([[7, 8, 7]])
    >>> same = Tokens(ids, ids > 0, ids < 0, ids, torch.zeros(1, 3, 2, dtype=torch.long))
    >>> induction(View(same, same, torch.ones(1, 3, 3, dtype=torch.bool), same=True))[0, 2].tolist()
    [False, True, False]
    """
    earlier = duplicate(view)
    if earlier is None:
        return None
    # One to the right; the last column has nowhere to go and the first nothing to come from.
    after = torch.nn.functional.pad(earlier[..., :-1], (1, 0))
    return after & (view.ahead <= 0) & view.allowed


def duplicate(view: View) -> Bool[Tensor, "batch query key"] | None:
    """Earlier places of the query's token; None between different sequences.

    >>> ids = torch.tensor([[7, 8, 7]])
    >>> same = Tokens(ids, ids > 0, ids < 0, ids, torch.zeros(1, 3, 2, dtype=torch.long))
    >>> duplicate(View(same, same, torch.ones(1, 3, 3, dtype=torch.bool), same=True))[0, 2].tolist()
    [True, False, False]
    """
    if not view.same or view.queries is None or view.keys is None:
        return None
    equal = (view.queries.ids[:, :, None] == view.keys.ids[:, None, :]).to(view.allowed.device)
    return equal & (view.ahead < 0) & view.allowed


def looks_back(model: nn.Module, sites: Mapping[str, Site]) -> bool:
    """Whether every self-attention of a model is causal: only there do random sequences tell anything.

    >>> from transformers import BertConfig, BertModel
    >>> from headwise.analysis.sites import find_sites
    >>> bert = BertModel(BertConfig(num_hidden_layers=1, num_attention_heads=2, hidden_size=16))
    >>> looks_back(bert, find_sites(bert))
    False
    """
    own = [site for site in sites.values() if site.kind == "self"]
    if getattr(getattr(model, "config", None), "is_encoder_decoder", False):
        return False
    return bool(own) and all(is_causal(model.get_submodule(site.module), site) for site in own)


def repeated_sequences(
    vocabulary: int, *, reserved: Any = (), seed: int = 0, length: int = LENGTH, count: int = COUNT, device: Any = "cpu"
) -> list[Batch]:
    """Batches of random tokens, each sequence said twice, no token twice within it where there are enough.

    Args:
        vocabulary: ids are drawn below this.
        reserved: ids never drawn (special tokens).
        seed: of the draw.
        length: tokens before the repetition.
        count: sequences.
        device: where the tensors go.

    >>> ids = repeated_sequences(100, length=4, count=1)[0].inputs["input_ids"][0].tolist()
    >>> len(ids), ids[:4] == ids[4:]
    (8, True)
    """
    generator = torch.Generator().manual_seed(seed)
    plain = torch.tensor(sorted(set(range(vocabulary)) - set(reserved)))
    found = []
    for start in range(0, count, TOGETHER):
        rows = min(TOGETHER, count - start)
        if len(plain) >= length:
            drawn = torch.stack([plain[torch.randperm(len(plain), generator=generator)[:length]] for _ in range(rows)])
        else:
            drawn = plain[torch.randint(len(plain), (rows, length), generator=generator)]
        ids = drawn.repeat(1, 2).to(device)
        every = torch.ones_like(ids, dtype=torch.bool)
        tokens = Tokens(ids, every, ~every, torch.full_like(ids, -1), torch.zeros(*ids.shape, 2, dtype=torch.long))
        texts = [Text(f"random sequence {seed} {start + i}") for i in range(rows)]
        inputs = {"input_ids": ids, "attention_mask": every.long()}
        found.append(Batch(inputs, texts, {"": tokens}, tuple(range(start, start + rows))))
    return found
