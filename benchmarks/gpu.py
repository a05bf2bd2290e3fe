"""The work of headwise on one GPU: capture, likeness, importance, the proof, the speed of a cut model, in one run.

Times are CUDA events around each step, memory is the peak of the allocator. Without a GPU the same steps run on
the processor with its clock, so that the path can be tried anywhere; the table says which it was.

    python benchmarks/gpu.py [--model embedded] [--texts 256] [--batch 32] [--length 128] [--dtype float32]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import sys
import time

#: Batches that the proof is made on.
PROVED = 2


class Clock:
    """Milliseconds and megabytes of steps, each timed after what came before has finished."""

    def __init__(self, device):
        import torch

        self.torch, self.cuda = torch, device.type == "cuda"
        self.rows = []

    @contextlib.contextmanager
    def step(self, name):
        """Time the block under a name."""
        torch = self.torch
        if not self.cuda:
            start = time.perf_counter()
            yield
            self.rows.append({"step": name, "ms": 1000 * (time.perf_counter() - start), "peak_mb": None})
            return
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        yield
        end.record()
        torch.cuda.synchronize()
        peak = torch.cuda.max_memory_allocated() / 2**20
        self.rows.append({"step": name, "ms": begin.elapsed_time(end), "peak_mb": peak})


def corpus_of(count):
    from headwise.analysis.corpus.embedded_text import embedded_corpus

    return embedded_corpus().sample(count, 0)


def plain(model, data):
    import torch

    with torch.inference_mode():
        for batch in data:
            model(**batch.inputs)


def look(model, data, names, door):
    from headwise.analysis.capture import capture
    from headwise.analysis.roles import ROLES
    from headwise.analysis.roles.mass import RelationMass
    from headwise.analysis.similarity import MEASURES
    from headwise.analysis.sites import find_sites
    from headwise.analysis.statistics import Statistics

    sites = find_sites(model)
    made = {"statistics": lambda: Statistics(sites), "roles": lambda: RelationMass(sites, ROLES)}
    reducers = [made[name]() if name in made else MEASURES[name](sites) for name in names]
    capture(model, data, reducers, sites=sites, door=door)
    return {name: array for reducer in reducers for name, array in reducer.result().items()}


def gate_gradients(model, data):
    """Gradient importance without maps: d loss / d gate of every head, the loss a sum of squared outputs."""
    import torch

    from headwise.analysis.gates import gated
    from headwise.analysis.sites import find_sites

    device = next(model.parameters()).device
    gates = {
        name: torch.ones(site.heads, device=device, requires_grad=True) for name, site in find_sites(model).items()
    }
    for batch in data:
        with gated(model, gates=gates):
            model(**batch.inputs)[0].float().square().mean().backward()
    return gates


def halves(sites):
    """Every second head, at least one kept."""
    return {name: list(range(1, site.heads, 2)) for name, site in sites.items() if not site.refusal}


def measured(options):
    import copy

    import torch

    from headwise.analysis.corpus.batching import batches
    from headwise.analysis.sites import find_sites
    from headwise.prune import cut
    from headwise.prune.opening import best_device, open_checkpoint
    from headwise.prune.proof import prove

    opened = open_checkpoint(options.model, dtype=options.dtype, device=options.device or best_device())
    model, tokenizer = opened.model, opened.tokenizer
    device = next(model.parameters()).device
    corpus = corpus_of(options.texts)
    data = list(batches(corpus, tokenizer, batch_size=options.batch, max_length=options.length, model=model))
    plain(model, data[:1])
    clock = Clock(device)
    with clock.step("forward, fused kernel"):
        plain(model, data)
    likeness = ("pearson",)
    everything = ("pearson", "cosine", "hellinger", "statistics", "roles")
    for name, names, door in (
        ("correlation, eager door", likeness, "eager"),
        ("all cheap measures and roles, eager door", everything, "eager"),
        ("correlation, tiles", likeness, "tiles"),
        ("all cheap measures and roles, tiles", everything, "tiles"),
    ):
        with clock.step(name):
            look(model, data, names, door)
    with clock.step("gradient importance"):
        gate_gradients(model, data)
    model.zero_grad(set_to_none=True)
    removed = halves(find_sites(model))
    smaller = cut(copy.deepcopy(model), removed).eval()
    with clock.step("proof, float32 and bfloat16"):
        proof = prove(model, smaller, removed, [batch.inputs for batch in data[:PROVED]])
    ratios = []
    for _ in range(options.rounds):
        pair = []
        for one in (model, smaller):
            with clock.step("one"):
                plain(one, data)
            pair.append(clock.rows.pop()["ms"])
        ratios.append(pair[0] / pair[1])
    base = clock.rows[0]["ms"]
    return {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "processor",
        "dtype": options.dtype,
        "texts": len(corpus),
        "steps": [row | {"ratio": row["ms"] / base} for row in clock.rows],
        "proof": {name: proof[name] for name in ("worst", "limit", "bfloat16", "end_to_end", "passed")},
        "dense_over_cut": {"median": statistics.median(ratios), "low": min(ratios), "high": max(ratios)},
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="embedded")
    parser.add_argument("--device")
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16", "float16"))
    parser.add_argument("--texts", type=int, default=256)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = measured(options)
    if options.json:
        print(json.dumps(found, indent=1))
        return 0
    print(f"{found['device']}, {found['dtype']}, {found['texts']} texts\n")
    print(f"{'':44}{'ms':>10}{'ratio':>8}{'peak MB':>10}")
    for row in found["steps"]:
        peak = "" if row["peak_mb"] is None else f"{row['peak_mb']:.0f}"
        print(f"{row['step']:44}{row['ms']:10.1f}{row['ratio']:8.2f}{peak:>10}")
    speed = found["dense_over_cut"]
    proof = found["proof"]
    print(
        f"\ngate against cut, site by site: {proof['worst']:.2g} of the output (limit {proof['limit']:.0e}), in bfloat16 "
        f"{proof['bfloat16']['worst']:.2g} ({proof['bfloat16']['limit']:.0e}): {'passed' if proof['passed'] else 'FAILED'}"
    )
    print(f"dense over cut, every second head gone: {speed['median']:.2f} ({speed['low']:.2f} to {speed['high']:.2f})")
    return 0 if proof["passed"] else 1


if __name__ == "__main__":
    sys.exit(main())
