"""What whole runs start from: less of what every one of them does and few tests are about.

A module whose tests are about it says so with a fixture of the same name that does nothing.
"""

import functools

import pytest

from headwise.analysis.annotations import coreference_set
from headwise.analysis.roles import search
from headwise.prune import pipeline
from headwise.prune.chance import by_chance


@pytest.fixture(autouse=True, scope="module")
def few_coreference_texts():
    """Two texts of every template instead of twelve: every run looks at them, and they took a quarter of its time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(search, "coreference_set", lambda split=None: coreference_set(split)[::6])
        yield


@pytest.fixture(autouse=True, scope="module")
def few_draws():
    """A plan is set beside two draws of heads instead of five; each is repaired and judged as the plan is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pipeline, "by_chance", functools.partial(by_chance, draws=2))
        yield
