"""A tiny checkpoint and texts on disk, and what makes a shipped recipe run on them in a second or two."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import torch
from transformers import BertConfig, BertForSequenceClassification, BertModel

from tests.word_tokenizers import of_words

WORDS = [f"w{i}" for i in range(40)]
SIZES: dict[str, Any] = {
    "vocab_size": 44, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 32,
    "max_position_embeddings": 24, "initializer_range": 0.3, "hidden_dropout_prob": 0.0,
}  # fmt: skip


def tokenizer() -> Any:
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *WORDS]
    return of_words(words, framed=True, pad_token="[PAD]", cls_token="[CLS]", sep_token="[SEP]")


def checkpoint(folder: Path, *, head: bool = True, **changes: Any) -> Path:
    """A random BERT with its tokenizer; `head`: with a classifier of two classes, `no` and `yes`."""
    torch.manual_seed(0)
    names = {"id2label": {0: "no", 1: "yes"}, "label2id": {"no": 0, "yes": 1}} if head else {}
    config = BertConfig(**{**SIZES, **names, **changes})
    (BertForSequenceClassification if head else BertModel)(config).save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder


def table(path: Path, rows: int = 64) -> Path:
    """Labelled texts, JSON lines; the words tell the label."""
    draw = random.Random(0)
    with path.open("w") as file:
        for i in range(rows):
            words = [WORDS[draw.randrange(20) + 20 * (i % 2)] for _ in range(4 + i % 9)]
            file.write(json.dumps({"text": " ".join(words), "label": ["no", "yes"][i % 2]}) + "\n")
    return path


def settings(model: Path | None, texts: Path, *more: str) -> list[str]:
    """Overrides that make any shipped recipe small."""
    named = [f"model.id={json.dumps(str(model))}"] if model is not None else []
    source = {"source": str(texts), "text": "text", "label": "label"}
    grid = {"batches": [1], "lengths": [8], "rounds": 3}
    return [*named, f"data.calibration={json.dumps(source)}", f"speed={json.dumps(grid)}", "data.batch_size=8", *more]
