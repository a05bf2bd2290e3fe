"""Plan: which heads go, why, and what that should cost – a small JSON file to read and to edit by hand."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictInt, ValidationError, field_validator

from headwise.analysis.errors import BadInput
from headwise.analysis.plain import plain
from headwise.prune.plan.by_hand import by_hand
from headwise.prune.recipe_errors import did_you_mean, shown

Head = Annotated[StrictInt, Field(ge=0)]
_EXPECTED = {
    "int_type": "the number of a head, such as 3",
    "greater_than_equal": "the number of a head, 0 or more",
    "list_type": "a list of heads, such as [1, 7]",
    "dict_type": 'heads by site, such as {"3": [1, 7]}',
    "model_type": 'a plan, such as {"schema": 1, "remove": {"3": [1, 7]}}',
}
_NUMBER_LISTS = re.compile(r"\[\s+(?:(?:-?[\d.]+(?:[eE][-+]?\d+)?|null),?\s+)+\]")


class Plan(BaseModel):
    """The decision of a run, complete before a weight changes.

    Attributes:
        schema_version: version of the file format, written as `schema`.
        model: the checkpoint that the plan was made for (informative).
        remove: original indices of the heads that go, by site; a site that loses nothing is left out.
        reasons: a sentence for every head, by site.
        score: the score of every head, by site (high = keep; null = already gone).
        budget: what was asked for, as in the recipe.
        expected: what the decision should cost, by the score's own reckoning.
        made_with: versions, seed, score and texts that led here.

    >>> plan = Plan(remove={"3": [7, 1]})
    >>> plan.remove, plan.count
    ({'3': [1, 7]}, 2)
    """

    model_config = ConfigDict(frozen=True, extra="forbid", validate_by_name=True, validate_by_alias=True)

    schema_version: Literal[1] = Field(1, alias="schema")
    model: str = ""
    remove: dict[str, list[Head]] = Field(default_factory=dict)
    budget: dict[str, Any] = Field(default_factory=dict)
    expected: dict[str, Any] = Field(default_factory=dict)
    reasons: dict[str, dict[int, str]] = Field(default_factory=dict)
    score: dict[str, list[float | None]] = Field(default_factory=dict)
    made_with: dict[str, Any] = Field(default_factory=dict)

    @field_validator("remove")
    @classmethod
    def _sorted_without_repeats(cls, remove: dict[str, list[int]]) -> dict[str, list[int]]:
        for site, heads in remove.items():
            if not heads:
                raise ValueError(f"site {site!r} has an empty list: leave out a site that loses no head")
            repeated = sorted({head for head in heads if heads.count(head) > 1})
            if repeated:
                raise ValueError(f"site {site!r} names heads {repeated} more than once: name each head once")
        return {site: sorted(heads) for site, heads in remove.items()}

    @property
    def count(self) -> int:
        """How many heads go.

        >>> Plan(remove={"0": [1], "2": [0, 3]}).count
        3
        """
        return sum(len(heads) for heads in self.remove.values())

    def save(self, path: str | Path) -> Path:
        """Write the plan as JSON, one line for a site's heads, and return the path.

        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     Plan.load(Plan(remove={"0": [1]}).save(Path(folder) / "plan.json")).remove
        {'0': [1]}
        """
        path = Path(path)
        content = plain(self.model_dump(mode="json", by_alias=True))
        text = json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False)
        path.write_text(_NUMBER_LISTS.sub(lambda found: _one_line(found[0]), text) + "\n", encoding="utf-8")
        return path

    @classmethod
    def load(cls, path: str | Path) -> Plan:
        """Read a plan, also one that a person has edited: the reasons say of which heads (`by_hand`).

        Raises:
            BadInput: unreadable, not JSON, or not a plan; every mistake is named with its field.

        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     Plan.load(Plan(remove={"0": [1]}).save(Path(folder) / "plan.json")).count
        1
        """
        path = Path(path)
        try:
            # Some editors begin a file with a mark of its encoding.
            content = json.loads(path.read_text(encoding="utf-8-sig"), object_pairs_hook=_without_repeated_keys)
        except (OSError, UnicodeDecodeError) as problem:
            raise BadInput(f"{path}: cannot read the plan ({problem}); give the path of a plan.json") from problem
        except json.JSONDecodeError as problem:
            raise BadInput(
                f"{path}:{problem.lineno}: not JSON ({problem.msg}); a plan looks like "
                '{"schema": 1, "remove": {"3": [1, 7]}}'
            ) from problem
        except (ValueError, RecursionError) as problem:
            raise BadInput(f"{path}: {problem}") from problem
        try:
            plan = cls.model_validate(content)
        except ValidationError as problem:
            raise BadInput(f"{path} is not a valid plan:\n{_explain(problem)}") from problem
        return plan.model_copy(update={"reasons": by_hand(plan.remove, plan.reasons)})


def _without_repeated_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) < len(pairs):
        names = [name for name, _ in pairs]
        repeated = sorted({name for name in names if names.count(name) > 1})
        raise ValueError(f"the key {', '.join(map(repr, repeated))} stands twice in one mapping: keep one")
    return content


def _explain(problem: ValidationError) -> str:
    lines = []
    for error in problem.errors(include_url=False):
        where = ".".join(map(str, error["loc"])) or "the file"
        if error["type"] == "value_error":
            said = error["msg"].removeprefix("Value error, ")
        elif error["type"] == "extra_forbidden":
            fields = [info.alias or name for name, info in Plan.model_fields.items()]
            said = f"unknown field{did_you_mean(error['loc'][-1], fields)}; valid: {', '.join(fields)}"
        else:
            wanted = _EXPECTED.get(error["type"], error["msg"].removeprefix("Input should be "))
            said = f"expected {wanted}, got {shown(error['input'])}"
        lines.append(f"  {where}: {said}")
    return "\n".join(lines)


def _one_line(numbers: str) -> str:
    return re.sub(r"\s+", " ", numbers).replace("[ ", "[").replace(" ]", "]")
