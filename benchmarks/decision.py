"""How long a whole decision takes, beside plain passes forward and backward over the same texts, in one run.

The default score on 1,024 calibration texts, the selection, the repair and the cut of the classifier that sst2.py
prunes. Seconds are processor time of one thread.

    python benchmarks/decision.py DATA FOLDER [--fractions 0.5 0.75]
"""

from __future__ import annotations

import argparse
import time
from itertools import islice
from pathlib import Path

import torch
from classifier import classifier, read
from sst2 import CALIBRATION, DEFAULT, METHODS, calibrated, repaired

from headwise.prune.importance import SCORES, Calibration
from headwise.prune.selection import Budget, Keep, select

#: What a decision may take: so many passes forward and backward, and so many seconds.
PASSES, BESIDE = 4, 10.0


def plain(calibration: Calibration, most: int | None = None) -> float:
    """Seconds of one pass forward and backward, as a training makes it, over the first batches or all."""
    model, began = calibration.model, time.process_time()
    for batch in islice(calibration.batches, most):
        model.zero_grad(set_to_none=True)
        calibration.task.losses(model, batch).sum().backward()
    model.zero_grad(set_to_none=True)
    return time.process_time() - began


def decided(calibration: Calibration, fraction: float) -> float:
    """Seconds from texts to the cut model."""
    score, repair = METHODS[DEFAULT]
    began = time.process_time()
    costs = SCORES[score["kind"]](**score).score(calibration).costs
    chosen = select(calibration.sites, costs, Budget(fraction=fraction), keep=Keep(minimum_per_site=1)).remove
    repaired(calibration, repair, chosen)
    return time.process_time() - began


def main(data: Path, folder: Path, fractions: list[float]) -> None:
    """Print a line for every share of heads."""
    torch.set_num_threads(1)
    model, tokenizer = classifier(data, folder / "classifier")
    texts = read(data / "train.tsv").sample(CALIBRATION, 0)
    fresh = [calibrated(model, tokenizer, texts, 0) for _ in fractions]
    plain(fresh[0], 2)
    before = plain(fresh[0])
    took = {fraction: decided(calibration, fraction) for fraction, calibration in zip(fractions, fresh, strict=True)}
    one = (before + plain(fresh[0])) / 2
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
