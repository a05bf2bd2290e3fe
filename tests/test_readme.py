"""The README names what there is."""

import re
from pathlib import Path

import pytest
import typer

from headwise.prune.cli.app import app
from headwise.prune.compensation import COMPENSATIONS
from headwise.prune.importance import SCORES
from headwise.prune.selection import SEARCHES
from headwise.prune.selection.budget import AMOUNTS
from headwise.prune.tasks import TASKS

README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "table", [SCORES, COMPENSATIONS, TASKS, AMOUNTS, SEARCHES], ids=["score", "compensate", "task", "remove", "search"]
)
def test_every_kind_is_named(table):
    assert [kind for kind in table if f"`{kind}`" not in README] == []


def test_every_command_is_named():
    verbs = list(typer.main.get_command(app).commands)  # type: ignore[attr-defined]
    assert len(verbs) > 8
    assert [verb for verb in verbs if not re.search(rf"(`{verb}`|headwise {verb}\b)", README)] == []


def test_its_first_screen_shows_both_commands():
    screen = README[:1500]
    assert "make demo" in screen
    assert "make test" in screen
    assert "@@" not in README


def test_its_recipe_is_right():
    from headwise.prune.recipe import Recipe

    (block,) = re.findall(r"```yaml\n(schema: 1.*?)```", README, flags=re.S)
    assert Recipe.from_text(block, "README.md").score.kind in SCORES
