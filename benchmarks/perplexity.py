"""Scores and repairs compared on a causal language model with grouped queries, by perplexity, without retraining.

The first windows of a text judge, texts from its second half calibrate. The nats of every window are kept for each
method and number of key/value groups that go, so that intervals can resample windows. What is done already is not
done again.

    python benchmarks/perplexity.py MODEL TEXT FOLDER [--windows 64] [--calibration 64] [--methods …] [--fractions 0.1 0.2 0.33 0.5]
    python benchmarks/perplexity.py MODEL TEXT FOLDER --report benchmarks/perplexity.png

MODEL is a folder or a GGUF file, TEXT a plain text file, FOLDER keeps the results.
"""

from __future__ import annotations

import argparse
import copy
import json
import time
from pathlib import Path

import numpy as np
import torch
from transformers import AutoTokenizer

from headwise.analysis.corpus.batching import batches
from headwise.analysis.corpus.texts import Corpus, Text
from headwise.analysis.sites import find_sites
from headwise.prune.checkpoint import load
from headwise.prune.compensation import COMPENSATIONS
from headwise.prune.compensation.undo import given_back
from headwise.prune.importance import SCORES, Calibration
from headwise.prune.selection import Budget, Keep, select
from headwise.prune.surgery import cut
from headwise.prune.tasks import TASKS
from headwise.prune.tasks.windows import token_losses

FRACTIONS = (0.1, 0.2, 0.33, 0.5)
LENGTH = 512
NONE, REPAIR = {"kind": "none"}, {"kind": "reconstruction"}
#: name -> score, compensation. The first is the default; `gradient` is Michel's score.
METHODS = {
    "reconstruction + repair": ({"kind": "reconstruction"}, REPAIR),
    "gradient": ({"kind": "gradient"}, NONE),
    "gradient + repair": ({"kind": "gradient"}, REPAIR),
    "fisher + repair": ({"kind": "fisher"}, REPAIR),
    "random + repair": ({"kind": "random"}, REPAIR),
}
DEFAULT, MICHEL = "reconstruction + repair", "gradient"


def opened(place: Path) -> tuple[torch.nn.Module, object]:
    """The model in float32 and its tokenizer."""
    how = {"gguf_file": place.name} if place.suffix == ".gguf" else {}
    folder = place.parent if how else place
    return load(folder, dtype=torch.float32, **how).eval(), AutoTokenizer.from_pretrained(folder, **how)


def judged(tokens: list[int], count: int) -> torch.Tensor:
    """The first windows of a text, [window, token].

    >>> judged(list(range(LENGTH * 2 + 5)), 2).shape
    torch.Size([2, 512])
    """
    return torch.tensor(tokens[: count * LENGTH]).reshape(count, LENGTH)


def calibration_texts(tokens: list[int], tokenizer: object, count: int) -> Corpus:
    """Texts of about one window each, spread over the second half, which no window judges."""
    first = len(tokens) // 2
    starts = np.linspace(first, len(tokens) - LENGTH, count).astype(int)
    return Corpus([Text(tokenizer.decode(tokens[start : start + LENGTH])) for start in starts], source="second half")


def nats_of(model: torch.nn.Module, windows: torch.Tensor) -> np.ndarray:
    """Mean nats per scored token of each window."""
    found = []
    with torch.inference_mode():
        for window in windows:
            ids = window.unsqueeze(0)
            scored = torch.ones_like(ids, dtype=torch.bool)
            scored[:, 0] = False
            losses = token_losses(model(input_ids=ids, use_cache=False).logits, ids, scored)
            found.append(float(losses.double().sum() / (LENGTH - 1)))
    return np.array(found)


def measure(place: Path, text: Path, folder: Path, asked: argparse.Namespace) -> None:
    """Fill the folder with nats."""
    folder.mkdir(parents=True, exist_ok=True)
    model, tokenizer = opened(place)
    sites = find_sites(model)
    tokens = tokenizer(text.read_text(encoding="utf-8")).input_ids
    windows = judged(tokens, asked.windows)
    if asked.windows * LENGTH > len(tokens) // 2:
        raise SystemExit(f"{text}: {len(tokens)} tokens are too few for {asked.windows} windows and other texts")
    if not (folder / "dense.npy").exists():
        np.save(folder / "dense.npy", nats_of(model, windows))
    texts = calibration_texts(tokens, tokenizer, asked.calibration)
    task = TASKS["causal-lm"](window=LENGTH).fit(model, tokenizer, texts, batch_size=2, max_length=LENGTH)
    found = batches(texts, tokenizer, batch_size=2, model=model, max_length=LENGTH)
    calibration = Calibration(model, sites, found, task)
    for fraction in asked.fractions:
        for name in asked.methods:
            one(name, fraction, calibration, windows, folder)


def one(name: str, fraction: float, calibration: Calibration, windows: torch.Tensor, folder: Path) -> None:
    """One method at one share of the groups; scores are kept from share to share by the calibration's passes."""
    path = folder / f"{name}-{fraction}.npy"
    if path.exists():
        return
    began = time.perf_counter()
    score, repair = METHODS[name]
    sites = calibration.sites
    size = max(site.heads // site.kv_heads for site in sites.values())
    groups = round(fraction * sum(site.kv_heads for site in sites.values()))
    costs = SCORES[score["kind"]](**score).score(calibration).costs
    chosen = select(sites, costs, Budget(heads=groups * size), keep=Keep(minimum_per_site=1))
    with given_back(calibration.model, sites):
        COMPENSATIONS[repair["kind"]](**repair).repair(calibration, chosen.remove)
        smaller = cut(copy.deepcopy(calibration.model), chosen.remove)
    decided = time.perf_counter() - began
    nats = nats_of(smaller, windows)
    np.save(path, nats)
    took = time.perf_counter() - began - decided
    print(
        f"{name}, {fraction}: {np.exp(nats.mean()):.2f}; decided in {decided:.0f} s, judged in {took:.0f} s", flush=True
    )


def drawn_means(nats: np.ndarray, draws: int = 10_000) -> np.ndarray:
    """Perplexities of resampled windows; the same windows for every method."""
    rng = np.random.default_rng(0)
    return np.exp(nats[rng.integers(0, len(nats), (draws, len(nats)))].mean(1))


def report(folder: Path, picture: Path) -> None:
    """A table on stdout and the curves."""
    dense = np.load(folder / "dense.npy")
    found = {
        name: {f: np.load(folder / f"{name}-{f}.npy") for f in FRACTIONS if (folder / f"{name}-{f}.npy").exists()}
        for name in METHODS
    }
    print(f"dense {np.exp(dense.mean()):.2f} on {len(dense)} windows of {LENGTH} tokens; perplexity, [95 % interval of")
    print("its ratio to the dense model's, windows drawn again]\n")
    print("| method | " + " | ".join(f"{f:.0%}" for f in FRACTIONS) + " |")
    print("|---" * (len(FRACTIONS) + 1) + "|")
    for name, values in found.items():
        cells = []
        for fraction in FRACTIONS:
            if fraction not in values:
                cells.append("")
                continue
            low, high = np.quantile(drawn_means(values[fraction]) / drawn_means(dense), [0.025, 0.975])
            cells.append(f"{np.exp(values[fraction].mean()):.2f} [{low:.3f}, {high:.3f}]")
        print(f"| {name} | " + " | ".join(cells) + " |")
    excess(dense, found)
    drawn(dense, found, picture)


def excess(dense: np.ndarray, found: dict[str, dict[float, np.ndarray]]) -> None:
    """What the default adds to the dense perplexity, as a part of what each other method adds."""
    print(f"\n{DEFAULT}: excess over dense as a part of the other's, [95 % interval, windows drawn again]\n")
    print("| other | " + " | ".join(f"{f:.0%}" for f in FRACTIONS) + " |")
    print("|---" * (len(FRACTIONS) + 1) + "|")
    base, point = drawn_means(dense), np.exp(dense.mean())
    for name, values in found.items():
        cells = []
        for fraction in FRACTIONS if name != DEFAULT else ():
            ours, theirs = found[DEFAULT].get(fraction), values.get(fraction)
            if ours is None or theirs is None:
                cells.append("")
                continue
            part = (np.exp(ours.mean()) - point) / (np.exp(theirs.mean()) - point)
            low, high = np.quantile((drawn_means(ours) - base) / (drawn_means(theirs) - base), [0.025, 0.975])
            cells.append(f"{part:.3f} [{low:.3f}, {high:.3f}]")
        if cells:
            print(f"| {name} | " + " | ".join(cells) + " |")


def drawn(dense: np.ndarray, found: dict[str, dict[float, np.ndarray]], picture: Path) -> None:
    """Curves of perplexity by share removed."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot
    from matplotlib.ticker import StrMethodFormatter

    figure, axes = pyplot.subplots(figsize=(8, 5))
    axes.axhline(np.exp(dense.mean()), color="0.5", linestyle=":", label="dense")
    for name, values in found.items():
        axes.plot(
            [100 * f for f in values],
            [np.exp(nats.mean()) for nats in values.values()],
            marker="o", label=name, linewidth=2.5 if name == DEFAULT else 1.2,
        )  # fmt: skip
    axes.set(xlabel="key/value groups removed (%)", ylabel="perplexity (log scale)", yscale="log")
    axes.legend(fontsize=8)
    for which in (axes.yaxis.set_major_formatter, axes.yaxis.set_minor_formatter):
        which(StrMethodFormatter("{x:.0f}"))
    figure.tight_layout()
    figure.savefig(picture, dpi=120)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("text", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--windows", type=int, default=64)
    parser.add_argument("--calibration", type=int, default=64, help="texts of 512 tokens")
    parser.add_argument("--fractions", type=float, nargs="+", default=list(FRACTIONS))
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=list(METHODS))
    parser.add_argument("--report", type=Path, nargs="?", const=Path("benchmarks/perplexity.png"))
    given = parser.parse_args()
    if given.report is not None:
        report(given.folder, given.report)
    else:
        torch.set_num_threads(1)
        began = time.perf_counter()
        measure(given.model, given.text, given.folder, given)
        facts = {"windows": given.windows, "calibration": given.calibration, "seconds": time.perf_counter() - began}
        with (given.folder / "facts.jsonl").open("a") as file:
            file.write(json.dumps(facts) + "\n")
