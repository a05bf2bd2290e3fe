"""What training after the cut adds to the repair: a fine-tuned sentiment classifier, most of its heads removed.

The default score and repair decide on calibration texts as in `sst2.py`; each way of recovery then trains the cut model,
on the same 1,024 texts, as `headwise prune` with that `recover` does, or on more (`--texts`), one epoch (`--epochs`). Dev
texts choose defaults, test texts judge them. What is done already is not done again.

    python benchmarks/recovery.py DATA FOLDER [--seeds 0 1 2] [--texts 4096 --epochs 1] [--methods NAME;NAME]
    python benchmarks/recovery.py DATA FOLDER --report

DATA and FOLDER are those of `sst2.py`; weights, logits and times go to FOLDER/recovery.
"""

from __future__ import annotations

import argparse
import copy
import json
import time
from pathlib import Path

import numpy as np
import torch
from classifier import classifier, read
from sst2 import CALIBRATION, HOW, RECONSTRUCTION, REFITTED, Results, calibrated, logits_of, repaired

from headwise.analysis.corpus.batching import batches
from headwise.prune.importance import SCORES, Calibration
from headwise.prune.recovery import RECOVERIES
from headwise.prune.selection import Budget, Keep, select
from headwise.prune.surgery import cut

FRACTIONS = (0.75, 0.85)
TEXTS = (CALIBRATION, 4096)
ALONE = "repair alone"
#: name -> what stands under `recover` in a recipe; what is left out is the default.
METHODS = {
    ALONE: {"kind": "none"},
    "finetune": {"kind": "finetune"},
    "distil": {"kind": "distil"},
    "distil, predictions alone": {"kind": "distil", "hidden": 0.0},
    "distil, low-rank": {"kind": "distil", "lora": 8},
}


def measure(asked: argparse.Namespace) -> None:
    """Fill the folder with logits and times."""
    model, tokenizer = classifier(asked.data, asked.folder / "classifier")
    results = asked.folder / "recovery" / "logits"
    results.mkdir(parents=True, exist_ok=True)
    train, judged = read(asked.data / "train.tsv"), {part: read(asked.data / f"{part}.tsv") for part in asked.parts}
    inputs = {part: list(batches(texts, tokenizer, model=model, **HOW)) for part, texts in judged.items()}
    for part, texts in judged.items():
        if not (results / f"{part}-dense.npy").exists():
            np.save(results / f"{part}-labels.npy", [int(text.label) for text in texts.texts])
            np.save(results / f"{part}-dense.npy", logits_of(model, inputs[part], len(texts)))
    for seed in asked.seeds:
        calibration = calibrated(model, tokenizer, train.sample(CALIBRATION, seed), seed)
        texts = train.sample(asked.texts, seed)
        for fraction in asked.fractions:
            kept = results.parent / f"repaired-{fraction}-{seed}.pt"
            if not kept.exists():
                torch.save(begun(calibration, fraction), kept)
            start = torch.load(kept)
            for name in asked.methods.split(";") if asked.methods else METHODS:
                label = f"{name}, {asked.texts if name != ALONE else CALIBRATION}"
                where = {part: results / f"{part}-{label}-{fraction}-{seed}.npy" for part in inputs}
                if all(path.exists() for path in where.values()):
                    continue
                method = METHODS[name] | ({"epochs": asked.epochs} if asked.epochs and name != ALONE else {})
                smaller, told = trained(calibration, start, method, batches(texts, tokenizer, model=model, **HOW))
                for part, path in where.items():
                    np.save(path, logits_of(smaller, inputs[part], len(judged[part])))
                (results / f"{label}-{fraction}-{seed}.json").write_text(json.dumps(told) + "\n")
                path = " ".join(f"{loss:.4f}" for loss in told.get("path", ()))
                print(f"{label}, {fraction}, seed {seed}: {told['seconds']:.0f} s, held-out loss {path}", flush=True)


def begun(calibration: Calibration, fraction: float) -> dict:
    """The cut and repaired model: which heads are gone, its weights, and the processor time that it took."""
    began = time.process_time()
    scores = SCORES[RECONSTRUCTION["kind"]](**RECONSTRUCTION).score(calibration)
    chosen = select(calibration.sites, scores.costs, Budget(fraction=fraction), keep=Keep(minimum_per_site=1))
    smaller = repaired(calibration, REFITTED, chosen.remove)
    took = time.process_time() - began
    return {"remove": dict(chosen.remove), "weights": smaller.state_dict(), "seconds": took}


def trained(calibration: Calibration, start: dict, method: dict, texts: object) -> tuple[torch.nn.Module, dict]:
    """The model after one way of recovery, and what that tells."""
    smaller = cut(copy.deepcopy(calibration.model), start["remove"])
    smaller.load_state_dict(start["weights"])
    recovery, began = RECOVERIES[method["kind"]](**method), time.process_time()
    told = recovery.train(calibration.model, smaller.eval(), calibration.task, texts, seed=calibration.seed)
    seconds = time.process_time() - began if method["kind"] != "none" else start["seconds"]
    return smaller, told | {"seconds": seconds}


def report(folder: Path, fractions: list[float]) -> None:
    """Drops with their intervals, what recovery adds to the repair, and the time it took, as markdown."""
    for part in ("dev", "test"):
        if not (folder / "recovery" / "logits" / f"{part}-dense.npy").exists():
            continue
        results = Results(folder / "recovery", part)
        print(f"\n{part}: dense {results.dense.mean():.4f} on {len(results.labels)} texts; points, seeds averaged\n")
        print("| removed | recovery | trained on | seeds | drop | less than with repair alone | seconds |")
        print("|---|---|---|---|---|---|---|")
        for fraction in fractions:
            alone = results.right(f"{ALONE}, {CALIBRATION}", fraction)
            for name, texts in ((n, t) for n in METHODS for t in TEXTS if alone is not None):
                right = results.right(f"{name}, {texts}", fraction)
                if right is not None:
                    print(row(results, name, texts, fraction, right, alone[: len(right)]))


def row(results: Results, name: str, texts: int, fraction: float, right: np.ndarray, alone: np.ndarray) -> str:
    """One way at one share, beside the repair alone of the same seeds."""
    drop, low, high, _, _ = results.interval(np.broadcast_to(results.dense, right.shape), right)
    gain, least, most, _, p = results.interval(right, alone)
    told = [json.loads(path.read_text()) for path in results.folder.glob(f"{name}, {texts}-{fraction}-*.json")]
    seconds = np.mean([facts["seconds"] for facts in told])
    epochs = sorted({facts.get("epochs", 0) for facts in told})
    on = f"{texts:,} texts, {epochs[0]}{f' to {epochs[-1]}' if len(epochs) > 1 else ''} epochs" if name != ALONE else ""
    more = f"{100 * gain:+.2f} ({100 * least:+.2f} to {100 * most:+.2f}), p {p:.3f}" if name != ALONE else ""
    shown = f"{100 * drop:.2f} ({100 * low:.2f} to {100 * high:.2f})"
    return f"| {fraction:.0%} | {name} | {on} | {len(right)} | {shown} | {more} | {seconds:.0f} |"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--methods", default="", help="names separated by semicolons; all if left out")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--fractions", type=float, nargs="+", default=list(FRACTIONS))
    parser.add_argument("--texts", type=int, default=CALIBRATION, choices=TEXTS, help="to train on")
    parser.add_argument("--epochs", type=int, help="the default of `recover` if left out")
    parser.add_argument("--parts", nargs="+", default=["dev", "test"])
    parser.add_argument("--report", action="store_true")
    given = parser.parse_args()
    if given.report:
        report(given.folder, given.fractions)
    else:
        torch.set_num_threads(1)
        measure(given)
