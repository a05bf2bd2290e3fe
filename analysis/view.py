"""One head on one text: its map over words, and its numbers there."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import nn

from headwise.analysis.annotations.words import word_map, word_units
from headwise.analysis.capture import capture
from headwise.analysis.capture.seen import Reducer, Seen
from headwise.analysis.corpus.batching import Batch, batches
from headwise.analysis.corpus.texts import Corpus, Text
from headwise.analysis.errors import BadInput
from headwise.analysis.gates import check_heads
from headwise.analysis.roles import ROLES
from headwise.analysis.roles.mass import RelationMass
from headwise.analysis.sites import Site, find_sites, heads_of
from headwise.analysis.statistics import STATISTICS, Statistics


@dataclass(frozen=True)
class View:
    """What one head does on one text.

    Attributes:
        site: name of the site.
        head: ORIGINAL index.
        words: of the text, special tokens among them.
        map: attention between words, rows sum to 1 (less where a sink takes some).
        statistics: by name, on this text.
        roles: by name: share of attention on the role's tokens and what chance would put there, on this text.
        cut: tokens beyond the model's limit were left out.
        glued: which words follow the one before without a blank.
    """

    site: str
    head: int
    words: tuple[str, ...]
    map: Float[np.ndarray, "word word"]
    statistics: dict[str, float]
    roles: dict[str, tuple[float, float]]
    cut: bool
    glued: tuple[bool, ...] = ()


def parse_head(label: str, sites: Mapping[str, Site]) -> tuple[str, int]:
    """Site and head of `site.head`, as the command line says it.

    Raises:
        BadInput: it is no such label, or there is no such head.

    >>> parse_head("4.7", {"4": Site("4", "a", "a.o", heads=12, kv_heads=12, head_dim=8, kept=(7,))})
    ('4', 7)
    """
    site, _, head = label.rpartition(".")
    if not site or not head.isdigit():
        raise BadInput(f"head: got {label!r}, expected site.head, such as {next(iter(sites), '0')}.0")
    check_heads(sites, {site: [int(head)]})
    if int(head) not in sites[site].kept:
        raise BadInput(f"head: {label} has been cut from this model; site {site} has {list(sites[site].kept)}")
    return site, int(head)


def look_at(model: nn.Module, tokenizer: Any, text: str, label: str, *, max_length: int | None = None) -> View:
    """What a head does on a text.

    Args:
        model: the model.
        tokenizer: of the checkpoint, a fast one for words; with a slow one every token stands alone.
        text: to look at.
        label: `site.head`.
        max_length: the most tokens.

    Raises:
        BadInput: an empty text, a head that is not there, or one whose queries and keys are not the same tokens.
    """
    sites = find_sites(model)
    site, head = parse_head(label, sites)
    if not text.strip():
        raise BadInput("text: it is empty")
    one = {site: sites[site]}
    data = batches(Corpus([Text(text)], "the text"), tokenizer, model=model, max_length=max_length)
    kept = _Kept()
    statistics = Statistics(one)
    masses = RelationMass(one, {name: role for name, role in ROLES.items() if role.on == "texts"})
    capture(model, data, [kept, statistics, masses], sites=one)
    if kept.seen is None or kept.batch is None or kept.seen.query_stream is None or kept.seen.site.kind != "self":
        raise BadInput(f"head: {label} does not look from tokens at the same tokens; only such maps can be shown")
    tokens = kept.batch.tokens[kept.seen.query_stream]
    at = [name for name, _ in heads_of(one)].index(site) + head
    units = word_units(tokens.words[0].cpu(), tokens.valid[0].cpu())
    maps = word_map(kept.seen.map[0, sites[site].kept.index(head)].cpu(), units)
    names, spans = [""] * len(maps), [(-1, -2)] * len(maps)
    for t, unit in enumerate(units.tolist()):
        if unit >= 0:
            word, (start, end) = int(tokens.words[0, t]), tokens.offsets[0, t].tolist()
            names[unit] += text[start:end] if word >= 0 else tokenizer.convert_ids_to_tokens(int(tokens.ids[0, t]))
            if word >= 0:
                spans[unit] = (spans[unit][0] if spans[unit][0] >= 0 else start, end)
    glued = (False, *(before[1] == after[0] for before, after in itertools.pairwise(spans)))
    measured, found = statistics.result(), masses.result()
    roles = {name: (found[f"roles/{name}/score"][at], found[f"roles/{name}/chance"][at]) for name in masses.roles}
    return View(
        site,
        head,
        tuple(names),
        maps.numpy(),
        {name: float(measured[f"statistics/{name}"][at]) for name in STATISTICS},
        {name: (float(score), float(chance)) for name, (score, chance) in roles.items()},
        data.truncated > 0,
        glued,
    )


class _Kept(Reducer):
    """Keeps the one batch there is."""

    needs = frozenset({"maps"})
    whole = True

    def __init__(self) -> None:
        self.batch: Batch | None = None
        self.seen: Seen | None = None

    def update(self, batch: Batch, seen: Mapping[str, Seen]) -> None:
        self.batch, self.seen = batch, next(iter(seen.values()))

    def result(self) -> dict[str, np.ndarray]:
        return {}


def rounded(maps: Float[np.ndarray, "word word"]) -> list[list[float]]:
    """Weights with three places, for a page.

    >>> rounded(np.array([[0.12345]]))
    [[0.123]]
    """
    return torch.from_numpy(np.nan_to_num(maps)).double().mul(1000).round().div(1000).tolist()
