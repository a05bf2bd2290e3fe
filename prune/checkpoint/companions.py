"""Companions: the files beside the weights that a dense checkpoint had – tokenizer, templates, pooling."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path
from typing import Any

from headwise.analysis.corpus.fetching import not_fetched
from headwise.analysis.errors import first_line

log = logging.getLogger("headwise")

# Small files that say how to use a model; weights, code and the dense card are not among them.
_ENDINGS = (".json", ".txt", ".model", ".jinja", ".spm", ".bpe", ".tiktoken", ".vocab")
_OWN = {
    "config.json",
    "model.safetensors.index.json",
    "pytorch_model.bin.index.json",
    "headwise.json",
    "adapter_config.json",
}
# Other exports of the dense weights would contradict the cut ones.
_EXPORTS = {"onnx", "openvino", "coreml", "tf", "flax"}


def copy_companions(model: Any, folder: Path) -> list[str]:
    """Copy the dense folder's companions (sub-folders included) and say which.

    Args:
        model: a model that was loaded from a folder or a hub id; one that was built in memory has none.
        folder: where to.
    """
    source = _source(model)
    copied: list[str] = []
    if source is None:
        return copied
    for path in sorted(source.rglob("*")):
        inner = path.relative_to(source)
        hidden = any(part.startswith(".") for part in inner.parts)
        wanted = path.suffix in _ENDINGS and not hidden and path.name.lower() != "readme.txt"
        own = len(inner.parts) == 1 and (path.name in _OWN or path.name.endswith(".index.json"))
        if not path.is_file() or not wanted or own or inner.parts[0] in _EXPORTS:
            continue
        (folder / inner).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, folder / inner)
        copied.append(str(inner))
    return copied


def _source(model: Any) -> Path | None:
    """The folder a model came from: local, or the hub's small files in the local cache."""
    name = getattr(getattr(model, "config", None), "_name_or_path", "") or getattr(model, "name_or_path", "")
    if not name:
        return None
    if Path(name).is_dir():
        return Path(name)
    from huggingface_hub import HfApi, constants, snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    what: dict[str, Any] = {
        "revision": getattr(model.config, "_commit_hash", None), "allow_patterns": [f"*{ending}" for ending in _ENDINGS],
    }  # fmt: skip
    try:
        if not constants.HF_HUB_OFFLINE:
            # Without this list what happens to be in the cache would be taken for all that there is.
            HfApi().list_repo_files(name, revision=what["revision"])
        return Path(snapshot_download(name, **what))
    except HFValidationError:
        return None  # a folder that is gone by now
    except Exception as error:
        # The way to a hub fails with the errors of whatever library goes it.
        reason = not_fetched(error)
        if not reason and not isinstance(error, OSError):
            raise
        log.warning(
            "the files beside the weights of %s could not be fetched, and those in the cache may not be all: %s; pass "
            "processor= to save a tokenizer",
            name,
            reason or first_line(error),
        )
    try:
        return Path(snapshot_download(name, local_files_only=True, **what))
    except LocalEntryNotFoundError:
        return None
