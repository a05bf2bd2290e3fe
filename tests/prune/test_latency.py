"""Latency tables: fitted to planted times, taken, kept, checked; and runs that reach for a time by one."""

import json
import logging
import re

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headwise.analysis.errors import BadInput
from headwise.analysis.sites import find_sites
from headwise.prune.checkpoint import load
from headwise.prune.cli import main
from headwise.prune.opening import open_checkpoint, weights_hash
from headwise.prune.plan import Plan
from headwise.prune.recipe import Recipe, RecipeError
from headwise.prune.speed import latency_taking
from headwise.prune.speed.latency import Latency, Timed, fitted
from headwise.prune.speed.latency_taking import latency_table, setting_of, take
from tests.prune import tiny_run


def llama():
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 40}
    return LlamaForCausalLM(LlamaConfig(vocab_size=50, num_key_value_heads=2, head_dim=8, **sizes)).eval()


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return tiny_run.checkpoint(tmp_path_factory.mktemp("model"))


def planted(monkeypatch, price, base=2.0, noise=0.0):
    """Every model takes `base` ms and, for each site, what `price` says of its heads; how often is told."""
    asked = []

    def interleaved(work, *_):
        asked.append(list(work))
        rng = np.random.default_rng(0)
        seconds = {
            name: 1e-3 * (base + sum(price[len(site.kept)] for site in find_sites(call.func).values()))
            for name, call in work.items()
        }
        return {n: np.full(6, t) * (1 + noise * rng.normal(size=6)) for n, t in seconds.items()}, {}, True

    monkeypatch.setattr(latency_taking, "interleaved", interleaved)
    return asked


def test_a_planted_table_is_found(monkeypatch, checkpoint):
    model = load(checkpoint)
    before = weights_hash(model)
    asked = planted(monkeypatch, [0.0, 0.5, 0.7, 0.7, 1.5])
    sites = find_sites(model)
    setting = setting_of(model, before, 2, 8, "group")
    table = take(model, sites, setting)
    assert table.total == pytest.approx(2.0 + 2 * 1.5)
    for row in table.rows.values():
        np.testing.assert_allclose(row, [0, 0, 0.2, 0.2, 1.0], atol=1e-9)
    assert table.off < 1e-9
    assert len(asked[0]) == 4  # as it is, and with one, two and three heads everywhere
    assert weights_hash(model) == before
    assert all(site.kept == (0, 1, 2, 3) for site in find_sites(model).values())
    assert {name: setting[name] for name in ("batch", "length", "dtype", "threads", "device")} == {
        "batch": 2, "length": 8, "dtype": "float32", "threads": 1, "device": "cpu"
    }  # fmt: skip


@pytest.mark.parametrize("unit", ["group", "even"])
def test_versions_lose_whole_units_and_share_what_no_head_owns(monkeypatch, unit):
    model = llama()
    seen = []

    def interleaved(work, *_):
        seen.extend(call.func for call in work.values())
        return {name: np.ones(6) for name in work}, {}, True

    monkeypatch.setattr(latency_taking, "interleaved", interleaved)
    table = take(model, find_sites(model), setting_of(model, "x", 1, 8, unit))
    assert [set(way.heads.values()) for way in table.measured] == [{2}]
    smaller = seen[1]
    kept = {"group": (2, 3), "even": (1, 3)}[unit]
    assert [site.kept for site in find_sites(smaller).values()] == [kept, kept]
    assert smaller.lm_head.weight is model.lm_head.weight
    assert smaller.model.layers[0].self_attn.q_proj.weight is not model.model.layers[0].self_attn.q_proj.weight
    assert (smaller.model.layers[0].self_attn.k_proj.weight.shape[0] == 8) == (unit == "group")


@given(st.lists(st.floats(1, 20), min_size=3, max_size=3), st.floats(1, 20))
@settings(max_examples=40, deadline=None)
def test_more_heads_never_take_less_whatever_was_timed(times, total):
    ways = [Timed(heads={"0": k, "1": k}, milliseconds=t) for k, t in zip((1, 2, 3), times, strict=True)]
    rows, said, off = fitted(total, ways, {"0": 4, "1": 4}, {"0": "a", "1": "a"}, {"0": 4, "1": 4})
    assert rows["0"] == rows["1"]
    assert all(low <= high + 1e-12 for low, high in zip(rows["0"], rows["0"][1:], strict=False))
    assert said > 0
    ascending = sorted(times) == times and total >= max(times)
    if ascending:
        assert off < 1e-6, "what could be is fitted exactly"
        assert said - 2 * rows["0"][4] == pytest.approx(times[0])


def test_blocks_of_another_shape_or_with_fewer_heads_have_rows_of_their_own():
    price = {"a": [0, 0, 1.0, 2.0, 4.0], "b": [0, 0, 3.0]}
    now, alike, dense = {"0": 4, "1": 3, "2": 2}, {"0": "a", "1": "a", "2": "b"}, {"0": 4, "1": 4, "2": 2}
    ways = []
    for changed in ({"0": 1, "1": 1}, {"0": 2, "1": 2}, {"0": 3, "1": 3}, {"2": 1}):
        counts = {**now, **changed}
        ways.append(Timed(heads=changed, milliseconds=5 + sum(price[alike[b]][n] for b, n in counts.items())))
    rows, total, off = fitted(14.0, ways, now, alike, dense)
    assert off < 1e-9
    assert total == pytest.approx(14)
    np.testing.assert_allclose(rows["0"], [0, 0, 1, 2, 4], atol=1e-9)
    np.testing.assert_allclose(rows["1"], [0, 0, 1, 2, 2], atol=1e-9)  # the fourth head is gone already
    np.testing.assert_allclose(rows["2"], [0, 0, 3], atol=1e-9)


def test_a_table_is_taken_once_for_a_setting_and_again_if_broken(monkeypatch, checkpoint, tmp_path, caplog):
    model, taken = load(checkpoint), []

    def taking(model, sites, setting, **_):
        taken.append(setting)
        return Latency(setting=setting, total=9.0, rows=dict.fromkeys(sites, (0.0, 0.0, 1.0, 2.0, 3.0)), measured=())

    monkeypatch.setattr(latency_taking, "take", taking)
    sites, setting = find_sites(model), setting_of(model, "hash", 1, 8, "group")
    first = latency_table(model, sites, setting, folder=tmp_path)
    assert latency_table(model, sites, setting, folder=tmp_path) == first
    assert len(taken) == 1
    for other in ({"length": 16}, {"model": "other"}, {"threads": 9}, {"torch": "0"}, {"dtype": "bfloat16"}):
        latency_table(model, sites, {**setting, **other}, folder=tmp_path)
        assert taken[-1] == {**setting, **other}
    assert len(taken) == 6
    for path in tmp_path.iterdir():
        path.write_text("{")
    assert latency_table(model, sites, setting, folder=tmp_path) == first
    assert "it is taken again" in caplog.text
    in_the_way = tmp_path / "file"
    in_the_way.write_text("")
    assert latency_table(model, sites, setting, folder=in_the_way) == first
    assert "could not be kept" in caplog.text


def test_the_users_cache_folder_is_used(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert latency_taking.cache_folder() == tmp_path / "headwise" / "latency"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert latency_taking.cache_folder().parts[-3:] == (".cache", "headwise", "latency")


def test_a_table_of_something_else_is_refused(checkpoint, caplog):
    model = load(checkpoint)
    sites, setting = find_sites(model), setting_of(model, "hash", 1, 8, "group")
    rows = dict.fromkeys(sites, (0.0, 0.0, 1.0, 2.0, 3.0))
    table = Latency(setting=setting, total=9.0, rows=rows, measured=())
    table.check(sites, setting)
    assert not caplog.text
    for name, value in (("model", "x"), ("batch", 3), ("length", 9), ("unit", "even")):
        with pytest.raises(BadInput, match=f"mine.json is for {name}"):
            table.check(sites, {**setting, name: value}, "mine.json")
    with pytest.raises(BadInput, match="does not fit site '0'"):
        table.model_copy(update={"rows": {**rows, "0": (0.0, 1.0)}}).check(sites, setting)
    with caplog.at_level(logging.WARNING):
        table.check(sites, {**setting, "processor": "another", "threads": 7})
    assert "another threads, processor" in caplog.text
    with pytest.raises(BadInput, match=r"positions do not allow|more than the model's positions"):
        take(model, sites, {**setting, "length": 500})


@pytest.mark.parametrize(
    "content", ["{", '{"schema": 1}', '{"schema": 2, "setting": {}, "total": 1, "rows": {}}', "\xff"]
)
def test_what_is_no_table_is_said(tmp_path, content):
    path = tmp_path / "latency.json"
    path.write_text(content, encoding="latin-1")
    with pytest.raises(BadInput, match="no latency table"):
        Latency.load(path)


RECIPE = """schema: 1
data: {calibration: {source: TEXTS, text: text, label: label}, batch_size: 8}
score: {kind: magnitude}
reach: {milliseconds: 6.5, batch: 2, length: 8, table: planted.json}
compensate: {kind: none}
speed: {batches: [1], lengths: [8], rounds: 3}
"""


@pytest.fixture(scope="module")
def place(checkpoint, tmp_path_factory):
    """A recipe with a planted table beside it: 10 ms, a millisecond a head of the first site, half one of the second."""
    folder = tmp_path_factory.mktemp("recipe")
    tiny_run.table(folder / "texts.jsonl")
    (folder / "fast.yaml").write_text(RECIPE.replace("TEXTS", str(folder / "texts.jsonl")))
    opened = open_checkpoint(str(checkpoint))
    setting = setting_of(opened.model, opened.facts["hash"], 2, 8, "group")
    rows = {"0": (0.0, 0.0, 1.0, 2.0, 3.0), "1": (0.0, 0.0, 0.5, 1.0, 1.5)}
    Latency(setting=setting, total=10.0, rows=rows, measured=()).save(folder / "planted.json")
    return folder


def test_a_run_reaches_a_time_and_is_repeated_by_its_table(checkpoint, place, tmp_path, capsys):
    done = tmp_path / "run"
    words = ["prune", str(checkpoint), "-r", str(place / "fast.yaml"), "--output-dir"]
    assert main([*words, str(done), "--quiet"]) == 0
    plan = Plan.load(done / "plan.json")
    # 3.5 ms are to be saved: three heads of the first site give 3, so one of the second goes, too.
    assert {site: len(heads) for site, heads in plan.remove.items()} == {"0": 3, "1": 1}
    assert plan.expected["milliseconds"] == {"now": 10.0, "then": 6.5, "off": 0.0, "steady": True}
    assert plan.budget["milliseconds"] == 6.5
    assert Latency.load(done / "latency.json") == Latency.load(place / "planted.json")
    speed = json.loads((done / "speed.json").read_text())
    assert speed["forecast"]["asked"] == speed["forecast"]["then"] == 6.5
    assert speed["forecast"]["measured"]["median"] > 0
    assert [(row["batch"], row["length"]) for row in speed["rows"]] == [(1, 8), (2, 8)]
    assert "the latency table forecast 6.5 ms" in (done / "report.html").read_text()
    assert "table: latency.json" in (done / "recipe.yaml").read_text()
    again = tmp_path / "again.json"
    assert main(["plan", "-r", str(done / "recipe.yaml"), "--output", str(again), "--quiet"]) == 0
    repeated = Plan.load(again)
    assert (repeated.remove, repeated.expected, repeated.score) == (plan.remove, plan.expected, plan.score)
    assert Recipe.load(done / "recipe.yaml").time == Recipe.load(place / "fast.yaml").time


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            "reach.milliseconds=4",
            r"fast.yaml.*reach: 4 ms at batch 2 x 8 tokens cannot be reached.*milliseconds: 5\.5 ",
        ),
        ("reach.milliseconds=20", "is no limit: the model takes 10 ms"),
        ("keep={minimum_per_site: 3}", r"milliseconds: 8\.5 with"),
        ("remove.heads=3", r"within remove \(3 heads\).*milliseconds: 7 with"),
        ("reach.table=nowhere.json", "nowhere.json: cannot read the latency table"),
    ],
)
def test_what_cannot_be_reached_is_refused_before_texts_are_read(checkpoint, place, tmp_path, capsys, change, said):
    target = tmp_path / "run"
    words = ["prune", str(checkpoint), "-r", str(place / "fast.yaml"), "--set", change, "--output-dir", str(target)]
    assert main([*words, "--set", "data.calibration.source=/nowhere.txt", "--quiet"]) == 2
    error = " ".join(capsys.readouterr().err.split())
    assert re.search(said, error), error
    assert "nowhere.txt" not in error
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("reach: {milliseconds: 3, drop: 0.1}", "exactly one of drop, milliseconds"),
        ("reach: {}", "exactly one of drop, milliseconds"),
        ("reach: {drop: 0.1, batch: 3}", "batch belong to milliseconds"),
        ("reach: {milliseconds: 0}", "greater than 0"),
        ("reach: {miliseconds: 3}", "did you mean 'milliseconds'"),
        ("reach: {milliseconds: 3}\nremove: {cache: 0.5}", "bounded by heads or fraction"),
        ("search: {kind: cuonts}", "did you mean 'counts'"),
        ("search: exchange", "expected a mapping such as {kind: exchange}"),
        ("search: {kind: counts}\nscope: uniform", "takes scope: model"),
        ("search: {kind: counts}\nreach: {drop: 0.1}", "set evaluations: 0"),
        ("search: {kind: exchange, evaluations: 3}", "unknown field"),
    ],
)
def test_mistakes_are_told_with_their_line(text, said):
    with pytest.raises(RecipeError, match=r"my.yaml:\d: .*" + said):
        Recipe.from_text(f"schema: 1\nscore: {{kind: random}}\n{text}", "my.yaml")


def test_another_result_takes_the_place_of_the_recipes():
    text = "schema: 1\nscore: {kind: random}\nreach: {milliseconds: 3, batch: 2}"
    assert Recipe.from_text(text, overrides=["reach.milliseconds=5"]).time.batch == 2
    bare = "schema: 1\nscore: {kind: random}"
    assert Recipe.from_text(bare, overrides=["reach.batch=2", "reach.milliseconds=5"]).time.batch == 2
    changed = Recipe.from_text(text, overrides=["reach.drop=0.1"])
    assert (changed.reach.drop, changed.time) == (0.1, None)
    with pytest.raises(RecipeError, match=r"--set reach.milliseconds=4: .*only one can hold"):
        Recipe.from_text(text, overrides=["reach.drop=0.1", "reach.milliseconds=4"])


def test_unequal_groups_have_no_table():
    from headwise.prune.recipe import check_against

    recipe = Recipe.from_text("schema: 1\nscore: {kind: random}\nreach: {milliseconds: 3}\nunit: head", "my.yaml")
    with pytest.raises(RecipeError, match=r"my.yaml:4: unit: .*use unit group or even"):
        check_against(recipe, find_sites(llama()))


def test_a_table_is_really_taken_and_a_plan_made_by_it(checkpoint, place, tmp_path, monkeypatch, capsys):
    """No planted times: whatever this machine needs, a little less is asked and foreseen."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    opened = open_checkpoint(str(checkpoint))
    sites, setting = find_sites(opened.model), setting_of(opened.model, opened.facts["hash"], 8, 24, "group")
    table = latency_table(opened.model, sites, setting, rounds=4, seconds=2)
    assert table.total > 0
    saved = sum(row[-1] for row in table.rows.values())
    assert all(list(row) == sorted(row) for row in table.rows.values())
    if saved == 0:
        pytest.skip("on this machine the heads of so small a model take no time that can be measured")
    words = [
        "plan",
        str(checkpoint),
        "-r",
        str(place / "fast.yaml"),
        "--output",
        str(tmp_path / "plan.json"),
        "--quiet",
    ]
    asked = {"milliseconds": table.total - saved / 2, "batch": 8, "length": 24}
    assert main([*words, "--set", f"reach={json.dumps(asked)}"]) == 0
    plan = Plan.load(tmp_path / "plan.json")
    assert plan.count > 0
    assert plan.expected["milliseconds"]["then"] <= asked["milliseconds"]
    assert Latency.load(tmp_path / "plan.latency.json") == table
