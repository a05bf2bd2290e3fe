"""What was found of every role and every head: who plays it, nobody, or that the question does not apply."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from headwise.analysis.evidence import Evidence

NONE, INAPPLICABLE = "none", "not applicable"


@dataclass(frozen=True)
class Answer:
    """What was found of one role.

    Attributes:
        role: its name.
        heads: labels of the heads that play it, the one furthest over chance first.
        answer: how many heads, as words: `3 heads`, `none`, or `not applicable` where no head could be tested.
        strongest: label of the head furthest over chance, whether it plays the role or not; empty if not applicable.
        score: of the strongest head.
        chance: what it has to beat: its chance level, or the further null where that is higher.
        low: of the 95 % interval of score − chance.
        high: of the same.
        q: p-value of the strongest head, adjusted for all heads and roles.
        reliability: how well one half of the texts tells the heads' order on the other (0 to 1); NaN if unknown.
        verdict: of the intervention, empty if there was none.
    """

    role: str
    heads: tuple[str, ...]
    answer: str
    strongest: str = ""
    score: float = float("nan")
    chance: float = float("nan")
    low: float = float("nan")
    high: float = float("nan")
    q: float = float("nan")
    reliability: float = float("nan")
    verdict: str = ""


def answers(evidence: Evidence) -> list[Answer]:
    """One answer for every role and kind of link that was looked for, the most played first.

    >>> parts = {"assigned": [True, False], "q": [0.01, 0.9], "score": [0.5, 0.1], "chance": [0.1, 0.1],
    ...     "excess": [0.4, 0.0], "low": [0.3, -0.1], "high": [0.5, 0.1]}
    >>> evidence = Evidence([("0", 0), ("0", 1)], {f"roles/self/{p}": np.array(v) for p, v in parts.items()})
    >>> answers(evidence)[0].answer, answers(evidence)[0].heads
    ('1 head', ('0.0',))
    """
    found = [_answer(evidence, name) for name in _roles(evidence)]
    return sorted(found, key=lambda one: (-len(one.heads), one.answer == INAPPLICABLE))


def of_heads(evidence: Evidence) -> list[str]:
    """The primary role of every head, `none`, or `not applicable` for a head that no role could be tested on.

    >>> parts = {"assigned": np.zeros(2, bool), "q": np.array([0.5, np.nan]), "excess": np.array([0.0, np.nan])}
    >>> of_heads(Evidence([("0", 0), ("0", 1)], {f"roles/self/{p}": v for p, v in parts.items()}))
    ['none', 'not applicable']
    """
    tested = np.zeros(len(evidence.heads), dtype=bool)
    for name in _roles(evidence):
        tested |= ~np.isnan(evidence[f"roles/{name}/q"])
    pairs = zip(evidence.roles(), tested.tolist(), strict=True)
    return [roles[0] if roles else NONE if applies else INAPPLICABLE for roles, applies in pairs]


def _roles(evidence: Evidence) -> list[str]:
    ending = "/assigned"
    return [name[len("roles/") : -len(ending)] for name in evidence.arrays if name.endswith(ending)]


def _answer(evidence: Evidence, name: str) -> Answer:
    def part(what: str) -> np.ndarray:
        return evidence[f"roles/{name}/{what}"]

    if np.isnan(part("q")).all():
        return Answer(name, (), INAPPLICABLE)
    excess = np.nan_to_num(part("excess"), nan=-np.inf)
    order = np.argsort(-excess, kind="stable")
    labels = evidence.labels()
    playing = tuple(labels[i] for i in order if part("assigned")[i])
    i = int(order[0])
    numbers = {what: float(part(what)[i]) for what in ("score", "low", "high", "q")}
    known = evidence.facts.get("reliability", {}).get(name)
    return Answer(
        name,
        playing,
        f"{len(playing)} head{'s' if len(playing) > 1 else ''}" if playing else NONE,
        labels[i],
        chance=float(part("score")[i] - part("excess")[i]),
        reliability=float("nan") if known is None else float(known),
        verdict=str(evidence.facts.get("interventions", {}).get(name, {}).get("verdict", "")),
        **numbers,
    )
