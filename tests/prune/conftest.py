"""What whole runs start from: less of what every one of them does and few tests are about.

A module whose tests are about it says so with a fixture of the same name that does nothing.
"""

import functools
import sys
from pathlib import Path

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


@pytest.fixture
def own_modules(tmp_path, monkeypatch):
    """Code that checkpoints bring is kept in the test's own folder, and imported as if nothing had been before.

    The package that transformers keeps it in is found once a process, in the first folder that has it: that of another
    test would be looked into.
    """
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    others = [place for place in sys.path if not (Path(place) / "transformers_modules").exists()]
    monkeypatch.setattr(sys, "path", others)
    before = {name: sys.modules.pop(name) for name in _of_checkpoints()}
    yield
    for name in _of_checkpoints():
        del sys.modules[name]
    sys.modules.update(before)


def _of_checkpoints():
    return [name for name in sys.modules if name.split(".")[0] == "transformers_modules"]
