"""How much of the speed that the removed operations allow is reached: half of MiniLM's heads, whole forward passes.

python benchmarks/speed.py                       # 5 interleaved runs at 1 × 32, 8 × 128 and 8 × 512
python benchmarks/speed.py --plan runs/a/plan.json --threads 1
"""

from __future__ import annotations

import argparse
import copy
import json
import sys
from pathlib import Path

import numpy as np
import torch

from headwise.analysis.sites import find_sites, heads_of
from headwise.prune import Plan, cut
from headwise.prune.opening import open_checkpoint
from headwise.prune.speed import compare_speed
from headwise.prune.speed.inputs import inputs_to_time

#: Batch, length, and the share of the operation ratio that is asked for.
SETTINGS = ((1, 32, 0.95), (8, 128, 0.97), (8, 512, 0.97))

#: Operators whose work is what `operation_ratio` counts.
PRODUCTS = {
    "aten::addmm", "aten::mm", "aten::bmm", "aten::baddbmm", "aten::_scaled_dot_product_flash_attention_for_cpu"
}  # fmt: skip


def half(model: torch.nn.Module, seed: int) -> dict[str, list[int]]:
    """Half of all heads, drawn at random; every site keeps one."""
    sites = find_sites(model)
    drawn = np.random.default_rng(seed).permutation(len(heads_of(sites)))
    order = [heads_of(sites)[i] for i in drawn]
    remove: dict[str, list[int]] = {}
    for site, head in order:
        if sum(map(len, remove.values())) == len(order) // 2:
            break
        if len(remove.get(site, ())) < sites[site].heads - 1:
            remove.setdefault(site, []).append(head)
    return {site: sorted(heads) for site, heads in remove.items()}


def allowed_by_blocks(run: dict) -> float:
    """The ratio if a forward pass saved just what its attention blocks save when they are timed alone.

    The kernels decide how much of the operations' share that is: at few tokens a product half as wide takes more
    than half of the time. What the whole model misses beyond it would be lost by the cut itself.
    """
    whole, blocks = run["rows"][0]["dense_ms"]["median"], run["attention"]
    return whole / (whole - blocks["dense_ms"]["median"] + blocks["cut_ms"]["median"])


def allowed_by_products(dense: torch.nn.Module, run: dict, passes: int = 50) -> float:
    """The ratio if every matrix product took time just in proportion to its operations, and the rest stayed.

    Norms, activations, additions and the calling of modules are no operations that removal saves, but take time too.
    """
    row = run["rows"][0]
    inputs = inputs_to_time(dense, row["batch"], row["length"])
    with torch.inference_mode():
        dense(**inputs)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            for _ in range(passes):
                dense(**inputs)
    spent = sum(event.self_cpu_time_total for event in profile.key_averages() if event.key in PRODUCTS)
    share = min(1.0, spent / 1e3 / passes / row["dense_ms"]["median"])
    return 1 / (1 - share + share / row["operation_ratio"])


def main() -> None:
    """Print a row per setting: every run's share, their median, and whether it is enough."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="embedded")
    parser.add_argument("--plan", type=Path, help="a plan.json; half of the heads at random if left out")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--seconds", type=float, default=60.0, help="the most that one run of one setting may take")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--settings", default="all", help="for instance 1x32,8x128")
    parser.add_argument("--compile", default=None, help="a mode of torch.compile")
    parser.add_argument("--json", type=Path, help="write everything that was measured there")
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    dense = open_checkpoint(asked.model, device="cpu").model
    remove = Plan.load(asked.plan).remove if asked.plan else half(dense, 0)
    smaller = cut(copy.deepcopy(dense), remove)
    count = sum(map(len, remove.values()))
    print(f"{asked.model}: {count} of {len(heads_of(find_sites(dense)))} heads removed, {asked.threads} threads")
    print(
        "| batch x length | dense, ms | cut, ms | ratio | operations predict | share of it, each run | median | asked "
        "| the blocks' own times allow | products in proportion would allow |"
    )
    print("|---|--:|--:|--:|--:|---|--:|--:|--:|--:|")
    everything, short = [], []
    for batch, length, wanted in SETTINGS:
        if asked.settings != "all" and f"{batch}x{length}" not in asked.settings.split(","):
            continue
        runs = [
            compare_speed(
                dense, smaller, batches=(batch,), lengths=(length,), rounds=asked.rounds, seconds=asked.seconds,
                seed=seed, compiled=asked.compile,
            )
            for seed in range(asked.runs)
        ]  # fmt: skip
        everything += runs
        ratio = float(np.median([run["rows"][0]["ratio"]["median"] for run in runs]))
        predicted = runs[0]["rows"][0]["operation_ratio"]
        shares = [run["rows"][0]["ratio"]["median"] / predicted for run in runs]
        times = [float(np.median([run["rows"][0][side]["median"] for run in runs])) for side in ("dense_ms", "cut_ms")]
        short += [f"{batch} x {length}"] if ratio / predicted < wanted else []
        print(
            f"| {batch} x {length} | {times[0]:.2f} | {times[1]:.2f} | {ratio:.3f} | {predicted:.3f} | "
            f"{', '.join(f'{share:.3f}' for share in shares)} | {ratio / predicted:.3f} | {wanted:.2f} | "
            f"{float(np.median([allowed_by_blocks(run) for run in runs])):.3f} | "
            f"{allowed_by_products(dense, runs[-1]):.3f} |",
            flush=True,
        )
    if asked.json:
        asked.json.write_text(json.dumps(everything, indent=1) + "\n")
    sys.exit(f"less than asked for at {', '.join(short)}" if short else 0)


if __name__ == "__main__":
    main()
