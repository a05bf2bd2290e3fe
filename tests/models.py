"""Small random models of the matrix, inputs for them, plans, and the oracle that no gate or cut had a part in."""

from __future__ import annotations

import contextlib
import copy
import functools
import tempfile
from typing import Any

import pytest
import torch
import transformers
from packaging.version import Version

from tests.families import FAMILIES, Family


def cuttable(name: str) -> Family:
    """A family by name; the test is left out where this release of transformers has none that can be cut."""
    family, release = FAMILIES[name], transformers.__version__
    if Version(release) < Version(family.since) or family.refused(release):
        pytest.skip(f"transformers {release} has no {name} that can be cut")
    return family


def build(family: Family, dtype: torch.dtype = torch.float32) -> Any:
    """A small random model with biases and tables that are not zero, saved and loaded once.

    What a dense checkpoint does not keep (Marian's sinusoids) must not count, hence the round trip.
    """
    return copy.deepcopy(_built(family.name)).to(dtype)


@functools.cache
def _built(name: str) -> Any:
    family = FAMILIES[name]
    torch.manual_seed(0)
    model = _BUILDERS[family.build](family)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.2)
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        model = type(model).from_pretrained(folder)
    if model.can_generate():
        plain = model.generation_config
        plain.eos_token_id = plain.forced_eos_token_id = plain.forced_bos_token_id = None
        plain.pad_token_id = 0
        if not model.config.is_encoder_decoder:
            model.config.eos_token_id = None
    return model.eval()


def _auto(family: Family) -> Any:
    config = getattr(transformers, family.config)(**copy.deepcopy(family.values))
    cls = getattr(transformers, family.auto)
    return cls.from_config(config) if family.auto.startswith("Auto") else cls(config)


def _bert2bert(family: Family) -> Any:
    encoder = transformers.BertModel(transformers.BertConfig(**family.values))
    decoder = transformers.BertLMHeadModel(
        transformers.BertConfig(**family.values, is_decoder=True, add_cross_attention=True)
    )
    model = transformers.EncoderDecoderModel(encoder=encoder, decoder=decoder)
    model.config.decoder_start_token_id = 1
    model.config.pad_token_id = 0
    return model


_BUILDERS = {"": _auto, "bert2bert": _bert2bert}


def inputs_of(family: Family, dtype: torch.dtype = torch.float32) -> dict[str, Any]:
    """A batch of two for a family; the second text is padded."""
    draw = torch.Generator().manual_seed(2)
    ids = torch.randint(3, 96, (2, 12), generator=draw)
    mask = torch.ones(2, 12, dtype=torch.long)
    mask[1, 9:] = 0
    pixels = torch.randn(2, 3, 16, 16, generator=draw).to(dtype)
    match family.inputs:
        case "image":
            return {"pixel_values": pixels}
        case "clip":
            ids[:, 11] = 98
            return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "pixel_values": pixels}
        case "vlm":
            patches = torch.full((2, 16), 97)
            ids = torch.cat([ids[:, :2], patches, ids[:, 2:]], dim=1)
            return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "pixel_values": pixels}
        case "whisper":
            return {"input_features": torch.randn(2, 8, 64, generator=draw).to(dtype), "decoder_input_ids": ids}
        case "wave":
            return {"input_values": torch.randn(2, 400, generator=draw).to(dtype)}
        case "cross":
            states = torch.randn(2, 5, 32, generator=draw).to(dtype)
            return {"input_ids": ids, "attention_mask": mask, "encoder_hidden_states": states}
        case "seq2seq":
            return {"input_ids": ids, "attention_mask": mask, "decoder_input_ids": ids[:, :7]}
    return {"input_ids": ids, "attention_mask": mask}


def projection(model: Any, path: str) -> tuple[Any, str]:
    """The module that a path names in this release, and the name of its matrix."""
    for candidate in path.split("|"):
        bare, _, name = candidate.partition(":")
        root = model if bare.startswith("/") else model.base_model
        with contextlib.suppress(AttributeError):
            return root.get_submodule(bare.removeprefix("/")), name or "weight"
    raise AttributeError(f"{type(model).__name__} has no module {path}")


def oracle(model: Any, family: Family, remove: dict[str, list[int]]) -> Any:
    """A copy of the dense model whose output projections ignore the removed heads, blanked by hand."""
    model = copy.deepcopy(model)
    for site in family.sites:
        module, name = projection(model, site.output)
        weight = getattr(module, name)
        with torch.no_grad():
            for head in remove.get(site.name, []):
                if weight.ndim == 3:
                    weight[:, head] = 0
                elif type(module).__name__ == "Conv1D":
                    width = weight.shape[0] // site.heads
                    weight[head * width : (head + 1) * width] = 0
                else:
                    width = weight.shape[1] // site.heads
                    weight[:, head * width : (head + 1) * width] = 0
    return model


def plans(family: Family) -> dict[str, dict[str, list[int]]]:
    """What may be removed: another set at every site; all of the first, all of the last; by groups."""
    cycle = ([0], [1, 3], [2], [0, 1, 2], [3], [0, 2])

    def some(i: int, heads: int) -> list[int]:
        return sorted({head % heads for head in cycle[i % 6]}) if heads > 2 else [i % heads]

    listed = list(enumerate(family.sites))
    if family.calls > 1:
        return {"uneven": {s.name: [1, 3] for _, s in listed}, "all": {s.name: list(range(s.heads)) for _, s in listed}}
    uneven = {s.name: some(i, s.heads) for i, s in listed}
    shifted = {s.name: some(i + 1, s.heads) for i, s in listed}
    first, last = family.sites[0], family.sites[-1]
    found = {
        "uneven": uneven,
        "first": {**shifted, first.name: list(range(first.heads))},
        "last": {**shifted, last.name: list(range(last.heads))},
    }
    if any(1 < s.kv < s.heads for _, s in listed):
        size = {s.name: s.heads // s.kv for _, s in listed}
        found["group"] = {
            s.name: [h for h in range(s.heads) if s.kv > 1 and h // size[s.name] == i % s.kv] for i, s in listed
        }
        found["even"] = {
            s.name: [g * size[s.name] + (i + g) % size[s.name] for g in range(s.kv) if size[s.name] > 1]
            for i, s in listed
        }
        found["unequal"] = {s.name: some(i, s.heads) if i else [0] for i, s in listed}
    return found
