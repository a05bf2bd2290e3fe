"""The whole analysis on one page: corpus, one pass over it, clusters, roles, evidence."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, cast

import numpy as np
from torch import nn

from headwise.analysis.annotations import Annotated
from headwise.analysis.capture import DOORS, MEMORY, Door, Pass
from headwise.analysis.capture.keeping import Keeping
from headwise.analysis.capture.kernels import kernel_of
from headwise.analysis.capture.processes import shared_capture
from headwise.analysis.capture.seen import Reducer
from headwise.analysis.corpus.batching import Batches, batches
from headwise.analysis.corpus.minimal_pairs import Pair
from headwise.analysis.corpus.portions import MOST, Portions
from headwise.analysis.corpus.texts import Corpus
from headwise.analysis.errors import BadInput
from headwise.analysis.evidence import Evidence
from headwise.analysis.identity import PACKAGES, marks_of
from headwise.analysis.intervention import PROBES, intervene
from headwise.analysis.probes import OwnLoss, few_texts
from headwise.analysis.redundancy import THRESHOLD, check_cut, cluster, stability
from headwise.analysis.roles import ROLES
from headwise.analysis.roles.assignment import EFFECT, LEVEL, assign
from headwise.analysis.roles.search import NULLS, Search
from headwise.analysis.similarity import CHEAP, IN_PARTS, MEASURES, Focused, PerText, Replaceability
from headwise.analysis.sites import Site, find_sites, heads_of
from headwise.analysis.statistics import Statistics

#: Parts of the texts that clusters are resampled from, and the bytes that their products may take.
BLOCKS = 32
BLOCK_MEMORY = 256 * 2**20


def analyze(
    model: nn.Module,
    tokenizer: Any,
    corpus: Corpus,
    *,
    measures: Sequence[str] = CHEAP,
    roles: Sequence[str] = tuple(ROLES),
    annotated: Sequence[Annotated] = (),
    per_text: bool = False,
    ordinary: bool = False,
    threshold: float = THRESHOLD,
    clusters: int | None = None,
    effect: float = EFFECT,
    null: str = "analytic",
    batch_size: int | None = None,
    max_length: int | None = None,
    memory: int = MEMORY,
    door: str = "auto",
    interventions: bool = False,
    pairs: Sequence[Pair] | None = None,
    own: OwnLoss | None = None,
    seed: int = 0,
    keep: str | Path | None = None,
) -> Evidence:
    """Evidence about every head: statistics, similarity of all pairs, clusters, roles.

    The texts are gone through once; annotated texts (the role `coreference` has a set that ships) and, for
    causal models, random sequences add a pass each.
    The model is left as it was.

    A cluster is represented by its most important head where `replaceability` is measured: the head whose output the
    others of its site can rebuild least is the one that is missed. Else by the medoid, not by what is cheaply at hand:
    the length of a context says nothing about what the output projection makes of it. A run that scores heads has
    them represented by its score (`headwise.analysis.redundancy.represent`). The rule is kept as
    `facts["clusters"]["representative"]`.

    Args:
        model: any model that `find_sites` understands.
        tokenizer: of the checkpoint.
        corpus: the texts to look at.
        measures: names from `MEASURES`, or `replaceability`; clusters are made by the first of `MEASURES`, and
            tried on resampled texts unless that is `cka` over pooled texts.
        roles: names from `ROLES`.
        annotated: texts with links that heads are tested on; those of coreference replace the set that ships.
        per_text: average the measures over texts instead of pooling rows.
        ordinary: measure without special tokens and the first token, rows scaled to sum to 1.
        threshold: mean similarity at which heads still count as interchangeable.
        clusters: how many clusters there shall be instead; None to go by `threshold`.
        effect: least excess over chance that makes a role.
        null: what roles have to beat beside their analytic chance: `permutation` of the tokens within their texts,
            a `random-copy` of the model, or nothing (`analytic`); see `headwise.analysis.roles.search.NULLS`.
        batch_size: texts a batch at most; by default 32. Fewer where their maps would not fit `memory`.
        max_length: the most tokens a text; by default the model's limit.
        memory: bytes for one batch's maps, or for one tile of all sites where a text's maps do not fit.
        door: how maps are come by, see `capture`.
        interventions: silence the heads of roles and see what it does, see `intervene`.
        pairs: of sentences, for the intervention on coreference.
        own: what interventions are judged by where the model has no language-modelling head.
        seed: of the bootstrap.
        keep: a folder for the sums of an analysis under way; where an interrupted one of the same model, texts and
            settings left some, it goes on from them, to the same bits. Interventions start afresh. Delete it when
            the evidence is safe.

    Raises:
        BadInput: an unknown measure or role, or texts or a model that cannot be used.

    >>> analyze(nn.Linear(1, 1), None, Corpus([]), measures=["spearman"])  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    headwise.analysis.errors.BadInput: measures: got 'spearman', expected some of pearson, cosine, hellinger, ...
    """
    check_asked(measures=measures, roles=roles, door=door, null=null)
    sites = find_sites(model)
    check_cut(len(heads_of(sites)), threshold, clusters)
    data = batches(corpus, tokenizer, batch_size=batch_size or MOST, max_length=max_length, model=model)

    settings = {"per_text": per_text, "ordinary": ordinary, "measures": list(measures), "roles": list(roles)}
    settings |= {"null": null}
    looks: dict[str, Any] = settings | {"seed": seed, "memory": memory, "door": door}
    keeping = None if keep is None else Keeping(Path(keep), marks_of(model, data, annotated, looks))

    statistics = Statistics(sites)
    search = Search(
        model, tokenizer, sites, roles, data, annotated=annotated, memory=memory, door=cast(Door, door), seed=seed,
        keeping=keeping, null=null,
    )  # fmt: skip
    first = next((name for name in measures if name in MEASURES), None)
    focus = {"per_text": per_text, "ordinary": ordinary}
    alike = [measure_of(name, sites, model, resampled=name == first, **focus) for name in measures]
    reducers = [statistics, *search.reducers, *alike]
    went = shared_capture(
        model, _portions(data, sites, memory), reducers, name="texts", keeping=keeping, sites=sites, memory=memory,
        door=cast(Door, door),
    )  # fmt: skip

    arrays = statistics.result()
    for measure in alike:
        arrays |= measure.result()
    facts: dict[str, Any] = {}
    if first is not None:
        found, facts["clusters"] = _clusters(
            first, alike[list(measures).index(first)], arrays, sites, threshold=threshold, clusters=clusters, seed=seed
        )
        arrays |= found

    tests = search.tests(statistics)
    facts |= search.facts
    arrays |= assign(tests, ROLES, effect=effect) | search.parts

    settings |= {"threshold": threshold, "clusters": clusters, "effect": effect, "level": LEVEL, "seed": seed}
    facts |= _facts(model, corpus, data, went, settings) | {"roles": {name: ROLES[name].says for name in roles}}
    evidence = Evidence(heads_of(sites), arrays, facts)
    if interventions:
        asked = [role for role in roles if role in PROBES]
        few = few_texts(corpus, tokenizer, model, max_length, seed)
        tested = intervene(model, tokenizer, evidence, few, roles=asked, pairs=pairs, own=own, seed=seed)
        evidence.facts["interventions"] = tested
    return evidence


def check_asked(
    *, measures: Sequence[str] = CHEAP, roles: Sequence[str] = tuple(ROLES), door: str = "auto", null: str = "analytic"
) -> None:
    """Return if all that an analysis is asked for has a name here; no model is needed to tell.

    Raises:
        BadInput: with the names that there are.

    >>> check_asked(roles=["previous"])
    """
    _check("measures", measures, {**MEASURES, "replaceability": None})
    _check("roles", roles, ROLES)
    _check("door", [door], dict.fromkeys(DOORS))
    _check("null", [null], dict.fromkeys(NULLS))


def _check(field: str, names: Sequence[str], table: Mapping[str, Any]) -> None:
    for name in names:
        if name not in table:
            raise BadInput(f"{field}: got {name!r}, expected some of {', '.join(table)}")


def _clusters(
    name: str, made: Any, arrays: Mapping[str, Any], sites: Mapping[str, Site], *, seed: int, **how: Any
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Heads that a measure finds alike, as arrays, and as facts whether resampled texts make the same clusters."""
    similarity, weighed = arrays[f"similarity/{name}"], arrays.get("statistics/replaceability")
    present = np.concatenate([np.isin(np.arange(site.heads), site.kept) for site in sites.values()])
    groups = cluster(similarity, present=present, importance=weighed, **how)
    said = how | {"representative": "medoid" if weighed is None else "replaceability"}
    # What a measure looks at may be set apart; its sums are the same.
    made = getattr(made, "inner", made)
    made = getattr(made, "gram", made)
    if hasattr(made, "parts"):
        blocks, likeness = made.parts()
        if len(blocks):
            known = np.isfinite(similarity.diagonal())
            said |= stability(blocks, groups.label, known=known, seed=seed, likeness=likeness, **how)
    return groups.arrays(), said


def measure_of(
    name: str,
    sites: Mapping[str, Site],
    model: nn.Module,
    *,
    per_text: bool = False,
    ordinary: bool = False,
    resampled: bool = False,
) -> Reducer:
    """A fresh reducer of a measure; one that is to be resampled keeps its sums by part of the texts.

    >>> measure_of("cosine", {}, nn.Linear(1, 1)).needs
    frozenset({'contexts'})
    """
    if name == "replaceability":
        return Replaceability(sites, model)
    heads = len(heads_of(sites))
    blocks = min(BLOCKS, max(2, BLOCK_MEMORY // max(1, 8 * heads * heads))) if resampled else 0
    if per_text:
        measure: Reducer = PerText(lambda: MEASURES[name](sites), blocks)
    elif name in IN_PARTS:
        measure = MEASURES[name](sites, blocks=blocks)
    else:
        measure = MEASURES[name](sites)
    return Focused(measure) if ordinary else measure


def _portions(data: Batches, sites: Mapping[str, Site], memory: int) -> Portions:
    return Portions(data, len(heads_of(sites)), memory)


def _facts(model: nn.Module, corpus: Corpus, data: Batches, went: Pass, settings: dict[str, Any]) -> dict[str, Any]:
    config = getattr(model, "config", None)
    parameter = next(model.parameters())
    return {
        "model": {
            "id": str(getattr(config, "_name_or_path", "") or type(model).__name__),
            "revision": getattr(config, "_commit_hash", None),
            "class": type(model).__name__,
            "model_type": getattr(config, "model_type", None),
            "dtype": str(parameter.dtype).removeprefix("torch."),
            "device": str(parameter.device),
            "kernel": kernel_of(config),
        },
        "texts": corpus.summary() | {"truncated": data.truncated, "without_tokens": data.skipped},
        "batches": {"size": data.batch_size, "count": went.batches, "max_length": data.limit},
        "tiled_texts": went.tiled,
        "rows": went.rows,
        "excluded_rows": went.excluded,
        "missing_mass": went.missing,
        "settings": settings,
        "versions": {"python": platform.python_version()} | {name: version(name) for name in PACKAGES},
    }
