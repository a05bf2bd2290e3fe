"""Coreference and syntax heads of a checkpoint on gold annotations, with intervals, against every simple rule.

    python benchmarks/roles.py [--model embedded] [--gap FILE] [--litbank FOLDER] [--ewt FILE] [--most 300]

The set that ships is always judged. Texts are drawn by content, so that a smaller `--most` is reproducible.
"""

from __future__ import annotations

import argparse
import random
import sys
from pathlib import Path

import numpy as np


def sources(options):
    """Name and annotated texts of every set asked for."""
    from headwise.analysis.annotations import coreference_set, read_annotations

    yield "own set", coreference_set()
    if options.gap:
        yield "GAP", read_annotations(options.gap, "gap")
    if options.litbank:
        files = sorted(Path(options.litbank).glob("*conll"))
        yield "LitBank", [one for file in files for one in read_annotations(file, "conll2012")]
    if options.ewt:
        yield "UD EWT", read_annotations(options.ewt, "dependencies")


def tested(model, tokenizer, annotated, seed):
    """What a search for roles finds on annotated texts alone, and the labels of the heads."""
    from headwise.analysis.batching import batches
    from headwise.analysis.capture import MEMORY
    from headwise.analysis.roles.search import Search
    from headwise.analysis.sites import find_sites, heads_of
    from headwise.analysis.statistics import Statistics
    from headwise.analysis.texts import Corpus, Text

    sites = find_sites(model)
    roles = ["coreference"] if annotated[0].relation == "coreference" else []
    data = batches(Corpus([Text("x")]), tokenizer, model=model)
    search = Search(model, tokenizer, sites, roles, data, annotated=annotated, memory=MEMORY, seed=seed)
    return search.tests(Statistics(sites)), [f"{site}.{head}" for site, head in heads_of(sites)]


def rows_of(name, tests, labels, most=12):
    """The best head of every kind of link, the most convincing kinds first."""
    found = []
    for kind, parts in tests.items():
        if not np.isfinite(parts["excess"]).any():
            continue
        best = int(np.nanargmax(parts["excess"]))
        found.append(
            (
                name,
                kind,
                labels[best],
                *(float(parts[p][best]) for p in ("n", "score", "chance", "excess", "low", "high")),
            )
        )
    return sorted(found, key=lambda row: -row[6])[:most]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="embedded")
    parser.add_argument("--gap")
    parser.add_argument("--litbank")
    parser.add_argument("--ewt")
    parser.add_argument("--most", type=int, default=300, help="texts of a set at most; 0 for all")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    from headwise.prune.opening import open_checkpoint

    opened = open_checkpoint(options.model)
    print("| texts | relation | best head | cases | right | rule to beat | over it | 95 % interval |")
    print("|---|---|---|---|---|---|---|---|")
    for name, texts in sources(options):
        # The shipped set has few texts a template: all of them, or templates would be torn.
        whole = name == "own set" or not options.most or len(texts) <= options.most
        drawn = texts if whole else random.Random(options.seed).sample(texts, options.most)
        for row in rows_of(name, *tested(opened.model, opened.tokenizer, drawn, options.seed)):
            label, kind, head, n, score, chance, excess, low, high = row
            numbers = f"{n:.0f} | {score:.3f} | {chance:.3f} | {excess:+.3f} | {low:+.3f} to {high:+.3f}"
            print(f"| {label} | {kind} | {head} | {numbers} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
