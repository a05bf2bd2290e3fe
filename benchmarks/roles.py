"""Roles of a checkpoint's heads: on gold annotations against every simple rule, and by silencing them.

    python benchmarks/roles.py [--model embedded|FOLDER|FILE.gguf] [--parts links,circuits]
        [--gap FILE] [--litbank FOLDER] [--ewt FILE] [--winobias FILE…] [--most 300] [--length 256]

`links`: coreference on the set that ships, GAP, LitBank and WinoBias, syntax on a treebank; the best head of every
relation, with how many heads play it. Texts are drawn by content, so that a smaller `--most` is reproducible; those
longer than `--length` tokens are read in windows that overlap. `circuits`: which heads play each of `--roles`, and what
silencing the five strongest does to the behaviour that the role is for, against as many random other heads.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from pathlib import Path

import numpy as np


def opened(name):
    """Model and tokenizer; a GGUF file needs the package gguf."""
    if not name.endswith(".gguf"):
        from headwise.prune.opening import open_checkpoint

        found = open_checkpoint(name, device="cpu")
        return found.model, found.tokenizer
    from transformers import AutoTokenizer

    from headwise.prune.checkpoint import load

    place = Path(name)
    how = {"gguf_file": place.name}
    return load(str(place.parent), **how), AutoTokenizer.from_pretrained(place.parent, **how)


def sources(options):
    """Name and annotated texts of every set asked for."""
    from headwise.analysis.annotations import coreference_set, read_annotations

    yield "own set", coreference_set()
    if options.gap:
        yield "GAP", read_annotations(options.gap, "gap")
    if options.litbank:
        files = sorted(Path(options.litbank).glob("*conll"))
        yield "LitBank", [one for file in files for one in read_annotations(file, "conll2012")]
    if options.winobias:
        yield "WinoBias", [one for file in options.winobias for one in read_annotations(file, "winobias")]
    if options.ewt:
        yield "UD EWT", read_annotations(options.ewt, "dependencies")


def tested(model, tokenizer, annotated, options):
    """What a search for roles finds on annotated texts alone, and the labels of the heads."""
    from headwise.analysis.capture import MEMORY
    from headwise.analysis.corpus.batching import batches
    from headwise.analysis.corpus.texts import Corpus, Text
    from headwise.analysis.roles import ROLES
    from headwise.analysis.roles.assignment import assign
    from headwise.analysis.roles.search import Search
    from headwise.analysis.sites import find_sites, heads_of
    from headwise.analysis.statistics import Statistics

    sites = find_sites(model)
    roles = ["coreference"] if annotated[0].relation == "coreference" else []
    data = batches(Corpus([Text("x")]), tokenizer, model=model, max_length=options.length)
    search = Search(model, tokenizer, sites, roles, data, annotated=annotated, memory=MEMORY, seed=options.seed)
    tests = search.tests(Statistics(sites))
    return tests, assign(tests, ROLES), search.facts, [f"{site}.{head}" for site, head in heads_of(sites)]


def rows_of(name, tests, arrays, facts, labels, most=12):
    """The best head of every kind of link, the most convincing kinds first."""
    found = []
    for kind, parts in tests.items():
        if not np.isfinite(parts["excess"]).any():
            continue
        i = int(np.nanargmax(parts["excess"]))
        rules = ("random", "uniform", "nearest", "first", "same_word", "best_offset")
        rule = max((rule for rule in rules if rule in parts), key=lambda rule: parts[rule][i])
        kinds = [f"{k} {parts[k][i]:.3f}" for k in ("pronoun", "proper", "nominal") if k in parts and parts[k][i] >= 0]
        numbers = {part: float(parts[part][i]) for part in ("n", "score", "chance", "excess", "low", "high")}
        playing = int(arrays[f"roles/{kind}/assigned"].sum())
        found.append((numbers["excess"], f"| {name} | {kind} | {labels[i]} | {numbers['n']:.0f} | {numbers['score']:.3f} | "
                      f"{numbers['chance']:.3f} ({rule.replace('_', ' ')}) | {numbers['excess']:+.3f} | "
                      f"{numbers['low']:+.3f} to {numbers['high']:+.3f} | {playing} | "
                      f"{facts['reliability'][kind]:.2f} | {', '.join(kinds)} |"))  # fmt: skip
    return [row for _, row in sorted(found, reverse=True)[:most]]


def links(model, tokenizer, options):
    """The best head of every relation of every set, as a table."""
    print(
        "| texts | relation | best head | cases | right | rule to beat | over it | 95 % interval | heads | reliability | by kind |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    for name, texts in sources(options):
        # The shipped set has few texts a template: all of them, or templates would be torn.
        whole = name == "own set" or not options.most or len(texts) <= options.most
        drawn = texts if whole else random.Random(options.seed).sample(texts, options.most)
        start = time.perf_counter()
        tests, arrays, facts, labels = tested(model, tokenizer, drawn, options)
        for row in rows_of(name, tests, arrays, facts, labels):
            print(row, flush=True)
        flagged = sum(bool(arrays[f"roles/{kind}/assigned"].any()) for kind in tests)
        skipped = (facts.get("coreference") or facts["links"])["skipped"]
        print(f"{name}: {len(drawn)} of {len(texts)} texts, {time.perf_counter() - start:.0f} s, {flagged} of {len(tests)} "
              f"relations have a head; left out: {skipped}", file=sys.stderr, flush=True)  # fmt: skip


def circuits(model, tokenizer, options):
    """The heads of each role, and what silencing them does."""
    from headwise.analysis.analyze import analyze
    from headwise.analysis.corpus import embedded_corpus

    roles = options.roles.split(",")
    corpus = embedded_corpus().sample(48, options.seed)
    evidence = analyze(model, tokenizer, corpus, measures=[], roles=roles, max_length=128, interventions=True,
                       seed=options.seed)  # fmt: skip
    print("\n| role | heads | the strongest: score (chance) |")
    print("|---|---|---|")
    for role in roles:
        playing = np.flatnonzero(evidence[f"roles/{role}/assigned"])
        order = playing[np.argsort(-evidence[f"roles/{role}/excess"][playing])][:8]
        score, chance = (evidence[f"roles/{role}/{part}"] for part in ("score", "chance"))
        strongest = ", ".join(f"{evidence.labels()[i]} {score[i]:.2f} ({chance[i]:.2f})" for i in order)
        print(f"| {role} | {len(playing)} | {strongest} |")
    print(
        "\n| role | silenced | measured | before | rises by | random draws: mean (central 95 %), largest | p | verdict |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for role, one in evidence.facts["interventions"].items():
        if one["draws"] is None:
            print(f"| {role} | | {one['reason']} | | | | | {one['verdict']} |")
            continue
        random = one["random"]
        others = (f"{random['mean']:+.3f} ({random['low']:+.3f} to {random['high']:+.3f}), {random['max']:+.3f} of "
                  f"{one['draws']}")  # fmt: skip
        print(f"| {role} | {', '.join(one['heads'])} | {one['measured']} | {one['base']:.3f} | {one['effect']:+.3f} | "
              f"{others} | {one['p']:.3f} | {one['verdict']} |")  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="embedded")
    parser.add_argument("--parts", default="links", help="links, circuits or both, with a comma")
    parser.add_argument("--roles", default="previous,induction,coreference,first-token,punctuation", help="of circuits")
    parser.add_argument("--gap")
    parser.add_argument("--litbank")
    parser.add_argument("--winobias", nargs="+")
    parser.add_argument("--ewt")
    parser.add_argument("--most", type=int, default=300, help="texts of a set at most; 0 for all")
    parser.add_argument("--length", type=int, default=256, help="tokens of a text at most")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    parts = {"links": links, "circuits": circuits}
    asked = options.parts.split(",")
    if not set(asked) <= set(parts):
        parser.error(f"--parts: got {options.parts!r}, expected some of {', '.join(parts)}")
    model, tokenizer = opened(options.model)
    for part in asked:
        parts[part](model, tokenizer, options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
