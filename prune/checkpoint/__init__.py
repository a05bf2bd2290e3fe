"""Checkpoints: save what was cut, and open dense, cut and rescued models through one door."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn

from headwise.analysis.corpus.fetching import not_fetched
from headwise.analysis.errors import BadInput, first_line
from headwise.analysis.identity import weights_hash
from headwise.analysis.sites import read_record
from headwise.prune.checkpoint.card import card
from headwise.prune.checkpoint.companions import SUBFOLDER, copy_companions
from headwise.prune.checkpoint.configuration import class_of, configuration, refuse_quantised, where_is
from headwise.prune.checkpoint.own_code import code_of
from headwise.prune.checkpoint.portable import auto_map, portable_code
from headwise.prune.checkpoint.reader import save_reader
from headwise.prune.checkpoint.savable import refuse_what_weights_leave_out
from headwise.prune.folder import new_folder
from headwise.prune.surgery.check import check_edits
from headwise.prune.surgery.rederive import fresh_record
from headwise.prune.surgery.replay import replay

RECORD = "headwise.json"
CODE = "modeling_headwise.py"
#: Larger files are slow to fetch and to go on with after a failure; transformers would write up to 50 GB into one.
SHARD = "5GB"


def load(id_or_folder: str | Path, *, cls: type | None = None, **from_pretrained: Any) -> Any:
    """A model from a hub id or a folder, whether dense, cut by headwise, or pruned by transformers 4.

    A cut checkpoint is opened by its stock class, whose construction replays the recorded edits; so dtype,
    device_map, sharding, tied weights and renamed keys come from `from_pretrained` itself. Code inside the
    checkpoint is never executed for that; only of a model that is code of its own its file is, by `trust_remote_code`.

    Args:
        id_or_folder: a hub id or a local folder.
        cls: which class to open it as; by default the one it was saved as.
        **from_pretrained: passed on: `dtype`, `device_map`, `revision`, `attn_implementation`, `gguf_file`,
            `trust_remote_code`, `use_safetensors=False` to allow a pickle, ….

    Returns:
        The model in evaluation mode, of the stock class.

    Raises:
        BadInput: if there is no such checkpoint, no class for it, or weights are missing or would need a
            pickle or remote code that was not allowed.

    >>> import tempfile
    >>> from transformers import BertConfig, BertModel
    >>> model = BertModel(BertConfig(num_hidden_layers=1, num_attention_heads=2, hidden_size=16))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     model.save_pretrained(folder)
    ...     type(load(folder)).__name__
    'BertModel'
    """
    name = where_is(str(id_or_folder))
    config = configuration(name, cls=cls, **from_pretrained)
    commit = getattr(config, "_commit_hash", None)
    if commit is not None:
        from_pretrained["revision"] = commit
    pruned_by_4 = getattr(config, "pruned_heads", None)
    record = getattr(config, "headwise", None)
    # A GGUF file names no class; what such files hold are language models.
    gguf = from_pretrained.get("gguf_file") is not None
    stock = cls or (transformers.AutoModelForCausalLM if gguf else class_of(name, config, **from_pretrained))
    if not gguf:
        from_pretrained.setdefault("use_safetensors", True)
    if record is None and not pruned_by_4:
        dense = _floats(_open(stock, name, from_pretrained, said=config).eval(), from_pretrained)
        dense.config._commit_hash = commit
        setattr(dense, SUBFOLDER, from_pretrained.get("subfolder") or "")
        return dense
    if isinstance(pruned_by_4, dict) and record is None:
        config.pruned_heads = {}
    config.headwise = fresh_record(stock, config, record, pruned_by_4)
    model, loading = _open(
        _replaying(stock), name, from_pretrained, said=config, config=config, output_loading_info=True
    )
    model.__class__ = stock
    setattr(model, SUBFOLDER, from_pretrained.get("subfolder") or "")
    _whole(model, name, loading, same_class=cls is None or cls.__name__ == (record or {}).get("class"))
    return model.eval()


def read_back(folder: Path, like: nn.Module, weights: str) -> nn.Module:
    """A checkpoint that was just written, as a new process would get it.

    Args:
        folder: where it is.
        like: a model of its class, in its precision.
        weights: hash of the weights that were written.

    Raises:
        BadInput: what was read is something else.
    """
    again: nn.Module = load(folder, cls=type(like), dtype=next(like.parameters()).dtype)
    if weights_hash(again) != weights:
        raise BadInput(f"{folder}: the checkpoint read back differs from the one written; is the disk failing?")
    return again


def save(
    model: nn.Module, folder: str | Path, *, processor: Any = None, form: str = "headwise", overwrite: bool = False,
    facts: Mapping[str, Any] | None = None, max_shard_size: int | str = SHARD,
) -> Path:  # fmt: skip
    """A whole checkpoint of a cut model: weights, record, code for elsewhere, card, and the dense folder's companions.

    The folder appears whole or not at all.

    Args:
        model: a cut (or dense) model.
        folder: where to write; an existing folder is refused unless `overwrite`.
        processor: a tokenizer or processor to save; otherwise the dense folder's files are copied.
        form: `headwise`, or `native` for a plain checkpoint where the stock configuration can say the shape.
        overwrite: replace an existing folder.
        facts: what the card and `headwise.json` should tell besides: plan, recipe, accuracy, speed.
        max_shard_size: the most that one file of weights holds, in bytes or as in `"5GB"`.

    Returns:
        The folder.

    Raises:
        BadInput: if the folder exists, the native form cannot express the model, or its weights are not all that it
            is: adapters, gates, a quantisation that transformers does not know of, a module around it.
    """
    refuse_what_weights_leave_out(model)
    if form not in ("headwise", "native"):
        raise BadInput(f"form: got {form!r}, expected 'headwise' or 'native'")
    target = Path(folder)
    with new_folder(target, overwrite=overwrite) as work:
        copy_companions(model, work)
        if processor is not None:
            save_reader(processor, work, inside=str(getattr(model, SUBFOLDER, "")))
        if form == "native":
            from headwise.prune.checkpoint.native import save_native

            save_native(model, work, max_shard_size)
        else:
            _save_own(model, work, facts or {}, max_shard_size)
    return target


def _save_own(model: Any, work: Path, facts: Mapping[str, Any], most: int | str) -> None:
    record, code = read_record(model), code_of(model)
    if record is not None:
        # It may have been opened as another class than it was cut as.
        record = {**record, "class": type(model).__name__, **({"code": code} if code else {})}
        model.config.headwise = record
    model.save_pretrained(work, max_shard_size=most)
    if record is None:
        return
    config = json.loads((work / "config.json").read_text())
    # What transformers noted of a checkpoint's own code stays, but for the model, which is to be cut when it is built.
    config["auto_map"] = {**(config.get("auto_map") or {} if code else {}), **auto_map(model)}
    (work / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    (work / CODE).write_text(portable_code(model))
    (work / RECORD).write_text(json.dumps({**record, **dict(facts)}, indent=1, default=str) + "\n")
    (work / "README.md").write_text(card(model, record, facts))


def _open(cls: Any, name: str, options: Mapping[str, Any], *, said: Any, **more: Any) -> Any:
    """What a class opens; `said`: the checkpoint's configuration, for the messages."""
    from safetensors import SafetensorError

    try:
        with _as_it_is():
            return cls.from_pretrained(name, **options, **more)
    except SafetensorError as error:
        raise BadInput(
            f"cannot load {name!r}: its weights are damaged ({first_line(error)}); fetch them again"
        ) from error
    except (OSError, ValueError) as error:
        reason, hint = not_fetched(error) or first_line(error), ""
        # Of weights in several files one may be missing; then it is not that there are none.
        if options.get("use_safetensors") and "model.safetensors" in str(error):
            hint = (
                " (only pickled weights? They can run code when they are opened; if you trust them, save them anew: "
                f"headwise rescue {name} OUT --allow-pickle; in Python: use_safetensors=False)"
            )
        raise BadInput(f"cannot load {name!r}: {reason}{hint}") from error
    except KeyError as error:
        if error.args[:1] not in (("metadata",), ("weight_map",)):
            raise
        raise BadInput(
            f"cannot load {name!r}: its model.safetensors.index.json lacks {error}, so nobody can tell which file holds what; "
            "fetch or write it anew"
        ) from error
    except torch.OutOfMemoryError:
        raise  # which is no matter of how weights are stored
    except (RuntimeError, ImportError) as error:
        # Without the package or the device for it nothing opens; with them it would be refused as well.
        refuse_quantised(name, said)
        if isinstance(error, ImportError):
            raise BadInput(f"cannot load {name!r}: {first_line(error)}") from error
        if "mismatched" not in str(error):
            raise
        raise BadInput(
            f"cannot load {name!r}: its weights have other shapes than {cls.__name__} with the heads that its config.json "
            "names; weights and config.json do not belong together"
        ) from error


@contextlib.contextmanager
def _as_it_is() -> Iterator[None]:
    """Inside the block transformers asks nobody to convert a pickle of the hub: it would hand over id and token."""
    name = "DISABLE_SAFETENSORS_CONVERSION"
    before = os.environ.get(name)
    os.environ[name] = "1"
    try:
        yield
    finally:
        os.environ.pop(name)
        if before is not None:
            os.environ[name] = before


def _floats(model: Any, options: Mapping[str, Any]) -> Any:
    """A model from a GGUF file holds floats: without the mark of the file's quantisation it can be saved."""
    if options.get("gguf_file") is not None:
        model.config.__dict__.pop("quantization_config", None)
        for mark in ("hf_quantizer", "quantization_method", "is_quantized"):
            model.__dict__.pop(mark, None)
    return model


def _replaying(stock: Any) -> Any:
    """The stock class whose construction ends with the recorded edits.

    It carries the stock names, since transformers skips the renaming of old weights for classes that live
    outside its own modules, and would leave them at random.
    """

    def construct(self: Any, config: Any, *args: Any, **kwargs: Any) -> None:
        stock.__init__(self, config, *args, **kwargs)
        # The record may come from anywhere: nothing is applied unless all of it fits.
        check_edits(self, config.headwise["edits"])
        replay(self, config.headwise["edits"])

    names = {"__init__": construct, "__module__": stock.__module__, "__qualname__": stock.__qualname__}
    return type(stock.__name__, (stock,), names)


def _whole(model: Any, name: str, loading: Any, same_class: bool) -> None:
    missing = list(loading.get("missing_keys", ()) if isinstance(loading, Mapping) else loading.missing_keys)
    if same_class and missing:
        listed = ", ".join(sorted(missing)[:4])
        raise BadInput(
            f"{name}: {len(missing)} weights of the cut model are missing ({listed}); the checkpoint is not whole"
        )
    if any(p.is_meta for p in model.parameters()) and not getattr(model, "hf_device_map", None):
        unloaded = next(n for n, p in model.named_parameters() if p.is_meta)
        raise BadInput(f"{name}: the weight {unloaded} was not loaded; the checkpoint is not whole")
