"""Types are checked at every call while the suite runs, and shapes where an annotation says one."""

import dataclasses
import importlib
import inspect
import pkgutil
import types
from collections.abc import Iterator
from typing import Any

import jaxtyping
import numpy as np
import pytest
from beartype import beartype
from beartype.roar import BeartypeCallHintViolation
from jaxtyping import Float, TypeCheckError

import headwise.analysis
import headwise.prune
from tests.checking import checked


@checked(typechecker=beartype)
def plain(many: list[int], name: str | None = None) -> str:
    return name if many else 3


@checked(typechecker=beartype)
def shaped(one: Float[np.ndarray, "a b"], other: Float[np.ndarray, " b"]) -> Float[np.ndarray, " a"]:
    return one @ other if one.any() else other


@checked(typechecker=beartype)
def nested(many: dict[str, list[Float[np.ndarray, " a"]] | None]) -> None:
    pass


@checked(typechecker=beartype)
def unread(one: "Float[np.ndarray, 'a']", other: "Nowhere") -> None:  # noqa: F821
    pass


@checked(typechecker=beartype)
def lazy(until: int) -> Iterator[int]:
    yield until


@checked(typechecker=beartype)
@dataclasses.dataclass
class Record:
    name: str
    rows: Float[np.ndarray, " a"] | None = None


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: plain(3),
        lambda: plain(["a"]),
        lambda: plain([1], 3),
        lambda: plain([], "a"),
        lambda: shaped(np.ones((2, 3)), np.ones(2)),
        lambda: shaped(np.zeros((2, 3)), np.ones(3)),
        lambda: shaped(np.ones(3), np.ones(3)),
        lambda: nested({"a": [np.ones((2, 2))]}),
        lambda: unread(np.ones((2, 2)), None),
        lambda: lazy("a"),
        lambda: Record(3),
        lambda: Record("a", np.ones((2, 2))),
    ],
)
def test_what_an_annotation_does_not_admit_is_refused(wrong):
    with pytest.raises((BeartypeCallHintViolation, TypeCheckError)):
        wrong()


def test_what_an_annotation_admits_goes_through():
    assert plain([1], "a") == "a"
    assert shaped(np.ones((2, 3)), np.ones(3)).tolist() == [3, 3]
    nested({"a": [np.ones(2)], "b": None})
    unread(np.ones(2), None)
    assert list(lazy(2)) == [2]
    assert Record("a", np.ones(2)).name == "a"


def functions() -> Iterator[tuple[str, Any]]:
    """Every function and method that a module of ours defines, as it is found there."""
    for package in (headwise.prune, headwise.analysis):
        for info in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
            if not info.name.endswith("__main__"):
                module = importlib.import_module(info.name)
                inside = [module, *(c for c in vars(module).values() if inspect.isclass(c))]
                for place in (p for p in inside if getattr(p, "__module__", info.name) == info.name):
                    for name, found in vars(place).items():
                        found = getattr(found, "__func__", getattr(found, "fget", found))
                        if isinstance(found, types.FunctionType) and found.__module__ == info.name:
                            yield f"{info.name}.{getattr(place, '__qualname__', '')}.{name}", found


def layers(function):
    """A function and what it wraps, the outermost first."""
    while function is not None:
        yield function
        function = getattr(function, "__wrapped__", None)


def test_every_function_of_the_packages_is_checked():
    """But for those whose annotations admit all; what the shapes of arrays say is checked, too."""
    plain, shapes, bare = 0, 0, []
    for name, function in functions():
        *outer, original = layers(function)
        by = [layer.__code__.co_filename for layer in outer]
        in_scope = any(file.endswith("jaxtyping/_decorator.py") for file in by)
        hints = inspect.get_annotations(original).values()
        if any(f"{kind}[" in str(hint) for kind in ("Float", "Int", "Bool", "UInt64") for hint in hints):
            shapes += 1
            bare += [] if in_scope else [name]
        else:
            plain += 1
            held = in_scope or any("beartype" in file for file in by) or beartype(original) is original
            bare += [] if held else [name]
    assert plain > 1500
    assert shapes > 150
    assert bare == []


def test_the_packages_are_loaded_with_this_check():
    assert jaxtyping.jaxtyped is checked
