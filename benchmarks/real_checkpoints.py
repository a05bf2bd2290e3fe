#!/usr/bin/env python
"""Cuts real checkpoints, proves the cut at every site, saves, opens again, and lets language models write.

    python benchmarks/real_checkpoints.py FOLDER_OR_GGUF ... [--fraction 0.1] [--allow-pickle] [--prompt TEXT]

The heads that go (whole groups where keys and values are shared, the same heads in all calls of a shared block) are
those with the least weight, which needs no data: the norm of their columns of the output projection. Of a language
model with a tokenizer they are those whose gates have the smallest squared gradients on a few texts.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import tempfile
from pathlib import Path
from typing import Any

import torch
import transformers

from headwise.analysis.corpus import embedded_corpus
from headwise.analysis.gates import gated
from headwise.analysis.gates.synthetic import synthetic_inputs
from headwise.analysis.sites import find_sites
from headwise.analysis.sites.projections import output_weight
from headwise.prune.checkpoint import load, save
from headwise.prune.proof import prove
from headwise.prune.surgery import cut


def main() -> None:
    """One row of numbers for each checkpoint."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoints", nargs="+", type=Path)
    parser.add_argument("--fraction", type=float, default=0.1)
    parser.add_argument("--allow-pickle", action="store_true")
    parser.add_argument("--class", dest="cls", help="class of `transformers`, for a config.json without a model_type")
    parser.add_argument("--prompt", default="Once upon a time, in a small village,")
    options = parser.parse_args()
    transformers.logging.set_verbosity_error()
    for place in options.checkpoints:
        print(
            json.dumps({"checkpoint": place.name, **measure(place, options)}, indent=1, ensure_ascii=False), flush=True
        )


def measure(place: Path, options: Any) -> dict[str, Any]:
    """What cutting one checkpoint gives."""
    how: dict[str, Any] = {"use_safetensors": None} if options.allow_pickle else {}
    gguf = place.suffix == ".gguf"
    if gguf:
        how = {"gguf_file": place.name}
    source = place.parent if gguf else place
    if options.cls:
        how["cls"] = getattr(transformers, options.cls)
    model = load(source, **how)
    dense = copy.deepcopy(model)
    tokenizer = transformers.AutoTokenizer.from_pretrained(source, gguf_file=place.name) if gguf else None
    scores = weights_of(model) if tokenizer is None else gradients_of(model, tokenizer)
    remove = smallest(model, scores, options.fraction)
    inputs = [synthetic_inputs(model) if tokenizer is None else dict(tokenizer(options.prompt, return_tensors="pt"))]
    cut(model, remove)
    proof = prove(dense, model, remove, inputs)
    sites = find_sites(model).values()
    sizes = [sum(p.numel() for p in m.parameters()) for m in (dense, model)]
    with torch.no_grad(), tempfile.TemporaryDirectory() as folder:
        again = load(save(model, Path(folder) / "cut"))
        same = torch.equal(model(**inputs[0])[0], again(**inputs[0])[0])
    result = {
        "class": type(model).__name__, "sites": len(sites), "heads": sum(s.heads for s in sites),
        "removed": sum(s.heads - len(s.kept) for s in sites), "parameters": sizes, "proof": proof["worst"],
        "proof_bfloat16": proof["bfloat16"]["worst"], "end_to_end": proof["end_to_end"], "reload_bit_equal": same,
    }  # fmt: skip
    if tokenizer is not None:
        result["text"] = {name: written(m, tokenizer, options.prompt) for name, m in (("dense", dense), ("cut", again))}
    return result


def weights_of(model: Any) -> dict[str, torch.Tensor]:
    """The norm of each head's columns of the output projection, by site."""
    return {
        name: output_weight(model, site).float().unflatten(1, (site.heads, -1)).norm(dim=(0, 2))
        for name, site in find_sites(model).items()
    }


def gradients_of(model: Any, tokenizer: Any, texts: int = 16, tokens: int = 128) -> dict[str, torch.Tensor]:
    """The sum over texts of each gate's squared gradient of the language-modelling loss (Molchanov et al. 2017)."""
    gates = {name: torch.ones(site.heads, requires_grad=True) for name, site in find_sites(model).items()}
    sums = {name: torch.zeros_like(gate) for name, gate in gates.items()}
    for text in [t.text for t in embedded_corpus().texts if len(t.text) > 400][:texts]:
        ids = tokenizer(text, return_tensors="pt", truncation=True, max_length=tokens).input_ids
        with gated(model, gates=gates):
            loss = model(input_ids=ids, labels=ids).loss
        for name, gradient in zip(gates, torch.autograd.grad(loss, list(gates.values())), strict=True):
            sums[name] += gradient**2
    return sums


def smallest(model: Any, scores: dict[str, torch.Tensor], fraction: float) -> dict[str, list[int]]:
    """The units (groups, or heads of a module) with the smallest scores, at most two thirds of any site."""
    sites = find_sites(model)
    units = []
    for name, site in sites.items():
        size = site.heads // site.kv_heads
        if site.call == 0:
            groups = [range(g * size, (g + 1) * size) for g in range(site.kv_heads)]
            units += [(float(scores[name][list(group)].sum()), site.module, group) for group in groups]
    gone: dict[str, list[int]] = {}
    left = max(1, math.floor(fraction * len(units)))
    for _, module, heads in sorted(units, key=lambda unit: unit[0]):
        taken = gone.setdefault(module, [])
        most = next(site.heads for site in sites.values() if site.module == module) * 2 // 3
        if left and len(taken) + len(heads) <= most:
            taken += heads
            left -= 1
    return {name: sorted(gone[site.module]) for name, site in sites.items() if gone.get(site.module)}


def written(model: Any, tokenizer: Any, prompt: str) -> str:
    """What a language model writes, greedily."""
    found = model.generate(**tokenizer(prompt, return_tensors="pt"), max_new_tokens=40, do_sample=False)
    return str(tokenizer.decode(found[0], skip_special_tokens=True))


if __name__ == "__main__":
    main()
