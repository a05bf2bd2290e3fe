"""Inputs for timing a model: token ids of any batch and length, or images and waves, made from the config alone."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor, nn

from headwise.analysis.corpus.batching import is_chooser, token_limit
from headwise.analysis.corpus.media_batching import positions_of
from headwise.analysis.errors import BadInput
from headwise.analysis.gates import synthetic

#: Samples of a wave that is timed: five seconds for a model that hears 16,000 a second, as nearly all do.
_WAVE = 80_000


def inputs_to_time(model: nn.Module, batch: int, length: int, seed: int = 0) -> dict[str, Tensor]:
    """Keyword arguments for one forward pass: full rows of ordinary token ids, no padding.

    What the ids are does not change the work; special ids are left out, because some models count positions
    or pool by them. An encoder-decoder reads and writes `length` tokens. A model that sees or hears gets images
    of its own size, or five seconds of noise, whatever the length; one that compares texts with these gets both.

    Raises:
        BadInput: the model's config knows no vocabulary: give inputs of your own.

    >>> from transformers import BertConfig, BertModel
    >>> model = BertModel(BertConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=2,
    ...     intermediate_size=8, vocab_size=9))
    >>> inputs_to_time(model, batch=2, length=5)["input_ids"].shape
    torch.Size([2, 5])
    """
    if not reads(model):
        return _shown(model, batch, seed)
    config: Any = getattr(model, "config", None)
    vocabulary = getattr(config.get_text_config(), "vocab_size", None) if config is not None else None
    if not isinstance(vocabulary, int) or vocabulary < 1:
        raise BadInput(
            f"{type(model).__name__}: no vocabulary in its config, so its inputs cannot be made up; "
            "pass make_inputs, a function of batch and length"
        )
    kinds = ("pad", "bos", "eos", "sep", "cls", "mask", "decoder_start")
    special = {getattr(config, f"{kind}_token_id", None) for kind in kinds} | {0}
    flat = {i for value in special for i in (value if isinstance(value, list) else [value])}
    ordinary = torch.tensor([i for i in range(vocabulary) if i not in flat] or list(range(vocabulary)))
    generator = torch.Generator().manual_seed(seed)
    device: Any = model.device

    def rows() -> Tensor:
        chosen = torch.randint(len(ordinary), (batch, length), generator=generator)
        return ordinary[chosen].to(device)

    inputs = {"input_ids": rows(), "attention_mask": torch.ones(batch, length, dtype=torch.long, device=device)}
    if is_chooser(model):
        # One choice a text, in the shape that the head reads.
        return {name: value.unsqueeze(1) for name, value in inputs.items()}
    eos = getattr(config, "eos_token_id", None)
    if getattr(config, "is_encoder_decoder", False):
        if isinstance(eos, int):
            # BART's classifier pools at the end token: every row has one.
            inputs["input_ids"][:, -1] = eos
        if "decoder_input_ids" in inspect.signature(model.forward).parameters:
            inputs["decoder_input_ids"] = rows()
    if _compares(model):
        inputs |= {name: value for name, value in _shown(model, batch, seed).items() if name in synthetic.SENSES}
    return inputs


def _compares(model: Any) -> bool:
    """Whether texts are compared with images or clips (CLIP), so that both are needed."""
    senses = set(synthetic.SENSES) & inspect.signature(model.forward).parameters.keys()
    return bool(senses) and model.config.get_text_config() is not model.config and not model.can_generate()


def reads(model: nn.Module) -> bool:
    """Whether the model's main input is text.

    >>> reads(nn.Linear(1, 1))
    True
    """
    return getattr(model, "main_input_name", "input_ids") in ("input_ids", "inputs_embeds")


def _shown(model: nn.Module, batch: int, seed: int) -> dict[str, Tensor]:
    """Images or waves of which every row is the same."""
    main = str(getattr(model, "main_input_name", ""))
    found = synthetic.synthetic_inputs(model, seed=seed)
    first = found.get(main)
    if isinstance(first, Tensor) and first.dim() == 2 and main == "input_values":
        generator = torch.Generator().manual_seed(seed)
        found = {main: torch.randn(1, _WAVE, generator=generator).to(first)}

    def many(value: Any) -> Any:
        return (
            value[:1].repeat(batch, *(1,) * (value.dim() - 1)) if isinstance(value, Tensor) and value.dim() else value
        )

    # Whether a cache is used is for those to say who time.
    return {name: many(value) for name, value in found.items() if name != "use_cache"}


def fitting(model: nn.Module, lengths: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The lengths that the model's positions allow, and those that they do not.

    If they allow none, the longest that they do stands in for them. Images and waves have one length, the
    positions of the longest attention block.

    >>> fitting(nn.Linear(2, 2), (32, 128))
    ((32, 128), ())
    """
    if not reads(model):
        return (positions_of(model, _shown(model, 1, 0)),), ()
    limit = token_limit(None, model) if getattr(model, "config", None) is not None else None
    if limit is None:
        return lengths, ()
    allowed = tuple(length for length in lengths if length <= limit)
    return allowed or (limit,), tuple(length for length in lengths if length > limit)
