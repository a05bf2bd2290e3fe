"""Opening: the checkpoint of a run – its model, its tokenizer, and what to call it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from headwise.analysis.corpus.batching import fill_of
from headwise.analysis.corpus.fetching import not_fetched
from headwise.analysis.devices import home
from headwise.analysis.errors import BadInput, first_line
from headwise.analysis.identity import settings_hash, weights_hash
from headwise.prune.checkpoint.auto_class import auto_class
from headwise.prune.checkpoint.configuration import where_is
from headwise.prune.checkpoint.own_code import code_of
from headwise.prune.tasks.text_classification import is_classifier

#: Which of the library's doors opens what makes a model's main input.
_READERS = {
    "pixel_values": "AutoImageProcessor",
    "input_values": "AutoFeatureExtractor",
    "input_features": "AutoFeatureExtractor",
}


#: Where a folder says how embeddings are pooled.
_POOLED = ("modules.json", "1_Pooling/config.json")


@dataclass(frozen=True)
class Opened:
    """A checkpoint, ready to run.

    Attributes:
        model: in evaluation mode, on its device.
        tokenizer: the checkpoint's own; its processor where the model sees or hears.
        name: hub id or folder, as the user said it.
        source: what was opened: the same, or the folder of the embedded model.
        facts: id, revision, class, auto_class, model_type, dtype, device, hashes of weights and `config`, for the record.
        lent: whether the model was open already, and somebody goes on using it.
    """

    model: nn.Module
    tokenizer: Any
    name: str
    source: str
    facts: dict[str, Any]
    lent: bool = False

    @property
    def filling(self) -> int | None:
        """What fills up short texts, where the model has to know and its configuration does not say; else None.

        Classifiers of causal models read at the last token that does not fill up, and refuse two texts at a time
        where they do not know which that is.
        """
        config: Any = getattr(self.model, "config", None)
        reads = getattr(self.model, "main_input_name", "") == "input_ids"
        if not reads or not is_classifier(self.model) or getattr(config, "pad_token_id", 0) is not None:
            return None
        return fill_of(self.tokenizer)


def open_checkpoint(
    name: str, *, revision: str | None = None, dtype: str = "auto", device: str | None = None,
    trust_remote_code: bool = False, model: nn.Module | None = None, tokenizer: Any = None,
) -> Opened:  # fmt: skip
    """Open a checkpoint with its tokenizer.

    Args:
        name: hub id, folder, or `embedded` for the model of the demo extra.
        revision: branch, tag or commit of a hub checkpoint.
        dtype: `auto`, `float32`, `bfloat16` or `float16`.
        device: where to run; the best there is by default; `auto` spreads the model over all devices.
        trust_remote_code: run code that the checkpoint brings.
        model: a model that is open already; then only the tokenizer is opened.
        tokenizer: a tokenizer that is open already.

    Raises:
        BadInput: if there is no such checkpoint, tokenizer or device.
    """
    from headwise.prune.checkpoint import load

    source, lent = where_is(name), model is not None
    where: dict[str, Any] = {"revision": revision} if revision else {}
    place = best_device() if device is None else device
    if model is None:
        precision: Any = dtype if dtype == "auto" else getattr(torch, dtype)
        placed: dict[str, Any] = {"device_map": "auto"} if place == "auto" else {}
        model = load(source, dtype=precision, trust_remote_code=trust_remote_code, **where, **placed)
        if place != "auto":
            model = _moved(model, place)
    if tokenizer is None:
        tokenizer = reader_of(model, source, trust_remote_code, where)
    # A folder has none, whatever was asked for: where it is gone, the hub would be taken for it.
    asked = None if Path(source).exists() else revision
    opened = Opened(model, tokenizer, name, source, _facts(name, revision_of(model, source) or asked, model), lent)
    if opened.filling is not None and not lent:
        config: Any = model.config
        config.pad_token_id = opened.filling
    return opened


def best_device() -> str:
    """`cuda`, `mps` or `cpu`, the fastest that is there."""
    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"


def _moved(model: Any, device: str) -> Any:
    try:
        return model.to(torch.device(device))
    except (RuntimeError, AssertionError) as error:
        raise BadInput(f"device {device!r} cannot be used: {str(error).splitlines()[0]}") from error


def reader_of(model: Any, source: str, trust: bool, where: dict[str, str]) -> Any:
    """What makes inputs: a tokenizer, or the processor of a model that sees or hears."""
    import transformers

    kind = _READERS.get(getattr(model, "main_input_name", ""), "AutoTokenizer")
    shown = getattr(type(model), "input_modalities", ())
    # Of models that write from text and images, the text alone is looked at; a pair of towers wants both.
    both = "image" in shown and "text" in shown and (kind != "AutoTokenizer" or not model.can_generate())
    # What writes down what it sees or hears needs a tokenizer, too.
    writes = type(model).__name__.endswith("ForCTC") or model.can_generate()
    if both or (kind != "AutoTokenizer" and writes):
        kind = "AutoProcessor"
    what = "tokenizer" if kind == "AutoTokenizer" else "processor"
    commit = revision_of(model, source)
    where = where if commit is None else {**where, "revision": commit}
    try:
        reader = getattr(transformers, kind).from_pretrained(source, trust_remote_code=trust, **where)
    except (OSError, ValueError, KeyError, TypeError, ImportError) as error:
        reason = not_fetched(error) or first_line(error)
        raise BadInput(f"no {what} can be opened for {source!r}: {reason}") from error
    if what == "tokenizer" and len(reader) <= len(reader.all_special_tokens):
        # Without a vocabulary transformers makes a tokenizer up, to which every word is unknown.
        raise BadInput(
            f"the tokenizer of {source!r} knows no words: its files are missing; copy them (tokenizer.json, vocab.txt, …) "
            "from the model that this one was made from"
        )
    return reader


def revision_of(model: Any, source: str) -> str | None:
    """The commit of the hub that a model was read at; None if it is of a folder, or of somewhere else than `source`."""
    config = getattr(model, "config", None)
    there = getattr(config, "_name_or_path", source) or source
    return getattr(config, "_commit_hash", None) if there == source else None


def _facts(name: str, revision: str | None, model: Any) -> dict[str, Any]:
    config = getattr(model, "config", None)
    parameter = next(model.parameters())
    # How it makes embeddings; of the hub the commit tells.
    pooled = [path.read_bytes() for path in map(Path(where_is(name)).joinpath, _POOLED) if path.is_file()]
    return {
        "id": name, "revision": revision, "class": type(model).__name__,
        "auto_class": auto_class(model), "model_type": getattr(config, "model_type", ""),
        "dtype": str(parameter.dtype).removeprefix("torch."), "device": str(home(model)), "hash": weights_hash(model),
        "config": settings_hash(model, *pooled), "own_code": bool(code_of(model)),
    }  # fmt: skip
