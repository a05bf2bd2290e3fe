"""One, two or three processes: the same evidence."""

import importlib.util
import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from headwise.analysis.errors import HeadwiseError
from headwise.analysis.evidence import Evidence
from headwise.analysis.processes import absorb, totals_of
from headwise.analysis.similarity import MEASURES

_spec = importlib.util.spec_from_file_location("planted", Path(__file__).with_name("planted.py"))
planted = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(planted)

PROGRAM = """
import sys
sys.path.insert(0, {here!r})
import planted, torch
torch.set_num_threads(1)
from headwise.analysis.analyze import analyze
from headwise.analysis.processes import world
model, tokenizer = planted.planted_model(), planted.planted_tokenizer()
how = dict(measures={measures!r}, batch_size=8, per_text={per_text})
evidence = analyze(model, tokenizer, planted.planted_corpus(60), **how)
evidence.save(sys.argv[1] + str(world()[0]))
"""


def run(folder, count, measures, per_text=False):
    program = folder / "program.py"
    program.write_text(PROGRAM.format(here=str(Path(__file__).parent), measures=measures, per_text=per_text))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(count), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(program), str(folder / f"{count}-")]
    started = [subprocess.Popen(command, env={**os.environ, **place, "RANK": str(rank)}) for rank in range(count)]
    assert [process.wait(timeout=300) for process in started] == [0] * count
    return [Evidence.load(folder / f"{count}-{rank}") for rank in range(count)]


@pytest.mark.parametrize("per_text", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_any_number_of_processes_gives_the_same(tmp_path, per_text):
    measures = [*MEASURES, "replaceability"]
    (alone,) = run(tmp_path, 1, measures, per_text)
    first, second = run(tmp_path, 2, measures, per_text)
    for name, array in alone.arrays.items():
        np.testing.assert_array_equal(first[name], second[name], err_msg=name)
        np.testing.assert_allclose(first[name], array, atol=1e-6, rtol=1e-6, err_msg=name)
    assert first.facts["rows"] == alone.facts["rows"]
    assert first.facts["batches"] == alone.facts["batches"]
    assert first.facts["coreference"]["skipped"] == alone.facts["coreference"]["skipped"]


def test_a_reducer_without_named_sums_is_refused():
    class Nothing:
        pass

    with pytest.raises(HeadwiseError, match="Nothing does not say"):
        totals_of(Nothing())

    class Odd:
        totals = ("what",)
        what = "text"

    with pytest.raises(HeadwiseError, match="cannot bring together str"):
        absorb(Odd(), {"what": "more"})
