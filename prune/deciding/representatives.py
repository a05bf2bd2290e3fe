"""Who stands for a group of interchangeable heads, once a score has said which of them matters most."""

from __future__ import annotations

import numpy as np

from headwise.analysis.evidence import Evidence
from headwise.analysis.redundancy import represent
from headwise.prune.plan import Plan


def represented(evidence: Evidence, plan: Plan, rule: str) -> Evidence:
    """The evidence with every cluster represented by the head that the plan's score puts highest.

    Args:
        evidence: of the run.
        plan: with the scores.
        rule: name of the score.

    >>> arrays = {"clusters/label": np.array([0, 0]), "clusters/representative": np.array([True, False])}
    >>> plan = Plan(remove={"0": [0]}, score={"0": [0.1, 0.2]})
    >>> represented(Evidence([("0", 0), ("0", 1)], arrays), plan, "gradient")["clusters/representative"].tolist()
    [False, True]
    """
    found = (plan.score.get(site, [])[head : head + 1] for site, head in evidence.heads)
    scores = [value[0] if value and value[0] is not None else np.nan for value in found]
    return represent(evidence, np.array(scores, dtype=np.float64), rule)
