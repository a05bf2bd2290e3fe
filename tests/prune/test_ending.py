"""How the program ends: told to from outside, with nobody listening, with nowhere to print."""

import errno
import os
import signal
import subprocess
import sys
import threading

import pytest

from headwise.analysis.errors import BadInput
from headwise.prune.cli import heads as heads_verb
from headwise.prune.cli import main
from headwise.prune.cli.faults import explain
from headwise.prune.folder.signals import interrupting, uninterrupted
from headwise.prune.report.write import write_all

PROGRAM = [sys.executable, "-c", "import sys; from headwise.prune.cli import main; sys.exit(main())"]
ENDINGS = [signal.SIGTERM, signal.SIGHUP]


@pytest.fixture(autouse=True)
def heard():
    """Signals as a terminal leaves them: a suite in the background, or under nohup, ignores some."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, *ENDINGS)}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in ENDINGS:
        signal.signal(number, signal.SIG_DFL)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", ENDINGS)
def test_a_request_to_end_is_an_interruption(number, capsys, monkeypatch):
    cleared = []

    def outline(*_, **__):
        try:
            os.kill(os.getpid(), number)
        finally:
            # Schedulers and `timeout` ask more than once; what is being cleared away is cleared away.
            os.kill(os.getpid(), number)
            cleared.append(True)

    monkeypatch.setattr(heads_verb, "outline", outline)
    before = [signal.getsignal(each) for each in ENDINGS]
    assert main(["heads", "x"]) == 130
    assert cleared
    assert tuple(capsys.readouterr()) == ("", "headwise: interrupted\n")
    assert [signal.getsignal(each) for each in ENDINGS] == before


def test_signals_that_somebody_else_handles_stay_theirs():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as under nohup
    try:
        with interrupting():
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
            os.kill(os.getpid(), signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_fork_is_ended_by_the_signal_itself():
    with interrupting():
        child = os.fork()
        if not child:
            os.kill(os.getpid(), signal.SIGTERM)
            os._exit(3)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGTERM


def test_outside_of_the_main_thread_signals_are_left_alone():
    seen = []

    def work():
        with interrupting(), uninterrupted():
            seen.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [signal.getsignal(signal.SIGTERM)]


def test_processes_started_uninterrupted_do_not_hear_the_keyboard():
    child = [sys.executable, "-c", "import os, signal; os.kill(os.getpid(), signal.SIGINT); print('still here')"]
    with uninterrupted():
        found = subprocess.run(child, capture_output=True, text=True, check=False)
    assert found.stdout == "still here\n", found.stderr
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interruption_waits_for_what_cannot_be_taken_back(number):
    done = []

    def work():
        with interrupting(), uninterrupted():
            os.kill(os.getpid(), number)
            done.append(True)

    with pytest.raises(KeyboardInterrupt):
        work()
    assert done


def test_an_interruption_while_the_program_is_still_loading(capsys, monkeypatch):
    class Interrupted:
        def find_spec(self, name, *_):
            if name == "headwise.prune.cli.app":
                raise KeyboardInterrupt

    monkeypatch.delitem(sys.modules, "headwise.prune.cli.app")
    monkeypatch.setattr(sys, "meta_path", [Interrupted(), *sys.meta_path])
    assert main(["heads", "x"]) == 130
    assert tuple(capsys.readouterr()) == ("", "headwise: interrupted\n")


def test_an_interruption_that_a_library_takes_for_a_failure():
    failure = BadInput("cannot be exported")
    failure.__cause__ = RuntimeError("of the exporter")
    assert explain(failure) == ("cannot be exported", 2)
    failure.__cause__.__cause__ = KeyboardInterrupt()
    assert explain(failure) == ("interrupted", 130)


def test_an_interrupted_report_leaves_the_old_one_and_nothing_beside_it(tmp_path, monkeypatch):
    (tmp_path / "report.md").write_text("old")

    def interrupt(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_all(tmp_path, {"report.md": "new"})
    assert [path.name for path in tmp_path.iterdir()] == ["report.md"]
    assert (tmp_path / "report.md").read_text() == "old"


@pytest.mark.parametrize(
    ("words", "streams", "code", "said"),
    [
        (["recipes", "list"], ">/dev/full", 2, "headwise: the result cannot be printed: No space left on device\n"),
        (["recipes", "schema"], ">/dev/full", 2, "headwise: the result cannot be printed: No space left on device\n"),
        (["recipes", "list"], ">&-", 0, ""),
        (["recipes", "list"], ">&- 2>&-", 0, ""),
        (["recipes", "show", "nonsense"], ">/dev/null 2>&-", 2, ""),
        (["recipes", "show", "nonsense"], ">/dev/null 2>/dev/full", 2, ""),
    ],
)
def test_nobody_listens(words, streams, code, said):
    done = subprocess.run(
        ["sh", "-c", f'"$@" {streams}', "sh", *PROGRAM, *words], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (code, said)


def test_a_full_disk_is_told_apart_from_a_full_stdout():
    assert "disk is full" in explain(OSError(errno.ENOSPC, "No space left on device"))[0]


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_every_character_can_be_printed(encoding):
    done = subprocess.run(
        [*PROGRAM, "analyze", "--help"],
        capture_output=True,
        check=False,
        env=os.environ | {"PYTHONIOENCODING": encoding},
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"NAME," in done.stdout


def test_quiet_is_quiet_also_where_the_hub_cannot_be_reached(tmp_path):
    say = (
        "import logging; from headwise.prune.cli.terminal import speaking\n"
        "with speaking({quiet}):\n"
        "    from huggingface_hub.utils import logging as hub\n"
        "    hub.get_logger('huggingface_hub.utils._http').warning('Retrying in 1s')"
    )
    # What the program has set in this process while it was quiet is not to speak for that one.
    env = {name: value for name, value in os.environ.items() if name != "HF_HUB_VERBOSITY"} | {"HF_HOME": str(tmp_path)}
    said = [
        subprocess.run(
            [sys.executable, "-c", say.format(quiet=quiet)], capture_output=True, text=True, check=True, env=env
        ).stderr
        for quiet in (True, False)
    ]
    assert said == ["", "Retrying in 1s\n"]
