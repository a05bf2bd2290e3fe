"""Tokens dealt anew over the places of their text: what a role's score is when it does not matter what a token is."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from headwise.analysis.capture.seen import Seen
from headwise.analysis.corpus.batching import Batch, Tokens
from headwise.analysis.corpus.texts import Text
from headwise.analysis.roles.assignment import Measured
from headwise.analysis.roles.mass import RelationMass
from headwise.analysis.roles.relation import Role
from headwise.analysis.sites import Site

#: Permutations of each text that the null is the mean over.
DEALS = 8


class DealtMass(RelationMass):
    """Mass on each role's keys after the tokens of each text were permuted, the maps left as they are.

    Special tokens keep their places, and so do the model's maps: what a head gets here it gets from where it
    looks, not from what stands there. Only roles that say what a token is (`Role.lexical`) can tell the
    difference, and only they are measured. The permutations follow from the seed and each text's content, not from
    its batch; what is kept does not grow with their number.

    Args:
        sites: the sites.
        roles: the roles; those that are not lexical are ignored.
        deals: permutations of each text.
        seed: of the permutations.
    """

    def __init__(self, sites: Mapping[str, Site], roles: Mapping[str, Role], deals: int = DEALS, seed: int = 0) -> None:
        super().__init__(sites, {name: role for name, role in roles.items() if role.lexical})
        self.deals, self.seed = deals, seed

    def _relations(self, one: Seen, batch: Batch) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The means over all permutations."""
        total: list[Tensor] = []
        for deal in range(self.deals):
            tokens = {name: dealt(t, batch.texts, f"{self.seed}:{deal}") for name, t in batch.tokens.items()}
            which, *found = super()._relations(one, replace(batch, tokens=tokens))
            total = (
                [a.add_(b) for a, b in zip(total, found, strict=True)] if total else [part.clone() for part in found]
            )
        weights, chance, rows = (part.div_(self.deals) for part in total)
        return which, weights, chance, rows


def scaled(null: Measured, rows: Float[np.ndarray, "cell head"]) -> Float[np.ndarray, "cell head"]:
    """Summed excess under a null by cell and head, brought to the number of rows of the role itself.

    >>> two = np.full((1, 1), 2.0)
    >>> scaled(Measured(two, 0 * two, two, two), 3 * two).tolist()
    [[6.0]]
    """
    there = null.rows > 0
    return np.asarray(np.where(there, null.excess / np.where(there, null.rows, 1.0), 0.0) * rows)


def dealt(tokens: Tokens, texts: Sequence[Text], seed: str) -> Tokens:
    """The same places with the ordinary tokens of each text permuted: what they are, and whose words.

    >>> ids = torch.tensor([[1, 5, 6, 7, 8, 2]])
    >>> tokens = Tokens(ids, ids > 0, ids < 3, ids, torch.zeros(1, 6, 2, dtype=torch.long))
    >>> found = dealt(tokens, [Text("a")], "0").ids[0].tolist()
    >>> found[0], sorted(found[1:5]), found[5]
    (1, [5, 6, 7, 8], 2)
    """
    ids, words = tokens.ids.clone(), tokens.words.clone()
    plain = tokens.valid & ~tokens.special
    for row, text in enumerate(texts):
        places = torch.nonzero(plain[row]).flatten()
        digest = hashlib.sha256(f"{seed}:{text.id}".encode()).digest()
        order = np.random.default_rng(int.from_bytes(digest[:8], "big")).permutation(len(places))
        drawn = places[torch.from_numpy(order).to(places.device)]
        ids[row, places], words[row, places] = tokens.ids[row, drawn], tokens.words[row, drawn]
    return replace(tokens, ids=ids, words=words)
