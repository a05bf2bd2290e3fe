"""The default on sentiment classifiers that were trained by other seeds: how much of a drop is the one classifier's.

Which texts a classifier happens to get right differs from training to training, and with it what pruning can lose.
Seed 0 is the classifier of sst2.py, in FOLDER itself; the others are trained into FOLDER/again-SEED.

    python benchmarks/sst2_again.py DATA FOLDER [--trainings 0 1 2 3 4] [--seeds 0 1 2] [--fractions 0.6 0.75 0.85]
    python benchmarks/sst2_again.py DATA FOLDER --report
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from classifier import train
from sst2 import DEFAULT, Results, measure

DRAWS = 10_000


def folder_of(folder: Path, training: int) -> Path:
    """Where the classifier of a training seed and its logits are."""
    return folder / f"again-{training}" if training else folder


def drops(folders: list[Path], fraction: float) -> np.ndarray:
    """What was right before and no longer is, less the reverse: [training, seed, text]."""
    found = []
    for folder in folders:
        results = Results(folder, "test")
        right = results.right(DEFAULT, fraction)
        if right is None:
            raise SystemExit(f"{folder}: nothing measured at {fraction:.0%}; run without --report first")
        found.append(results.dense - right)
    return np.stack(found)


def interval(apart: np.ndarray) -> tuple[float, float, float]:
    """95 % interval and one-sided upper bound of the mean; trainings, seeds within them, and texts are drawn again."""
    rng = np.random.default_rng(0)
    trainings, seeds, texts = apart.shape
    means = np.empty(DRAWS)
    for index in range(DRAWS):
        chosen = rng.integers(0, trainings, trainings)
        rows = apart[chosen[:, None], rng.integers(0, seeds, (trainings, seeds))].mean((0, 1))
        means[index] = rows[rng.integers(0, texts, texts)].mean()
    low, high, upper = np.quantile(means, [0.025, 0.975, 0.95])
    return float(low), float(high), float(upper)


def report(folder: Path, trainings: list[int], fractions: list[float]) -> None:
    """A row for each training, and all together."""
    folders = [folder_of(folder, training) for training in trainings]
    print("| training | dense | " + " | ".join(f"{fraction:.0%}" for fraction in fractions) + " |")
    print("|---" * (len(fractions) + 2) + "|")
    found = [drops(folders, fraction) for fraction in fractions]
    for place, (training, where) in enumerate(zip(trainings, folders, strict=True)):
        dense = Results(where, "test").dense.mean()
        cells = [f"{100 * apart[place].mean():.2f}" for apart in found]
        print(f"| {training} | {dense:.4f} | " + " | ".join(cells) + " |")
    cells = []
    for apart in found:
        low, high, upper = (100 * value for value in interval(apart))
        cells.append(f"{100 * apart.mean():.2f} [{low:.2f}, {high:.2f}] ≤ {upper:.2f}")
    print("| all | | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--trainings", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--fractions", type=float, nargs="+", default=[0.6, 0.75, 0.85])
    parser.add_argument("--report", action="store_true")
    asked = parser.parse_args()
    if asked.report:
        report(asked.folder, asked.trainings, asked.fractions)
    else:
        torch.set_num_threads(1)
        for training in asked.trainings:
            where = folder_of(asked.folder, training)
            if not (where / "classifier" / "config.json").exists():
                train(asked.data, where / "classifier", epochs=4, rate=1e-4, seed=training)
            measure(asked.data, where, [DEFAULT], asked.seeds, ["test"], asked.fractions)
