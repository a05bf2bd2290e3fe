"""Companions: the files beside the weights that a dense checkpoint had – tokenizer, templates, pooling."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path
from typing import Any

from headwise.analysis.corpus.fetching import not_fetched
from headwise.analysis.errors import first_line

log = logging.getLogger("headwise")

#: What `load` notes at a model that lay in a sub-folder of what it was asked for.
SUBFOLDER = "_headwise_subfolder"
# Small files that say how to use a model; weights, code and the dense card are not among them.
_ENDINGS = (".json", ".txt", ".model", ".jinja", ".spm", ".bpe", ".codes", ".tokenizer", ".tiktoken", ".vocab")
# Terms that whoever hands the weights on has to hand on with them, whatever the ending.
_TERMS = ("LICENSE", "LICENCE", "NOTICE", "COPYING", "USE_POLICY")
_OWN = {"config.json", "headwise.json", "adapter_config.json", "readme.txt"}
#: What sentence-transformers puts around a model: a list of modules, those with files of their own in sub-folders.
_MODULES = "modules.json"
# Sub-folders of more templates, and of the language model that a recogniser of speech chooses its words by.
_PARTS = ("additional_chat_templates", "language_model")


def copy_companions(model: Any, folder: Path) -> list[str]:
    """Copy the dense folder's companions and say which.

    Of its sub-folders those count that belong to the model, weights included (a dense layer over the pooling); runs,
    stages of a training and exports that lie there as well would contradict the cut weights.

    Args:
        model: a model that was loaded from a folder or a hub id; one that was built in memory has none.
        folder: where to.
    """
    source = _source(model)
    if source is None:
        return []
    beside = [path for path in source.iterdir() if _is_companion(path.name)]
    inside = [path for part in (*_PARTS, *_modules(source)) for path in (source / part).rglob("*")]
    copied: list[str] = []
    for path in sorted([*beside, *inside]):
        if not path.is_file():
            continue
        inner = path.relative_to(source)
        (folder / inner).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, folder / inner)
        copied.append(str(inner))
    return copied


def _is_companion(name: str) -> bool:
    if name.startswith(".") or name.lower() in _OWN or name.endswith(".index.json"):
        return False
    return name.endswith(_ENDINGS) or name.upper().startswith(_TERMS)


def _modules(source: Path) -> list[str]:
    """The sub-folders that sentence-transformers keeps modules in, but for one with a model, which is not cut."""
    if not (source / _MODULES).is_file():
        return []
    try:
        listed = [Path(module["path"]) for module in _json(source / _MODULES)]
    except (ValueError, LookupError, TypeError) as error:
        log.warning("%s lists no modules (%s), so none of theirs is copied", source / _MODULES, error)
        return []
    # A list from elsewhere must not lead out of its folder.
    inside = [path for path in listed if path.parts and not path.is_absolute() and ".." not in path.parts]
    models = [path for path in inside if _is_model(source / path / "config.json")]
    for path in models:
        log.warning(
            "%s is a model of its own and is not copied: sentence-transformers would open it in the place of the cut one; "
            "load that folder, cut it and put it there",
            source / path,
        )
    return [path.as_posix() for path in inside if path not in models]


def _is_model(config: Path) -> bool:
    try:
        found = _json(config) if config.is_file() else {}
    except ValueError:
        return False  # copied as it is, since who reads it will tell
    return isinstance(found, dict) and "model_type" in found


def _json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def _source(model: Any) -> Path | None:
    """The folder a model came from: local, or the hub's small files in the local cache."""
    inside = str(getattr(model, SUBFOLDER, ""))
    name = getattr(getattr(model, "config", None), "_name_or_path", "") or getattr(model, "name_or_path", "")
    if not name:
        return None
    if Path(name).is_dir():
        return Path(name, inside)
    from huggingface_hub import HfApi, constants
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    revision = getattr(model.config, "_commit_hash", None)
    try:
        if not constants.HF_HUB_OFFLINE:
            # Without this list what happens to be in the cache would be taken for all that there is.
            HfApi().list_repo_files(name, revision=revision)
        return _fetched(name, inside, revision=revision)
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
        return _fetched(name, inside, revision=revision, local_files_only=True)
    except LocalEntryNotFoundError:
        return None


def _fetched(name: str, inside: str, **how: Any) -> Path:
    """The small files of a repository in the local cache, then all that the modules which they list consist of."""
    from huggingface_hub import snapshot_download

    def fetch(patterns: list[str]) -> Path:
        within = [f"{inside}/{pattern}" if inside else pattern for pattern in patterns]
        return Path(snapshot_download(name, allow_patterns=within, **how), inside)

    folder = fetch(
        [*(f"*{end}" for end in _ENDINGS), *(f"{term}*" for term in _TERMS), *(f"{part}/*" for part in _PARTS)]
    )
    modules = [f"{module}/*" for module in _modules(folder)]
    return fetch(modules) if modules else folder
