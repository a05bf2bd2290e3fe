"""The whole analysis on one page: corpus, one pass over it, clusters, roles, evidence."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any

import numpy as np
from torch import nn

from headwise.analysis.annotations import coreference_set, corpus_of
from headwise.analysis.batching import Batches, batches
from headwise.analysis.capture import MEMORY, Door, Pass, capture
from headwise.analysis.errors import BadInput
from headwise.analysis.evidence import Evidence
from headwise.analysis.kernels import kernel_of
from headwise.analysis.portions import MOST, Portions
from headwise.analysis.redundancy import THRESHOLD, cluster
from headwise.analysis.roles import ROLES
from headwise.analysis.roles.assignment import EFFECT, LEVEL, assign, inferred
from headwise.analysis.roles.broad import broad
from headwise.analysis.roles.coreference import Antecedents
from headwise.analysis.roles.mass import RelationMass
from headwise.analysis.similarity import MEASURES
from headwise.analysis.sites import Site, find_sites, heads_of
from headwise.analysis.statistics import Statistics
from headwise.analysis.texts import Corpus


def analyze(
    model: nn.Module,
    tokenizer: Any,
    corpus: Corpus,
    *,
    measures: Sequence[str] = tuple(MEASURES),
    roles: Sequence[str] = tuple(ROLES),
    threshold: float = THRESHOLD,
    effect: float = EFFECT,
    batch_size: int | None = None,
    max_length: int | None = None,
    memory: int = MEMORY,
    door: Door = "auto",
    seed: int = 0,
) -> Evidence:
    """Evidence about every head: statistics, similarity of all pairs, clusters, roles.

    The texts are gone through once; the role `coreference` adds a pass over the annotated texts that ship.
    The model is left as it was.

    Args:
        model: any model that `find_sites` understands.
        tokenizer: of the checkpoint.
        corpus: the texts to look at.
        measures: names from `MEASURES`; clusters are made by the first.
        roles: names from `ROLES`.
        threshold: mean similarity at which heads still count as interchangeable.
        effect: least excess over chance that makes a role.
        batch_size: texts a batch at most; by default 32. Fewer where their maps would not fit `memory`.
        max_length: the most tokens a text; by default the model's limit.
        memory: bytes for one batch's maps, or for one tile of all sites where a text's maps do not fit.
        door: how maps are come by, see `capture`.
        seed: of the bootstrap.

    Raises:
        BadInput: an unknown measure or role, or texts or a model that cannot be used.

    >>> analyze(None, None, Corpus([]), measures=["spearman"])
    Traceback (most recent call last):
    headwise.analysis.errors.BadInput: measures: got 'spearman', expected some of pearson, cosine, hellinger
    """
    _check("measures", measures, MEASURES)
    _check("roles", roles, ROLES)
    sites = find_sites(model)
    data = batches(corpus, tokenizer, batch_size=batch_size or MOST, max_length=max_length, model=model)

    statistics = Statistics(sites)
    masses = RelationMass(sites, {name: ROLES[name] for name in roles})
    alike = [MEASURES[name](sites) for name in measures]
    reducers = [statistics, masses, *alike]
    went = capture(model, _portions(data, sites, memory), reducers, sites=sites, memory=memory, door=door)

    arrays = statistics.result()
    for measure in alike:
        arrays |= measure.result()
    if measures:
        present = np.concatenate([np.isin(np.arange(s.heads), s.kept) for s in sites.values()])
        arrays |= cluster(arrays[f"similarity/{measures[0]}"], threshold=threshold, present=present).arrays()

    tests: dict[str, Mapping[str, np.ndarray]] = {
        name: inferred(masses.measured(name), seed=seed) for name in masses.roles
    }
    if "broad" in roles:
        sums = broad(statistics.by_cell("normalised_entropy"), statistics.by_cell("below_uniform"))
        tests["broad"] = inferred(sums, seed=seed)
    facts: dict[str, Any] = {}
    if "coreference" in roles:
        tests["coreference"], facts["coreference"] = _coreference(model, tokenizer, sites, memory)
    arrays |= assign({name: tests[name] for name in roles}, ROLES, effect=effect)

    settings: dict[str, Any] = {"threshold": threshold, "effect": effect, "level": LEVEL, "seed": seed}
    settings |= {"measures": list(measures), "roles": list(roles)}
    facts |= _facts(model, corpus, data, went, settings)
    return Evidence(heads_of(sites), arrays, facts)


def _check(field: str, names: Sequence[str], table: Mapping[str, Any]) -> None:
    for name in names:
        if name not in table:
            raise BadInput(f"{field}: got {name!r}, expected some of {', '.join(table)}")


def _portions(data: Batches, sites: Mapping[str, Site], memory: int) -> Portions:
    return Portions(data, len(heads_of(sites)), memory)


def _coreference(
    model: nn.Module, tokenizer: Any, sites: Mapping[str, Site], memory: int
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """The arrays of the role and how it was measured."""
    held_out = {text.template for text in coreference_set("held-out") if text.template is not None}
    corpus = corpus_of(coreference_set(), "headwise's coreference set")
    reducer = Antecedents(sites, held_out)
    annotated = batches(corpus, tokenizer, batch_size=MOST, model=model)
    capture(model, _portions(annotated, sites, memory), [reducer], sites=sites)
    prefix = "roles/coreference/"
    arrays = {name.removeprefix(prefix): array for name, array in reducer.result().items()}
    return arrays, {"texts": corpus.summary(), "skipped": dict(reducer.skipped), "reliability": reducer.reliability()}


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
        "versions": {"python": platform.python_version()}
        | {name: version(name) for name in ("headwise", "torch", "transformers", "numpy", "scipy")},
    }
