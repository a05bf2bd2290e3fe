"""Roles tested by intervention: do the heads that seem to play a role matter for what the role is for?"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from torch import nn

from headwise.analysis.corpus.batching import Batch
from headwise.analysis.corpus.minimal_pairs import Pair
from headwise.analysis.evidence import Evidence
from headwise.analysis.gates import gated
from headwise.analysis.gates.still import still
from headwise.analysis.probes import OwnLoss, Probe, probe_of, reads_as
from headwise.analysis.progress import track
from headwise.analysis.roles.random_sequences import looks_back
from headwise.analysis.sites import Site, find_sites

#: Heads of a role that are silenced together, and random draws they are compared with.
TOP, DRAWS = 5, 50
#: Which behaviour a role is for.
PROBES = {
    "induction": "repetition",
    "previous": "repetition",
    "duplicate-token": "repetition",
    "coreference": "agreement",
    "punctuation": "language",
    "first-token": "language",
    "separator": "language",
}
#: Up to this chance of a random draw doing as much harm, the role is causal.
LEVEL = 0.05
#: Draws needed to get there at all.
_FEWEST = round(1 / LEVEL) - 1

Heads = Sequence[tuple[str, int]]


def intervene(
    model: nn.Module,
    tokenizer: Any,
    evidence: Evidence,
    texts: Iterable[Batch] = (),
    *,
    roles: Sequence[str] = tuple(PROBES),
    pairs: Sequence[Pair] | None = None,
    own: OwnLoss | None = None,
    top: int = TOP,
    draws: int = DRAWS,
    seed: int = 0,
) -> dict[str, dict[str, Any]]:
    """What silencing a role's strongest heads does, against as many random other heads of the same sites.

    | roles | probe, the higher the worse |
    |---|---|
    | induction, previous, duplicate-token | `repetition`: loss on the second half of random sequences said twice |
    | coreference | `agreement`: log-likelihood of sentences with a disagreeing reflexive minus that of the agreeing ones |
    | punctuation, first-token, separator | `language`: loss on the texts |
    | all of these, where the model has no language-modelling head | `task`: the loss of its own task, if it is given |

    A causal language model predicts the next token; a masked one fills gaps, and its log-likelihoods are
    pseudo-log-likelihoods (each token masked in turn: Salazar et al. 2020). A role is `causal` if silencing
    its heads does harm, and at most one in twenty random draws does as much; else `correlational`. The p-value
    counts the heads themselves as a draw: (1 + draws at least as harmful) / (1 + draws). Draws are distinct.

    Args:
        model: the model.
        tokenizer: of the checkpoint.
        evidence: with the roles' excess.
        texts: batches for the probes that need them.
        roles: which roles to test; those without a probe or without heads are said to be `not applicable`.
        pairs: of sentences, for coreference; generated ones if None.
        own: the loss of the model's own task, for one without a language-modelling head.
        top: heads silenced, the strongest that play the role.
        draws: random sets of heads.
        seed: of the draws.

    Returns:
        By role, plain data (it is kept as `evidence.facts["interventions"]`), every key always there:

        | key | meaning |
        |---|---|
        | `role` | its name |
        | `verdict` | `causal`, `correlational` or `not applicable` |
        | `says` | the result in one sentence |
        | `reason` | why it is not applicable; empty if it was tested |
        | `probe` | `repetition`, `agreement`, `language` or `task`; None, as all below, if not tested |
        | `measured` | what the probe measures, as part of a sentence |
        | `count` | how many sequences, pairs or texts it is measured on |
        | `heads` | labels of the silenced heads, the strongest first; empty if not tested, as `random` |
        | `base`, `silenced` | the probe's number as the model is, and without these heads; nats |
        | `effect` | `silenced` − `base`: above 0 it did harm |
        | `random` | `mean`, `low`, `high` (central 95 %) and `max` of the effects of the random draws |
        | `draws` | how many random draws |
        | `as_harmful` | how many of them did at least as much harm |
        | `p` | (1 + `as_harmful`) / (1 + `draws`) |
    """
    sites = find_sites(model)
    way, headless = reads_as(model, tokenizer, looks_back(model, sites))
    found: dict[str, dict[str, Any]] = {}
    probes: dict[str, tuple[Probe, float]] = {}
    for role in track(list(roles), label="silencing heads"):
        chosen = _strongest(evidence, role, top)
        kind = PROBES.get(role, "")
        why = "no behaviour is known for it" if not kind else "" if chosen else "no head plays it"
        why = why or ("" if way or own is not None else headless)
        if why:
            found[role] = _untested(role, why)
            continue
        kind = kind if way else "task"
        with still(model):
            if kind not in probes:
                probe = _own(own, model) if own is not None and not way else None
                probe = probe or probe_of(kind, way, model, tokenizer, texts, pairs, seed)
                probes[kind] = (probe, probe.measure())
            found[role] = _tested(role, model, sites, chosen, *probes[kind], draws, seed)
    return found


def _own(own: OwnLoss, model: nn.Module) -> Probe:
    return Probe("task", f"the loss of its own task ({own.name})", own.count, lambda: own.measure(model))


def _untested(role: str, why: str) -> dict[str, Any]:
    says = f"Not applicable: {why}."
    nothing: dict[str, Any] = dict.fromkeys(("base", "silenced", "effect", "draws", "as_harmful", "p"))
    shown = {"role": role, "verdict": "not applicable", "says": says, "reason": why}
    return shown | {"probe": None, "measured": None, "count": None, "heads": [], "random": {}} | nothing


def _tested(
    role: str,
    model: nn.Module,
    sites: Mapping[str, Site],
    chosen: Heads,
    probe: Probe,
    base: float,
    draws: int,
    seed: int,
) -> dict[str, Any]:
    def harm(heads: Heads) -> float:
        silenced: dict[str, list[int]] = {}
        for site, head in heads:
            silenced.setdefault(site, []).append(head)
        with gated(model, silenced):
            return probe.measure() - base

    sets = others_like(sites, chosen, draws, np.random.default_rng(seed))
    if len(sets) < _FEWEST:
        return _untested(role, f"only {len(sets)} sets of as many other heads to compare with")
    effect = harm(chosen)
    others = [harm(heads) for heads in sets]
    as_harmful = sum(other >= effect for other in others)
    p = (1 + as_harmful) / (1 + len(others))
    low, high = np.quantile(others, [0.025, 0.975])
    result = {
        "role": role,
        "verdict": "causal" if p <= LEVEL and effect > 0 else "correlational",
        "reason": "",
        "probe": probe.kind,
        "measured": probe.measured,
        "count": probe.count,
        "heads": [f"{site}.{head}" for site, head in chosen],
        "base": base,
        "silenced": base + effect,
        "effect": effect,
        "random": {"mean": float(np.mean(others)), "low": float(low), "high": float(high), "max": max(others)},
        "draws": len(others),
        "as_harmful": as_harmful,
        "p": p,
    }
    return result | {"says": _sentence(result)}


def _sentence(result: Mapping[str, Any]) -> str:
    """The result of a test, as a person would say it."""
    moves = "rises" if result["effect"] > 0 else "falls"
    many = f"{result['as_harmful']} of {result['draws']}" if result["as_harmful"] else f"none of {result['draws']}"
    return (
        f"{'Causal' if result['verdict'] == 'causal' else 'Only correlational'}: without {', '.join(result['heads'])} "
        f"{result['measured']} {moves} by {abs(result['effect']):.3g} nats; {many} random draws of as many other heads "
        f"of the same sites did as much harm (p = {result['p']:.2g})."
    )


def others_like(
    sites: Mapping[str, Site], chosen: Heads, draws: int, generator: np.random.Generator
) -> list[list[tuple[str, int]]]:
    """Random sets of as many heads of the same sites, none of them chosen; from any site where one has too few.

    All sets are different, so there may be fewer than asked for: a few sets drawn again and again would make
    a p-value that so few cannot give.

    >>> one = {"0": Site("0", "a", "o", heads=3, kv_heads=3, head_dim=1, kept=(0, 1, 2))}
    >>> sorted(others_like(one, [("0", 1)], 50, np.random.default_rng(0)))
    [[('0', 0)], [('0', 2)]]
    """
    found: dict[frozenset[tuple[str, int]], list[tuple[str, int]]] = {}
    for _ in range(20 * draws):
        heads = _others(sites, chosen, generator)
        found.setdefault(frozenset(heads), heads)
        if len(found) == draws:
            break
    return [heads for heads in found.values() if heads]


def _others(sites: Mapping[str, Site], chosen: Heads, generator: np.random.Generator) -> list[tuple[str, int]]:
    taken = set(chosen)
    found: list[tuple[str, int]] = []
    for name in dict.fromkeys(site for site, _ in chosen):
        free = [(name, head) for head in sites[name].kept if (name, head) not in taken]
        wanted = sum(site == name for site, _ in chosen)
        order = generator.permutation(len(free))[:wanted]
        found += [free[i] for i in order]
    rest = [(n, h) for n, site in sites.items() for h in site.kept if (n, h) not in taken and (n, h) not in found]
    short = min(len(chosen) - len(found), len(rest))
    return found + [rest[i] for i in generator.permutation(len(rest))[:short]]


def _strongest(evidence: Evidence, role: str, top: int) -> list[tuple[str, int]]:
    if f"roles/{role}/assigned" not in evidence.arrays:
        return []
    excess = np.where(evidence[f"roles/{role}/assigned"], evidence[f"roles/{role}/excess"], -np.inf)
    order = np.argsort(-excess, kind="stable")[:top]
    return [evidence.heads[i] for i in order if np.isfinite(excess[i])]
