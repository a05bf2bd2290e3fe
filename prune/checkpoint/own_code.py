"""Own code: a class that a checkpoint brings as Python, noted when its model is saved cut, and found again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headwise.analysis.errors import BadInput, first_line
from headwise.prune.checkpoint.auto_class import auto_class

# Options of `from_pretrained` that say where the files of a repository are.
_PLACE = ("revision", "token", "cache_dir", "local_files_only")


def code_of(model: Any) -> dict[str, str]:
    """The auto class behind which a class of foreign code stands, and its file and name; {} for one of transformers.

    >>> from transformers import BertConfig, BertModel
    >>> code_of(BertModel(BertConfig(num_hidden_layers=1, hidden_size=16, num_attention_heads=2)))
    {}
    """
    # The code that headwise writes wraps a class of another file.
    stock = next(part for part in type(model).__mro__ if not part.__module__.endswith(".modeling_headwise"))
    package, _, file = stock.__module__.rpartition(".")
    return {auto_class(model): f"{file}.{type(model).__name__}"} if package.startswith("transformers_modules") else {}


def class_in(model: str, code: Any, *, trust_remote_code: bool | None = None, **options: Any) -> Any:
    """The class that `code_of` noted, from the checkpoint's own file.

    Args:
        model: hub id or folder.
        code: what the record says; it may come from anywhere.
        trust_remote_code: whether the file may be run.
        **options: as for `from_pretrained`; those that say where the files are are used.

    Raises:
        BadInput: it may not be run, is not there, or the record is damaged.
    """
    import transformers
    from transformers.dynamic_module_utils import get_class_from_dynamic_module

    auto, reference = next(iter(code.items())) if isinstance(code, Mapping) and len(code) == 1 else ("", "")
    door = getattr(transformers, auto, None) if isinstance(auto, str) and auto.startswith("AutoModel") else None
    if door is None or not isinstance(reference, str) or reference.count(".") != 1:
        raise BadInput(
            f"{model}: the checkpoint's record is damaged: code is {code!r:.60}, expected {{auto class: file.class}}"
        )
    if not trust_remote_code:
        raise BadInput(
            f"cannot open {model!r}: its model is Python code of its own ({reference}), which would have to run; pass "
            "trust_remote_code=True (--trust-remote-code) if you trust it"
        )
    place = {name: options[name] for name in _PLACE if options.get(name) is not None}
    try:
        found: Any = get_class_from_dynamic_module(reference, model, **place)
    except (OSError, ImportError, AttributeError) as error:
        raise BadInput(
            f"cannot open {model!r}: its own code {reference} cannot be loaded: {first_line(error)}"
        ) from error
    # So the code is saved with the model again. The auto class is not told: it would build this one, uncut, by itself.
    found.register_for_auto_class(auto)
    return found
