import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from headwise.analysis.errors import BadInput
from headwise.prune.plan import Plan
from headwise.prune.plan.by_hand import edited


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


@pytest.mark.parametrize(
    "content",
    ['{"remove": {"0": [3, 1]}}', '\ufeff{\n "remove": {"0": [1, 3]}}', '{"schema": 1, "remove": {"0": [1, 3]}}\n\n'],
)
def test_what_a_person_writes_right_is_read_whatever_wrote_it(tmp_path, content):
    path = tmp_path / "plan.json"
    path.write_text(content, encoding="utf-8")
    assert Plan.load(path) == Plan(remove={"0": [1, 3]})


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


def test_heads_that_a_person_chose_otherwise_say_so_once(tmp_path):
    went, stays, gone = (
        "number 1 of 1 to go, by random: cost 1",
        "kept: a rule",
        "gone already: an earlier cut removed it",
    )
    plan = Plan(remove={"0": [0, 3]}, reasons={"0": {0: went, 1: stays, 2: stays, 3: gone}})
    assert Plan.load(plan.save(tmp_path / "plan.json")) == plan
    other = plan.model_copy(update={"remove": {"0": [1, 3]}})
    read = Plan.load(other.save(tmp_path / "plan.json"))
    assert read.reasons == {
        "0": {0: f"kept by hand; decided: {went}", 1: f"removed by hand; decided: {stays}", 2: stays, 3: gone}
    }
    assert edited(read.reasons) == (1, 1)
    assert Plan.load(read.save(tmp_path / "again.json")) == read
    back = read.model_copy(update={"remove": plan.remove})
    assert Plan.load(back.save(tmp_path / "back.json")) == plan
