"""The search for roles: which reducers look for them, and what comes out, tested."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from torch import nn

from headwise.analysis.annotations import Annotated, coreference_set, corpus_of, windows
from headwise.analysis.batching import Batches, batches
from headwise.analysis.errors import BadInput
from headwise.analysis.inference import split_half_reliability
from headwise.analysis.portions import MOST, Portions
from headwise.analysis.processes import shared_capture
from headwise.analysis.roles import ROLES
from headwise.analysis.roles.assignment import Measured, inferred
from headwise.analysis.roles.broad import broad
from headwise.analysis.roles.coreference import Antecedents
from headwise.analysis.roles.links import Links
from headwise.analysis.roles.mass import RelationMass
from headwise.analysis.roles.offsets import FixedOffset
from headwise.analysis.roles.random_sequences import looks_back, repeated_sequences
from headwise.analysis.roles.tokens import rare_tokens
from headwise.analysis.seen import Reducer
from headwise.analysis.sites import Site, heads_of
from headwise.analysis.statistics import Statistics

Tests = dict[str, Mapping[str, np.ndarray]]
#: Halvings that reliability is the mean over.
_SPLITS = 20


class Search:
    """Looks for roles: on the user's texts in the common pass, then on random sequences and annotated texts.

    Args:
        model: the model.
        tokenizer: of the checkpoint.
        sites: its sites.
        roles: names from `ROLES`.
        data: the batches of the common pass.
        annotated: texts with links; those of coreference replace the set that ships.
        memory: bytes for maps.
        seed: of resampling and of random sequences.

    Raises:
        BadInput: an annotated relation has the name of a role.
    """

    def __init__(
        self,
        model: nn.Module,
        tokenizer: Any,
        sites: Mapping[str, Site],
        roles: Sequence[str],
        data: Batches,
        *,
        annotated: Sequence[Annotated] = (),
        memory: int,
        seed: int = 0,
    ) -> None:
        self.model, self.tokenizer, self.sites, self.roles = model, tokenizer, sites, tuple(roles)
        self.data, self.memory, self.seed = data, memory, seed
        self.facts: dict[str, Any] = {}
        clash = {one.relation for one in annotated} & set(ROLES) - {"coreference"}
        if clash:
            raise BadInput(f"annotations: relation {sorted(clash)[0]!r} has the name of a role; give it another")
        self.coreferent = [one for one in annotated if one.relation == "coreference"]
        self.linked = [one for one in annotated if one.relation != "coreference"]
        on_texts = {name: ROLES[name] for name in roles if ROLES[name].on == "texts"}
        if "rare-token" in on_texts:
            on_texts["rare-token"] = replace(ROLES["rare-token"], relation=rare_tokens(data))
        self.masses = RelationMass(sites, on_texts)
        self.offsets = FixedOffset(sites) if "fixed-offset" in roles else None

    @property
    def reducers(self) -> list[Reducer]:
        """What takes part in the pass over the user's texts."""
        return [self.masses] if self.offsets is None else [self.masses, self.offsets]

    def tests(self, statistics: Statistics) -> Tests:
        """Per role, in the order asked for, and per kind of link: score, chance, excess, interval, p and n."""
        sums = {name: self.masses.measured(name) for name in self.masses.roles}
        found: Tests = {}
        if self.offsets is not None:
            sums["fixed-offset"], offset = self.offsets.measured()
            found["fixed-offset"] = {"offset": offset}
        if "broad" in self.roles:
            entropy = statistics.by_cell("normalised_entropy"), statistics.by_cell("below_uniform")
            sums["broad"] = broad(*entropy)
        sums |= self._on_random()
        for name, one in sums.items():
            found[name] = inferred(one, seed=self.seed) | dict(found.get(name, {}))
        if "coreference" in self.roles and self.reads:
            found["coreference"] = self._coreference()
        self.facts["reliability"] = {name: _reliability(one, self.seed) for name, one in sums.items()}
        # A role that the model's kind rules out has no numbers, and is not silently left away.
        nothing = inapplicable(len(heads_of(self.sites)))
        return {name: found.get(name, nothing) for name in self.roles} | (self._links() if self.linked else {})

    @property
    def reads(self) -> bool:
        """Whether the model takes texts; one that sees or hears has a processor in the tokenizer's place."""
        return hasattr(self.tokenizer, "all_special_ids")

    def _on_random(self) -> dict[str, Measured]:
        roles = {name: ROLES[name] for name in self.roles if ROLES[name].on == "random"}
        if not roles or not self.reads or not looks_back(self.model, self.sites):
            return {}
        embeddings = self.model.get_input_embeddings()  # type: ignore[operator]
        size = min(int(embeddings.num_embeddings), len(self.tokenizer))
        special = self.tokenizer.all_special_ids
        sequences = repeated_sequences(size, reserved=special, seed=self.seed, device=self.data.device)
        masses = RelationMass(self.sites, roles | {"previous": ROLES["previous"]})
        shared_capture(self.model, sequences, [masses], sites=self.sites, memory=self.memory)
        previous = inferred(masses.measured("previous"), seed=self.seed)
        self.facts["previous_on_random"] = {
            part: [None if np.isnan(value) else float(value) for value in previous[part]] for part in ("score", "p")
        }
        return {name: masses.measured(name) for name in roles}

    def _coreference(self) -> Mapping[str, np.ndarray]:
        """The arrays of the role; how it was measured goes to the facts."""
        held_out: set[str] = set()
        if self.coreferent:
            texts, source = self._windows(self.coreferent), "annotations"
        else:
            texts, source = coreference_set(), "headwise's coreference set"
            held_out = {text.template for text in coreference_set("held-out") if text.template is not None}
        reducer = Antecedents(self.sites, held_out)
        self._show(texts, source, reducer)
        self.facts["coreference"] = {
            "texts": corpus_of(texts, source).summary(),
            "skipped": dict(reducer.skipped),
            "reliability": reducer.reliability(),
        }
        prefix = "roles/coreference/"
        return {name.removeprefix(prefix): array for name, array in reducer.result().items()}

    def _links(self) -> Tests:
        texts = self._windows(self.linked)
        reducer = Links(self.sites)
        self._show(texts, "annotations", reducer)
        left: dict[str, int] = dict(reducer.skipped)
        for one in texts:
            for reason, count in one.skipped.items():
                left[reason] = left.get(reason, 0) + count
        self.facts["links"] = {"texts": len(texts), "skipped": left}
        return dict(reducer.tests())

    def _windows(self, annotated: Sequence[Annotated]) -> list[Annotated]:
        if self.data.limit is None or not getattr(self.tokenizer, "is_fast", False):
            return list(annotated)
        return windows(annotated, self.tokenizer, self.data.limit)

    def _show(self, texts: Sequence[Annotated], source: str, reducer: Reducer) -> None:
        corpus = corpus_of(texts, source)
        data = batches(corpus, self.tokenizer, batch_size=MOST, max_length=self.data.limit, model=self.model)
        shared_capture(self.model, Portions(data, len(heads_of(self.sites)), self.memory), [reducer], sites=self.sites)


def inapplicable(heads: int) -> dict[str, np.ndarray]:
    """The arrays of a role that the model's kind rules out: no number, no case.

    >>> inapplicable(2)["n"].tolist()
    [0.0, 0.0]
    """
    parts = ("score", "chance", "excess", "low", "high", "p")
    return {part: np.full(heads, np.nan) for part in parts} | {"n": np.zeros(heads)}


def _reliability(sums: Measured, seed: int) -> float:
    there = sums.rows.any(0)
    if there.sum() < 2:
        return float("nan")
    return split_half_reliability(sums.excess[:, there], sums.rows[:, there], seed=seed, splits=_SPLITS)
