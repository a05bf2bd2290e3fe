"""A checkpoint's model without its weights: built from the configuration on the meta device."""

from __future__ import annotations

from typing import Any

from headwise.analysis.errors import BadInput, first_line
from headwise.prune.checkpoint.configuration import class_of, configuration, refuse_quantised


def skeleton(model: str, *, revision: str | None = None, trust_remote_code: bool = False) -> Any:
    """The model of a checkpoint on the meta device; no weights are read, no memory is taken.

    Args:
        model: hub id, folder, or `embedded`.
        revision: of a hub checkpoint.
        trust_remote_code: run the Python code that the checkpoint brings, if it needs any.

    Raises:
        BadInput: no such checkpoint, no configuration in it, or an architecture that `transformers` lacks, or
            quantised weights.
    """
    import torch

    config = configuration(model, revision=revision, trust_remote_code=trust_remote_code)
    refuse_quantised(model, config)
    record, pruned_by_4 = getattr(config, "headwise", None), getattr(config, "pruned_heads", None) or None
    try:
        stock = class_of(model, config, revision=revision, trust_remote_code=trust_remote_code)
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


def _cut(stock: Any, config: Any, record: Any, pruned_by_4: Any) -> Any:
    """The shapes that a cut checkpoint has: the dense ones, and its recorded edits replayed."""
    import torch

    from headwise.prune.surgery.rederive import fresh_record
    from headwise.prune.surgery.replay import replay

    if record is None:
        config.pruned_heads = {}
    fresh = fresh_record(stock, config, record, pruned_by_4)
    config.headwise = None
    with torch.device("meta"):
        built = stock._from_config(config) if hasattr(stock, "_from_config") else stock.from_config(config)
        replay(built, fresh["edits"])
    built.config.headwise = fresh
    return built
