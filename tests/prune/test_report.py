"""What the report says of a run, by value."""

from __future__ import annotations

import importlib.util
import json
import math
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from headwise.analysis.errors import BadInput
from headwise.prune.report import content, write
from headwise.prune.report.html import html as as_html
from headwise.prune.report.json import json as as_json
from headwise.prune.report.markdown import markdown as as_markdown

_spec = importlib.util.spec_from_file_location("report_fixture", Path(__file__).with_name("report_fixture.py"))
assert _spec is not None
assert _spec.loader is not None
fixture = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(fixture)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fixture.write_run(tmp_path_factory.mktemp("runs") / "minilm")


# What it says


def test_verdict_names_what_went_what_it_cost_what_it_gained_and_how_sure(run: Path) -> None:
    verdict = content(run).verdict
    assert verdict.headline == (
        "36 of 72 heads are gone: no significant difference in accuracy, 1.01 to 1.22 times as fast in 4 settings, "
        "in 3 of them significantly faster."
    )
    figures = {figure.label: figure for figure in verdict.figures}
    assert figures["Removed"].value == "36 of 72"
    assert figures["Cost"].value == "0.8 points worse"
    assert "95 % interval of the drop −1.3 to 2.8" in figures["Cost"].detail
    assert "the drop that the data cannot exclude: 2.5 points" in figures["Cost"].detail
    assert figures["Gain"].value == "1.01–1.22×"
    assert "the removed operations alone predict 1.21× to 1.23×" in figures["Gain"].detail
    assert figures["Proof"].value == "passed"
    assert "largest relative difference 3.6 × 10⁻⁷ over 6 sites, limit 10⁻⁵" in figures["Proof"].detail
    assert figures["Proof"].tone == "good"


def test_limits_are_judged_by_what_the_data_cannot_exclude(run: Path) -> None:
    limits = {limit.name: limit for limit in content(run).verdict.limits}
    # The measured drop (0.0078) is below the limit of 0.02, its upper bound (0.0252) is not.
    assert limits["drop"].kept is False
    assert limits["speedup"].kept is True


@pytest.mark.parametrize(
    ("accuracy", "words"),
    [
        ({"drop": 0.031, "p": 0.002}, "accuracy 3.1 points worse"),
        ({"drop": -0.031, "p": 0.002}, "accuracy 3.1 points better"),
        ({"drop": 0.031, "p": 0.06}, "no significant difference in accuracy"),
        ({"drop": 2.5, "p": 0.002, "metric": "perplexity"}, "perplexity 2.50 worse"),
        ({"drop": 0.031, "p": None, "interval": [0.01, 0.05]}, "accuracy 3.1 points worse"),
        ({"drop": 0.031, "p": None, "interval": [-0.01, 0.05]}, "no significant difference in accuracy"),
    ],
)
def test_cost_says_significant_only_when_it_is(tmp_path: Path, accuracy: dict, words: str) -> None:
    run = fixture.write_run(tmp_path / "run")
    fixture.edited(run / "accuracy.json", **accuracy)
    assert words in content(run).verdict.headline


def test_an_unsteady_machine_is_said_beside_the_speeds(run: Path) -> None:
    report = content(run)
    words = "The dense model timed against itself differs at 1 × 128: the machine was not steady there."
    for page in (as_html(report), as_markdown(report)):
        assert words in page
        assert "Length 512 is more than the model" in page


def test_heads_carry_plan_score_roles_and_nearest_by_value(run: Path) -> None:
    report = content(run)
    arrays = load_file(run / "evidence" / "arrays.safetensors")
    plan = json.loads((run / "plan.json").read_text())
    assert [h.label for h in report.heads[:2]] == ["0.0", "0.1"]
    assert {h.label for h in report.removed} == {f"{s}.{h}" for s, heads in plan["remove"].items() for h in heads}
    scores = arrays["importance/gradient"]
    for i in (0, 17, 71):
        head = report.heads[i]
        assert head.score == pytest.approx(scores[i])
        assert head.rank == 1 + int((scores > scores[i]).sum())
        assert head.shade == 5 - 5 * (head.rank - 1) // 72 or head.shade == math.ceil((72 - head.rank + 1) / 72 * 5)
        assert head.reason == plan["reasons"][head.site][str(head.head)]
        similarity = arrays["similarity/pearson"][i].copy()
        similarity[i] = -2
        assert head.nearest == report.heads[int(similarity.argmax())].label
        assert head.nearest_value == pytest.approx(similarity.max(), abs=1e-6)
        playing = {role for role in fixture.ROLES if arrays[f"roles/{role}/assigned"][i]}
        assert set(head.roles) == playing
        if playing:
            assert head.role == max(playing, key=lambda role: arrays[f"roles/{role}/excess"][i])


def test_pairs_are_the_strongest_and_carry_every_measure(run: Path) -> None:
    report = content(run)
    assert report.similarity is not None
    arrays = load_file(run / "evidence" / "arrays.safetensors")
    upper = arrays["similarity/pearson"][np.triu_indices(72, 1)]
    top = upper[np.argsort(-np.abs(upper))][:20]
    assert [pair.value for pair in report.similarity.pairs] == pytest.approx(top.tolist())
    labels = [head.label for head in report.heads]
    pair = report.similarity.pairs[0]
    i, j = labels.index(pair.first), labels.index(pair.second)
    assert pair.others["cosine of contexts"] == pytest.approx(arrays["similarity/cosine"][i, j])
    assert pair.chance == 0.0
    assert pair.others["standard error of Hellinger affinity"] == pytest.approx(0.0125)
    assert report.similarity.groups.startswith("Heads are in one group where they are alike by 0.5 on average.")
    assert "by 0.93 (adjusted Rand index: 1 the same groups, 0 chance; 95 % of resamples from 0.86 to 1.00)" in (
        report.similarity.groups
    )
    for render in (as_html, as_markdown):
        assert "by 0.93 (adjusted Rand index" in render(report)


def test_roles_without_a_head_are_listed_too(tmp_path: Path) -> None:
    run = fixture.write_run(tmp_path / "run", pruned=False)
    path = run / "evidence" / "arrays.safetensors"
    arrays = load_file(path)
    arrays["roles/next/assigned"][:] = False
    fixture.save_file(arrays, path)
    role = next(role for role in content(run).roles if role.name == "next")
    assert (role.heads, role.rows) == (0, ())
    assert role.strongest is not None
    assert role.strongest.excess == pytest.approx(float(arrays["roles/next/excess"].max()))


def test_grouped_queries_show_both_counts(tmp_path: Path) -> None:
    run = fixture.write_run(tmp_path / "run", {"": (4, 9)}, kv_share=3)
    stack = content(run).stacks[0]
    removed = json.loads((run / "plan.json").read_text())["remove"]
    in_use = {(s, h // 3) for s in map(str, range(4)) for h in range(9) if h not in removed.get(s, [])}
    assert (stack.heads, stack.kept, stack.kv_heads, stack.kv_groups_kept) == (36, 18, 12, len(in_use))


def test_analysis_alone_gives_heads_similarity_and_roles(tmp_path: Path) -> None:
    run = fixture.write_run(tmp_path / "run", {"encoder.self": (2, 4), "decoder.cross": (2, 4)}, pruned=False)
    report = content(run)
    assert report.kind == "analyze"
    assert [stack.track for stack in report.stacks] == ["encoder.self", "decoder.cross"]
    assert report.verdict.headline.startswith("16 heads in 4 layers")
    assert all(head.kept for head in report.heads)
    pages = write(run)
    assert "What it cost" not in pages["html"].read_text()
    assert "decoder.cross" in pages["md"].read_text()


def test_heads_outside_the_tree_are_not_drawn_in_it(tmp_path: Path) -> None:
    run = fixture.write_run(tmp_path / "run", {"": (2, 3)}, pruned=False)
    path = run / "evidence" / "arrays.safetensors"
    arrays = load_file(path)
    tree = np.array([[0, 1, 0.2, 2], [2, 5, 0.4, 3], [3, 6, 0.9, 4], [4, 7, 1.1, 5]], dtype=np.float64)
    arrays |= {
        "clusters/present": np.array([0, 1, 2, 4, 5]), "clusters/order": np.array([5, 4, 2, 0, 1]),
        "clusters/linkage": tree, "clusters/label": np.array([0, 0, 0, -1, 1, 2]),
    }  # fmt: skip
    fixture.save_file(arrays, path)
    report = content(run)
    assert report.similarity is not None
    assert report.similarity.clusters[0].members == ("0.2", "0.0", "0.1")
    assert report.similarity.clusters[0].start == 2
    assert report.heads[3].cluster is None
    assert as_html(report).count('class="branch"') == 4


# Loading and serving


def test_uneven_heads_are_not_for_engines_that_need_uniform_ones(run: Path) -> None:
    report = content(run)
    answers = {row.where: row.answer for row in report.serving}
    assert answers["headwise"] == "yes"
    assert answers["transformers"] == "yes"
    assert answers["engines that need the same number of heads everywhere"] == "no"
    code = "\n".join(snippet.code for snippet in report.loading)
    assert 'AutoModel.from_pretrained("checkpoint", trust_remote_code=True)' in code
    assert 'SentenceTransformer("checkpoint", trust_remote_code=True)' in code


def test_equal_heads_can_be_saved_native_where_the_config_can_say_so(tmp_path: Path) -> None:
    run = fixture.write_run(tmp_path / "run", {"": (2, 4)}, model_class="LlamaForCausalLM")
    plan = json.loads((run / "plan.json").read_text())
    fixture.edited(run / "plan.json", remove={"0": [1], "1": [2]}, reasons=plan["reasons"])
    fixture.edited(run / "environment.json", serving={"native": True})
    row = content(run).serving[-1]
    assert row.answer == "after saving again"
    fixture.edited(run / "environment.json", serving={"native": False, "native_reason": "head width is hidden / heads"})
    assert (content(run).serving[-1].answer, content(run).serving[-1].how) == ("no", "head width is hidden / heads")


def test_a_plan_that_was_edited_by_hand_is_told_as_that(tmp_path: Path) -> None:
    run = fixture.write_run(tmp_path / "run", {"": (2, 4)})
    reasons = {"0": {"0": "kept: a rule", "1": "number 1 of 1 to go, by random: cost 1"}, "1": {"2": "kept: a rule"}}
    fixture.edited(run / "plan.json", remove={"0": [1]}, reasons=reasons)
    assert not [note for note in content(run).notes if "by hand" in note]
    fixture.edited(run / "plan.json", remove={"0": [0], "1": [2]}, reasons=reasons)
    report = content(run)
    assert report.notes[0].startswith("The plan was edited by hand; heads added to those that go: 2, taken out: 1.")
    told = {head.label: head.reason for head in report.heads if head.reason}
    assert told == {
        "0.0": "removed by hand; decided: kept: a rule",
        "0.1": "kept by hand; decided: number 1 of 1 to go, by random: cost 1",
        "1.2": "removed by hand; decided: kept: a rule",
    }


def test_native_checkpoint_needs_no_flag(tmp_path: Path) -> None:
    made = {"model_class": "LlamaForCausalLM", "auto_class": "AutoModelForCausalLM"}
    run = fixture.write_run(tmp_path / "run", **made)
    for name in ("modeling_headwise.py", "headwise.json", "modules.json"):
        (run / "checkpoint" / name).unlink()
    report = content(run)
    assert [row.answer for row in report.serving] == ["yes"] * 3
    assert report.loading[1].code.endswith('AutoModelForCausalLM.from_pretrained("checkpoint")')


# One content, three pages


def test_json_is_the_content(run: Path) -> None:
    report = content(run)
    found = json.loads(as_json(report))
    assert found["verdict"]["headline"] == report.verdict.headline
    assert found["accuracy"] == json.loads((run / "accuracy.json").read_text())
    assert [head["label"] for head in found["heads"]] == [head.label for head in report.heads]
    assert found["heads"][5]["numbers"]["entropy"] == report.heads[5].numbers["entropy"]
    assert "matrix" not in found["similarity"]


def test_numbers_that_are_not_finite_are_null_and_pages_still_show(tmp_path: Path) -> None:
    run = fixture.write_run(tmp_path / "run", {"": (2, 4)})
    path = run / "evidence" / "arrays.safetensors"
    arrays = load_file(path)
    for name, array in arrays.items():
        if array.dtype.kind == "f" and name != "clusters/linkage":
            array[1] = np.nan
    fixture.save_file(arrays, path)
    (run / "proof.json").write_text('{"worst": Infinity, "limit": 1e-5, "sites": {"0": Infinity}, "passed": false}')
    report = content(run)
    assert report.notes[-1].startswith("The proof failed")
    found = json.loads(as_json(report), parse_constant=lambda name: pytest.fail(f"{name} in the JSON"))
    assert found["heads"][1]["numbers"]["entropy"] is None
    assert "nan" not in re.sub(r"data:image[^\"]+|data-values=\"[^\"]+\"", "", as_html(report)).lower()


@pytest.mark.parametrize(
    "missing",
    [
        "accuracy.json",
        "speed.json",
        "proof.json",
        "compensation.json",
        "environment.json",
        "evidence",
        "recipe.yaml",
        "checkpoint",
    ],
)
def test_a_missing_file_is_said_and_the_rest_is_shown(tmp_path: Path, missing: str) -> None:
    run = fixture.write_run(tmp_path / "run", {"": (2, 4)})
    shutil.rmtree(run / missing) if (run / missing).is_dir() else (run / missing).unlink()
    report = content(run)
    assert len(report.heads) == 8
    assert report.verdict.headline.startswith("4 of 8 heads are gone")
    assert bool(report.notes) == (missing not in ("compensation.json", "environment.json", "recipe.yaml"))
    write(run)


def test_a_search_that_the_clock_stopped_is_said(tmp_path: Path) -> None:
    run = fixture.write_run(tmp_path / "run", {"": (2, 4)})
    for reproducible, said in ((True, False), (False, True)):
        fixture.edited(run / "plan.json", expected={"search": {"kind": "counts", "reproducible": reproducible}})
        assert any("stopped by the clock" in note for note in content(run).notes) is said
        assert ("stopped by the clock" in as_html(content(run))) is said


def test_optional_fields_may_be_absent(tmp_path: Path) -> None:
    run = fixture.write_run(tmp_path / "run", {"": (2, 4)})
    bare = {
        "metric": "perplexity",
        "higher_is_better": False,
        "dense": {"value": 20.0},
        "cut": {"value": 22.0},
        "drop": 2.0,
    }
    (run / "accuracy.json").write_text(json.dumps(bare))
    row = {"batch": 1, "length": 8, "dense_ms": {"median": 2.0}, "cut_ms": {"median": 1.0}, "ratio": {"median": 2.0}}
    (run / "speed.json").write_text(json.dumps({"rows": [row]}))
    pages = write(run)
    assert "22.0" in pages["html"].read_text()
    assert "22.0" in pages["md"].read_text()


def test_all_that_was_measured_is_on_every_page(tmp_path: Path) -> None:
    run = fixture.write_extras(fixture.write_run(tmp_path / "run", {"": (2, 4)}))
    report = content(run)
    pages = (as_html(report), as_markdown(report).replace("\\", ""))
    for words in (
        "attention blocks alone", "1.75×", "time to the first token", "each further token", "peak memory of a forward",
        "5.0 MB", "tokens a second, 1 × 32", "+25.0 %", "cache of the prompt", "2.0 kB", "kernel sdpa, float32, on cpu",
        "with 2 threads, not compiled", "Kendall's tau 0.81 (95 % of them 0.77 to 0.85",
        "75.0 % of the 3 heads that went go again (50.0 % to 100.0 %; 37.5 % would by chance), 1 of them",
        "By text.", "2 heads that stayed score exactly as one that went", "causal", "the loss on repeated words",
        "0.1, 0.2",
        "no behaviour is known for it", "Of the 2 heads that stayed, 1 has other roles",
        "Not looked for again (keep.roles has it done): ", "self 0.31 → 0.00", "entropy",
        "0.2: 1.00 → 1.90", "asked for at most 160 ms at 8 × 128: the latency table forecast 152 ms, measured 153 ms",
        "batch 8, length 128, device cpu", "by at most 2.3 %",
        "trained (distil, updates of rank 8 merged in) for 2 epochs on 70 texts: the loss on 10 held-out texts went from "
        "0.500 to 0.250. On the texts that judge, accuracy was 71.0 % (drop 25.0) before the training and is ",
    ):  # fmt: skip
        for page in pages:
            assert words in page.replace("&#39;", "'"), words
    found = json.loads(as_json(report))
    assert found["interventions"][0]["role"] == "previous"
    assert found["interventions"][0]["high"] == 0.3
    assert found["stability"]["tau"] == 0.81
    assert found["stability"]["again"]["share"] == 0.75
    assert found["drift"]["changed"][0]["head"] == "0.1"
    assert found["speed"]["attention"]["operation_ratio"] == 1.75
    assert found["speed"]["memory"] == {"dense": 5_000_000, "cut": 4_000_000}


def test_what_makes_a_role_is_said_whole_and_an_unknown_interval_is_one_dash(tmp_path: Path) -> None:
    run = fixture.write_run(tmp_path / "run", {"": (2, 4)})
    path = run / "evidence" / "arrays.safetensors"
    arrays = load_file(path)
    for end in ("low", "high"):
        arrays[f"roles/self/{end}"] = np.full(8, np.nan)
    save_file(arrays, path)
    report = content(run)
    for page in (as_html(report), as_markdown(report)):
        assert "surely stands above the chance level" in page
        assert "does so by 0.10 or what the analysis was asked for" in page
        assert "– to –" not in page


def test_small_p_values_are_below_a_limit_and_equal_to_none(tmp_path: Path) -> None:
    run = fixture.write_run(tmp_path / "run", {"": (2, 4)})
    accuracy = json.loads((run / "accuracy.json").read_text())
    for p, said in ((0.0002, "p < 0.001"), (0.25, "p = 0.25")):
        (run / "accuracy.json").write_text(json.dumps({**accuracy, "p": p}))
        report = content(run)
        for page in (as_html(report), as_markdown(report)):
            assert f": {said}" in page.replace("&lt;", "<")
            assert "= <" not in page.replace("&lt;", "<")


def test_what_was_chosen_again_is_the_greedy_removal_where_a_search_went_on_from_it(tmp_path: Path) -> None:
    run = fixture.write_extras(fixture.write_run(tmp_path / "run", {"": (2, 4)}))
    plan = json.loads((run / "plan.json").read_text())
    for kind, which in (
        ("counts", "the 3 heads that greedy removal takes, before any search, go"),
        ("greedy", "that went go"),
    ):
        plan["budget"] = {"heads": 3, "search": {"kind": kind}}
        (run / "plan.json").write_text(json.dumps(plan))
        assert f"{which} again (50.0 %" in as_markdown(content(run)).replace("\\", "")


def test_a_training_that_brought_nothing_and_rows_left_out_are_said(tmp_path: Path) -> None:
    run = fixture.write_extras(fixture.write_run(tmp_path / "run", {"": (2, 4)}))
    fixture.edited(run / "recovery.json", kind="finetune", loss={"before": 0.5, "after": 0.5}, lora=None)
    texts = {"count": 60, "source": "a.csv", "rows": 63, "skipped": {"empty text": 2, "no label": 1}}
    fixture.edited(run / "environment.json", texts={"calibration": texts})
    report = content(run)
    for page in (as_html(report), as_markdown(report)):
        assert "trained (finetune) for 2 epochs on 70 texts: no epoch lowered the loss on 10 held-out texts" in page
        assert "Decided on 60 texts of a.csv (63 rows read; left out: 2 empty text, 1 no label)." in page
    (run / "recovery.json").unlink()
    assert "it was trained" not in as_html(content(run)) + as_markdown(content(run))


def test_what_a_metric_without_labels_says_is_on_every_page(tmp_path: Path) -> None:
    run = fixture.write_run(tmp_path / "run", {"": (2, 4)})
    meaning = "the share of predictions that are equal; no labels judge"
    fixture.edited(run / "accuracy.json", metric="agreement", meaning=meaning, n=64, flips={"lost": 13, "gained": 0})
    report = content(run)
    assert meaning in str(report.verdict.figures[1])
    for page in (as_html(report), as_markdown(report)):
        assert f"Agreement: {meaning}." in page
        assert "Of 64 answers, 13 are not those of the dense model." in page
        assert "from right to wrong" not in page


def test_a_search_that_the_clock_stopped_is_marked(tmp_path: Path) -> None:
    run = fixture.write_run(tmp_path / "run", {"": (2, 4)})
    assert "not reproducible" not in as_html(content(run))
    expected = json.loads((run / "plan.json").read_text())["expected"]
    fixture.edited(run / "plan.json", expected=expected | {"search": {"reproducible": False}})
    report = content(run)
    assert "It is not reproducible." in as_html(report)
    assert "It is not reproducible." in as_markdown(report)


@pytest.mark.parametrize(
    ("description", "shown"),
    [("", None), ("description: ''\n", None), ("description: |\n\n  Two\n  lines: here\n", "recipe: Two")],
)
def test_a_recipe_is_described_only_if_it_says_something(tmp_path: Path, description: str, shown: str | None) -> None:
    run = fixture.write_run(tmp_path / "run", {"": (2, 4)})
    (run / "recipe.yaml").write_text(f"schema: 1\n{description}score: {{kind: random}}\n")
    line = as_markdown(content(run)).splitlines()[2]
    assert (shown in line) if shown else ("recipe:" not in line)


def test_writing_replaces_all_three_or_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = fixture.write_run(tmp_path / "run", {"": (2, 4)})
    pages = write(run)
    assert sorted(path.name for path in pages.values()) == ["report.html", "report.json", "report.md"]
    before = {path: path.read_bytes() for path in pages.values()}
    fixture.edited(run / "accuracy.json", n=7)
    writes = iter(range(10))

    def full(_: int) -> None:
        if next(writes) == 2:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(BadInput, match="No space left"):
        write(run)
    assert {path: path.read_bytes() for path in pages.values()} == before
    assert not [path for path in run.iterdir() if path.name.startswith(".report")]


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("accuracy.json", "{", "accuracy.json: cannot be read as JSON"),
        ("speed.json", "[1]", "speed.json: holds a list, expected an object"),
        ("recipe.yaml", "a: [", "recipe.yaml:1: not YAML"),
        ("evidence/arrays.safetensors", "no", "evidence"),
        ("plan.json", '{"schema": 1, "remvoe": {}}', "plan.json is not a valid plan"),
    ],
)
def test_a_broken_file_is_named(tmp_path: Path, name: str, text: str, words: str) -> None:
    run = fixture.write_run(tmp_path / "run", {"": (2, 4)})
    (run / name).write_text(text)
    with pytest.raises(BadInput, match=re.escape(words)):
        content(run)


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"neither evidence/evidence\.json nor plan\.json"):
        content(tmp_path)
