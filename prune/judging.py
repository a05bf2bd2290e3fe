"""Judging: what plans do to the task – gated, or cut and trained –, in this process or in several at a time."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from headwise.analysis.errors import BadInput
from headwise.analysis.evidence import Evidence
from headwise.analysis.identity import weights_hash
from headwise.analysis.progress import track
from headwise.prune.carving import carve, recover
from headwise.prune.checkpoint import save
from headwise.prune.deciding import Judge, judged
from headwise.prune.folder.signals import uninterrupted
from headwise.prune.plan import Plan
from headwise.prune.preparing import Prepared, prepare
from headwise.prune.recipe import Recipe
from headwise.prune.recovery.trained import FILE as TRAINED
from headwise.prune.tasks import Outcome, compare

log = logging.getLogger("headwise")

Removal = Mapping[str, Sequence[int]]


class Judging:
    """Judges plans against the dense model, which is asked once.

    Args:
        recipe: task, repair, recovery and seed.
        ready: model and texts; the model is given back as it was after every plan.
    """

    def __init__(self, recipe: Recipe, ready: Prepared) -> None:
        self.recipe, self.ready = recipe, ready
        self._dense: Outcome | None = None

    def gated(self, remove: Removal) -> dict[str, Any]:
        """`accuracy`, dense against gated, and `compensation`, what the repair brought."""
        judge = Judge(self.ready.calibration.task, self.ready.material.evaluation)
        outcome, repair = judged(self.recipe, self.ready.calibration, remove, judge)
        return {"accuracy": self._compared(outcome, "gated"), "compensation": {"schema": 1, **repair}}

    def cut(self, plan: Plan, told: Mapping[str, Any], place: Path) -> dict[str, Any]:
        """Cut, prove and train as the recipe says, and save the checkpoint.

        Args:
            plan: which heads go.
            told: `accuracy` of the same plan, gated.
            place: the checkpoint's folder; trained weights are kept beside it until somebody has that checkpoint.

        Returns:
            `proof`, `weights` (their hash) and, where the recipe trains, `recovery` and `accuracy` after it.

        Raises:
            ProofFailed: gate and cut disagree; nothing is saved then.
        """
        recipe, ready = self.recipe, self.ready
        tokenizer, calibration = ready.opened.tokenizer, ready.calibration
        carved = carve(recipe, calibration, plan, ready.material.calibration, tokenizer, ready.how)
        found: dict[str, Any] = {"proof": carved.proof}
        learnt = recover(recipe, calibration, carved.model, lambda: dict(told), place.with_name(TRAINED))
        if learnt:
            outcome = calibration.task.judge(carved.model, ready.material.evaluation)
            found |= {"recovery": learnt, "accuracy": self._compared(outcome, "cut")}
        facts = {"plan": plan.model_dump(mode="json", by_alias=True), "base": ready.opened.name}
        save(carved.model, place, processor=tokenizer, facts=facts, overwrite=True)
        return {**found, "weights": weights_hash(carved.model)}

    def _compared(self, outcome: Outcome, how: str) -> dict[str, Any]:
        corpus = self.ready.material.evaluation
        if self._dense is None:
            self._dense = self.ready.calibration.task.judge(self.ready.opened.model, corpus)
        compared = compare(self._dense, outcome, seed=self.recipe.seed)
        return {**compared, "rows": self._dense.drawn_from(corpus), "judged": how}


#: What is to be done with one budget; it is sent to other processes.
Task = Callable[[Judging], dict[str, Any]]


@dataclass(frozen=True)
class Gate:
    """Judge a removal, gated."""

    remove: Removal

    def __call__(self, judging: Judging) -> dict[str, Any]:
        """What came of it."""
        return judging.gated(self.remove)


@dataclass(frozen=True)
class Carve:
    """Carry a plan out; its fields are the arguments of `Judging.cut`."""

    plan: Plan
    told: Mapping[str, Any]
    place: Path

    def __call__(self, judging: Judging) -> dict[str, Any]:
        """What came of it."""
        return judging.cut(self.plan, self.told, self.place)


@dataclass(frozen=True)
class Errand:
    """What another process needs to judge as this one would.

    Attributes:
        recipe: as YAML.
        evidence: folder of the evidence, so that no process analyses again.
        device: where to run.
        trust_remote_code: run code that the checkpoint brings.
        threads: of each process; as many as here, since sums in another order differ in their last digits.
        level: below it no process logs anything, as here.
    """

    recipe: str
    evidence: Path
    device: str | None
    trust_remote_code: bool
    threads: int
    level: int = field(default_factory=log.getEffectiveLevel)

    def start(self) -> Judging:
        """Open and gather all anew; what there is to say of it has been said by who asked."""
        torch.set_num_threads(self.threads)
        recipe, before = Recipe.from_text(self.recipe), log.level
        log.setLevel(logging.ERROR)
        try:
            ready = prepare(
                recipe, device=self.device, trust_remote_code=self.trust_remote_code,
                look=lambda _: Evidence.load(self.evidence),
            )  # fmt: skip
        finally:
            log.setLevel(before)
        return Judging(recipe, ready)


def side_by_side(
    errand: Errand, tasks: Mapping[str, Task], jobs: int, label: str
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each task's name and what came of it, as they come, from several processes.

    The numbers do not depend on how many processes there are.

    Args:
        errand: what the processes begin with.
        tasks: by name.
        jobs: how many processes at most.
        label: what they do, for the progress.

    Raises:
        BadInput: a process was ended from outside (by the system, if memory ran out).
    """
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor, as_completed

    jobs = min(jobs, len(tasks))
    affinity = getattr(os, "sched_getaffinity", None)
    busy, cores = jobs * errand.threads, len(affinity(0)) if affinity is not None else os.cpu_count() or 1
    if busy > cores:
        log.warning(
            "%d processes of %d threads each on %d cores get in each other's way; with OMP_NUM_THREADS=%d they would not",
            jobs, errand.threads, cores, max(1, cores // jobs),
        )  # fmt: skip
    context = multiprocessing.get_context("forkserver")
    # The server imports once what its processes then share.
    context.set_forkserver_preload([__name__])
    before = set(multiprocessing.active_children())
    executor = ProcessPoolExecutor(jobs, mp_context=context, initializer=_begin, initargs=(errand,))
    try:
        # Those that are half begun could not be told to end; later, whoever is interrupted ends its processes itself.
        with uninterrupted():
            waiting = {executor.submit(_carry_out, task): name for name, task in tasks.items()}
        for done in track(as_completed(waiting), total=len(waiting), label=label):
            yield waiting[done], done.result()
        # They end by themselves, and clear away what libraries hold in them; who is told to end does not.
        executor.shutdown(wait=True)
    except BrokenProcessPool as error:
        raise BadInput(
            f"one of {jobs} processes at work on budgets was ended, perhaps for want of memory; what is finished is "
            "kept: go on with --resume and fewer --jobs. In a script of your own: each process runs its lines again but "
            "for those under `if __name__ == '__main__':`, where what it does belongs"
        ) from error
    finally:
        for process in set(multiprocessing.active_children()) - before:
            process.terminate()
        executor.shutdown(wait=True, cancel_futures=True)


# What this process judges with, where it was started to judge.
_errands: list[Errand] = []
_started: list[Judging] = []


def _begin(errand: Errand) -> None:
    """What a process does first: see that it does not outlive the one that asked."""
    import multiprocessing
    import threading
    from multiprocessing.connection import wait

    from transformers.utils.logging import disable_progress_bar

    parent = multiprocessing.parent_process()

    def leave() -> None:
        if parent is not None:
            wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=leave, daemon=True).start()
    disable_progress_bar()  # type: ignore[no-untyped-call]
    log.setLevel(errand.level)
    if errand.level > logging.WARNING:
        warnings.simplefilter("ignore")
    _errands.append(errand)


def _carry_out(task: Task) -> dict[str, Any]:
    if not _started:
        # Not in the beginning: what goes wrong here is told to who asked.
        _started.append(_errands[0].start())
    return task(_started[0])
