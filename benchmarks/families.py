#!/usr/bin/env python
"""Walks the configuration classes of `transformers` and counts for how many model types a cut is exact.

    python benchmarks/families.py [--only bert,llama] [--out benchmarks/FAMILIES.md] [--jobs 2] [--seconds 60]
    python benchmarks/families.py --rows rows.jsonl --out benchmarks/FAMILIES.md     # goes on where it was stopped

Every model type is built tiny, with random weights, biases and tables, in float64; a few need `timm` besides
(`pip install timm`). The oracle is made by hand: the columns of the output projection that belong to the removed heads
are zeroed. A type is

    exact          the gated and the cut model give the oracle's output (< 1e-6 of its scale) for every plan. Where no
                   synthetic input fits the whole, this is measured on a part of it (a tower), or on its blocks alone
    refused        `cut` says why not, and has changed nothing; gating gives the oracle's output
    no attention   it has no attention to cut, and is told so
    not reached    the synthetic inputs run, but pass through no site
    not buildable  no tiny model, or no synthetic input, with the exception
    FAILED         the cut model stops with an error; WRONG: it gives other numbers. Neither may happen.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
warnings.filterwarnings("ignore")

import torch  # noqa: E402
import transformers  # noqa: E402
from exact import judge, short  # noqa: E402
from families_page import page  # noqa: E402
from transformers import CONFIG_MAPPING  # noqa: E402

# A worker walks this many types: then its memory is given back and its rows are kept.
CHUNK = 25


class Timeout(BaseException):
    """A model type took too long."""


def main() -> int:
    """Walk, count, write."""
    options = _options()
    names = options.only.split(",") if options.only else sorted(CONFIG_MAPPING.keys())
    if options.worker:
        transformers.logging.set_verbosity_error()
        torch.set_num_threads(1)
        signal.signal(signal.SIGPROF, _alarm)
        for name in names:
            print("ROW " + json.dumps(row(name, options.seconds)), flush=True)
        return 0
    kept = _read(options.rows)
    missing = [name for name in names if options.only or name not in kept]
    for found in _in_processes(missing, options.jobs, options.seconds):
        kept[found["type"]] = found
        if options.rows:
            print(f"{len(kept)}/{len(names)} {found['type']}: {found['verdict']}", file=sys.stderr, flush=True)
            Path(options.rows).write_text("\n".join(json.dumps(kept[name]) for name in sorted(kept)) + "\n")
    rows = [kept[name] for name in sorted(kept)]
    counts = Counter(r["verdict"] for r in rows)
    print(dict(counts))
    for r in rows:
        if r["verdict"] in ("WRONG", "FAILED") or (options.only and r["type"] in names):
            print(r)
    if options.out:
        if absent := sorted(set(CONFIG_MAPPING) - set(kept)):
            sys.exit(f"not written: {len(absent)} types have no row yet ({', '.join(absent[:5])}, …)")
        Path(options.out).write_text(page(rows, counts))
    return int(bool(counts["WRONG"] + counts["FAILED"]))


def _read(place: str | None) -> dict[str, dict[str, Any]]:
    """The rows of an earlier walk by type, if it was of this release."""
    if not place or not Path(place).exists():
        return {}
    rows = [json.loads(line) for line in Path(place).read_text().splitlines()]
    return {r["type"]: r for r in rows if r["transformers"] == transformers.__version__}


@functools.cache
def _versions() -> dict[str, str]:
    """What a row was measured with."""
    asked = ("git", "rev-parse", "--short", "HEAD")
    commit = subprocess.run(
        asked, capture_output=True, text=True, check=False, cwd=Path(__file__).parent
    ).stdout.strip()
    return {"transformers": transformers.__version__, "commit": commit or "unknown"}


def row(name: str, seconds: int) -> dict[str, Any]:
    """One model type's verdict."""
    started = time.perf_counter()
    result: dict[str, Any] = {
        "type": name, "verdict": "not buildable", "why": "", **_versions()
    }  # fmt: skip
    try:
        signal.setitimer(signal.ITIMER_PROF, seconds)  # of the processor: other work on the machine takes nothing away
        result |= judge(name, time.process_time() + seconds / 4)
    except Timeout:
        result["why"] = f"took longer than {seconds} s"
    except Exception as error:
        result["why"] = short(error)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    return result | {"seconds": round(time.perf_counter() - started, 1)}


def _alarm(*_: Any) -> None:
    raise Timeout


def _in_processes(names: list[str], jobs: int, seconds: int) -> Iterator[dict[str, Any]]:
    """Rows from worker processes, a few at a time; a worker that dies costs one row, the rest goes on in a new one."""
    waiting = [names[start : start + CHUNK] for start in range(0, len(names), CHUNK)]
    running: list[_Worker] = []
    while waiting or running:
        while waiting and len(running) < jobs:
            running.append(_Worker(waiting.pop(0), seconds))
        for worker in list(running):
            ended = worker.process.poll() is not None
            yield from worker.rows()[worker.told :]
            worker.told = len(worker.rows())
            if not ended:
                continue
            running.remove(worker)
            if rest := worker.names[worker.told :]:
                why = f"the process died ({worker.process.returncode})"
                yield {"type": rest[0], "verdict": "not buildable", "why": why, "seconds": 0, **_versions()}
                if rest[1:]:
                    waiting.insert(0, rest[1:])
        time.sleep(0.3)


class _Worker:
    def __init__(self, names: list[str], seconds: int) -> None:
        self.names, self.told = names, 0
        self.out = tempfile.NamedTemporaryFile("w+")  # noqa: SIM115 - lives as long as the worker
        command = [sys.executable, __file__, "--worker", "--only", ",".join(names), "--seconds", str(seconds)]
        self.process = subprocess.Popen(
            command, stdout=self.out, stderr=subprocess.DEVNULL, env={**os.environ, "OMP_NUM_THREADS": "1"}
        )

    def rows(self) -> list[dict[str, Any]]:
        lines = Path(self.out.name).read_text().splitlines()
        return [json.loads(line[4:]) for line in lines if line.startswith("ROW ")]


def _options() -> Any:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="model types, comma-separated")
    parser.add_argument("--out", help="write the table here")
    parser.add_argument("--rows", help="keep the rows here, and walk only types that have none yet (or --only these)")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seconds", type=int, default=90, help="of the processor, for one model type")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
