"""Environment: with what a run was made, so that it can be made again."""

from __future__ import annotations

import datetime
import os
import platform
import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from headwise.analysis.errors import BadInput

_PACKAGES = (
    "headwise",
    "torch",
    "transformers",
    "datasets",
    "scikit-learn",
    "scipy",
    "numpy",
    "tokenizers",
    "safetensors",
)


def environment(*, seed: int, model: dict[str, Any], texts: dict[str, Any]) -> dict[str, Any]:
    """Versions, machine, threads, seed, command, model and texts, as `environment.json` keeps them.

    >>> environment(seed=3, model={}, texts={})["seed"]
    3
    """
    import torch

    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {
        "schema": 1, "headwise": _version("headwise"), "started": now(), "seed": seed, "device": model.get("device"),
        "command": [os.path.basename(sys.argv[0]), *sys.argv[1:]],  # noqa: PTH119 - a name, not a path
        "versions": {"python": platform.python_version(), **{name: _version(name) for name in _PACKAGES}},
        "machine": {"system": platform.platform(), "processor": platform.machine(), "cores": os.cpu_count(),
                    "threads": torch.get_num_threads(), "gpu": gpu},
        "model": model, "texts": texts,
    }  # fmt: skip


def unchanged(then: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Return if model, tokenizer and texts are what they were when the run began; a resumed one could mix two otherwise.

    Args:
        then: `environment.json` as the run began.
        now: the same, made anew.

    Raises:
        BadInput: if any has changed.
    """
    (was, texts), (model, read) = ((one["model"], one["texts"]) for one in (then, now))
    same = {part: texts[part]["hash"] == read[part]["hash"] for part in ("calibration", "evaluation")}
    tokens = [one["calibration"].get("tokens") for one in (texts, read)]
    changed = [f"the model {model['id']}"] if was["hash"] != model["hash"] else []
    changed += [f"the configuration of {model['id']}"] if was.get("config") not in (None, model["config"]) else []
    # Other texts have other tokens, whoever makes them.
    changed += ["the tokenizer"] if same["calibration"] and tokens[0] not in (None, tokens[1]) else []
    changed += [f"the texts of data.{part}" for part, kept in same.items() if not kept]
    if changed:
        raise BadInput(
            f"{' and '.join(changed)} changed since the run began; put back what was there, or start afresh "
            "with --overwrite"
        )


def now() -> str:
    """The time in UTC, to the second, in ISO 8601."""
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
