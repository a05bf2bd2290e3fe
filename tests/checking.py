"""How the suite checks types: at every call of the packages, as it always has, but shapes only where one is said.

The import hook of jaxtyping wraps every function into a scope of shapes and binds all arguments once more for it, which
took a fifth of a small run's time; most functions know no array. Those are checked by beartype alone.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import sysconfig
import types
import typing
from collections.abc import Callable
from importlib.util import cache_from_source
from typing import Any

import jaxtyping
import jaxtyping._import_hook as hook

#: Where Python and all packages lie that are not ours.
OTHERS = tuple(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib"))
_shaped = jaxtyping.jaxtyped
_cached = hook._optimized_cache_from_source


def checked(fn: Any = None, *, typechecker: Callable[..., Any]) -> Any:
    """A function, or a dataclass's `__init__`, that refuses what its annotations do not admit; takes jaxtyped's place."""
    if fn is None:
        return functools.partial(checked, typechecker=typechecker)
    if inspect.isclass(fn):
        if dataclasses.is_dataclass(fn) and isinstance(vars(fn).get("__init__"), types.FunctionType):
            fn.__init__ = checked(fn.__init__, typechecker=typechecker)
        return fn
    return typechecker(fn) if _plain(fn) else _shaped(fn, typechecker=typechecker)


def _plain(fn: Any) -> bool:
    """Whether a function's annotations can all be read, and none has a shape in it."""
    if not isinstance(fn, types.FunctionType) or inspect.isgeneratorfunction(fn):
        return False
    try:
        hints = typing.get_type_hints(fn, include_extras=True)
    except (NameError, TypeError, ValueError, AttributeError):
        return False
    return not any(map(_has_shape, hints.values()))


def _has_shape(hint: Any) -> bool:
    if isinstance(hint, type) and issubclass(hint, jaxtyping.AbstractArray):
        return True
    parts = hint if isinstance(hint, list | tuple) else typing.get_args(hint)
    return any(map(_has_shape, parts))


def _cache(typechecker: str, /, path: str, *options: Any, **named: Any) -> str:
    """Where the compiled form of a module lies.

    While one of ours loads, the hook lets Python look for those of all other packages, too, under its own name; they
    have none there, so thousands of files were compiled anew in every process.
    """
    if str(path).startswith(OTHERS):
        return cache_from_source(path, *options, **named)
    return _cached(typechecker, path, *options, **named)


def install() -> None:
    """Change what the hook does with modules that are loaded from now on."""
    jaxtyping.jaxtyped = checked
    hook._optimized_cache_from_source = _cache
