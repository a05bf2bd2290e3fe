"""Companions: the files beside the weights that a dense checkpoint had – tokenizer, templates, pooling."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path
from typing import Any

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
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    revision = getattr(model.config, "_commit_hash", None)
    try:
        return Path(snapshot_download(name, revision=revision, allow_patterns=[f"*{ending}" for ending in _ENDINGS]))
    except HFValidationError:
        return None  # a folder that is gone by now
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        log.warning(
            "the files beside the weights of %s could not be fetched (%s); pass processor= to save a tokenizer",
            name,
            error,
        )
        return None
