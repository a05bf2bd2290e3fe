"""The search for roles: which reducers look for them, and what comes out, tested."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from torch import nn

from headwise.analysis.annotations import Annotated, coreference_set, corpus_of, windows
from headwise.analysis.capture import Door
from headwise.analysis.capture.keeping import Keeping
from headwise.analysis.capture.processes import shared_capture
from headwise.analysis.capture.seen import Reducer
from headwise.analysis.corpus.batching import Batch, Batches, batches, token_limit
from headwise.analysis.corpus.portions import MOST, Portions
from headwise.analysis.errors import BadInput
from headwise.analysis.inference import split_half_reliability
from headwise.analysis.roles import ROLES
from headwise.analysis.roles.assignment import Measured, by_part, inferred
from headwise.analysis.roles.broad import broad
from headwise.analysis.roles.confident import EvenWeight, confident
from headwise.analysis.roles.coreference import Antecedents
from headwise.analysis.roles.dealing import DealtMass, scaled
from headwise.analysis.roles.dormant import dormant
from headwise.analysis.roles.links import Links
from headwise.analysis.roles.mass import RelationMass
from headwise.analysis.roles.offsets import FixedOffset
from headwise.analysis.roles.random_copy import random_copy
from headwise.analysis.roles.random_sequences import LENGTH, looks_back, repeated_sequences
from headwise.analysis.roles.tokens import rare_tokens
from headwise.analysis.sites import Site, find_sites, heads_of
from headwise.analysis.statistics import Statistics

Tests = dict[str, Mapping[str, np.ndarray]]
#: What a role has to beat. Its analytic chance – what a head that looks everywhere alike gets, exactly – always
#: counts, and alone where `analytic` is asked for. Two more rules can be added; a role then has to beat both:
#:
#: * `permutation`: the score with the tokens of each text permuted over its places, maps as they are. It applies to
#:   roles that say what a token is (classes of tokens, repeated and rare tokens, induction): what is left is due to
#:   where a head looks. For coreference and links it is their rule `random`, exactly, which always counts; roles that
#:   only say where a token stands are the same in any permutation.
#: * `random-copy`: the score of the same head in a copy of the model with fresh random weights, on the same texts. It
#:   applies to every role, and takes the memory of a second model and the time of a second analysis.
NULLS = ("analytic", "permutation", "random-copy")
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
        door: how maps are come by, see `capture`.
        seed: of resampling and of random sequences.
        keeping: where the sums of each pass are kept, if anywhere.
        null: what roles have to beat beside their analytic chance, see `NULLS`.
        of: prefix of the passes' names.

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
        door: Door = "auto",
        seed: int = 0,
        keeping: Keeping | None = None,
        null: str = "analytic",
        of: str = "",
    ) -> None:
        self.model, self.tokenizer, self.sites, self.roles = model, tokenizer, sites, tuple(roles)
        self.data, self.memory, self.door, self.seed, self.keeping = data, memory, door, seed, keeping
        self.null, self.of, self.annotated = null, of, annotated
        self.facts: dict[str, Any] = {}
        #: Of roles on the user's texts, sums by part of them (`assignment.by_part`); filled in by `tests`.
        self.parts: dict[str, np.ndarray] = {}
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
        self.dealt = DealtMass(sites, on_texts, seed=seed) if null == "permutation" else None
        self.even = EvenWeight(sites) if "confident" in roles else None

    @property
    def reducers(self) -> list[Reducer]:
        """What takes part in the pass over the user's texts."""
        return [one for one in (self.masses, self.offsets, self.dealt, self.even) if one is not None]

    def tests(self, statistics: Statistics) -> Tests:
        """Per role, in the order asked for, and per kind of link: score, chance, excess, interval, p and n."""
        copied = self._copied() if self.null == "random-copy" else None
        sums = self.sums(statistics)
        if copied is not None:
            theirs = copied[0].sums(copied[1])
            sums = {name: replace(one, null=scaled(theirs[name], one.rows)) for name, one in sums.items()}
        found: Tests = {name: inferred(one, seed=self.seed) for name, one in sums.items()}
        on_texts = {name: one for name, one in sums.items() if ROLES[name].on == "texts"}
        self.parts = {f"parts/role/{name}": by_part(one) for name, one in on_texts.items()}
        if self.offsets is not None:
            found["fixed-offset"] = dict(found["fixed-offset"]) | self.offsets.measured()[1]
        reliability = {name: _reliability(one, self.seed) for name, one in sums.items()}
        unlearned = None if copied is None else copied[0]
        if "coreference" in self.roles and self.reads:
            found["coreference"] = self._coreference(unlearned, reliability)
        links = self._links(unlearned, reliability) if self.linked else {}
        self.facts["reliability"] = reliability
        # A role that the model's kind rules out has no numbers, and is not silently left away.
        nothing = inapplicable(len(heads_of(self.sites)))
        return {name: found.get(name, nothing) for name in self.roles} | links

    def sums(self, statistics: Statistics) -> dict[str, Measured]:
        """Sums by cell of every role that is measured on the texts and on random sequences."""
        found = {name: self._with_dealt(name, self.masses, self.dealt) for name in self.masses.roles}
        if self.offsets is not None:
            found["fixed-offset"] = self.offsets.measured()[0]
        if "broad" in self.roles:
            found["broad"] = broad(statistics.by_cell("normalised_entropy"), statistics.by_cell("below_uniform"))
        if self.even is not None:
            found["confident"] = confident(statistics.by_cell("confidence"), self.even.sums.numpy())
        if "dormant" in self.roles:
            quiet = statistics.result()["statistics/dormant"]
            found["dormant"] = dormant(statistics.by_cell("context_norm"), quiet, self.sites)
        return found | self._on_random()

    @staticmethod
    def _with_dealt(name: str, masses: RelationMass, dealt: DealtMass | None) -> Measured:
        own = masses.measured(name)
        if dealt is None or name not in dealt.roles:
            return own
        return replace(own, null=scaled(dealt.measured(name), own.rows))

    def _copied(self) -> tuple[Search, Statistics]:
        """The same search on a copy of the model that has learned nothing, gone through the texts."""
        model = random_copy(self.model, self.seed)
        sites = find_sites(model)
        search = Search(
            model, self.tokenizer, sites, self.roles, self.data, annotated=self.annotated, memory=self.memory,
            door=self.door, seed=self.seed, keeping=self.keeping, of="copy-",
        )  # fmt: skip
        statistics = Statistics(sites)
        data = Portions(self.data, len(heads_of(sites)), self.memory)
        search._pass("texts", data, statistics, *search.reducers)
        return search, statistics

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
        # Both halves have to fit the positions.
        length = min(LENGTH, (token_limit(self.tokenizer, self.model) or 2 * LENGTH) // 2)
        sequences = repeated_sequences(size, reserved=special, seed=self.seed, length=length, device=self.data.device)
        masses = RelationMass(self.sites, roles | {"previous": ROLES["previous"]})
        dealt = DealtMass(self.sites, roles, seed=self.seed) if self.null == "permutation" else None
        reducers: list[Reducer] = [masses] if dealt is None else [masses, dealt]
        self._pass("random", sequences, *reducers)
        previous = inferred(masses.measured("previous"), seed=self.seed)
        self.facts["previous_on_random"] = {
            part: [None if np.isnan(value) else float(value) for value in previous[part]] for part in ("score", "p")
        }
        return {name: self._with_dealt(name, masses, dealt) for name in roles}

    def _coreference(self, unlearned: Search | None, reliability: dict[str, float]) -> Mapping[str, np.ndarray]:
        """The arrays of the role; how it was measured goes to the facts."""
        texts, source, reducer = self._antecedents()
        null = None if unlearned is None else unlearned._antecedents()[2]
        reliability["coreference"] = reducer.reliability()
        self.facts["coreference"] = {
            "texts": corpus_of(texts, source).summary(),
            "skipped": _left_out(reducer.skipped, texts),
            "reliability": reliability["coreference"],
        }
        prefix = "roles/coreference/"
        return {name.removeprefix(prefix): array for name, array in reducer.result(null).items()}

    def _antecedents(self) -> tuple[list[Annotated], str, Antecedents]:
        held_out: set[str] = set()
        if self.coreferent:
            texts, source = self._windows(self.coreferent), "annotations"
        else:
            texts, source = coreference_set(), "headwise's coreference set"
            held_out = {text.template for text in coreference_set("held-out") if text.template is not None}
        reducer = Antecedents(self.sites, held_out)
        self._show("coreference", texts, source, reducer)
        return texts, source, reducer

    def _links(self, unlearned: Search | None, reliability: dict[str, float]) -> Tests:
        texts, reducer = self._linked()
        null = None if unlearned is None else unlearned._linked()[1]
        reliability |= {kind: reducer.reliability(kind, self.seed) for kind in reducer.kinds()}
        self.facts["links"] = {"texts": len(texts), "skipped": _left_out(reducer.skipped, texts)}
        return dict(reducer.tests(null))

    def _linked(self) -> tuple[list[Annotated], Links]:
        texts, reducer = self._windows(self.linked), Links(self.sites)
        self._show("links", texts, "annotations", reducer)
        return texts, reducer

    def _windows(self, annotated: Sequence[Annotated]) -> list[Annotated]:
        if self.data.limit is None or not getattr(self.tokenizer, "is_fast", False):
            return list(annotated)
        return windows(annotated, self.tokenizer, self.data.limit)

    def _show(self, name: str, texts: Sequence[Annotated], source: str, reducer: Reducer) -> None:
        corpus = corpus_of(texts, source)
        data = batches(corpus, self.tokenizer, batch_size=MOST, max_length=self.data.limit, model=self.model)
        self._pass(name, Portions(data, len(heads_of(self.sites)), self.memory), reducer)

    def _pass(self, name: str, data: Iterable[Batch], *reducers: Reducer) -> None:
        shared_capture(
            self.model, data, reducers, name=self.of + name, keeping=self.keeping, sites=self.sites,
            memory=self.memory, door=self.door,
        )  # fmt: skip


def inapplicable(heads: int) -> dict[str, np.ndarray]:
    """The arrays of a role that the model's kind rules out: no number, no case.

    >>> inapplicable(2)["n"].tolist()
    [0.0, 0.0]
    """
    parts = ("score", "chance", "excess", "low", "high", "p")
    return {part: np.full(heads, np.nan) for part in parts} | {"n": np.zeros(heads)}


def _left_out(skipped: Mapping[str, int], texts: Sequence[Annotated]) -> dict[str, int]:
    """What was not judged, by reason, and what the annotations had lost before."""
    found = Counter(skipped)
    for one in texts:
        found.update(one.skipped)
    return dict(found)


def _reliability(sums: Measured, seed: int) -> float:
    there = sums.rows.any(0)
    if there.sum() < 2:
        return float("nan")
    return split_half_reliability(sums.excess[:, there], sums.rows[:, there], seed=seed, splits=_SPLITS)
