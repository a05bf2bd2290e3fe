"""Damaged run folders: one clear message that names the file, or a page; never a fault of our own."""

import copy
import json
import random

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from headwise.analysis.errors import BadInput
from headwise.prune.cli import main
from headwise.prune.report import content
from headwise.prune.report.html import html
from headwise.prune.report.json import json as as_json
from headwise.prune.report.markdown import markdown
from tests.prune.report_fixture import write_extras, write_run

WRONG = [None, "x", "", [], {}, [[]], {"a": 1}, -1, 0, 7.5, 10**30, 1e308, float("nan"), float("inf"), True]
FILES = (
    "accuracy.json", "speed.json", "proof.json", "compensation.json", "environment.json", "plan.json",
    "evidence/evidence.json", "stability.json", "drift.json", "latency.json", "recovery.json",
)  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return write_extras(write_run(tmp_path_factory.mktemp("runs") / "run", {"": (1, 3)}))


def places(value, path=()):
    """The path of everything in a document but its root."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in items:
        yield (*path, key)
        yield from places(part, (*path, key))


def damaged(document, path, wrong):
    found = copy.deepcopy(document)
    inner = found
    for key in path[:-1]:
        inner = inner[key]
    if wrong is KeyError:
        del inner[path[-1]]
    else:
        inner[path[-1]] = wrong
    return found


def cases(run):
    for name in FILES:
        document = json.loads((run / name).read_text())
        for path in places(document):
            for wrong in (*WRONG, KeyError):
                yield name, path, wrong


def pages_or_one_message(run, name):
    try:
        report = content(run)
    except BadInput as problem:
        if name.partition("/")[0] not in str(problem) and str(run) not in str(problem):
            pytest.fail(f"{name} is not named: {problem}")
        return False
    for page in (html(report), markdown(report), as_json(report)):
        assert page
    return True


def tried(run, chosen):
    shown, faults = 0, []
    for name, path, wrong in chosen:
        file = run / name
        before = file.read_text()
        try:
            file.write_text(json.dumps(damaged(json.loads(before), path, wrong)))
            shown += pages_or_one_message(run, name)
        except Exception as error:
            # All of them at once: every way takes minutes.
            faults.append(f"{name}: {path} = {wrong!r}: {type(error).__name__} {str(error)[:200]}")
        finally:
            file.write_text(before)
    assert not faults, "\n".join(faults)
    return shown


def test_any_field_may_be_wrong(run):
    everything = list(cases(run))
    assert len(everything) > 3000
    ways = len(WRONG) + 1
    fields, rng = [everything[start : start + ways] for start in range(0, len(everything), ways)], random.Random(0)
    assert 0 < tried(run, [rng.choice(field) for field in fields]) < len(fields)


@pytest.mark.slow
def test_every_field_may_be_wrong_in_every_way(run):
    assert tried(run, cases(run)) > 0


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("text", ["", "{", "[]", "3", "null", "[" * 100_000, "\x00\xff"], ids=range(7))
def test_any_file_may_be_broken(name, text, run, capsys):
    before = (run / name).read_text()
    try:
        (run / name).write_text(text, encoding="latin-1")
        assert main(["report", str(run)]) == 2
    finally:
        (run / name).write_text(before)
    error = capsys.readouterr().err
    assert name.partition("/")[0] in error
    assert "internal" not in error


@pytest.mark.parametrize(
    "text", ["- 1", "a: [", "a: " + "[" * 5000, "a: &a [1]\nb: *a", "\x00", "a: 1\na: 2", "x" * 300_000]
)
def test_a_recipe_may_be_broken(text, run, tmp_path, capsys):
    before = (run / "recipe.yaml").read_text()
    try:
        (run / "recipe.yaml").write_text(text)
        code = main(["report", str(run)])
    finally:
        (run / "recipe.yaml").write_text(before)
    error = capsys.readouterr().err
    assert code == (0 if "*a" in text else 2)
    assert code == 0 or "recipe.yaml" in error
    assert len(error) < 2000


ARRAYS = {
    "similarity/pearson": lambda a: a[:-1], "roles/self/score": lambda a: a[:, None], "clusters/order": lambda a: a + 1,
    "clusters/present": lambda a: a[::-1].copy(), "clusters/linkage": lambda a: a * 0, "clusters/label": lambda a: a[:1],
    "statistics/entropy": lambda a: a[:1], "clusters/representative": lambda a: np.stack([a, a]),
    "similarity/pearson_chance": lambda a: a[:, 0].copy(), "similarity_error/hellinger": lambda a: a[:-1],
}  # fmt: skip


@pytest.mark.parametrize("name", ARRAYS)
def test_arrays_that_do_not_fit_are_named(name, run, tmp_path):
    file = run / "evidence" / "arrays.safetensors"
    before = load_file(file)
    try:
        save_file(before | {name: ARRAYS[name](before[name])}, file)
        with pytest.raises(BadInput, match=name):
            content(run)
    finally:
        save_file(before, file)


def test_heads_must_be_those_of_the_plan(run):
    file = run / "plan.json"
    before = file.read_text()
    try:
        file.write_text(json.dumps(json.loads(before) | {"remove": {"7": [1]}}))
        with pytest.raises(BadInput, match=r"removes head 7\.1, which is not among its heads"):
            content(run)
    finally:
        file.write_text(before)
