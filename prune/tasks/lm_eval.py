"""Task: benchmarks of the evaluation harness (lm-eval), run on the model in memory, dense or cut."""

from __future__ import annotations

import contextlib
import copy
import io
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn

from headwise.analysis.corpus.batching import Batch
from headwise.analysis.corpus.texts import Corpus, Text
from headwise.analysis.errors import BadInput, first_line
from headwise.analysis.progress import quiet
from headwise.prune.tasks.causal_lm import CausalLM, FittedCausalLM, is_causal_lm
from headwise.prune.tasks.outcome import Outcome, judging

_MISSING = "lm-eval is not installed: pip install 'headwise[lm-eval]'"
#: The harness's short names of what reports call accuracy.
_ACCURACY = frozenset({"acc", "acc_norm"})


class LMEval(BaseModel):
    """The mean over benchmarks of each one's metric (Gao 2021), document by document.

    Benchmarks bring documents of their own: the evaluation texts of the recipe are not judged, and the
    calibration texts decide as they do for a causal language model.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["lm-eval"] = "lm-eval"
    tasks: Annotated[tuple[Annotated[str, Field(min_length=1, max_length=500)], ...], Field(min_length=1)] = Field(
        description="names of the harness's benchmarks or groups, as `lm_eval ls tasks` lists them"
    )
    metric: Annotated[str, Field(min_length=1, max_length=100)] | None = Field(
        default=None, description="acc_norm, exact_match, …; each benchmark's first one if left out"
    )
    shots: Annotated[int, Field(ge=0, le=1000)] | None = Field(
        default=None, description="examples before each question; as each benchmark says if left out"
    )
    limit: Annotated[int, Field(ge=1)] | None = Field(
        default=None, description="documents of each benchmark at most; all if left out"
    )
    include: Annotated[str, Field(min_length=1, max_length=1000)] | None = Field(
        default=None, description="a folder with benchmarks of your own, in the harness's YAML"
    )

    def fit(
        self,
        model: nn.Module,
        tokenizer: Any,
        calibration: Corpus,
        *,
        batch_size: int = 8,
        max_length: int | None = None,
        seed: int = 0,
    ) -> FittedHarness:
        """The task, once harness, benchmarks and model are found to fit.

        Raises:
            BadInput: lm-eval is not installed, knows no such benchmark, or the model predicts no next token.
        """
        if not is_causal_lm(model):
            raise BadInput(f"{type(model).__name__}: benchmarks of lm-eval need a causal language model")
        manager = _manager(self)
        for name in self.tasks:
            if not manager.match_tasks([name]):
                raise BadInput(f"task.tasks: lm-eval has no benchmark {name!r}; `lm_eval ls tasks` lists them")
        calibrated = CausalLM().fit(model, tokenizer, calibration, batch_size=batch_size, max_length=max_length)
        return FittedHarness(self, manager, tokenizer, calibrated, batch_size, max_length, seed)


@dataclass(frozen=True, eq=False)
class FittedHarness:
    """The benchmarks, found, and how the calibration texts decide."""

    task: LMEval
    manager: Any = field(repr=False)
    tokenizer: Any = field(repr=False)
    calibrated: FittedCausalLM = field(repr=False)
    batch_size: int = 8
    max_length: int | None = None
    seed: int = 0

    def losses(self, model: nn.Module, batch: Batch) -> Tensor:
        """Mean nats per token of each calibration text: no benchmark decides."""
        return self.calibrated.losses(model, batch)

    def brief(self, documents: int) -> FittedHarness:
        """The same on at most so many documents of each benchmark, for baselines that are judged many times."""
        return replace(self, task=self.task.model_copy(update={"limit": min(documents, self.task.limit or documents)}))

    def judge(self, model: nn.Module, corpus: Corpus) -> Outcome:
        """The benchmarks' documents, each with its score; the corpus plays no part.

        Raises:
            BadInput: a benchmark cannot be fetched or run, or scores no single documents.
        """
        samples, told = self._run(model)
        metrics = {name: self._metric(name, rows) for name, rows in samples.items()}
        better = {bool(told["higher_is_better"][name].get(metric, True)) for name, metric in metrics.items()}
        if len(better) > 1:
            raise BadInput(f"task.tasks: of some of {', '.join(samples)} higher is better, of others lower; part them")
        texts, scores, weights, labels = [], [], [], []
        for name, rows in samples.items():
            for row in rows:
                texts.append(Text(_prompt(row), label=name))
                scores.append(float(row[metrics[name]]))
                # Every benchmark counts the same, however many documents it has.
                weights.append(1 / len(rows))
                labels.append(name)
        each, weight = np.array(scores), np.array(weights) * len(texts) / len(samples)
        many = len(samples) > 1
        return Outcome(
            kind="lm-eval",
            metric=_name_of(set(metrics.values())),
            value=weighted_mean(np.stack([each, weight], axis=1)),
            per_example=each,
            higher_is_better=better.pop(),
            texts=texts,
            predictions=scores,
            labels=labels if many else None,
            rows=np.stack([each, weight], axis=1) if many else None,
            measure=weighted_mean if many else None,
            weights=weight if many else None,
            beside=_beside(told["results"]),
            own=True,
        )

    def _run(self, model: nn.Module) -> tuple[dict[str, list[dict[str, Any]]], Mapping[str, Any]]:
        import lm_eval
        from lm_eval.models.huggingface import HFLM

        with judging(model), _quietly(), _same_randomness():
            try:
                # A copy: the harness gives the tokenizer a pad token.
                held = HFLM(
                    pretrained=model, tokenizer=copy.deepcopy(self.tokenizer), batch_size=self.batch_size,
                    max_length=self.max_length,
                )  # fmt: skip
                told = lm_eval.simple_evaluate(
                    model=held, tasks=list(self.task.tasks), task_manager=self.manager, limit=self.task.limit,
                    num_fewshot=self.task.shots, log_samples=True, bootstrap_iters=0, random_seed=None,
                    numpy_random_seed=None, torch_random_seed=None, fewshot_random_seed=self.seed,
                )  # fmt: skip
            except Exception as error:
                # Whatever a benchmark's own code or its data set's download raises, the run cannot go on.
                raise BadInput(
                    f"lm-eval could not run {', '.join(self.task.tasks)}: {type(error).__name__}: {first_line(error)}"
                ) from error
        # A benchmark may look at the same answers in several ways; its first one counts.
        samples = {
            name: [row for row in rows if row.get("filter") == rows[0].get("filter")]
            for name, rows in told["samples"].items()
        }
        return samples, told

    def _metric(self, name: str, rows: Sequence[Mapping[str, Any]]) -> str:
        scored = [one for one in rows[0]["metrics"] if isinstance(rows[0].get(one), int | float)]
        chosen = self.task.metric or next(iter(scored), None)
        if chosen not in scored:
            raise BadInput(
                f"benchmark {name}: no {chosen or 'metric'} of single documents; it has {', '.join(scored) or 'none'}"
            )
        return str(chosen)


def weighted_mean(rows: np.ndarray) -> float:
    """The mean of rows (score, weight).

    >>> weighted_mean(np.array([[1.0, 3.0], [0.0, 1.0]]))
    0.75
    """
    return float((rows[:, 0] * rows[:, 1]).sum() / rows[:, 1].sum())


def _manager(task: LMEval) -> Any:
    """The harness's list of benchmarks; only the user's own where those are all that is asked for."""
    try:
        from lm_eval.tasks import TaskManager
    except ImportError as error:
        raise BadInput(_MISSING) from error
    if task.include is not None:
        folder = Path(task.include).expanduser()
        if not folder.is_dir():
            raise BadInput(f"task.include: {task.include} is no folder")
        own = TaskManager(include_path=str(folder), include_defaults=False)
        if all(own.match_tasks([name]) for name in task.tasks):
            return own
        return TaskManager(include_path=str(folder))
    return TaskManager()


def _prompt(row: Mapping[str, Any]) -> str:
    """What a document asks, told apart from equal prompts by its number."""
    arguments = row["arguments"]
    first = arguments[0] if isinstance(arguments, list | tuple) else next(iter(arguments.values()))
    said = first[0] if isinstance(first, list | tuple) else next(iter(first.values()))
    return f"{row['doc_id']}: {said}"


def _name_of(metrics: set[str]) -> str:
    if metrics <= _ACCURACY:
        return "accuracy"
    return metrics.pop() if len(metrics) == 1 else "mean score"


def _beside(results: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """Every benchmark's metrics as the harness says them."""
    return {
        f"{name}: {metric.removesuffix(',none')}": float(value)
        for name, told in results.items()
        for metric, value in told.items()
        if "," in metric and "_stderr" not in metric and isinstance(value, int | float)
    }


@contextlib.contextmanager
def _same_randomness() -> Iterator[None]:
    """Whatever is drawn inside the block, the generators go on as if nothing had been."""
    state, numbers = random.getstate(), np.random.get_state()  # noqa: NPY002 - the one that others use
    try:
        with torch.random.fork_rng():
            yield
    finally:
        random.setstate(state)
        np.random.set_state(numbers)  # noqa: NPY002


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """The harness draws bars of its own; without a terminal to draw on they are left out."""
    if not quiet():
        yield
        return
    with contextlib.redirect_stderr(io.StringIO()):
        yield
