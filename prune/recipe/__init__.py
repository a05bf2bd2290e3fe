"""Recipe: the YAML that states a whole run, checked before anything is touched."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path as FilePath
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, ValidationError
from ruamel.yaml import YAML

from headwise.analysis.errors import BadInput
from headwise.analysis.sites import Site
from headwise.prune.compensation import COMPENSATIONS
from headwise.prune.importance import SCORES
from headwise.prune.recipe.budget import out_of_reach
from headwise.prune.recipe.contradictions import contradictions
from headwise.prune.recipe.explain import explain
from headwise.prune.recipe.overrides import override
from headwise.prune.recipe.parts import Checkpoint, Data, Limits, OneOf, Reach, Speed
from headwise.prune.recipe_errors import Mistake, Path, Places, RecipeError, did_you_mean, printable
from headwise.prune.recipe_text import read
from headwise.prune.recovery import RECOVERIES
from headwise.prune.selection import SEARCHES, Budget, Greedy, Keep, Scope, Time, Unit, ladder
from headwise.prune.selection.meters import Table
from headwise.prune.shipped import recipe_text
from headwise.prune.tasks import TASKS


class Recipe(BaseModel):
    r"""A whole run, stated. Every key but `schema` and `score` has a default.

    The methods (`score`, `task`, `compensate`, `recover`) are the objects that do the work.

    >>> recipe = Recipe.from_text("schema: 1\nscore: {kind: random}\nremove: {heads: 3}")
    >>> recipe.remove.heads, recipe.keep.minimum_per_site
    (3, 1)
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, title="Headwise recipe")

    schema_version: Literal[1] = Field(alias="schema", description="version of the recipe format")
    description: Annotated[str, Field(max_length=10_000)] = Field("", description="what the recipe is for")
    model: Checkpoint = Field(Checkpoint(), description="the checkpoint")
    data: Data = Field(Data(), description="texts that decide and texts that judge")
    task: Annotated[Any, OneOf(TASKS)] | None = Field(
        None,
        description="what the checkpoint is judged on; if left out, chosen from checkpoint and texts",
    )
    score: Annotated[Any, OneOf(SCORES)] = Field(description="how heads are scored, high = keep")
    reach: Reach | None = Field(
        None, description="a result to reach instead; `remove` is then the most that may go (all, if left out)"
    )
    remove: Budget = Field(Budget(heads=None, fraction=0.3), description="how much goes, of the dense model")
    scope: Scope = Field(
        "model",
        description="heads compete in the model, each site loses the same share, or the same number",
    )
    unit: Unit = Field(
        "group",
        description="grouped queries: whole key/value groups, as many heads of every group, or any heads",
    )
    search: Annotated[Any, OneOf(SEARCHES)] = Field(
        Greedy(), description="how the heads that go are looked for, beyond taking the cheapest next one"
    )
    keep: Keep = Field(Keep(minimum_per_site=1), description="what stays whatever the scores say")
    compensate: Annotated[Any, OneOf(COMPENSATIONS)] = Field(
        default_factory=lambda: COMPENSATIONS["reconstruction"](), description="how what is left is adjusted"
    )
    recover: Annotated[Any, OneOf(RECOVERIES)] = Field(
        default_factory=lambda: RECOVERIES["none"](), description="what is trained after the cut"
    )
    speed: Speed = Field(Speed(), description="the grid that speed is measured on")
    limits: Limits = Field(Limits(), description="what the run must reach, or exit code 3")
    seed: Annotated[int, Field(ge=0, lt=2**32)] = Field(0, description="one seed for all that is drawn")

    # Lines are no part of what a recipe says: places compare equal, see Places.
    _places: Places = PrivateAttr(default_factory=Places)

    @classmethod
    def load(cls, name_or_path: str | FilePath, overrides: Sequence[str] = ()) -> Recipe:
        """The recipe of a file, or a shipped one by its name.

        Args:
            name_or_path: a file, or one of `shipped()`.
            overrides: `key.path=value` in YAML, applied in order: `remove.fraction=0.5`. Setting a part's
                `kind` to another kind, or another budget in `remove`, replaces what the recipe said there.

        Raises:
            RecipeError: with all mistakes at once, each with its line.

        >>> Recipe.load("quickstart", overrides=["remove.heads=20"]).remove.heads
        20
        """
        text, where = recipe_text(name_or_path)
        return cls.from_text(text, where, overrides)

    @classmethod
    def from_text(cls, text: str, where: str = "recipe", overrides: Sequence[str] = ()) -> Recipe:
        r"""The recipe that a YAML text states; `where` names the text in messages.

        Raises:
            RecipeError: with all mistakes at once, each with its line.

        >>> Recipe.from_text("schema: 1\nscore: {kind: random}\nsede: 3", "my.yaml")  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        headwise.prune.recipe_errors.RecipeError: my.yaml: 1 mistake; nothing was changed
          my.yaml:3: sede: unknown field; did you mean 'seed'?...
        """
        source = read(text, where)
        override(source, overrides)
        if source.data.get("reach") is not None:
            # A result to reach, and no budget: all heads go that may.
            source.data.setdefault("remove", {"fraction": 1.0})
        mistakes = list(source.mistakes)
        # Through JSON: there, strict means "no text as number", and a list is still good for a tuple.
        try:
            recipe = cls.model_validate_json(json.dumps(source.data), strict=True)
        except ValidationError as errors:
            mistakes += [m for m in explain(cls, errors, source.data, source.places) if m.path not in source.lost]
            told = {m.path for m in mistakes}
            mistakes += [m for m in contradictions(source.data, source.places.of) if m.path not in told]
            raise RecipeError(_in_order(mistakes), source.places.where) from None
        recipe._places = source.places
        mistakes += contradictions(source.data, source.places.of)
        if mistakes:
            raise RecipeError(_in_order(mistakes), source.places.where)
        return recipe

    def resolved_yaml(self) -> str:
        """The recipe with every default written out; reading it again gives an equal recipe.

        >>> text = Recipe.load("random-baseline").resolved_yaml()
        >>> Recipe.from_text(text) == Recipe.load("random-baseline")
        True
        """
        yaml = YAML(typ="safe", pure=True)
        yaml.default_flow_style = None
        yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]
        yaml.allow_unicode = True
        yaml.width = 110
        stream = io.StringIO()
        yaml.dump(_written(self), stream)
        return stream.getvalue()

    def beside(self, field: Path, name: str) -> FilePath:
        """The file that a field names: beside the recipe's file, or where the command was given.

        >>> Recipe.load("quickstart").beside(("reach", "table"), "latency.json").name
        'latency.json'
        """
        file = FilePath(self._places.where)
        own = file.is_file() and not self._places.of(field).startswith("--set")
        return file.parent / name if own else FilePath(name)

    @property
    def searched(self) -> bool:
        """Whether candidates are judged before the plan is made, on texts that calibration then has to spare.

        >>> Recipe.load("quickstart").searched
        False
        """
        tried = self.search.kind == "counts" and self.search.evaluations > 0
        return tried or (self.reach is not None and self.reach.drop is not None)

    def ladder(self, sites: Mapping[str, Site], evidence: Any = None) -> list[int]:
        """Numbers of heads, small to large, that may go until the drop is reached: up to `remove`, where that counts heads.

        >>> site = Site("0", "attn", "attn.o", heads=4, kv_heads=4, head_dim=8, kept=(0, 1, 2, 3))
        >>> Recipe.load("quickstart", ["reach={drop: 0.1}", "remove.heads=2"]).ladder({"0": site})
        [1, 2]
        """
        limit = sum(site.heads for site in sites.values()) if self.remove.metered else self.remove.count(sites)
        return ladder(sites, limit, self.scope, self.keep, self.unit, evidence)

    @property
    def time(self) -> Time | None:
        """The time to reach, its setting filled in, if there is one.

        >>> Recipe.load("quickstart", ["reach={milliseconds: 12}"]).time.where
        'batch 8 x 128 tokens'
        """
        if self.reach is None or self.reach.milliseconds is None:
            return None
        batch, length = self.reach.batch or max(self.speed.batches), self.reach.length or max(self.speed.lengths)
        bound = None if self.remove.fraction == 1.0 else self.remove
        return Time(milliseconds=self.reach.milliseconds, batch=batch, length=length, at_most=bound)

    @classmethod
    def schema_json(cls, **options: Any) -> str:
        """The recipe format as JSON Schema, for editors (`# yaml-language-server: $schema=…`).

        >>> json.loads(Recipe.schema_json())["title"]
        'Headwise recipe'
        """
        schema = cls.model_json_schema(by_alias=True)
        for part in (schema, *schema.get("$defs", {}).values()):
            # Docstrings go on with formulas and examples; an editor's bubble shows one sentence.
            part["description"] = str(part.get("description", "")).partition("\n")[0]
        return json.dumps(schema, indent=2, **options)


def _written(value: Any) -> Any:
    """A part of the recipe as plain data; null only where it differs from leaving the field out."""
    if isinstance(value, BaseModel):
        fields = [(info.alias or name, getattr(value, name), info) for name, info in type(value).model_fields.items()]
        return {name: _written(said) for name, said, info in fields if said is not None or info.default is not None}
    if isinstance(value, Mapping):
        return {str(key): _written(inner) for key, inner in value.items()}
    if isinstance(value, tuple | list | set | frozenset):
        return [_written(inner) for inner in value]
    return value


def check_against(recipe: Recipe, sites: Mapping[str, Site], model: Any = None, table: Table | None = None) -> None:
    r"""Return if the recipe fits a model's sites; otherwise tell every mistake, before any weight changes.

    Args:
        recipe: a recipe.
        sites: what `find_sites(model)` found.
        model: the model itself; without it only budgets that are counted in heads are checked.
        table: its latency table; without it a time is not checked.

    Raises:
        RecipeError: a site, head or layer that the model does not have, or a budget that cannot be met.

    >>> sites = {"0": Site("0", "attn", "attn.o", heads=4, kv_heads=4, head_dim=8)}
    >>> recipe = Recipe.from_text("schema: 1\nscore: {kind: random}\nkeep: {heads: {0: [7]}}", "my.yaml")
    >>> check_against(recipe, sites)
    Traceback (most recent call last):
    headwise.prune.recipe_errors.RecipeError: my.yaml: 1 mistake; nothing was changed
      my.yaml:3: keep.heads.0[0]: no head 7: site '0' has 4 heads, 0 to 3
    """
    places = recipe._places
    said = recipe.model_dump(mode="json", by_alias=True)
    mistakes = [*contradictions(said, places.of), *_misfits(recipe, sites)] or [
        *out_of_reach(recipe, sites, model, table)
    ]
    if mistakes:
        raise RecipeError(_in_order(mistakes), places.where)


def _misfits(recipe: Recipe, sites: Mapping[str, Site]) -> Iterator[Mistake]:
    of = recipe._places.of
    names = tuple(sites)
    for name, heads in recipe.keep.heads.items():
        here: Path = ("keep", "heads", name)
        if name not in sites:
            yield Mistake(
                here, f"the model has no site '{printable(name)}'{did_you_mean(name, names)}", names, of(here)
            )
            continue
        count = sites[name].heads
        for index, head in enumerate(heads):
            if head >= count:
                path: Path = (*here, index)
                problem = f"no head {head}: site '{printable(name)}' has {count} heads, 0 to {count - 1}"
                yield Mistake(path, problem, place=of(path))
    for index, layer in enumerate(recipe.keep.layers):
        path = ("keep", "layers", index)
        try:
            Keep(layers=[layer], minimum_per_site=1).protected(sites)
        except BadInput as error:
            problem = str(error).splitlines()[-1].strip().removeprefix("keep.layers: ")
            yield Mistake(path, problem, place=of(path))
    least, largest = recipe.keep.minimum_per_site, max((site.heads for site in sites.values()), default=0)
    if least > largest:
        path = ("keep", "minimum_per_site")
        problem = f"expected at most {largest}, the heads of the largest site, got {least}"
        yield Mistake(path, problem, place=of(path))


def _in_order(mistakes: Sequence[Mistake]) -> list[Mistake]:
    """By line, as one works through a file."""

    def line(mistake: Mistake) -> tuple[int, int]:
        number = mistake.place.rpartition(":")[2]
        return (0, int(number)) if number.isdigit() else (1, 0)

    return sorted(mistakes, key=line)
