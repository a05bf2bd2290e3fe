"""Judging and timing checkpoints by themselves or against another, without pruning anything."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from headwise.analysis.capture.kernels import kernels
from headwise.analysis.corpus.tables import FORMATS
from headwise.analysis.errors import BadInput
from headwise.prune.begun import began_with, require_same, require_there
from headwise.prune.material import gather
from headwise.prune.opening import Opened, open_checkpoint
from headwise.prune.recipe import Recipe
from headwise.prune.recipe.parts import Texts
from headwise.prune.report.gain import leading_row
from headwise.prune.speed import compare_speed
from headwise.prune.speed.operations import size_in_bytes
from headwise.prune.tasks import choose_task, compare

_DEFAULT = "schema: 1\nscore: {kind: random}\n"


@dataclass(frozen=True)
class Pair:
    """What is judged: a checkpoint, perhaps against another, by a recipe's texts, task and limits.

    Attributes:
        model: hub id or folder.
        against: what it is compared with; None for nothing.
        recipe: its `data`, `task`, `speed`, `limits` and `seed` count.
        began: of a run, the facts of the model that it began with.
    """

    model: str
    against: str | None
    recipe: Recipe
    began: Mapping[str, Any] | None = None

    def revision(self, name: str) -> str | None:
        """At which revision of the hub one of the two is read."""
        chosen, began = self.recipe.model, self.began or {}
        if began.get("id") == name and began.get("revision"):
            return str(began["revision"])
        return chosen.revision if name == chosen.id or (chosen.id is None and name == self.model) else None


def checkpoint_of(model: str) -> str:
    """The checkpoint that is meant: of a run's folder the one in it, else what is named.

    Raises:
        BadInput: the folder is that of a run without a checkpoint.

    >>> checkpoint_of("bert-base-uncased")
    'bert-base-uncased'
    """
    folder = Path(model)
    if not (folder / "recipe.yaml").is_file() or (folder / "config.json").is_file():
        return model
    if not (folder / "checkpoint").is_dir():
        raise BadInput(f"{model} is a run without a checkpoint; give the folder of a finished run of `prune`")
    return str(folder / "checkpoint")


def pair_of(
    model: str, against: str | None = None, recipe: str | None = None, changes: Sequence[str] = (),
    texts: Mapping[str, Any] | None = None,
) -> Pair:  # fmt: skip
    """The pair that is meant: of a run's folder, its checkpoint against its dense model, by its recipe.

    Args:
        model: hub id, checkpoint folder, or the folder of a run.
        against: what to compare with; a run knows it.
        recipe: name or file; the run's own, or defaults alone.
        changes: `key=value`, as `--set` gives them.
        texts: what to judge on instead, as a block of a recipe's `data`; columns that it does not name are the
            recipe's.

    Raises:
        BadInput: the recipe is wrong, or the folder is that of a run without a checkpoint.

    >>> pair_of("bert-base-uncased").against is None
    True
    """
    folder, checkpoint = Path(model), checkpoint_of(model)
    revised = any(change.startswith("model.revision=") for change in changes)
    if checkpoint != model:
        loaded = _judging_on(texts, str(recipe or folder / "recipe.yaml"), changes, judged=recipe is None)
        began = began_with(folder)
        dense = against or loaded.model.id or str(began.get("id") or "") or None
        if against is None and dense == began.get("id"):
            require_there(folder, began, ", or name it: --against FOLDER (against=)")
        if revised and dense is None:
            raise BadInput(
                f"revision: {model} does not tell which model it began with; name it: --against MODEL (against=)"
            )
        if revised:
            # What lies in the run's folder has none: it is that of the other one, whether a recipe names it or not.
            return Pair(checkpoint, dense, _of(loaded, dense))
        return Pair(checkpoint, dense, loaded, None if against else began)
    loaded = _judging_on(texts, recipe, changes, judged=False)
    if revised and loaded.model.id not in (model, against):  # else it would be that of the recipe's own model
        loaded = _of(loaded, model)
    return Pair(model, against, loaded)


def _of(recipe: Recipe, model: str | None) -> Recipe:
    """The recipe with another model, to which its revision belongs."""
    return recipe.model_copy(update={"model": recipe.model.model_copy(update={"id": model})})


def _judging_on(texts: Mapping[str, Any] | None, recipe: str | None, changes: Sequence[str], judged: bool) -> Recipe:
    """The recipe with other texts to judge on: in place of its evaluation, or, where it has none, of all its texts.

    Of a run (`judged`) they are always the evaluation: its own texts go on making the task ready. Unless they are
    the run's own texts, which are split as they were.
    """

    def load(*more: str) -> Recipe:
        given = [*changes, *more]
        return Recipe.load(recipe, given) if recipe else Recipe.from_text(_DEFAULT, "options", given)

    loaded = load()
    if texts is None:
        return loaded
    data, path = loaded.data, Path(str(texts["source"]))
    own = data.evaluation is None and path.resolve() == Path(data.calibration.source).resolve()
    part = "evaluation" if data.evaluation is not None or (judged and not own) else "calibration"
    known = data.calibration.model_dump() if own else _columns(data.evaluation or data.calibration, path)
    asked = {**known, **texts}
    return load(f"data.{part}={json.dumps(asked, ensure_ascii=False)}")


def _columns(of: Texts, path: Path) -> dict[str, Any]:
    """The columns that a recipe names, as far as another file can have them."""
    suffix = path.suffix.lower()
    if FORMATS.get(suffix, "text" if path.is_file() else "") == "text":
        return {}
    header = {"header"} if suffix == Path(of.source).suffix.lower() else set()
    return of.model_dump(include={"text", "pair", "label", "choices"} | header)


def evaluate(pair: Pair, *, device: str | None = None, trust_remote_code: bool = False) -> dict[str, Any]:
    """How the checkpoint does on texts that decide nothing; against another, the drop with its uncertainty.

    Returns:
        Plain data: `accuracy` as in a run's accuracy.json (`cut` is the checkpoint, `dense` what it is
        compared with; `dense` alone without that), `bytes` of both, `speed` where the recipe limits it,
        `texts`, and the limits that are broken.

    Raises:
        BadInput: model, texts or task do not fit.
    """
    opened = list(_opened(pair, device, trust_remote_code))
    first, last = opened[0], opened[-1]
    material = gather(pair.recipe.data, pair.recipe.seed)
    material = material.measured(first.model, first.tokenizer, pair.recipe.data.max_length, pair.recipe.task)
    how: dict[str, Any] = {"batch_size": pair.recipe.data.batch_size, "max_length": pair.recipe.data.max_length}
    task = pair.recipe.task or choose_task(first.model, first.tokenizer, material.calibration)
    fitted = task.fit(first.model, first.tokenizer, material.calibration, seed=pair.recipe.seed, **how)
    outcomes = [fitted.judge(one.model, material.evaluation) for one in opened]
    found = {
        **compare(outcomes[0], outcomes[-1], seed=pair.recipe.seed),
        "rows": outcomes[0].drawn_from(material.evaluation),
    }
    if pair.against is None:
        kept = ("schema", "kind", "metric", "higher_is_better", "n", "rows", "skipped", "dense", "beside")
        found = {name: found[name] for name in kept if name in found}
    sizes = {"dense": size_in_bytes(first.model), "cut": size_in_bytes(last.model)}
    limits, broken, speed = pair.recipe.limits, [], {}
    if pair.against is not None:
        if limits.drop is not None and not _within(found["upper"], limits.drop):
            broken.append(f"drop: at most {limits.drop:g} allowed, the data cannot exclude {_said(found['upper'])}")
        broken += _too_large(sizes, limits.size)
        if limits.speedup is not None:
            speed = _speed_of(first.model, last.model, pair.recipe)
            broken += too_slow(speed, limits.speedup)
    return {
        "model": last.facts, "against": first.facts if pair.against else None, "accuracy": found,
        "bytes": sizes if pair.against else {"dense": sizes["cut"]}, **({"speed": speed} if speed else {}),
        "texts": material.facts(), "limits_broken": broken,
    }  # fmt: skip


def _speed_of(dense: Any, cut: Any, recipe: Recipe, **how: Any) -> dict[str, Any]:
    grid = recipe.speed
    return compare_speed(
        dense, cut, batches=grid.batches, lengths=grid.lengths, rounds=grid.rounds, seconds=grid.seconds,
        seed=recipe.seed, **how,
    )  # fmt: skip


def _too_large(sizes: Mapping[str, int], share: float | None) -> list[str]:
    """In words, if more of the dense model's bytes are left than allowed."""
    if share is None or sizes["cut"] <= share * sizes["dense"]:
        return []
    left = sizes["cut"] / sizes["dense"]
    return [f"size: at most {share:g} of the dense model's bytes allowed, {left:.3g} are left"]


def too_slow(speed: Mapping[str, Any], least: float | None) -> list[str]:
    """In words, if the largest setting is not as much faster as asked."""
    if least is None:
        return []
    row = leading_row(speed)
    if row["ratio"]["median"] >= least:
        return []
    return [
        f"speedup: at least {least:g}x asked, {row['ratio']['median']:.3g}x at batch {row['batch']} × "
        f"{row['length']} tokens"
    ]


def time_models(
    pair: Pair,
    *,
    kernel: str | None = None,
    threads: int | None = None,
    compiled: str | None = None,
    new_tokens: int = 16,
    device: str | None = None,
    trust_remote_code: bool = False,
) -> dict[str, Any]:
    """How fast the checkpoint runs; against another, how much faster, beside what its operations predict.

    A checkpoint alone is timed against itself, so that its drift shows how steady the machine is.

    Args:
        pair: what is timed; the recipe's `speed`, `limits` but for the drop, and `seed` count.
        kernel: attention kernel of both models (eager, sdpa, flash_attention_2, …); theirs by default.
        threads: of the CPU; as many as torch takes by default.
        compiled: mode of `torch.compile`.
        new_tokens: written by a model that generates.
        device: where to run.
        trust_remote_code: run code that the checkpoint brings.

    Raises:
        BadInput: the models cannot be opened or timed alike.
    """
    opened = list(_opened(pair, device, trust_remote_code))
    dense, cut = opened[0].model, opened[-1].model
    for one in opened:
        _use(one.model, kernel)
    limits = pair.recipe.limits
    with _threads(threads):
        speed = _speed_of(dense, cut, pair.recipe, new_tokens=new_tokens, compiled=compiled)
    broken = []
    if pair.against is not None:
        broken = [*too_slow(speed, limits.speedup), *_too_large(speed["bytes"], limits.size)]
    return {
        "model": opened[-1].facts, "against": opened[0].facts if pair.against else None, "speed": speed,
        "limits_broken": broken,
    }  # fmt: skip


def _opened(pair: Pair, device: str | None, trust_remote_code: bool) -> Iterator[Opened]:
    """What it is compared with, if anything, then the checkpoint; both with the first one's tokenizer."""
    chosen = pair.recipe.model
    tokenizer: Any = None
    kind = ""
    for name in (pair.against, pair.model):
        if name is not None:
            found = open_checkpoint(
                name, revision=pair.revision(name), dtype=chosen.dtype, device=device, trust_remote_code=trust_remote_code,
                tokenizer=tokenizer,
            )  # fmt: skip
            if kind not in ("", found.facts["class"]):
                raise BadInput(
                    f"{pair.model} is a {found.facts['class']}, {pair.against} a {kind}: only models of one class, read "
                    "by one tokenizer, can be compared; give the dense model that was cut"
                )
            if name == pair.against and pair.began is not None:
                require_same(pair.began, found.facts)
            tokenizer, kind = found.tokenizer, found.facts["class"]
            yield found


def _use(model: Any, kernel: str | None) -> None:
    if kernel is None:
        return
    try:
        model.set_attn_implementation(kernel)
    except (ValueError, ImportError, AttributeError) as error:
        raise BadInput(f"kernel {kernel!r} cannot be used for {type(model).__name__}: {error}") from error
    used = {str(found) for found in kernels(model).values() if found is not None}
    if used - {kernel}:
        raise BadInput(f"kernel: asked for {kernel!r}, but {type(model).__name__} uses {', '.join(sorted(used))}")


@contextlib.contextmanager
def _threads(count: int | None) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _within(value: Any, allowed: float) -> bool:
    """Whether a limit is kept; what is not known does not keep it."""
    return isinstance(value, float) and value <= allowed


def _said(value: Any) -> str:
    return "any drop" if value is None else f"{value:.4g}"


def facts_of(found: Mapping[str, Any]) -> str:
    """What was judged, in a line.

    >>> facts_of({"model": {"id": "a"}, "against": {"id": "b"}})
    'a against b'
    """
    against = found.get("against")
    return str(found["model"]["id"]) + (f" against {against['id']}" if against else "")
