"""The words that the code's parts are named by are explained where people look for them."""

import re
from pathlib import Path

import pytest

from headwise.prune.selection.blocks import Block, Room
from headwise.prune.selection.meters import Meter

HERE = Path(__file__).parent.parent


def explained(page):
    return set(re.findall(r"\*\*(\w+)\*\*", (HERE / page).read_text(encoding="utf-8")))


def test_words_that_messages_use_are_in_the_readme():
    assert explained("README.md") >= {
        "head",
        "site",
        "block",
        "map",
        "context",
        "gate",
        "piece",
        "plan",
        "cut",
        "recipe",
    }


@pytest.mark.parametrize("part", [Block, Room, Meter])
def test_parts_of_selection_are_explained(part):
    assert part.__name__.lower() in explained("README.md") | explained("CONTRIBUTING.md")
