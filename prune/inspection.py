"""The run of `headwise analyze`: load, look, write evidence and report; nothing is changed."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headwise.analysis.errors import BadInput
from headwise.prune.folder import check_target, settled, space_told


@dataclass(frozen=True)
class Looking:
    """What an analysis looks for, as the command line says it; None where the default holds.

    Attributes:
        roles: names of roles.
        measures: names of measures of likeness.
        annotations: files of texts with links.
        per_text: average likeness over texts.
        ordinary: without special tokens and the first token.
        intervene: silence the heads of roles.
        pairs: a file of sentence pairs for that.
        memory: bytes for maps.
        door: how maps are come by.
        threshold: mean likeness at which heads count as interchangeable.
        clusters: how many clusters instead.
        null: what roles have to beat beside their analytic chance.
        effect: least excess over chance that makes a role.
    """

    roles: tuple[str, ...] | None = None
    measures: tuple[str, ...] | None = None
    annotations: tuple[Path, ...] = ()
    per_text: bool = False
    ordinary: bool = False
    intervene: bool = False
    pairs: Path | None = None
    memory: int | None = None
    door: str = "auto"
    threshold: float | None = None
    clusters: int | None = None
    null: str = "analytic"
    effect: float | None = None

    def arguments(self) -> dict[str, Any]:
        """Keyword arguments of `analyze`, files read.

        Raises:
            BadInput: a file cannot be read, a name is unknown, or there is no tree to cut.
        """
        from headwise.analysis.analyze import check_asked
        from headwise.analysis.annotations import read_annotations
        from headwise.analysis.corpus.minimal_pairs import read_pairs
        from headwise.analysis.similarity import MEASURES

        named: dict[str, Any] = {"measures": self.measures, "roles": self.roles, "door": self.door, "null": self.null}
        # Before a model is loaded, which may take minutes.
        check_asked(**{name: value for name, value in named.items() if value is not None})
        cut = {"--threshold": self.threshold, "--clusters": self.clusters}
        asked = next((option for option, value in cut.items() if value is not None), "")
        if asked and self.measures is not None and not MEASURES.keys() & set(self.measures):
            raise BadInput(
                f"{asked} cuts the tree of a measure of likeness, and --similarity names none; expected some of "
                + ", ".join(MEASURES)
            )
        given = {"roles": self.roles, "measures": self.measures, "memory": self.memory, "threshold": self.threshold}
        given["effect"] = self.effect
        return {
            **{name: value for name, value in given.items() if value is not None},
            "annotated": [text for path in self.annotations for text in read_annotations(path)],
            "per_text": self.per_text,
            "ordinary": self.ordinary,
            "interventions": self.intervene,
            "pairs": None if self.pairs is None else read_pairs(self.pairs),
            "door": self.door,
            "clusters": self.clusters,
            "null": self.null,
        }


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
    resume: bool = False,
    looking: Looking | None = None,
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
        resume: go on with an analysis that was interrupted in this folder, from the sums that it kept.
        looking: what to look for; the defaults if None.

    Raises:
        BadInput: the model, the texts or the folder cannot be used.
    """
    target = Path(output_dir) if output_dir is not None else run_folder(model, "analyze")
    check_target(target, model, overwrite=overwrite)

    from headwise.analysis.analyze import analyze
    from headwise.analysis.capture.processes import agreed, world
    from headwise.analysis.corpus.reading import read_source
    from headwise.analysis.evidence import Evidence
    from headwise.analysis.sites import find_sites
    from headwise.prune.begun import begun_at
    from headwise.prune.environment import environment, now
    from headwise.prune.folder.stages import SUMS, Stages
    from headwise.prune.forecast.reached import require_reached
    from headwise.prune.material import tokens_of
    from headwise.prune.opening import open_checkpoint
    from headwise.prune.report import write
    from headwise.prune.tasks.overlong import overlong
    from headwise.prune.tasks.own_loss import own_loss

    how = (looking or Looking()).arguments()
    corpus = read_source(source, split=split, text=text).sample(samples, seed)
    if resume and revision is None:
        revision = begun_at(settled(target).with_name(f"{target.name}.partial"), model)
    opened = open_checkpoint(model, revision=revision, dtype=dtype, device=device, trust_remote_code=trust_remote_code)
    require_reached(opened.model, opened.tokenizer, find_sites(opened.model), corpus)
    cut_off = overlong(opened.model, opened.tokenizer, {"calibration": corpus}, max_length=max_length)
    tokens = tokens_of(corpus, opened.model, opened.tokenizer, max_length)
    texts = {"calibration": corpus.summary() | {"truncated": cut_off["calibration"], "tokens": tokens}}
    made = environment(seed=seed, model=opened.facts, texts=texts)
    if how["interventions"]:
        how["own"] = own_loss(opened.model, opened.tokenizer, corpus, max_length=max_length, seed=seed)
    how |= {"batch_size": batch_size, "max_length": max_length, "seed": seed}

    def look(sums: Path) -> Evidence:
        return analyze(opened.model, opened.tokenizer, corpus, keep=sums, **how)

    if world()[0]:
        # Only the first process writes; the others lend it their share of the work, unless there is none left.
        sums = agreed("")
        if sums:
            look(Path(sums))
        return target
    with Stages(target, overwrite=overwrite, resume=resume) as stages, space_told(target):
        begun = stages.json("environment.json", lambda: made)
        _same(begun, made)
        agreed("" if (stages.work / "evidence").exists() else str(stages.work / SUMS))
        stages.evidence(look, Evidence)
        stages.replace_json("environment.json", {**begun, "finished": now()})
        write(stages.work)
    return target


def _same(begun: Mapping[str, Any], made: Mapping[str, Any]) -> None:
    """Return if model and texts are those that an interrupted analysis began with."""
    pairs = {
        "model": ("model", "hash"),
        "configuration": ("model", "config"),
        "tokenizer or texts": ("texts", "calibration"),
    }
    changed = [what for what, (one, part) in pairs.items() if begun[one].get(part) != made[one][part]]
    if changed:
        raise BadInput(
            f"{' and '.join(changed)} changed since the analysis began; put back what was there, or start afresh "
            "with --overwrite"
        )


def run_folder(model: str, what: str) -> Path:
    """Where a run goes if nobody said: `runs/<model>-<what>-<UTC time>`.

    >>> str(run_folder("sentence-transformers/all MiniLM", "analyze")).startswith("runs/all-MiniLM-analyze-2")
    True
    """
    name = model.rstrip("/\\").replace("\\", "/").rpartition("/")[2]
    if name in ("", ".", ".."):  # the folder that one is in has a name of its own
        name = Path(model).resolve().name
    parts = ["".join(c if c.isascii() and (c.isalnum() or c in "._-") else "-" for c in p) for p in (name, what)]
    stem = "-".join(part.strip(".-")[:60] or "run" for part in parts)
    return Path("runs") / f"{stem}-{datetime.datetime.now(datetime.UTC):%Y%m%dT%H%M%SZ}"
