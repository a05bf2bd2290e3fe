"""Contradictions: what is wrong with a recipe's fields together, known before there is a model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from headwise.analysis.roles import ROLES
from headwise.prune.recipe_errors import Mistake, Path, did_you_mean


def contradictions(said: Mapping[str, Any], of: Callable[[Path], str]) -> Iterator[Mistake]:
    """What single fields cannot see, and what needs no model; reads what was written, right or not.

    Args:
        said: the recipe as plain data.
        of: where a field was written.

    >>> [m.line() for m in contradictions({"keep": {"heads": {"3": []}}}, lambda path: "my.yaml:2")]
    ['my.yaml:2: keep.heads.3: an empty list says nothing; leave the site out']
    """
    data, keep = _block(said, "data"), _block(said, "keep")
    calibration, evaluation = _block(data, "calibration"), _block(data, "evaluation")
    if evaluation and _origin(calibration) == _origin(evaluation):
        path: Path = ("data", "evaluation")
        problem = "the same texts as data.calibration; name another source or split, or leave it out"
        yield Mistake(path, problem, place=_blamed(of, path, ("data", "calibration")))
    for role in _block(keep, "roles"):
        if role not in ROLES:
            path = ("keep", "roles", role)
            yield Mistake(path, f"unknown role{did_you_mean(str(role), ROLES)}", tuple(ROLES), of(path))
    for site, items in _block(keep, "heads").items():
        path = ("keep", "heads", site)
        if not isinstance(items, Sequence) or isinstance(items, str):
            continue  # told as a wrong type
        told = [str(item) for item in items]
        twice = sorted({item for item in told if told.count(item) > 1})
        if not told:
            yield Mistake(path, "an empty list says nothing; leave the site out", place=of(path))
        elif twice:
            yield Mistake(path, f"head {', '.join(twice)} more than once; name each once", place=of(path))
    yield from _scores(_block(said, "score"), of)
    yield from _searches(said, of)


def _scores(score: Mapping[str, Any], of: Callable[[Path], str]) -> Iterator[Mistake]:
    """What a score would look for in the evidence in vain, after all has been measured."""
    roles = score.get("roles")
    for index, role in enumerate(roles if isinstance(roles, Sequence) and not isinstance(roles, str) else ()):
        if isinstance(role, str) and role not in ROLES:
            path: Path = ("score", "roles", index)
            yield Mistake(path, f"unknown role{did_you_mean(role, ROLES)}", tuple(ROLES), of(path))
    measure = score.get("measure")
    # The default is one of them: what only names it needs no torch.
    if isinstance(measure, str) and measure != "pearson":
        from headwise.analysis.similarity import MEASURES

        if measure not in MEASURES:
            path = ("score", "measure")
            yield Mistake(path, f"unknown measure{did_you_mean(measure, MEASURES)}", tuple(MEASURES), of(path))


def _searches(said: Mapping[str, Any], of: Callable[[Path], str]) -> Iterator[Mistake]:
    """Searches and results to reach that do not go together."""
    search, reach, remove = _block(said, "search"), _block(said, "reach"), _block(said, "remove")
    if search.get("kind") == "counts":
        if said.get("scope", "model") != "model":
            path: Path = ("search", "kind")
            problem = "counts decides how many heads each site loses, which takes scope: model"
            yield Mistake(path, problem, place=_blamed(of, path, ("scope",)))
        if reach.get("drop") is not None and search.get("evaluations", 64) != 0:
            path = ("search", "evaluations")
            problem = (
                "reach.drop tests on the texts that counts would choose by; set evaluations: 0, or leave reach out"
            )
            yield Mistake(path, problem, place=_blamed(of, path, ("reach",)))
    tried = search.get("kind") == "counts" and search.get("evaluations", 64) != 0
    if _block(said, "task").get("kind") == "lm-eval" and (tried or reach.get("drop") is not None):
        path = ("task", "kind")
        problem = "candidates would be tried on the documents that judge the result; use remove, or another task"
        yield Mistake(path, problem, place=_blamed(of, path, ("search",), ("reach",)))
    metered = [name for name in ("parameters", "operations", "cache") if remove.get(name) is not None]
    if reach.get("milliseconds") is not None and metered:
        path = ("remove",)
        problem = f"reach.milliseconds can be bounded by heads or fraction, not by {metered[0]}; leave it out"
        yield Mistake(path, problem, place=_blamed(of, path, ("reach",)))


def _blamed(of: Callable[[Path], str], *paths: Path) -> str:
    """The place to name where fields contradict one another: what `--set` changed, or the first one's."""
    places = [of(path) for path in paths]
    return next((place for place in places if place.startswith("--set")), places[0])


def _block(said: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = said.get(name)
    return found if isinstance(found, Mapping) else {}


def _origin(texts: Mapping[str, Any]) -> tuple[str, str]:
    """Source with configuration, and split, of texts as written."""
    source, config = texts.get("source", "embedded"), texts.get("config")
    return (f"{source}:{config}" if config else str(source)), str(texts.get("split"))
