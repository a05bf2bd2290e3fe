"""Every score with every repair on a fine-tuned sentiment classifier, without retraining.

A score is asked once per seed of the calibration texts; its greedy path holds all shares of heads; each repair and
share is cut and judged. Which texts got their label is kept by cell, and what is done already is not done again.

    python benchmarks/sst2_grid.py DATA FOLDER [--scores gradient …] [--repairs none …] [--seeds 0 1 2]
    python benchmarks/sst2_grid.py DATA FOLDER --report benchmarks/sst2_grid.png

DATA and FOLDER are those of sst2.py, and what that has judged is not judged again; of the test texts every second
judges, which halves the time.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from classifier import classifier, read
from sst2 import CALIBRATION, FRACTIONS, HOW, METHODS, TEXTS, calibrated, holm, logits_of, repaired

from headwise.analysis.analyze import analyze
from headwise.analysis.corpus.batching import batches
from headwise.analysis.corpus.texts import Corpus
from headwise.prune.compensation import COMPENSATIONS
from headwise.prune.importance import SCORES, Calibration
from headwise.prune.selection import SEARCHES, Budget, Keep, select

#: name -> score; every other setting as it ships.
ASKED: dict[str, dict[str, Any]] = {
    "reconstruction": {"kind": "reconstruction"},
    "reconstruction, labels": {"kind": "reconstruction", "loss": "labels"},
    "reconstruction, exchange": {"kind": "reconstruction"},
    "gradient": {"kind": "gradient"},
    "fisher": {"kind": "fisher"},
    "fisher, block": {"kind": "fisher", "form": "block"},
    "taylor2": {"kind": "taylor2"},
    "variance": {"kind": "variance"},
    "activation": {"kind": "activation"},
    "magnitude": {"kind": "magnitude"},
    "confidence": {"kind": "confidence"},
    "redundancy": {"kind": "redundancy"},
    "roles": {"kind": "roles"},
    "combined": {"kind": "combined"},
    "random": {"kind": "random"},
    "gates": {"kind": "gates"},
    "ablation": {"kind": "ablation"},
}
REPAIRS: dict[str, dict[str, Any]] = {
    "none": {"kind": "none"},
    "bias": {"kind": "bias"},
    "scale": {"kind": "scale"},
    "least squares": {"kind": "reconstruction", "values": "keep", "correct": "none"},
    "reconstruction": {"kind": "reconstruction"},
    "sequential": {"kind": "sequential"},
}
#: The default; those that learn, or need a pass per head, are not compared with it.
DEFAULT = ("reconstruction", "reconstruction")
BEYOND = ("gates", "ablation")
#: Scores that read the evidence, which is gathered first.
ON_EVIDENCE = {"confidence", "redundancy", "roles", "combined"}
EVERY = 2


def measure(data: Path, folder: Path, scores: list[str], repairs: list[str], seeds: list[int]) -> None:
    """Fill the folder with cells."""
    model, tokenizer = classifier(data, folder / "classifier")
    where = folder / "grid"
    where.mkdir(parents=True, exist_ok=True)
    train, every = read(data / "train.tsv"), read(data / "test.tsv")
    judged = Corpus(texts=tuple(every.texts[::EVERY]))
    how: dict[str, Any] = {"model": model, "max_length": 64}
    inputs = list(batches(judged, tokenizer, batch_size=64, **how))
    np.save(where / "labels.npy", [int(text.label) for text in judged.texts])
    if not (where / "dense.npy").exists():
        np.save(where / "dense.npy", logits_of(model, inputs, len(judged)).argmax(-1).astype(np.int8))
    _take_over(folder, scores, repairs, seeds)
    for seed in seeds:
        cells = [cell for cell in _cells(scores, repairs, seed) if not _path(where, *cell).exists()]
        if not cells:
            continue
        calibration = calibrated(model, tokenizer, train.sample(CALIBRATION, seed), seed)
        if {score for score, *_ in cells} & ON_EVIDENCE:
            calibration.evidence = analyze(model, tokenizer, train.sample(CALIBRATION, seed), seed=seed, **HOW)
        chosen: dict[tuple[str, float], dict[str, list[int]]] = {}
        for score, repair, fraction, _ in cells:
            if (score, fraction) not in chosen:
                chosen.update(_chosen(score, calibration))
            began = time.perf_counter()
            smaller = repaired(calibration, REPAIRS[repair], chosen[score, fraction])
            predicted = logits_of(smaller, inputs, len(judged)).argmax(-1).astype(np.int8)
            np.save(_path(where, score, repair, fraction, seed), predicted)
            print(f"{score} + {repair}, {fraction}, seed {seed}: {time.perf_counter() - began:.1f} s", flush=True)


def _cells(scores: list[str], repairs: list[str], seed: int) -> Iterator[tuple[str, str, float, int]]:
    for repair in repairs:
        for score in scores:
            for fraction in FRACTIONS:
                yield score, repair, fraction, seed


def _take_over(folder: Path, scores: list[str], repairs: list[str], seeds: list[int]) -> None:
    """Cells that sst2.py has measured, on all texts."""

    def made(table: Any, settings: dict[str, Any]) -> Any:
        return table[settings["kind"]](**settings)

    same = {
        (score, repair): name
        for score in scores
        for repair in repairs
        for name, (theirs, theirs_repair) in METHODS.items()
        if "exchange" not in score
        and name not in TEXTS
        and made(SCORES, theirs) == made(SCORES, ASKED[score])
        and made(COMPENSATIONS, theirs_repair) == made(COMPENSATIONS, REPAIRS[repair])
    }
    for (score, repair), name in same.items():
        for fraction, seed in itertools.product(FRACTIONS, seeds):
            known, path = (
                folder / "logits" / f"test-{name}-{fraction}-{seed}.npy",
                _path(folder / "grid", score, repair, fraction, seed),
            )
            if known.exists() and not path.exists():
                np.save(path, np.load(known)[::EVERY].argmax(-1).astype(np.int8))


def _path(where: Path, score: str, repair: str, fraction: float, seed: int) -> Path:
    return where / f"{score}+{repair}-{fraction}-{seed}.npy"


def _chosen(name: str, calibration: Calibration) -> dict[tuple[str, float], dict[str, list[int]]]:
    """Which heads go by a score, for every share."""
    began = time.perf_counter()
    costs = SCORES[ASKED[name]["kind"]](**ASKED[name]).score(calibration).costs
    search = SEARCHES["exchange" if "exchange" in name else "greedy"]()
    keep = Keep(minimum_per_site=1)
    found = {
        (name, share): select(calibration.sites, costs, Budget(fraction=share), keep=keep, search=search).remove
        for share in FRACTIONS
    }
    print(f"{name}, seed {calibration.seed}: chosen in {time.perf_counter() - began:.1f} s", flush=True)
    return found


class Grid:
    """Who was right where: [seed, text] of every cell."""

    def __init__(self, folder: Path, seeds: list[int]) -> None:
        self.where, self.seeds = folder / "grid", seeds
        self.labels = np.load(self.where / "labels.npy")
        self.dense = (np.load(self.where / "dense.npy") == self.labels).astype(float)

    def right(self, score: str, repair: str, fraction: float) -> np.ndarray | None:
        """[seed, text]; None unless all seeds were measured."""
        paths = [_path(self.where, score, repair, fraction, seed) for seed in self.seeds]
        if not all(path.exists() for path in paths):
            return None
        return np.stack([(np.load(path) == self.labels).astype(float) for path in paths])

    def over(self, score: str, repair: str) -> np.ndarray | None:
        """[seed, text], the mean over all shares; None unless all were measured."""
        found = [self.right(score, repair, fraction) for fraction in FRACTIONS]
        return None if any(one is None for one in found) else np.mean(found, axis=0)


def report(folder: Path, picture: Path, seeds: list[int]) -> None:
    """Tables as markdown on stdout, and the picture."""
    grid = Grid(folder, seeds)
    print(f"dense {grid.dense.mean():.4f} on {len(grid.labels)} texts; drops in points, {len(seeds)} seeds averaged\n")
    print("drop at " + " / ".join(f"{share:.0%}" for share in FRACTIONS) + " removed\n")
    _table(lambda score, repair: _drops(grid, score, repair))
    print("\nmean over the shares ± standard deviation over seeds\n")
    _table(lambda score, repair: _mean(grid, score, repair))
    compared(grid)
    found = {(score, repair): grid.over(score, repair) for score in ASKED for repair in REPAIRS}
    lost = {cell: 100 * (grid.dense.mean() - right.mean()) for cell, right in found.items() if right is not None}
    drawn(lost, picture)


def _table(cell: Callable[[str, str], str]) -> None:
    print("| score | " + " | ".join(REPAIRS) + " |")
    print("|---" * (len(REPAIRS) + 1) + "|")
    for score in ASKED:
        cells = [cell(score, repair) for repair in REPAIRS]
        if any(cells):
            print(f"| {score} | " + " | ".join(cells) + " |")


def _drops(grid: Grid, score: str, repair: str) -> str:
    found = [grid.right(score, repair, fraction) for fraction in FRACTIONS]
    told = ["–" if one is None else f"{100 * (grid.dense.mean() - one.mean()):.1f}" for one in found]
    return " / ".join(told) if set(told) != {"–"} else ""


def _mean(grid: Grid, score: str, repair: str) -> str:
    found = grid.over(score, repair)
    return "" if found is None else f"{100 * (grid.dense.mean() - found.mean()):.2f} ± {100 * found.mean(1).std():.2f}"


class Draws:
    """Texts and seeds drawn again, the same draws for every comparison."""

    def __init__(self, seeds: int, texts: int, draws: int = 10_000) -> None:
        rng = np.random.default_rng(0)
        self.seeds = rng.multinomial(seeds, np.full(seeds, 1 / seeds), draws) / seeds
        self.texts = rng.multinomial(texts, np.full(texts, 1 / texts), draws).astype(np.float32) / texts

    def gain(self, above: np.ndarray, below: np.ndarray) -> tuple[float, float, float, float]:
        """Mean difference of [seed, text], its 95 % interval and two-sided p."""
        apart = above - below
        means = np.sum(self.seeds * (self.texts @ apart.T.astype(np.float32)), axis=1)
        low, high = np.quantile(means, [0.025, 0.975])
        p = min(1.0, 2 * min((means <= 0).mean(), (means >= 0).mean()) + 1 / len(means))
        return float(apart.mean()), float(low), float(high), float(p)


def compared(grid: Grid) -> None:
    """The default against every cell that needs no training and no pass per head, Holm over all of them."""
    draws = Draws(len(grid.seeds), len(grid.labels))
    others = [(s, r) for s in ASKED for r in REPAIRS if (s, r) != DEFAULT and s not in BEYOND]
    for what, parts in (("single shares", FRACTIONS), ("the mean over shares", (None,))):
        rows, ps = [], []
        for score, repair in others:
            for part in parts:
                ours, theirs = (
                    grid.over(*way) if part is None else grid.right(*way, part) for way in (DEFAULT, (score, repair))
                )
                if ours is not None and theirs is not None:
                    *gain, p = draws.gain(ours, theirs)
                    rows.append((f"{score} + {repair}" + (f" at {part:.0%}" if part else ""), gain))
                    ps.append(p)
        sure = [(*row, p) for row, p in zip(rows, holm(ps), strict=True)]
        better = sum(p < 0.05 and gain[0] > 0 for _, gain, p in sure)
        worse = [name for name, gain, p in sure if p < 0.05 and gain[0] < 0]
        ahead = sorted((row for row in sure if row[1][0] < 0), key=lambda row: row[1][0])
        print(f"\n{what}: of {len(sure)} comparisons the default is better in {better}, worse in {len(worse)} {worse}")
        for name, (gain, low, high), p in ahead[:20]:
            print(f"  ahead: {name} by {-100 * gain:.2f} ({-100 * high:.2f} to {-100 * low:.2f}), Holm {p:.3f}")


def drawn(drops: dict[tuple[str, str], float], picture: Path) -> None:
    """The mean drop of every score and repair, in points, as colours and numbers."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import colors, pyplot

    scores = sorted({score for score, _ in drops}, key=lambda s: min(d for (o, _), d in drops.items() if o == s))
    table = np.array([[drops.get((score, repair), np.nan) for repair in REPAIRS] for score in scores])
    figure, axes = pyplot.subplots(figsize=(10, 0.4 * len(scores) + 1.5))
    norm = colors.LogNorm(max(np.nanmin(table), 0.5), np.nanmax(table))
    shown = axes.imshow(table, cmap="viridis_r", norm=norm, aspect="auto")
    for (row, column), value in np.ndenumerate(table):
        dark = np.isfinite(value) and norm(value) > 0.5
        text = f"{value:.1f}" if np.isfinite(value) else "not run"
        axes.text(column, row, text, ha="center", va="center", fontsize=8, color="white" if dark else "black")
    axes.set_xticks(range(len(REPAIRS)), list(REPAIRS), rotation=15)
    axes.set_yticks(range(len(scores)), scores)
    axes.set(xlabel="repair", title="Points of test accuracy lost, mean over 25 to 85 % of heads removed")
    bar = figure.colorbar(shown, label="points (logarithmic)", ticks=[1, 2, 3, 5, 10, 20, 30], format="%g")
    bar.minorticks_off()
    figure.tight_layout()
    figure.savefig(picture, dpi=120)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--scores", nargs="+", default=list(ASKED), choices=list(ASKED))
    parser.add_argument("--repairs", nargs="+", default=list(REPAIRS), choices=list(REPAIRS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--report", type=Path, nargs="?", const=Path("benchmarks/sst2_grid.png"))
    asked = parser.parse_args()
    if asked.report is not None:
        report(asked.folder, asked.report, asked.seeds)
    else:
        torch.set_num_threads(1)
        measure(asked.data, asked.folder, asked.scores, asked.repairs, asked.seeds)
