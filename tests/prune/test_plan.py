import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from headwise.analysis.errors import BadInput, CannotCut
from headwise.analysis.sites import Site
from headwise.prune.plan import Plan


def site(name, heads=4, **more):
    facts = {"module": f"l.{name}", "output": f"l.{name}.o", "kv_heads": heads, "head_dim": 8}
    return Site(name, heads=heads, kept=tuple(range(heads)), **{**facts, **more})


SITES = {name: site(name) for name in "01"}


@given(st.dictionaries(st.sampled_from("0123"), st.sets(st.integers(0, 99), min_size=1).map(list)))
def test_a_saved_plan_is_read_back(tmp_path_factory, remove):
    plan = Plan(model="m", remove=remove, reasons={"0": {3: "why"}}, score={"0": [0.5, 1e-9, None]})
    assert Plan.load(plan.save(tmp_path_factory.mktemp("plan") / "plan.json")) == plan


def test_the_file_is_small_and_readable(tmp_path):
    path = Plan(remove={"10": [2, 1]}, score={"10": [0.25, float("nan"), 1e-9, -3.0]}).save(tmp_path / "p")
    text = path.read_text()
    assert '"10": [1, 2]' in text
    assert '"10": [0.25, null, 1e-09, -3.0]' in text
    assert json.loads(text)["schema"] == 1


@pytest.mark.parametrize("heads", [[-1], [1, 1], [], ["1"], [1.0], [True], "12", [None]], ids=lambda heads: repr(heads))
def test_heads_must_be_distinct_counting_numbers(heads):
    with pytest.raises(ValidationError):
        Plan(remove={"0": heads})


def test_all_mistakes_of_a_file_are_named_at_once(tmp_path):
    path = tmp_path / "plan.json"
    path.write_text('{"schema": 2, "remove": {"0": [-1, "a"]}, "colour": 1}')
    with pytest.raises(BadInput) as caught:
        Plan.load(path)
    for part in (str(path), "schema", "remove.0.0", "remove.0.1", "colour"):
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("content", "said"),
    [("{", ":1: not JSON"), ('{"remove": {"0": [1], "0": [2]}}', "'0' stands twice"), (None, "cannot read")],
)
def test_unreadable_files_are_bad_input(tmp_path, content, said):
    path = tmp_path / "plan.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(BadInput, match=said):
        Plan.load(path)


def test_check_names_every_misfit_and_the_valid_sites():
    with pytest.raises(BadInput) as caught:
        Plan(remove={"7": [0], "1": [0, 4]}).check(SITES)
    assert "'7': no such site; the model has 0, 1" in str(caught.value)
    assert "'1': no head 4; its heads are 0 to 3" in str(caught.value)
    Plan(remove={"1": [3]}).check(SITES)


def test_calls_of_one_module_must_agree():
    shared = {str(call): site(str(call), module="m", output="m.o", call=call, calls=2) for call in range(2)}
    with pytest.raises(BadInput, match="calls of one module"):
        Plan(remove={"0": [1]}).check(shared)
    Plan(remove={"0": [1], "1": [1]}).check(shared)


def test_a_site_that_cannot_be_cut_is_refused_with_its_reason():
    with pytest.raises(CannotCut, match="sparse attention"):
        Plan(remove={"0": [1]}).check({"0": site("0", refusal="sparse attention")})


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"remov": {}}, "remov: unknown field; did you mean 'remove'?"),
        ({"remove": {"0": ["3"]}}, "remove.0.0: expected the number of a head, such as 3, got text '3'"),
        ({"remove": {"0": [-1]}}, "remove.0.0: expected the number of a head, 0 or more, got number -1"),
        ({"remove": {"0": 3}}, "remove.0: expected a list of heads, such as [1, 7], got number 3"),
        ({"remove": [1]}, "remove: expected heads by site"),
        ({"remove": {"0": []}}, "remove: site '0' has an empty list: leave out"),
        ([1], "the file: expected a plan, such as"),
    ],
)
def test_a_mistake_made_by_hand_is_one_clear_line(tmp_path, content, said):
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(content))
    with pytest.raises(BadInput) as caught:
        Plan.load(path)
    first, line = str(caught.value).splitlines()
    assert first == f"{path} is not a valid plan:"
    assert line.strip().startswith(said)


def test_a_misspelt_site_is_asked_about():
    sites = {name: site(name) for name in ("encoder.self.0", "decoder.cross.0")}
    with pytest.raises(BadInput, match=r"no such site; did you mean 'decoder\.cross\.0'"):
        Plan(remove={"decoder.cros.0": [1]}).check(sites)
