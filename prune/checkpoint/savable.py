"""Savable: whether a checkpoint would be the whole of a model."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from headwise.analysis.errors import BadInput
from headwise.analysis.gates import refuse_gated


def refuse_what_weights_leave_out(model: Any) -> None:
    """Nothing, if a model is what its configuration and its weights say.

    Raises:
        BadInput: it is a module around one; its heads are silenced; adapters or packed weights would be left out, or
            could not be written at all.

    >>> from transformers import BertConfig, BertModel
    >>> refuse_what_weights_leave_out(BertModel(BertConfig(num_hidden_layers=1, num_attention_heads=2, hidden_size=16)))
    """
    if not hasattr(model, "save_pretrained"):
        raise BadInput(f"save: {type(model).__name__} is no model of transformers; save the model inside it")
    refuse_gated(model, "save")
    told = getattr(model, "hf_quantizer", None) is not None  # transformers writes down how
    for path, module in model.named_modules():
        if hasattr(module, "base_layer") or hasattr(module, "lora_A"):
            raise BadInput(
                f"save: {path} is wrapped by an adapter ({type(module).__name__}). Merge it first (`model = "
                "model.merge_and_unload()`); or save the model without it, and the adapter by its own save_pretrained"
            )
        packer = "" if told else _packer(module)
        if packer:
            raise BadInput(
                f"save: {path} is quantised ({packer}) in a way that a checkpoint does not tell. Save the model first, then "
                "quantise what headwise.prune.load(folder) gives, or load it so: load(folder, quantization_config=…)"
            )


def _packer(module: nn.Module) -> str:
    """What keeps a module's weights in a form of its own, or ``."""
    weight: Any = getattr(module, "weight", None)
    if isinstance(weight, nn.Module):  # a part of this name
        return ""
    if callable(weight):  # torch's own quantised layers unpack theirs when called
        return type(module).__name__
    return type(weight).__name__ if isinstance(weight, Tensor) and type(weight) not in (Tensor, nn.Parameter) else ""
