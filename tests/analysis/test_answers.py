"""What is said of every role and head: who plays it, none, or not applicable."""

import json

import numpy as np

from headwise.analysis.evidence import Evidence
from headwise.analysis.inference import benjamini_hochberg
from headwise.analysis.roles.answers import answers, of_heads
from headwise.analysis.roles.assignment import Measured, assign, inferred
from headwise.prune.cli.findings import findings, findings_table, left_out


def sums_of(excess, cells=40, rows=10.0, noise=0.02, seed=0):
    """Excess a head, the same in all cells but for noise; NaN for a head that a role cannot be tested on."""
    excess = np.array(excess)
    there = ~np.isnan(excess)
    counted = rows * np.ones((cells, len(excess))) * there
    per_row = np.nan_to_num(excess) + noise * np.random.default_rng(seed).normal(size=(cells, len(excess)))
    return Measured((0.2 + per_row) * counted, 0.2 * counted, per_row * counted, counted)


def evidence():
    gap = np.nan
    tests = {
        # Head 0 plays both, head 1 the first alone, head 2 has an effect that is too small, head 3 cannot be tested.
        "self": inferred(sums_of([0.3, 0.6, 0.05, gap])),
        "previous": inferred(sums_of([0.5, 0.0, 0.0, gap])),
        "number": inferred(sums_of([0.0, 0.01, 0.0, gap])),
        "induction": inferred(sums_of([gap] * 4)),
    }
    facts = {
        "reliability": {"self": 0.97, "previous": 0.9, "number": float("nan"), "induction": None},
        "interventions": {"previous": {"verdict": "causal"}, "self": {"verdict": "not applicable"}},
    }
    return tests, Evidence([("0", 0), ("0", 1), ("1", 0), ("1", 1)], assign(tests, {}), facts)


def test_every_role_has_one_answer():
    tests, found = evidence()
    one, two, three, four = answers(found)
    assert (one.role, one.answer, one.heads) == ("self", "2 heads", ("0.1", "0.0"))
    assert (two.role, two.answer, two.heads, two.verdict) == ("previous", "1 head", ("0.0",), "causal")
    assert (three.role, three.answer, three.heads, three.strongest) == ("number", "none", (), "0.1")
    assert (four.role, four.answer, four.strongest) == ("induction", "not applicable", "")
    assert one.reliability == 0.97
    assert np.isnan(three.reliability)
    np.testing.assert_allclose(
        [one.score, one.chance, one.low, one.high],
        [tests["self"][part][1] for part in ("score", "chance", "low", "high")],
    )
    # Adjusted over the nine tests of heads and roles that there are.
    p = np.stack([parts["p"] for parts in tests.values()])
    assert np.isfinite(p).sum() == 9
    np.testing.assert_allclose(one.q, benjamini_hochberg(p)[0, 1])


def test_every_head_has_one_answer():
    assert of_heads(evidence()[1]) == ["previous", "self", "none", "not applicable"]


def test_what_must_be_beaten_is_the_higher_of_chance_and_null():
    sums = sums_of([0.5, 0.1])
    tests = {"self": inferred(Measured(sums.score, sums.chance, sums.excess, sums.rows, null=0.2 * sums.rows))}
    (one,) = answers(Evidence([("0", 0), ("0", 1)], assign(tests, {})))
    np.testing.assert_allclose(one.chance, 0.4)
    np.testing.assert_allclose(one.score - one.chance, tests["self"]["excess"][0])


def test_the_command_prints_a_line_a_role(capsys):
    from rich.console import Console

    found = evidence()[1]
    Console(width=200).print(findings_table(found))
    lines = capsys.readouterr().out.splitlines()
    assert any(line.split()[:4] == ["self", "0.1,", "0.0", "0.1"] and "0.97" in line for line in lines)
    assert any(line.split()[:3] == ["previous", "0.0", "0.0"] and "causal" in line for line in lines)
    assert any(line.split()[:3] == ["number", "none", "0.1"] for line in lines)
    assert left_out(found) == "not applicable: induction"
    rows = {row["role"]: row for row in findings(found)}
    assert rows["self"]["heads"] == ("0.1", "0.0")
    assert json.dumps(rows["previous"]["q"])
