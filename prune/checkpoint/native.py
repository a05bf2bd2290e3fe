"""Native checkpoints: the stock configuration says the new shape, so that any serving engine opens the folder."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from torch import Tensor

from headwise.analysis.errors import BadInput
from headwise.analysis.gates.still import still
from headwise.analysis.gates.synthetic import main_output, synthetic_inputs
from headwise.analysis.sites import families, find_sites, read_record
from headwise.prune.surgery import decisions_of
from headwise.prune.surgery.decision import Decision

# Which part of a configuration speaks of a stack, where it has parts.
_PARTS = {"text": ("text_config", "llm_config"), "vision": ("vision_config",), "audio": ("audio_config",)}
# Names of one stack's count in a configuration that speaks of two.
_HALVES = {"encoder": "encoder_attention_heads", "decoder": "decoder_attention_heads"}
# Reloading may run another order of the same sums; a wrong shape differs by its whole output.
_LIMITS = {torch.float64: 1e-9, torch.float32: 1e-4}


# What constructors and validators of configurations raise when numbers do not suit them.
_REFUSALS = (ValueError, TypeError, RuntimeError, AssertionError, AttributeError, StrictDataclassError)


class _NoForm(Exception):
    """The reason why there is no native form."""


def save_native(model: Any, folder: Path, max_shard_size: int | str) -> None:
    """A plain checkpoint in a folder, kept only if it opens the plain way and gives the same numbers.

    Possible where every site keeps the same number of heads (and of key/value heads) and the family's
    configuration has its own number for the width of a head.

    Args:
        model: a cut or dense model.
        folder: an existing folder to write to.
        max_shard_size: the most that one file of weights holds.

    Raises:
        BadInput: with the reason why the stock configuration cannot say this shape.
    """
    try:
        stock = _stock(model)
        stock.save_pretrained(folder, max_shard_size=max_shard_size)
        options = {"dtype": next(model.parameters()).dtype, "output_loading_info": True}
        again, loading = type(model).from_pretrained(folder, **options)
        if loading["missing_keys"]:
            raise _NoForm(f"the plain checkpoint lacks {sorted(loading['missing_keys'])[0]}")
        _compare(model, again.to(next(model.parameters()).device))
    except _NoForm as error:
        raise BadInput(
            f"no native form: {error}. Save it in the default form (form='headwise'), which can say every shape."
        ) from error


def native_reason(model: Any) -> str:
    """Why a cut model has no native form, or `` if it has one: tried, run and compared in memory.

    >>> from transformers import BertConfig, BertModel
    >>> native_reason(BertModel(BertConfig(num_hidden_layers=1, num_attention_heads=2, hidden_size=16)))
    ''
    """
    try:
        _stock(model)
    except _NoForm as error:
        return str(error)
    return ""


def _stock(model: Any) -> Any:
    """The stock model of the cut shape with the cut model's weights, once it has given the same numbers."""
    if read_record(model) is None:
        return model
    from accelerate import init_empty_weights

    config = _native_config(model)
    try:
        if hasattr(config, "validate"):
            config.validate()  # else it would speak only when it is written
    except _REFUSALS as error:
        raise _refused(config, error, _taken(model)) from error
    try:
        with torch.device("meta"):
            plan = type(model)(config)
        weights = _weights(model, plan)
        # Buffers that no checkpoint keeps (rotary frequencies) are made by the constructor, this time for real.
        with init_empty_weights(include_buffers=False):
            stock = type(model)(config)
    except _REFUSALS as error:
        raise _refused(config, error) from error
    parameter = next(model.parameters())
    # The cut model's own tensors: weights are not there twice.
    stock.load_state_dict(weights, strict=True, assign=True)
    stock = stock.to(device=parameter.device, dtype=parameter.dtype)
    stock.tie_weights()
    if getattr(model, "generation_config", None) is not None:
        stock.generation_config = copy.deepcopy(model.generation_config)
    _compare(model, stock)
    return stock


def _native_config(model: Any) -> Any:
    """The stock configuration with the new numbers; whether it builds the same shapes is not checked here.

    Raises:
        _NoForm: if the sites keep different numbers of heads, or one of them none.

    >>> from transformers import LlamaConfig, LlamaModel
    >>> from headwise.prune.surgery import cut
    >>> sizes = dict(num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=2, hidden_size=24, head_dim=8)
    >>> model = cut(LlamaModel(LlamaConfig(**sizes, intermediate_size=8, vocab_size=9)), {"0": [0, 1]})
    >>> _native_config(model).num_attention_heads
    2
    """
    config = copy.deepcopy(model.config)
    for name in ("headwise", "auto_map"):
        config.__dict__.pop(name, None)
    sites = find_sites(model)
    decisions = decisions_of(model, sites)
    for stack, (part, names) in _parts(config, {site.stack for site in sites.values()}).items():
        mine = {n: decisions[n] for n, site in sites.items() if stack in (site.stack, "")}
        _count(part, names, *_uniform(mine), {sites[name].head_dim for name in mine})
    return config


def _count(part: Any, names: list[str], heads: int, kv: int, widths: set[int]) -> None:
    """Put numbers of heads into a part of a configuration."""
    for name in names:
        setattr(part, name, heads)
    for name in families.CONFIG_KV_COUNTS:
        if isinstance(getattr(part, name, None), int):
            setattr(part, name, kv)
    if len(widths) == 1:
        # Falcon's is computed and cannot be set: its shapes will not agree, which is said below.
        with contextlib.suppress(AttributeError):
            part.head_dim = next(iter(widths))


def _parts(config: Any, stacks: set[str]) -> dict[str, tuple[Any, list[str]]]:
    """For each stack with its own numbers (`` for all): the part of the configuration, and the names of its count."""
    found: dict[str, tuple[Any, list[str]]] = {}
    for stack in stacks:
        tower = stack.partition(".")[0]
        part = next((p for n in _PARTS.get(tower, ()) if (p := getattr(config, n, None)) is not None), None)
        if part is not None:
            found[stack] = (part, [n for n in families.HEAD_COUNTS if isinstance(getattr(part, n, None), int)])
        elif isinstance(getattr(config, _HALVES.get(tower, ""), None), int):
            found[stack] = (config, [_HALVES[tower]])
    if found:
        return found
    # A name that the class maps to another (T5's num_attention_heads) must not be set beside it.
    aliases = set(getattr(config, "attribute_map", {}))
    names = [n for n in families.HEAD_COUNTS if isinstance(getattr(config, n, None), int) and n not in aliases]
    return {"": (config, names)}


def _uniform(decisions: Mapping[str, Decision]) -> tuple[int, int]:
    """The one count of heads and of key/value heads that all sites share."""
    counts = {name: (len(d.kept), len(d.kv)) for name, d in decisions.items()}
    empty = [name for name, (heads, _) in counts.items() if not heads]
    if empty:
        raise _NoForm(f"site {empty[0]} has lost all its heads, which no stock configuration says")
    if len(set(counts.values())) > 1:
        low, high = (pick(counts, key=lambda name: counts[name]) for pick in (min, max))
        raise _NoForm(
            f"the sites keep different numbers of heads (site {low}: {counts[low][0]}, site {high}: "
            f"{counts[high][0]}), a stock configuration has one number. `scope: uniform` keeps the same number "
            "everywhere; that helps where a configuration states the width of a head (head_dim, d_kv), as Llama's and "
            "T5's do and BERT's does not"
        )
    return next(iter(counts.values()))


def _refused(config: Any, error: Exception, taken: Sequence[int] = ()) -> _NoForm:
    told = " ".join(str(error).split())[-200:]
    instead = f"; heads a site that it takes instead: {', '.join(map(str, taken))}" if taken else ""
    return _NoForm(f"{type(config).__name__} refuses these numbers ({told}){instead}")


def _taken(model: Any) -> list[int]:
    """Numbers of heads a site, fewer than the dense model's, that a configuration of one stack can say."""
    sites = find_sites(model)
    counts = {(site.heads, site.kv_heads, site.head_dim, site.stack) for site in sites.values()}
    if len(counts) > 1:
        return []
    ((heads, kv, width, stack),) = counts
    taken = []
    for groups in range(kv - 1, 0, -1):
        config = copy.deepcopy(model.config)
        for part, names in _parts(config, {stack}).values():
            if getattr(part, "head_dim", None) != width:
                return []  # the width of a head follows from their number
            _count(part, names, groups * (heads // kv), groups, {width})
        with contextlib.suppress(*_REFUSALS):
            config.validate()
            taken.append(groups * (heads // kv))
    return taken


def _weights(model: Any, native: Any) -> dict[str, Tensor]:
    """The cut model's weights under the native model's names."""
    mine, wanted = model.state_dict(), native.state_dict()
    wrong = [n for n, tensor in wanted.items() if n not in mine or mine[n].shape != tensor.shape]
    if wrong:
        got = list(mine[wrong[0]].shape) if wrong[0] in mine else "nothing"
        raise _NoForm(
            f"{type(native).__name__} would build {wrong[0]} as {list(wanted[wrong[0]].shape)}, the cut model has "
            f"{got}: in this family the width of a head, or of a norm over all heads, follows from the other numbers"
        )
    for name, owner in _surplus(mine, wanted):
        if owner is None or not torch.equal(mine[name], mine[owner]):
            raise _NoForm(
                f"{name} has no place in the stock model. Where one table serves a whole stack (T5), all its "
                f"sites must lose the same heads"
            )
    return {name: mine[name].detach() for name in wanted}


def _surplus(mine: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> Iterator[tuple[str, str | None]]:
    """Weights that the native model lacks, each with the shared table that it must equal."""
    for name in mine.keys() - wanted.keys():
        tail = next((t for t in families.TABLES if t in name), None)
        stack = next((part for part in ("encoder.", "decoder.") if part in name), "")
        yield name, next((n for n in wanted if tail and tail in n and stack in n), None)


def _compare(model: Any, stock: Any) -> None:
    """Hold a stock model's outputs against the cut model's."""
    try:
        with still(model, stock), torch.no_grad():
            inputs = synthetic_inputs(model)
            want, got = main_output(model(**inputs)), main_output(stock(**inputs))
    except BadInput as error:
        raise _NoForm(f"it cannot be tried out here ({error})") from error
    apart = float((want - got).abs().max() / want.abs().max().clamp(min=1e-12)) if want.shape == got.shape else 1.0
    if not apart <= _LIMITS.get(next(model.parameters()).dtype, 5e-2):
        raise _NoForm(
            f"the stock model with these weights gives other numbers (by {apart:.1e} of its output): this family "
            "derives something per head from the number of heads"
        )
