"""Roles tested by intervention: do the heads that seem to play a role matter for what the role is for?"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from headwise.analysis.batching import Batch
from headwise.analysis.evidence import Evidence
from headwise.analysis.gates import gated
from headwise.analysis.minimal_pairs import Pair, agreement_pairs, preference
from headwise.analysis.progress import track
from headwise.analysis.roles.random_sequences import LENGTH, looks_back, repeated_sequences
from headwise.analysis.sites import Site, find_sites
from headwise.analysis.still import still

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
#: Below this chance of a random draw doing as much harm, the role is causal.
LEVEL = 0.05

Probe = Callable[[], float]


def intervene(
    model: nn.Module,
    tokenizer: Any,
    evidence: Evidence,
    texts: Iterable[Batch] = (),
    *,
    roles: Sequence[str] = tuple(PROBES),
    pairs: Sequence[Pair] | None = None,
    top: int = TOP,
    draws: int = DRAWS,
    seed: int = 0,
) -> dict[str, dict[str, Any]]:
    """What silencing a role's strongest heads does, against as many random other heads of the same sites.

    | roles | probe, the higher the worse |
    |---|---|
    | induction, previous, duplicate-token | loss on the second half of random sequences said twice |
    | coreference | log-likelihood of sentences with a disagreeing reflexive minus that of the agreeing ones |
    | punctuation, first-token, separator | loss on the texts |

    A role is `causal` if at most one in twenty random draws does as much harm, else `correlational`; the p-value
    counts the heads themselves as a draw: (1 + draws at least as harmful) / (1 + draws).

    Args:
        model: the model; one without a language-modelling head, or that looks ahead, is `not applicable`.
        tokenizer: of the checkpoint.
        evidence: with the roles' excess.
        texts: batches for the probes that need them.
        roles: which roles to test; those without a probe or without heads are said to be `not applicable`.
        pairs: of sentences, for coreference; generated ones if None.
        top: heads silenced, the strongest that play the role.
        draws: random sets of heads.
        seed: of the draws.

    Returns:
        Per role `verdict`, and where it was tested `probe`, `heads`, `base`, `silenced`, `effect`, `random`
        (mean, low, high) and `p`.
    """
    sites = find_sites(model)
    reason = _unfit(model, sites)
    found: dict[str, dict[str, Any]] = {}
    probes: dict[str, tuple[Probe, float]] = {}
    for role in track(list(roles), label="silencing heads"):
        chosen = _strongest(evidence, role, top)
        kind = PROBES.get(role)
        why = reason or ("" if kind else "no behaviour is known for it") or ("" if chosen else "no head plays it")
        if why or kind is None:
            found[role] = {"verdict": "not applicable", "reason": why}
            continue
        if kind not in probes:
            probe = _probe(kind, model, tokenizer, texts, pairs, seed)
            with still(model):
                probes[kind] = (probe, probe())
        with still(model):
            found[role] = {"probe": kind} | _tested(model, sites, chosen, *probes[kind], draws, seed)
    return found


def _tested(
    model: nn.Module,
    sites: Mapping[str, Site],
    chosen: Sequence[tuple[str, int]],
    probe: Probe,
    base: float,
    draws: int,
    seed: int,
) -> dict[str, Any]:
    def harm(heads: Sequence[tuple[str, int]]) -> float:
        silenced: dict[str, list[int]] = {}
        for site, head in heads:
            silenced.setdefault(site, []).append(head)
        with gated(model, silenced):
            return probe() - base

    effect = harm(chosen)
    generator = np.random.default_rng(seed)
    others = [harm(others_like(sites, chosen, generator)) for _ in range(draws)]
    p = (1 + sum(other >= effect for other in others)) / (1 + draws)
    low, high = np.quantile(others, [0.025, 0.975])
    return {
        "verdict": "causal" if p <= LEVEL and effect > 0 else "correlational",
        "heads": [f"{site}.{head}" for site, head in chosen],
        "base": base,
        "silenced": base + effect,
        "effect": effect,
        "random": {"mean": float(np.mean(others)), "low": float(low), "high": float(high), "max": max(others)},
        "draws": draws,
        "p": p,
    }


def others_like(
    sites: Mapping[str, Site], chosen: Sequence[tuple[str, int]], generator: np.random.Generator
) -> list[tuple[str, int]]:
    """As many random heads of the same sites, none of the chosen ones; from any site where one has too few.

    >>> two = {"0": Site("0", "a", "o", heads=3, kv_heads=3, head_dim=1, kept=(0, 1, 2))}
    >>> sorted(others_like(two, [("0", 1)], np.random.default_rng(0)))[0][1] in (0, 2)
    True
    """
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


def _unfit(model: nn.Module, sites: Mapping[str, Site]) -> str:
    if not looks_back(model, sites):
        return "the model is no causal language model"
    head = getattr(model, "get_output_embeddings", lambda: None)()
    return "" if head is not None else "the model has no language-modelling head"


def _probe(
    kind: str, model: nn.Module, tokenizer: Any, texts: Iterable[Batch], pairs: Sequence[Pair] | None, seed: int
) -> Probe:
    if kind == "agreement":
        sentences = agreement_pairs(seed=seed) if pairs is None else pairs
        return lambda: -preference(model, tokenizer, sentences)
    if kind == "language":
        return lambda: loss(model, texts)
    size = min(int(model.get_input_embeddings().num_embeddings), len(tokenizer))  # type: ignore[operator]
    device = next(model.parameters()).device
    # Other sequences than the ones that found the heads.
    again = repeated_sequences(size, reserved=tokenizer.all_special_ids, seed=seed + 1, count=16, device=device)
    return lambda: loss(model, again, start=LENGTH)


def loss(model: nn.Module, batches: Iterable[Batch], start: int = 0) -> float:
    """Mean loss of the next token in nats, from position `start` on; padding left out."""
    total, count = 0.0, 0
    with torch.no_grad():
        for batch in batches:
            ids, valid = batch.tokens[""].ids, batch.tokens[""].valid
            logits = model(**batch.inputs).logits[:, start:-1].float()
            picked = logits.gather(-1, ids[:, start + 1 :, None]).squeeze(-1) - logits.logsumexp(-1)
            judged = valid[:, start + 1 :] & valid[:, start:-1]
            total -= float(picked[judged].double().sum())
            count += int(judged.sum())
    return total / max(1, count)
