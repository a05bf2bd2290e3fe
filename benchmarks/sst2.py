"""Scores and repairs compared on a fine-tuned sentiment classifier, without retraining.

Dev texts choose the default, test texts judge it: for every method, share of heads removed and seed of the calibration
texts the logits of the cut model are kept, so that intervals can resample texts and seeds together. What is done
already is not done again.

    python benchmarks/sst2.py DATA FOLDER [--methods all|main] [--seeds 0 1 2] [--parts dev test]
    python benchmarks/sst2.py DATA FOLDER --report benchmarks/sst2.png

DATA holds train.tsv, dev.tsv, test.tsv (`text<TAB>label`, no header); FOLDER keeps the classifier and the logits.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from classifier import classifier, read

from headwise.analysis.corpus.batching import batches
from headwise.analysis.corpus.texts import Corpus
from headwise.analysis.sites import find_sites
from headwise.prune.compensation import COMPENSATIONS
from headwise.prune.compensation.undo import given_back
from headwise.prune.importance import SCORES, Calibration
from headwise.prune.selection import Budget, Keep, select
from headwise.prune.surgery import cut
from headwise.prune.tasks import TASKS

FRACTIONS = (0.25, 0.5, 0.6, 0.75, 0.85)
CALIBRATION = 1024
HOW = {"batch_size": 32, "max_length": 64}
NONE, BIAS, SCALE = {"kind": "none"}, {"kind": "bias"}, {"kind": "scale"}
SEQUENTIAL = {"kind": "sequential", "target": "output"}
#: Least squares block by block alone; followed by the correction of the outputs; with values refitted in between (default).
REPAIR = {"kind": "reconstruction", "values": "keep", "correct": "none"}
CORRECTED, REFITTED = {"kind": "reconstruction", "values": "keep"}, {"kind": "reconstruction"}
RECONSTRUCTION = {"kind": "reconstruction"}
#: As they were before the outputs' gradient weighed them, and before that were scaled to the gradients at the gates.
LABELS = {**RECONSTRUCTION, "loss": "labels"}
UNSCALED = {**LABELS, "scaled": False}
OUTPUTS = {"kind": "reconstruction", "weight": "gradient", "loss": "outputs"}
#: name -> score, compensation. The first is the default; `gradient` alone is Michel's score.
METHODS = {
    "default": (RECONSTRUCTION, REFITTED),
    "default, 4096 texts": (RECONSTRUCTION, REFITTED),
    "by labels": (LABELS, REFITTED),
    "unscaled, values refitted": (UNSCALED, REFITTED),
    "unscaled, values kept": (UNSCALED, CORRECTED),
    "unscaled, repair alone": (UNSCALED, REPAIR),
    "gradient": ({"kind": "gradient"}, NONE),
    "gradient + repair": ({"kind": "gradient"}, REPAIR),
    "gradient + default repair": ({"kind": "gradient"}, REFITTED),
    "by tokens' gradient + repair": ({**UNSCALED, "weight": "gradient"}, REPAIR),
    "by nothing + repair": ({"kind": "reconstruction", "weight": "none"}, REPAIR),
    "fisher + repair": ({"kind": "fisher"}, REPAIR),
    "gradient + corrected repair": ({"kind": "gradient"}, CORRECTED),
    "magnitude + corrected repair": ({"kind": "magnitude"}, CORRECTED),
    "random + corrected repair": ({"kind": "random"}, CORRECTED),
    "by outputs + repair by outputs": ({**OUTPUTS, "scaled": False}, {**OUTPUTS, "correct": "none", "values": "keep"}),
    "unscaled + sequential": (UNSCALED, SEQUENTIAL),
    "unscaled + scale": (UNSCALED, SCALE),
    "fisher, block + repair": ({"kind": "fisher", "form": "block"}, REPAIR),
    "gradient + bias": ({"kind": "gradient"}, BIAS),
    "magnitude + repair": ({"kind": "magnitude"}, REPAIR),
    "random + repair": ({"kind": "random"}, REPAIR),
    "activation + repair": ({"kind": "activation"}, REPAIR),
    "variance + bias": ({"kind": "variance"}, BIAS),
    "variance + repair": ({"kind": "variance"}, REPAIR),
    "taylor2 + repair": ({"kind": "taylor2"}, REPAIR),
    "ablation + repair": ({"kind": "ablation"}, REPAIR),
}  # fmt: skip
#: What does not calibrate on `CALIBRATION` texts.
TEXTS = {"default, 4096 texts": 4096}
DEFAULT, MICHEL = "default", "gradient"
MAIN = ["default", "default, 4096 texts", "by labels", "unscaled, values kept", "unscaled, repair alone", "gradient",
        "gradient + repair", "gradient + default repair", "by tokens' gradient + repair", "by nothing + repair",
        "fisher + repair"]  # fmt: skip


def logits_of(model: torch.nn.Module, found: object, count: int) -> np.ndarray:
    """[text, class] of a model."""
    result = np.full((count, 2), np.nan, np.float32)
    with torch.inference_mode():
        for batch in found:
            result[list(batch.index)] = model(**batch.inputs).logits.numpy()
    return result


def measure(
    data: Path, folder: Path, methods: list[str], seeds: list[int], parts: list[str], fractions: list[float]
) -> None:
    """Fill the folder with logits."""
    model, tokenizer = classifier(data, folder / "classifier")
    results = folder / "logits"
    results.mkdir(parents=True, exist_ok=True)
    train, judged = read(data / "train.tsv"), {part: read(data / f"{part}.tsv") for part in parts}
    how = {"model": model, "max_length": 64}
    inputs = {part: list(batches(texts, tokenizer, batch_size=64, **how)) for part, texts in judged.items()}
    for part, texts in judged.items():
        if not (results / f"{part}-dense.npy").exists():
            np.save(results / f"{part}-labels.npy", [int(text.label) for text in texts.texts])
            np.save(results / f"{part}-dense.npy", logits_of(model, inputs[part], len(texts)))
    counts = sorted({TEXTS.get(name, CALIBRATION) for name in methods})
    for seed, count in itertools.product(seeds, counts):
        calibration = calibrated(model, tokenizer, train.sample(count, seed), seed)
        for name in (name for name in methods if TEXTS.get(name, CALIBRATION) == count):
            one(name, seed, calibration, inputs, judged, results, fractions)


def calibrated(model: torch.nn.Module, tokenizer: object, texts: Corpus, seed: int) -> Calibration:
    """The texts that decide."""
    task = TASKS["text-classification"]().fit(model, tokenizer, texts, seed=seed, **HOW)
    return Calibration(model, find_sites(model), batches(texts, tokenizer, model=model, **HOW), task, seed=seed)


def repaired(calibration: Calibration, repair: dict, remove: Mapping[str, Sequence[int]]) -> torch.nn.Module:
    """A cut copy, repaired; the model is given back as it was."""
    with given_back(calibration.model, calibration.sites):
        COMPENSATIONS[repair["kind"]](**repair).repair(calibration, remove)
        return cut(copy.deepcopy(calibration.model), remove)


def one(
    name: str, seed: int, calibration: Calibration, inputs: dict, judged: dict, results: Path,
    fractions: list[float],
) -> None:  # fmt: skip
    """All shares of one method and seed."""
    score, repair = METHODS[name]
    found = None
    for fraction in fractions:
        where = {part: results / f"{part}-{name}-{fraction}-{seed}.npy" for part in inputs}
        if all(path.exists() for path in where.values()):
            continue
        began = time.perf_counter()
        found = found or SCORES[score["kind"]](**score).score(calibration)
        chosen = select(calibration.sites, found.costs, Budget(fraction=fraction), keep=Keep(minimum_per_site=1))
        smaller = repaired(calibration, repair, chosen.remove)
        decided = time.perf_counter() - began
        for part, path in where.items():
            if not path.exists():
                np.save(path, logits_of(smaller, inputs[part], len(judged[part])))
        took = time.perf_counter() - began - decided
        print(f"{name}, {fraction}, seed {seed}: decided in {decided:.1f} s, judged in {took:.1f} s", flush=True)


class Results:
    """Who was right where: [seed, text] of every method and share."""

    def __init__(self, folder: Path, part: str) -> None:
        self.folder, self.part = folder / "logits", part
        self.labels = np.load(self.folder / f"{part}-labels.npy")
        self.dense = self._right(np.load(self.folder / f"{part}-dense.npy"))

    def _right(self, logits: np.ndarray) -> np.ndarray:
        return (logits.argmax(-1) == self.labels).astype(float)

    def right(self, name: str, fraction: float) -> np.ndarray | None:
        """[seed, text], None if nothing was measured."""
        paths = sorted(self.folder.glob(f"{self.part}-{name}-{fraction}-*.npy"))
        return np.stack([self._right(np.load(path)) for path in paths]) if paths else None

    def interval(self, above: np.ndarray, below: np.ndarray, draws: int = 10_000) -> tuple[float, ...]:
        """Mean difference, two-sided 95 % interval, one-sided 95 % upper bound and two-sided p; texts and seeds drawn.

        Both are [seed, text]; the difference of the same seed and text is what is averaged.
        """
        apart = above - below
        rng = np.random.default_rng(0)
        means = np.empty(draws)
        for index in range(draws):
            rows = apart[rng.integers(0, len(apart), len(apart))].mean(0)
            means[index] = rows[rng.integers(0, apart.shape[1], apart.shape[1])].mean()
        low, high = np.quantile(means, [0.025, 0.975])
        p = min(1.0, 2 * min((means <= 0).mean(), (means >= 0).mean()) + 1 / draws)
        return float(apart.mean()), float(low), float(high), float(np.quantile(means, 0.95)), float(p)


def holm(ps: list[float]) -> list[float]:
    """Holm's adjusted p values.

    >>> holm([0.01, 0.04])
    [0.02, 0.04]
    """
    order, adjusted, worst = np.argsort(ps), np.empty(len(ps)), 0.0
    for rank, index in enumerate(order):
        worst = max(worst, min(1.0, ps[index] * (len(ps) - rank)))
        adjusted[index] = worst
    return adjusted.tolist()


def report(folder: Path, picture: Path | None) -> None:
    """Tables as markdown on stdout, and the curves."""
    for part in ("dev", "test"):
        if (folder / "logits" / f"{part}-dense.npy").exists():
            table(Results(folder, part))
    results = Results(folder, "test")
    compared(results)
    if picture is not None:
        drawn(results, picture)


def table(results: Results) -> None:
    """Drop in points with its upper bound, by method and share."""
    print(f"\n{results.part}: dense {results.dense.mean():.4f} on {len(results.labels)} texts; drop in points, seeds")
    print("averaged, [95 % interval over texts and seeds], one-sided upper bound\n")
    print("| method | " + " | ".join(f"{fraction:.0%}" for fraction in FRACTIONS) + " | mean |")
    print("|---" * (len(FRACTIONS) + 2) + "|")
    for name in METHODS:
        cells, drops = [], []
        for fraction in FRACTIONS:
            right = results.right(name, fraction)
            if right is None:
                cells.append("")
                continue
            drop, low, high, upper, _ = results.interval(np.broadcast_to(results.dense, right.shape), right)
            drops.append(100 * drop)
            cells.append(f"{100 * drop:.2f} [{100 * low:.2f}, {100 * high:.2f}] ≤ {100 * upper:.2f}")
        if drops:
            mean = f"{np.mean(drops):.2f}" if len(drops) == len(FRACTIONS) else ""
            print(f"| {name} | " + " | ".join(cells) + f" | {mean} |")


def compared(results: Results) -> None:
    """The default against every other method, share by share, Holm over all of them."""
    rows, ps = [], []
    for name in METHODS:
        for fraction in FRACTIONS:
            ours, theirs = results.right(DEFAULT, fraction), results.right(name, fraction)
            if name == DEFAULT or ours is None or theirs is None or len(ours) != len(theirs):
                continue
            gain, low, high, _, p = results.interval(ours, theirs)
            rows.append((name, fraction, 100 * gain, 100 * low, 100 * high))
            ps.append(p)
    print(f"\n{DEFAULT} minus another, in points of test accuracy\n")
    print("| other | removed | gain | 95 % interval | p | Holm |")
    print("|---|---|---|---|---|---|")
    for (name, fraction, gain, low, high), p, adjusted in zip(rows, ps, holm(ps), strict=True):
        print(f"| {name} | {fraction:.0%} | {gain:+.2f} | {low:+.2f} to {high:+.2f} | {p:.4f} | {adjusted:.4f} |")


def drawn(results: Results, picture: Path) -> None:
    """Curves of accuracy by share removed."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 5))
    axes.axhline(100 * results.dense.mean(), color="0.5", linestyle=":", label="dense")
    for name in METHODS:
        right = [results.right(name, fraction) for fraction in FRACTIONS]
        if all(rows is not None for rows in right):
            values = [100 * rows.mean() for rows in right]
            spread = [100 * rows.mean(1).std() for rows in right]
            width = 2.5 if name == DEFAULT else 1.2
            axes.errorbar([100 * f for f in FRACTIONS], values, spread, label=name, linewidth=width, capsize=2)
    axes.set(xlabel="heads removed (%)", ylabel="test accuracy (%), bars: spread over calibration seeds")
    axes.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(picture, dpi=120)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--methods", default="main", help="all, main, or names separated by semicolons")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--fractions", type=float, nargs="+", default=list(FRACTIONS))
    parser.add_argument("--parts", nargs="+", default=["dev", "test"])
    parser.add_argument("--report", type=Path, nargs="?", const=Path("benchmarks/sst2.png"))
    asked = parser.parse_args()
    if asked.report is not None:
        report(asked.folder, asked.report)
    else:
        torch.set_num_threads(1)
        names = {"all": list(METHODS), "main": MAIN}.get(asked.methods) or asked.methods.split(";")
        measure(asked.data, asked.folder, names, asked.seeds, asked.parts, asked.fractions)
        (asked.folder / "facts.json").write_text(json.dumps({"seeds": asked.seeds, "calibration": CALIBRATION}) + "\n")
