"""How long a whole decision takes, beside plain passes forward and backward over the same texts, in one run.

The default score on 1,024 calibration texts, the selection, the repair and the cut of the classifier that sst2.py
prunes. Seconds are processor time of one thread.

    python benchmarks/decision.py DATA FOLDER [--fractions 0.5 0.75]
"""

from __future__ import annotations

import argparse
import copy
import time
from pathlib import Path
from typing import Any

import torch
from classifier import classifier, read
from sst2 import CALIBRATION, DEFAULT, METHODS

from headwise.analysis.batching import batches
from headwise.analysis.sites import find_sites
from headwise.prune.compensation import COMPENSATIONS
from headwise.prune.importance import SCORES, Calibration
from headwise.prune.selection import Budget, Keep, select
from headwise.prune.surgery import cut
from headwise.prune.tasks import TASKS

#: What a decision may take: so many passes forward and backward, and so many seconds.
PASSES, BESIDE = 4, 10.0


def plain(model: Any, task: Any, found: list[Any]) -> float:
    """Seconds of one pass forward and backward, as a training makes it."""
    began = time.process_time()
    for batch in found:
        model.zero_grad(set_to_none=True)
        task.losses(model, batch).sum().backward()
    model.zero_grad(set_to_none=True)
    return time.process_time() - began


def decided(model: Any, task: Any, found: list[Any], fraction: float) -> float:
    """Seconds from texts to the cut model."""
    score, repair = METHODS[DEFAULT]
    model = copy.deepcopy(model)
    began = time.process_time()
    calibration = Calibration(model, find_sites(model), found, task)
    costs = SCORES[score["kind"]](**score).score(calibration).costs
    chosen = select(calibration.sites, costs, Budget(fraction=fraction), keep=Keep(minimum_per_site=1)).remove
    COMPENSATIONS[repair["kind"]](**repair).repair(calibration, chosen)
    cut(model, chosen)
    return time.process_time() - began


def main(data: Path, folder: Path, fractions: list[float]) -> None:
    """Print a line for every share of heads."""
    torch.set_num_threads(1)
    model, tokenizer = classifier(data, folder / "classifier")
    texts = read(data / "train.tsv").sample(CALIBRATION, 0)
    task = TASKS["text-classification"]().fit(model, tokenizer, texts, seed=0, batch_size=32, max_length=64)
    found = list(batches(texts, tokenizer, batch_size=32, model=model, max_length=64))
    plain(model, task, found[:2])
    before = plain(model, task, found)
    took = {fraction: decided(model, task, found, fraction) for fraction in fractions}
    one = (before + plain(model, task, found)) / 2
    allowed = PASSES * one + BESIDE
    print(f"a pass forward and backward over {CALIBRATION:,} texts: {one:.1f} s (mean of one before and one after)")
    for fraction, seconds in took.items():
        print(f"{fraction:.0%} of the heads: {seconds:.1f} s = {(seconds - BESIDE) / one:.2f} passes and {BESIDE:g} s; "
              f"{seconds / allowed:.2f} of {PASSES} passes and {BESIDE:g} s ({allowed:.1f} s)")  # fmt: skip


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--fractions", type=float, nargs="+", default=[0.5, 0.75])
    asked = parser.parse_args()
    main(asked.data, asked.folder, asked.fractions)
