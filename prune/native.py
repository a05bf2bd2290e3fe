"""Native checkpoints: where a stock configuration can say the new shape, any engine can serve the model."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from headwise.analysis import families
from headwise.analysis.errors import BadInput
from headwise.analysis.sites import find_sites, read_record
from headwise.analysis.synthetic import synthetic_inputs

_LIMIT = 1e-5


def save_native(model: Any, folder: Path) -> None:
    """Write a plain checkpoint of a cut model that any `from_pretrained` opens, without a flag.

    Raises:
        BadInput: if the stock configuration cannot say the model's shape, with the reason.
    """
    stock, reason = _stock_of(model)
    if reason:
        raise BadInput(f"this model cannot be saved in the native form: {reason}; the default form always can")
    stock.save_pretrained(folder)


def native_reason(model: Any) -> str:
    """Why a cut model has no native form, or `` if it has one.

    The stock model is built from a configuration with the new numbers, given the cut model's tensors, and
    run beside it: only equal outputs count.

    >>> from transformers import BertConfig, BertModel
    >>> native_reason(BertModel(BertConfig(num_hidden_layers=1, num_attention_heads=2, hidden_size=16)))
    ''
    """
    return _stock_of(model)[1]


def _stock_of(model: Any) -> tuple[Any, str]:
    record = read_record(model)
    if record is None:
        return model, ""
    sites = record["sites"].values()
    if any(site["ghost"] is not None for site in sites):
        return None, "a site has lost all its heads"
    if any(site["whole"] or site.get("bias") for site in sites):
        return None, "its norm sees all heads, or a projection has got a bias, which the stock model does not know"
    counts = {(len(site["kept"]), len(site["kv"])) for site in sites}
    if len(counts) > 1:
        return None, "the sites keep unequal numbers of heads; `scope: uniform` makes them equal"
    first = next(iter(sites))
    config = _config(model, first, *counts.pop())
    try:
        with torch.device("meta"):
            stock = type(model)(config)
    except (ValueError, TypeError, RuntimeError) as error:
        return (
            None,
            f"the stock configuration refuses the new number of heads ({str(error).strip().splitlines()[0][:120]})",
        )
    state, surplus = _tensors(model, stock)
    wrong = [
        name for name, tensor in stock.state_dict().items() if name not in state or state[name].shape != tensor.shape
    ]
    if wrong:
        return (
            None,
            f"the stock {type(model).__name__} derives the head width from the hidden size ({wrong[0]} would not fit)",
        )
    if surplus:
        return None, f"{surplus[0]} has no place in the stock model"
    return _filled(model, config, state)


def _config(model: Any, site: dict[str, Any], heads: int, kv_heads: int) -> Any:
    """The dense configuration with the new numbers, the head width said outright."""
    config = copy.deepcopy(model.config)
    del config.headwise
    for part in {id(c): c for c in (config, config.get_text_config())}.values():
        for name in families.CONFIG_HEAD_COUNTS:
            if getattr(part, name, None) == site["heads"]:
                setattr(part, name, heads)
        for name in families.CONFIG_KV_COUNTS:
            if getattr(part, name, None) == site["kv_heads"]:
                setattr(part, name, kv_heads)
        part.head_dim = site["head_dim"]
    return config


def _tensors(model: Any, stock: Any) -> tuple[dict[str, Tensor], list[str]]:
    """The cut model's tensors by stock names; a table copied to every block (T5) is one if all are equal."""
    state = dict(model.state_dict())
    names = set(stock.state_dict())
    surplus = []
    for name in [name for name in state if name not in names]:
        twin = next(
            (other for other in names if _same_table(name, other) and torch.equal(state[other], state[name])), None
        )
        del state[name]
        if twin is None:
            surplus.append(name)
    return state, surplus


def _same_table(name: str, other: str) -> bool:
    parts, others = name.split("."), other.split(".")
    return (
        len(parts) == len(others)
        and parts[0] == others[0]
        and any(t in parts for t in families.TABLES)
        and all(a == b or (a.isdigit() and b.isdigit()) for a, b in zip(parts, others, strict=True))
    )


def _filled(model: Any, config: Any, state: dict[str, Tensor]) -> tuple[Any, str]:
    parameter = next(model.parameters())
    stock = type(model)(config).to(device=parameter.device, dtype=parameter.dtype)
    stock.load_state_dict(state)
    stock.tie_weights()
    stock.train(model.training)
    if getattr(model, "generation_config", None) is not None:
        stock.generation_config = copy.deepcopy(model.generation_config)
    inputs = synthetic_inputs(model)
    before, after = (_output(m, inputs) for m in (model, stock))
    apart = ((before - after).abs().amax() / before.abs().amax().clamp(min=1e-6)).item()
    if not apart <= _LIMIT:
        return (
            None,
            f"the stock model with these tensors gives another output (off by {apart:.1e}): it lost a bias or a slope",
        )
    find_sites(stock)
    return stock, ""


def _output(model: Any, inputs: dict[str, Any]) -> Tensor:
    training = model.training
    with torch.no_grad():
        found = model.eval()(**inputs)
    model.train(training)
    named = (getattr(found, name, None) for name in ("logits", "last_hidden_state"))
    tensor = next((value for value in named if isinstance(value, Tensor)), None)
    if tensor is None:
        tensor = next(value for value in found.values() if isinstance(value, Tensor))
    return tensor.float()
