"""The run of `headwise analyze`: load, look, write evidence and report; nothing is changed."""

from __future__ import annotations

import datetime
import json
from pathlib import Path

from headwise.prune.folder import check_free, new_folder


def inspect(
    model: str,
    *,
    source: str = "embedded",
    split: str | None = None,
    text: str | None = None,
    samples: int = 1024,
    batch_size: int | None = None,
    max_length: int | None = None,
    seed: int = 0,
    revision: str | None = None,
    dtype: str = "auto",
    device: str | None = None,
    trust_remote_code: bool = False,
    output_dir: Path | None = None,
    overwrite: bool = False,
) -> Path:
    """The folder with what was found: evidence, environment, report; it appears whole or not at all.

    Args:
        model: hub id, folder, or `embedded`.
        source: texts, as `read_source` takes them.
        split: of a data set.
        text: column of the text.
        samples: texts drawn at most.
        batch_size: texts a batch; as many as fit if None.
        max_length: tokens a text.
        seed: of all that is drawn.
        revision: of a hub checkpoint.
        dtype: what the weights load as.
        device: where the model runs; the best there is if None.
        trust_remote_code: run code that the checkpoint brings.
        output_dir: where to write; `runs/<model>-analyze-<UTC time>` if None.
        overwrite: replace an existing folder.

    Raises:
        BadInput: the model, the texts or the folder cannot be used.
    """
    target = Path(output_dir) if output_dir is not None else run_folder(model, "analyze")
    check_free(target, overwrite=overwrite)

    from headwise.analysis.analyze import analyze
    from headwise.analysis.reading import read_source
    from headwise.prune.environment import environment, now
    from headwise.prune.opening import open_checkpoint
    from headwise.prune.report import write

    corpus = read_source(source, split=split, text=text).sample(samples, seed)
    opened = open_checkpoint(model, revision=revision, dtype=dtype, device=device, trust_remote_code=trust_remote_code)
    made = environment(seed=seed, model=opened.facts, texts={"calibration": corpus.summary()})
    with new_folder(target, overwrite=overwrite) as work:
        evidence = analyze(
            opened.model, opened.tokenizer, corpus, batch_size=batch_size, max_length=max_length, seed=seed
        )
        evidence.save(work / "evidence")
        content = json.dumps({**made, "finished": now()}, indent=2)
        (work / "environment.json").write_text(content + "\n", encoding="utf-8")
        write(work)
    return target


def run_folder(model: str, what: str) -> Path:
    """Where a run goes if nobody said: `runs/<model>-<what>-<UTC time>`.

    >>> str(run_folder("sentence-transformers/all MiniLM", "analyze")).startswith("runs/all-MiniLM-analyze-2")
    True
    """
    name = model.rstrip("/\\").replace("\\", "/").rpartition("/")[2]
    parts = ["".join(c if c.isascii() and (c.isalnum() or c in "._-") else "-" for c in p) for p in (name, what)]
    stem = "-".join(part.strip(".-")[:60] or "run" for part in parts)
    return Path("runs") / f"{stem}-{datetime.datetime.now(datetime.UTC):%Y%m%dT%H%M%SZ}"
