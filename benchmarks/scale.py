"""How memory and time grow with the model: random weights in bfloat16 shards, every verb in a process of its own.

Peak memory is that of the verb's process, sampled; of the models' weights, which are mapped from their files, only what
is held beside these pages counts. For `prune` the peak of each stage is shown, and the whole resident set and the time
are held against what `--dry-run` forecast. Times are those of the processor.

    python benchmarks/scale.py work/                       # the grid of small models, and the laws
    python benchmarks/scale.py work/ --only llama-350m     # one of SHAPES
    python benchmarks/scale.py work/ --only bert-large --verbs prune
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

#: name -> kind, hidden, layers, heads, key/value heads, vocabulary.
SHAPES = {
    "llama-350m": ("llama", 1024, 24, 16, 4, 32000),
    "bert-large": ("bert", 1024, 24, 16, 16, 30000),
    "llama-2000": ("llama", 1000, 80, 25, 5, 1000),
    **{f"llama-d{d}": ("llama", d, 6, d // 64, d // 128, 1000) for d in (256, 512, 1024, 2048)},
    **{f"llama-l{n}": ("llama", 512, n, 8, 4, 1000) for n in (6, 12, 24, 48)},
    **{f"bert-d{d}": ("bert", d, 6, d // 64, d // 64, 1000) for d in (256, 512, 1024)},
    **{f"bert-l{n}": ("bert", 512, n, 8, 8, 1000) for n in (6, 12, 24)},
}
GRID = [name for name in SHAPES if name.partition("-")[2][:1] in "dl" and name != "bert-large"]
VERBS = ("load", "heads", "analyze", "plan", "cut", "prune", "speed", "dry-run")
WORDS = 30


def build(name: str, place: Path) -> Path:
    """The checkpoint and its texts, unless they are there."""
    folder = place / name
    if (folder / "config.json").exists():
        return folder
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import (
        BertConfig,
        BertForSequenceClassification,
        LlamaConfig,
        LlamaForCausalLM,
        PreTrainedTokenizerFast,
    )

    kind, hidden, layers, heads, kv_heads, vocabulary = SHAPES[name]
    sizes = {"hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads}
    sizes |= {"vocab_size": vocabulary, "max_position_embeddings": 512}
    torch.manual_seed(0)
    if kind == "llama":
        wide = 8 * hidden // 3 // 64 * 64
        config = LlamaConfig(**sizes, num_key_value_heads=kv_heads, intermediate_size=wide, pad_token_id=0)
        model = LlamaForCausalLM(config)
    else:
        model = BertForSequenceClassification(BertConfig(**sizes, intermediate_size=4 * hidden, num_labels=2))
    model.to(torch.bfloat16).save_pretrained(folder, max_shard_size="200MB")
    words = {"[PAD]": 0, "[UNK]": 1, "[MASK]": 2} | {f"w{i}": i for i in range(3, 1000)}
    raw = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    raw.pre_tokenizer = pre_tokenizers.Whitespace()
    marks = {"pad_token": "[PAD]", "unk_token": "[UNK]", "mask_token": "[MASK]"}
    PreTrainedTokenizerFast(tokenizer_object=raw, model_max_length=512, **marks).save_pretrained(folder)
    return folder


def texts(place: Path, kind: str, texts: int) -> tuple[Path, Path]:
    """What decides and what judges: random words, with a label where the model is a classifier."""
    draw = random.Random(0)
    found = []
    for part, count in (("calibration", texts), ("evaluation", texts // 2)):
        path = place / f"{part}-{kind}-{texts}.jsonl"
        rows = [{"text": " ".join(f"w{draw.randint(3, 999)}" for _ in range(WORDS))} for _ in range(count)]
        if kind == "bert":
            rows = [row | {"label": i % 2} for i, row in enumerate(rows)]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        found.append(path)
    return found[0], found[1]


def processor(pid: int) -> float:
    """Seconds of the processor that a process has used: what else the machine does counts little in them."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident(pid: int) -> tuple[float, float]:
    """Megabytes that a process holds, and of these what is no page of a mapped file (weights are); 0 once it is gone."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0.0, 0.0
    found = {line.split(":")[0]: int(line.split()[1]) / 1024 for line in lines if line.startswith(("VmRSS", "RssFile"))}
    return found.get("VmRSS", 0.0), found.get("VmRSS", 0.0) - found.get("RssFile", 0.0)


def measured(command: list[str], partial: Path | None = None) -> dict:
    """Seconds of the processor, peak in megabytes, and for a run's folder the peak and the seconds of each stage."""
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}
    stages: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryFile("w+") as told:
        child = subprocess.Popen(command, stdout=told, stderr=subprocess.STDOUT, env=environment)
        peak, whole, seconds, stop = [0.0], [0.0], [0.0], threading.Event()

        def watch() -> None:
            while not stop.wait(0.05):
                (held, now), used = resident(child.pid), processor(child.pid)
                before, seconds[0] = seconds[0], max(seconds[0], used)
                peak[0], whole[0] = max(peak[0], now), max(whole[0], held)
                done = (
                    sorted(partial.iterdir(), key=lambda p: p.stat().st_mtime) if partial and partial.exists() else []
                )
                last = next((p.name for p in reversed(done) if not p.name.endswith(".new") and p.name != ".lock"), "")
                stage = stages.setdefault(f"after {last}" if last else "before", {"peak": 0.0, "seconds": 0.0})
                stage["peak"], stage["seconds"] = max(stage["peak"], now), stage["seconds"] + seconds[0] - before

        watcher = threading.Thread(target=watch)
        watcher.start()
        code = child.wait()
        stop.set()
        watcher.join()
        told.seek(0)
        said = told.read()
    if code not in (0, 3):
        print(said[-3000:], file=sys.stderr)
    return {"seconds": seconds[0], "peak": peak[0], "resident": whole[0], "code": code, "said": said, "stages": stages}


def figures(
    name: str, place: Path, verbs: tuple[str, ...] = VERBS, more: tuple[str, ...] = (), count: int = 96
) -> dict:
    """What every verb takes on one checkpoint."""
    folder, kind = build(name, place), SHAPES[name][0]
    calibration, evaluation = texts(place, kind, count)
    column = ["--label-column", "label"] if kind == "bert" else []
    headwise = [sys.executable, "-m", "headwise.prune.cli"]
    out = place / f"{name}-out"
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()
    plan = place / f"{name}-plan.json"
    data = [
        "--calibration",
        str(calibration),
        "--evaluation",
        str(evaluation),
        *column,
        "--set",
        "remove.fraction=0.25",
    ]
    data += [part for change in more for part in ("--set", change)]
    said = [*data[:1], json.dumps({"source": str(calibration), **({"label": "label"} if column else {})})]
    planned = ["--set", f"data.calibration={said[1]}", "--set", f"data.evaluation.source={evaluation}",
               "--set", "remove.fraction=0.25", "--recipe", "reconstruction"]  # fmt: skip
    opened = (
        f"from headwise.prune import load; m = load({str(folder)!r}); print(sum(p.numel() for p in m.parameters()))"
    )
    commands = {
        "load": [sys.executable, "-c", opened],
        "heads": [*headwise, "heads", str(folder), "--json"],
        "analyze": [
            *headwise,
            "analyze",
            str(folder),
            "--texts",
            str(calibration),
            "--output-dir",
            str(out / "analysis"),
        ],
        "plan": [*headwise, "plan", str(folder), *planned, "-o", str(plan), "--overwrite"],
        "cut": [*headwise, "cut", str(folder), str(plan), "--output-dir", str(out / "cut")],
        "prune": [*headwise, "prune", str(folder), *data, "--output-dir", str(out / "run")],
        "speed": [*headwise, "speed", str(folder), "--batches", "1", "--lengths", "32"],
        "dry-run": [*headwise, "prune", str(folder), *data, "--dry-run", "--json"],
    }
    found: dict = {"name": name}
    for verb in verbs:
        took = measured(commands[verb], out / "run.partial" if verb == "prune" else None)
        said_last = took.pop("said")
        if verb == "load":
            took["parameters"] = int(said_last.split()[-1])
        if verb == "dry-run" and took["code"] == 0:
            took["forecast"] = json.loads(said_last[said_last.index("{") :])
        if verb != "prune":
            took.pop("stages")
        found[verb] = took
    found["files"] = {
        str(path.relative_to(out)): path.stat().st_size
        for path in sorted(out.rglob("*"))
        if path.suffix in (".html", ".json", ".md")
    }
    return found


def shown(found: dict) -> None:
    base = found.get("load", {}).get("peak", 0.0)
    print(
        f"\n{found['name']}: {found.get('load', {}).get('parameters', 0) / 1e6:.1f} M parameters; loaded {base:.0f} MB"
    )
    for verb, took in found.items():
        if isinstance(took, dict) and "peak" in took:
            print(f"  {verb:10} {took['seconds']:7.1f} s  peak {took['peak']:7.0f} MB  above {took['peak'] - base:7.0f} MB"
                  f"{'' if took['code'] in (0, 3) else '  FAILED'}")  # fmt: skip
            for stage, one in took.get("stages", {}).items():
                print(f"      {stage:28} {one['seconds']:6.1f} s  peak {one['peak']:7.0f} MB")
    forecast = found.get("dry-run", {}).get("forecast")
    if forecast and "prune" in found:
        said, took = forecast["bytes"]["peak_about"] / 2**20, found["prune"]["resident"]
        seconds = forecast["time"]["seconds_about"]
        print(f"  forecast: {said:.0f} MB, measured {took:.0f} ({took / said:.2f}); {seconds:.0f} s, measured "
              f"{found['prune']['seconds']:.0f} ({found['prune']['seconds'] / seconds:.2f})")  # fmt: skip
    for path, size in found["files"].items():
        if size > 200_000:
            print(f"  {path}: {size / 1e6:.2f} MB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("place", type=Path)
    parser.add_argument("--only", nargs="*", choices=SHAPES, default=GRID)
    parser.add_argument("--verbs", nargs="*", choices=VERBS, default=VERBS)
    parser.add_argument("--set", nargs="*", default=(), help="changes of the recipe")
    parser.add_argument("--texts", type=int, default=96, help="calibration texts; half as many judge")
    parser.add_argument("--out", type=Path, help="write all figures there, as JSON")
    arguments = parser.parse_args()
    arguments.place.mkdir(parents=True, exist_ok=True)
    everything = []
    for name in arguments.only:
        everything.append(figures(name, arguments.place, tuple(arguments.verbs), tuple(arguments.set), arguments.texts))
        shown(everything[-1])
        sys.stdout.flush()
        if arguments.out:
            arguments.out.write_text(json.dumps(everything, indent=1))


if __name__ == "__main__":
    main()
