"""The page to a newcomer and to a statistician: every word explained, no number that misleads."""

import json
import re

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from headwise.analysis.roles import ROLES
from headwise.prune.report import compare, content, write_comparison
from headwise.prune.report.colours import shown_roles
from headwise.prune.report.doubt import doubt, noise
from headwise.prune.report.html import html as as_html
from headwise.prune.report.markdown import markdown as as_markdown
from headwise.prune.report.matrix import TREE, _round_step, draw_matrix
from headwise.prune.report.meanings import METRICS
from headwise.prune.report.templating import TEMPLATES
from headwise.prune.report.words import drift
from headwise.prune.tasks.metrics import METRICS as MEASURES
from tests.prune import report_fixture as fixture

DRAWS = {
    "all": 0.8477, "plan": 0.82421875, "drawn": [0.8359375, 0.83203125, 0.8359375], "mean": 0.834, "spread": 0.002,
    "worse": 0, "n": 256, "heads": 4, "repair": "reconstruction",
    "moved": {"plan": 0.0156, "drawn": [0.0403, 0.0335, 0.0277]},
}  # fmt: skip
RULES = {"after": "break-after", "inside": "break-inside"}
WHY = "Accuracy and divergence do not favour the same choice."


@pytest.fixture
def run(tmp_path):
    return fixture.write_run(tmp_path / "run", {"": (2, 4)})


def pages(run):
    """The run's pages as a reader sees their text."""
    report = content(run)
    return as_html(report).replace("&#39;", "'"), as_markdown(report).replace("\\", "")


def facts_of(run):
    return json.loads((run / "evidence" / "evidence.json").read_text())


# Heads drawn at random


def test_draws_that_win_by_accuracy_and_lose_by_divergence_are_explained_from_the_numbers(run):
    fixture.edited(run / "accuracy.json", chance=DRAWS, interval=[-0.003, 0.039])
    for page in pages(run):
        assert (
            f"{WHY} By accuracy the draws are within 1.2 points (3 of 256 answers) of the plan, less than it tells apart "
            "here: the drop above is known to ±2.1 points. Divergence counts how far the outputs of every text moved"
        ) in page
        assert "One more draw would be nearer than these 3 by luck once in 4 times." in page


@pytest.mark.parametrize(
    "changes",
    [
        {"worse": 3, "drawn": [0.81, 0.82, 0.815]},  # both say that the plan is better
        {"moved": {"plan": 0.05, "drawn": [0.04, 0.03, 0.02]}},  # both say that it is not
        {"drawn": [0.88, 0.9, 0.89]},  # the difference is more than chance makes: no excuse
        {"worse": 0, "drawn": [DRAWS["plan"]] * 3},  # by accuracy all are equal: it favours none
        {"moved": None},
    ],
)
def test_what_needs_no_explanation_has_none(changes, run):
    fixture.edited(run / "accuracy.json", chance={**DRAWS, **changes}, interval=[-0.003, 0.039])
    for page in pages(run):
        assert "Is the choice worth it?" in page
        assert WHY not in page


def test_a_plan_that_is_not_the_nearest_is_not_measured_by_luck(run):
    fixture.edited(run / "accuracy.json", chance={**DRAWS, "moved": {"plan": 0.03, "drawn": [0.04, 0.03, 0.02]}})
    assert all("by luck" not in page for page in pages(run))


# What it cost


def test_an_interval_without_width_is_no_certainty(run):
    fixture.edited(run / "accuracy.json", drop=0.0, interval=[0.0, 0.0], upper=0.145, p=1.0)
    cost = content(run).verdict.figures[1]
    assert cost.value == "no drop"
    assert not any("0.0 to 0.0" in line for line in cost.detail)
    for page in pages(run):
        assert "No example differs, so resampling shows no spread: only the drop that the data cannot exclude" in page
        assert "The drop that the data cannot exclude: 14.5 points (one-sided 95 %)." in page


def test_where_every_answer_is_lost_it_is_not_said_that_none_differs(run):
    fixture.edited(run / "accuracy.json", drop=1.0, interval=[1.0, 1.0], upper=1.0, p=0.001)
    for page in pages(run):
        assert "Every example differs by as much, so resampling shows no spread" in page
        assert "o example differs" not in page


def test_where_no_drop_is_possible_the_least_gain_is_said(run):
    fixture.edited(run / "accuracy.json", drop=-0.164, interval=[-0.3, -0.036], upper=-0.054, p=0.04)
    report = content(run)
    assert "surely better, by at least 5.4 points" in report.verdict.figures[1].detail
    assert report.verdict.limits[0].words == "drop at most 2.0 points; surely better, by at least 5.4 points"
    for page in pages(run):
        assert "Surely better, by at least 5.4 points (one-sided 95 %)." in page
        assert "−5.4" not in page


def test_a_metric_that_is_not_read_in_points_is_no_unit_of_the_headline_number(run):
    fixture.edited(run / "accuracy.json", metric="perplexity", higher_is_better=False, drop=170.0, p=0.001)
    assert content(run).verdict.figures[1].value == "170 worse"


def test_drops_where_lower_is_better_are_cut_minus_dense(run, tmp_path):
    for better, said in ((False, "Drop: cut minus dense in points"), (True, "Drop: dense minus cut in points")):
        fixture.edited(run / "accuracy.json", higher_is_better=better, metric="accuracy")
        assert compare([run]).runs[0].higher_is_better is better
        for ending, path in write_comparison([run, run], tmp_path / f"out-{better}").items():
            assert ending == "json" or said in path.read_text()


def test_answers_that_are_numbers_are_shown_as_numbers(run):
    rows = [{"text": "a", "label": 0.123456789, "dense": 1364.4098624691615, "cut": 4982.236398707227}]
    fixture.edited(run / "accuracy.json", changed=rows)
    for page in pages(run):
        assert "1,364" in page
        assert "0.123" in page
        assert "1364.40" not in page


def test_what_stands_beside_the_metric_and_what_was_not_judged_is_shown(run):
    beside = {"exact-match": {"dense": 0.5, "cut": 0.25}}
    fixture.edited(run / "accuracy.json", beside=beside, skipped={"no answer": 1200})
    for page in pages(run):
        assert "Beside it: exact-match 50.0 % → 25.0 %. Not judged: 1,200 no answer." in page
        assert "the same answer for 92.1 %, divergence of the outputs (KL) 0.0340 nats" in page


def test_the_metric_and_the_way_to_an_answer_are_explained(run):
    assert set(MEASURES) <= set(METRICS)
    for page in pages(run):
        assert "Accuracy: the share of right answers. Classes are read from embeddings by a logistic regression" in page
    fixture.edited(run / "accuracy.json", metric="perplexity", kind="causal-lm")
    assert all("Perplexity: between how many next tokens" in page for page in pages(run))
    fixture.edited(run / "accuracy.json", metric="somebody's own", kind="of their own")
    assert all("somebody's own: " not in page.partition("positive drop is worse.")[2][:40] for page in pages(run))


def test_a_walk_that_never_failed_says_what_ended_it(run):
    plan = json.loads((run / "plan.json").read_text())
    steps = [{"heads": heads, "drop": 0.0, "upper": 0.02 * heads, "passed": heads < 3} for heads in (1, 2, 3)]
    for taken, said in ((2, True), (3, False)):
        fixture.write_json(run / "plan.json", plan | {"expected": {"reach": steps[:taken]}})
        for page in pages(run):
            assert ("the walk ended where the recipe lets no more heads go" in page) is said


# What the heads do


def test_every_role_is_explained_by_what_the_evidence_says_of_it(run):
    found = facts_of(run)
    found["facts"] |= {
        "roles": {name: ROLES[name].says for name in fixture.ROLES}, "settings": {"effect": 0.2, "level": 0.05},
    }  # fmt: skip
    fixture.write_json(run / "evidence" / "evidence.json", found)
    for page in pages(run):
        assert "parks its attention on the first token" in page
        assert "(q of at most 0.05: p, corrected for all heads and roles together" in page
        assert "does so by at least 0.20." in page


def test_many_roles_of_ones_own_keep_apart_in_the_map(run):
    path = run / "evidence" / "arrays.safetensors"
    arrays = {name: array for name, array in load_file(path).items() if not name.startswith("roles/")}
    for i in range(8):
        # Every head plays another role; a ninth that none shows takes nobody's colour or letter.
        arrays |= {f"roles/role {i}/{part}": np.eye(8)[i] * 0.5 for part in ("score", "excess")}
        arrays[f"roles/role {i}/assigned"] = np.eye(8, dtype=bool)[i]
    arrays |= {"roles/a role that none plays/score": np.zeros(8)}
    save_file(arrays, path)
    colours = shown_roles(content(run).heads)
    assert len(colours) == 8
    for part in ("light", "dark", "letter", "css"):
        assert len({getattr(colour, part) for colour in colours.values()}) == 8, part


# Speed and proof


def test_the_machines_own_noise_is_drawn_beside_the_ratio(run):
    assert 'class="noise"' not in as_html(content(run))
    rows = json.loads((run / "speed.json").read_text())["rows"]
    fixture.edited(run / "speed.json", rows=[row | {"drift": {"low": 0.97, "high": 1.02}} for row in rows])
    page = as_html(content(run))
    assert page.count('class="noise"') == len(rows)
    assert "Grey: as far as the dense model is from itself (99 %)." in page


@pytest.mark.parametrize("ends", [{"high": 1.25}, {"low": 0.8}, {"low": 0, "high": 1.25}, {"low": 1.1, "high": 1.25}])
def test_a_page_reckons_the_machines_own_noise_alike_wherever_it_speaks_of_it(ends):
    row = {"significant": False, "ratio": {"low": 1.1, "high": 1.2}, "p": 0.01, "drift": ends}
    assert noise(row) == (0.8, 1.25)
    assert "varied up to 1.25×" in doubt(row)
    assert "reach up to 1.25×" in drift({"drift": {"steady": True}, "rows": [row]})
    assert noise({"drift": {}}) is None
    assert "reach" not in drift({"drift": {"steady": True}, "rows": [{"drift": {}}]})


def test_a_proof_that_holds_is_called_passed_beside_its_number(run):
    proof = content(run).verdict.figures[-1]
    assert proof.value == "passed"
    fixture.edited(run / "proof.json", passed=False)
    assert content(run).verdict.figures[-1].value == "failed"


def test_like_maps_are_not_called_interchangeable_and_the_column_of_contexts_is_named(tmp_path):
    run = fixture.write_run(tmp_path / "run")
    path = run / "evidence" / "arrays.safetensors"
    assert "contexts" in as_html(content(run))
    for page in pages(run):
        assert "interchangeable" not in page
        assert "Heads that look alike need not hand on the same: see the column cosine of contexts." in page
    arrays = {n: a for n, a in load_file(path).items() if not n.startswith("similarity/cosine")}
    save_file(arrays, path)
    assert all("hand on the same" not in page for page in pages(run))


def test_groups_that_rest_on_a_text_alone_say_so(tmp_path):
    run = fixture.write_run(tmp_path / "run")
    path = run / "evidence" / "evidence.json"
    found = json.loads(path.read_text())
    unknown = dict.fromkeys(("mean", "low", "high"))
    for blocks, told in ((1, True), (2, False)):
        found["facts"]["clusters"] |= {**unknown, "blocks": blocks}
        path.write_text(json.dumps(found))
        for page in pages(run):
            assert ("The texts are too few to tell whether others would make the same groups." in page) is told


def test_long_names_of_heads_have_room_beside_the_matrix_and_grey_is_explained(tmp_path):
    run = fixture.write_run(tmp_path / "run", {"encoder.self": (1, 3), "decoder.cross": (1, 3)})
    path = run / "evidence" / "arrays.safetensors"
    arrays = dict(load_file(path))
    report = content(run)
    assert "Grey: pairs that cannot be compared." not in as_html(report)
    drawing = draw_matrix(report.similarity, report.heads)
    # Names end at the strip; letters of this size are some 4 units wide.
    assert drawing.strip_x - 5 - 4 * len("decoder.cross.0.2") >= TREE
    matrix = arrays["similarity/pearson"].copy()
    matrix[0, 5] = matrix[5, 0] = np.nan
    save_file(arrays | {"similarity/pearson": matrix}, path)
    assert "Grey: pairs that cannot be compared." in as_html(content(run))


def test_numbers_of_the_trees_axis_leave_one_another_room():
    for highest in (0.04, 0.0499, 0.3, 0.799, 0.85, 0.99, 1.4):
        steps = np.arange(0, highest + 1e-9, _round_step(highest))
        assert 2 <= len(steps) <= 5
        # Digits are some 6 units wide.
        assert _round_step(highest) / highest * (TREE - 12) > 6 * len(f"{steps[1]:g}")


# On paper and in a narrow window


def test_headings_are_printed_with_what_they_head_and_narrow_tables_keep_their_words_whole():
    style = (TEMPLATES / "style.css").read_text(encoding="utf-8")
    screen, _, printed = style.partition("@media print {")
    kept = {name: re.findall(rf"([^{{}}]+){{ {rule}: avoid; }}", printed)[0] for name, rule in RULES.items()}
    assert {"h2", "h3", ".lead"} <= {part.strip() for part in kept["after"].split(",")}
    assert {".lead", ".maps", ".scroll:has(> svg)"} <= {part.strip() for part in kept["inside"].split(",")}
    # A largest width alone lets a column shrink to a word a line where the table is wider than its window.
    assert re.search(r"\.beside {[^}]* width: \d+em", screen)
