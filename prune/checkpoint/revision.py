"""Revision: the one commit of a hub checkpoint that all of its files are read at."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headwise.analysis.corpus.fetching import not_fetched
from headwise.analysis.errors import BadInput, first_line

# Options of `from_pretrained` that say where the files of a repository are.
_PLACE = ("revision", "token", "cache_dir", "local_files_only", "subfolder")


def commit_of(name: str, **options: Any) -> str | None:
    """The commit that a branch or a tag of the hub points to now; None for a folder.

    A checkpoint is several files, fetched one by one: asked for by a branch that moves meanwhile, they would be of two
    states. Without a network it is the commit that was fetched last.

    Args:
        name: hub id or folder.
        **options: as for `from_pretrained`; those that say where the checkpoint is are used.

    Raises:
        BadInput: no such repository or revision, none that may be read, no way to it, or no configuration in it.
    """
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

    if Path(name).exists():
        return None
    where = {key: options[key] for key in _PLACE if options.get(key) is not None}
    file = options.get("gguf_file") or "config.json"
    try:
        # It is needed anyway; asked for first, it also leaves in the cache where the branch points to.
        path = hf_hub_download(name, file, **where)
    except Exception as error:
        if isinstance(error, EntryNotFoundError) and not isinstance(error, LocalEntryNotFoundError):
            inside = "/".join([*filter(None, [where.get("subfolder")]), file])
            raise BadInput(lacking(name, inside, adapter=_holds_adapter(name, where))) from error
        reason = not_fetched(error)
        if not reason and not isinstance(error, OSError | ValueError):
            raise
        reason = reason or first_line(error)
        raise BadInput(
            f"cannot open {name!r}: there is no folder of that name here, and as a hub id: {reason}"
        ) from error
    parts = Path(path).parts
    return parts[len(parts) - parts[::-1].index("snapshots")] if "snapshots" in parts else None


def _holds_adapter(name: str, where: Mapping[str, Any]) -> bool:
    """Whether a repository holds an adapter; not, where the hub fails now: that there is no model it has told."""
    from huggingface_hub import HfApi

    try:
        return HfApi().file_exists(
            name, "adapter_config.json", revision=where.get("revision"), token=where.get("token")
        )
    except Exception as error:
        if not not_fetched(error):
            raise
        return False


def lacking(model: str, file: str = "config.json", *, adapter: bool = False) -> str:
    """What to say of a place without a configuration."""
    if adapter:
        return (
            f"{model} holds an adapter, not a model: merge it into the model that it was trained on "
            "(peft: `PeftModel.from_pretrained(model, folder).merge_and_unload().save_pretrained(merged)`), "
            "and give the merged folder"
        )
    here = " (it is a folder here, so no hub is asked for it)" if Path(model).is_dir() else ""
    return f"{model} holds no {file}{here}; give the folder of a checkpoint, a hub id, or 'embedded'"
