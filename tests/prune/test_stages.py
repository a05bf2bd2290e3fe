"""Folders while they are being made: whole when they appear, locked before, kept where there is something to keep."""

import contextlib
import errno
import json
import re
import shutil
from pathlib import Path

import pytest

from headwise.analysis.errors import BadInput
from headwise.prune.folder import new_file, new_folder, publish, space_told, told
from headwise.prune.folder.stages import Stages


class Saved:
    """Something with a `save` that counts how often it was made."""

    made = 0

    def save(self, path):
        type(self).made += 1
        path.write_text("content")

    @staticmethod
    def load(path):
        return path.read_text()


@contextlib.contextmanager
def broken_off(target, error=KeyboardInterrupt, **how):
    """A run that ends in an error after the block."""
    with contextlib.suppress(error), Stages(target, **how) as stages:
        yield stages
        raise error


def test_a_folder_appears_whole_when_the_block_ends(tmp_path):
    with Stages(tmp_path / "run") as stages:
        stages.json("one.json", lambda: {"a": 1})
        assert stages.saved("two", Saved, Saved) == "content"
        assert not (tmp_path / "run").exists()
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["one.json", "run", "two"]


def test_a_stage_is_made_once(tmp_path):
    Saved.made = 0
    with broken_off(tmp_path / "run") as stages:
        stages.saved("two", Saved, Saved)
        stages.json("one.json", lambda: {"a": 1})
    with Stages(tmp_path / "run", resume=True) as stages:
        assert stages.saved("two", Saved, Saved) == "content"
        assert stages.json("one.json", lambda: {"a": 2}) == {"a": 1}
    assert Saved.made == 1


def test_an_unfinished_run_that_was_renamed_is_not_called_finished(tmp_path):
    with broken_off(tmp_path / "run") as stages:
        stages.text("recipe.yaml", lambda: "a")
        stages.json("environment.json", dict)
        stages.json("plan.json", dict)
    (tmp_path / "run.partial").rename(tmp_path / "moved")
    with pytest.raises(BadInput, match=r"unfinished run .* rename it to .*moved\.partial, then resume"):
        Stages(tmp_path / "moved", resume=True).__enter__()
    (tmp_path / "moved").rename(tmp_path / "moved.partial")
    with Stages(tmp_path / "moved", resume=True) as stages:
        assert stages.text("recipe.yaml", lambda: "a") == "a"
    with pytest.raises(BadInput, match="is finished, so there is nothing to resume"):
        Stages(tmp_path / "moved", resume=True).__enter__()


def test_half_a_stage_does_not_count(tmp_path):
    class Interrupted:
        def save(self, path):
            path.write_text("half")
            raise KeyboardInterrupt

    with broken_off(tmp_path / "run") as stages:
        stages.json("one.json", lambda: {"a": 1})
        stages.saved("two", Interrupted, Saved)
    with Stages(tmp_path / "run", resume=True) as stages:
        assert stages.saved("two", Saved, Saved) == "content"
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["one.json", "two"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_what_is_worth_resuming_stays(error, tmp_path):
    with broken_off(tmp_path / "empty", error=error) as stages:
        stages.text("recipe.yaml", lambda: "a")
    assert not list(tmp_path.iterdir())
    with broken_off(tmp_path / "run", error=error) as stages:
        stages.json("plan.json", dict)
    assert (tmp_path / "run.partial" / "plan.json").exists()


def test_bad_input_leaves_nothing_unless_a_stage_was_finished(tmp_path):
    with broken_off(tmp_path / "run", error=BadInput) as stages:
        stages.text("recipe.yaml", lambda: "schema: 1")
    assert not list(tmp_path.iterdir())
    with broken_off(tmp_path / "run", error=BadInput) as stages:
        stages.json("plan.json", dict)
    assert (tmp_path / "run.partial" / "plan.json").exists()
    with pytest.raises(BadInput), Stages(tmp_path / "run", resume=True):
        raise BadInput("no")
    assert (tmp_path / "run.partial" / "plan.json").exists()


def test_only_one_may_work_on_a_folder(tmp_path):
    with Stages(tmp_path / "run") as stages:
        stages.json("plan.json", lambda: {"mine": True})
        for how in ({}, {"resume": True}, {"overwrite": True}):
            with pytest.raises(BadInput, match="another run"), Stages(tmp_path / "run", **how):
                pass
    assert json.loads((tmp_path / "run" / "plan.json").read_text()) == {"mine": True}


def test_what_a_killed_write_left_is_cleared_away(tmp_path):
    with broken_off(tmp_path / "run", error=RuntimeError) as stages:
        stages.json("plan.json", dict)
    work = tmp_path / "run.partial"
    for half in (work / "budget-0.5" / "checkpoint.new", work / ".checkpoint.new.a1b2.partial", work / "evidence.new"):
        half.mkdir(parents=True)
        (half / "model.safetensors").write_text("half")
    (work / "plan.json.new").write_text("half")
    with Stages(tmp_path / "run", resume=True):
        pass
    left = sorted(str(path.relative_to(tmp_path / "run")) for path in (tmp_path / "run").rglob("*"))
    assert left == ["budget-0.5", "plan.json"]


def test_what_is_finished_is_not_resumed_and_what_differs_is_named(tmp_path):
    recipe = "remove:\n  fraction: 0.5\nseed: 0\n"
    with broken_off(tmp_path / "run", error=RuntimeError) as stages:
        stages.text("recipe.yaml", lambda: recipe)
        stages.json("environment.json", dict)
        stages.json("plan.json", dict)
    with (
        pytest.raises(BadInput, match=r"asked now \(fraction: 0\.25\); resume with the same"),
        Stages(tmp_path / "run", resume=True) as stages,
    ):
        stages.text("recipe.yaml", lambda: recipe.replace("0.5", "0.25"))
    with Stages(tmp_path / "run", resume=True) as stages:
        stages.text("recipe.yaml", lambda: recipe)
    with (
        pytest.raises(BadInput, match="is finished, so there is nothing to resume"),
        Stages(tmp_path / "run", resume=True),
    ):
        pass
    (tmp_path / "mine").mkdir()
    with pytest.raises(BadInput, match="exists and is left as it is"), Stages(tmp_path / "mine", resume=True):
        pass


def test_an_old_folder_stands_until_the_new_one_is_whole(tmp_path):
    target = tmp_path / "run"
    target.mkdir()
    (target / "plan.json").write_text("old")
    with broken_off(target, overwrite=True, error=RuntimeError) as stages:
        stages.json("new.json", dict)
    assert [path.name for path in target.iterdir()] == ["plan.json"]
    with Stages(target, overwrite=True) as stages:
        stages.json("new.json", dict)
        assert (target / "plan.json").exists()
    assert [path.name for path in target.iterdir()] == ["new.json"]
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_a_text_of_an_interrupted_run_must_say_the_same(tmp_path):
    with broken_off(tmp_path / "run") as stages:
        stages.text("recipe.yaml", lambda: "a")
        stages.json("plan.json", dict)
    with (
        pytest.raises(BadInput, match="differs from what is asked now"),
        Stages(tmp_path / "run", resume=True) as stages,
    ):
        stages.text("recipe.yaml", lambda: "b")
    with Stages(tmp_path / "run", resume=True) as stages:
        stages.text("recipe.yaml", lambda: "a")


@pytest.mark.parametrize("text", ["{", "[]", "null", "[" * 100_000])
def test_a_broken_file_of_an_interrupted_run_is_named(text, tmp_path):
    with broken_off(tmp_path / "run") as stages:
        stages.json("plan.json", dict)
    (tmp_path / "run.partial" / "plan.json").write_text(text)
    with pytest.raises(BadInput, match=r"plan\.json.*delete it"), Stages(tmp_path / "run", resume=True) as stages:
        stages.json("plan.json", dict)


def test_a_folder_of_one_step(tmp_path):
    with contextlib.suppress(RuntimeError), new_folder(tmp_path / "out") as work:
        (work / "a").write_text("a")
        raise RuntimeError
    assert not list(tmp_path.iterdir())
    with new_folder(tmp_path / "out") as work:
        (work / "a").write_text("a")
    with pytest.raises(BadInput, match="exists"), new_folder(tmp_path / "out"):
        pass
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInput, match="is a file"), new_folder(tmp_path / "file", overwrite=True):
        pass


def test_only_what_is_replaced_goes_not_a_copy_that_somebody_keeps(tmp_path):
    for name in ("run", "run.old", "run.partial"):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"of {name}").write_text("")
    publish(tmp_path / "run.partial", tmp_path / "run")
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["of run.old", "of run.partial", "run", "run.old"]


def test_a_link_is_replaced_and_what_it_points_to_stays(tmp_path):
    for name in ("there", "new"):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"of {name}").write_text("")
    (tmp_path / "run").symlink_to(tmp_path / "there")
    publish(tmp_path / "new", tmp_path / "run")
    assert not (tmp_path / "run").is_symlink()
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["of new", "of there", "run", "there"]


def test_what_is_read_only_is_replaced_and_nothing_is_left_where_it_cannot_be(tmp_path, monkeypatch):
    for name in ("run", "new"):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"of {name}").write_text("")
    renamed, refused = Path.rename, {"run"}

    def refuse(path, place):
        """As a system does: what moves to another folder has to be writable itself."""
        if path.name in refused or (path.name == "run" and Path(place).parent != path.parent):
            raise PermissionError(errno.EACCES, "denied")
        return renamed(path, place)

    monkeypatch.setattr(Path, "rename", refuse)
    for name in ("run", "new"):
        refused = {name}
        with pytest.raises(PermissionError):
            publish(tmp_path / "new", tmp_path / "run")
        assert sorted(path.name for path in tmp_path.rglob("*")) == ["new", "of new", "of run", "run"]
        assert (tmp_path / "run" / "of run").exists()
    refused = {""}
    publish(tmp_path / "new", tmp_path / "run")
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["of new", "run"]


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.ENOSPC, "no space"),
        (errno.EDQUOT, "no space left .* the disk quota is used up"),
        (errno.EFBIG, r"a file would be larger than allowed \(ulimit -f\)"),
        (errno.EACCES, "cannot be written"),
        (errno.EROFS, "cannot"),
    ],
)
def test_failures_of_the_disk_are_told(number, words, tmp_path):
    with pytest.raises(BadInput, match=words), told(tmp_path):
        raise OSError(number, "said by the system")


def test_only_a_full_disk_is_told_where_other_files_are_read_too(tmp_path):
    with pytest.raises(BadInput, match="no space"), space_told(tmp_path):
        raise RuntimeError("I/O error: No space left on device (os error 28)")
    with pytest.raises(PermissionError), space_told(tmp_path):
        raise PermissionError(errno.EACCES, "said by the system")
    with pytest.raises(OSError, match="busy"), told(tmp_path):
        raise OSError(errno.EBUSY, "busy")


def test_a_file_appears_whole_or_not_at_all(tmp_path):
    target = tmp_path / "plan.json"

    def half(error):
        with new_file(target) as path:
            path.write_text("half")
            raise error

    for error, seen in ((KeyboardInterrupt, KeyboardInterrupt), (OSError(errno.ENOSPC, "full"), BadInput)):
        with pytest.raises(seen):
            half(error)
        assert not list(tmp_path.iterdir())
    with new_file(target) as path:
        path.write_text("whole")
        path.with_name("beside.json").write_text("too")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["beside.json", "plan.json"]
    assert target.read_text() == "whole"


def test_what_was_replaced_and_cannot_be_deleted_is_told(tmp_path, monkeypatch, caplog):
    target, stuck = tmp_path / "run", shutil.rmtree

    def leaves(path, **how):
        if not str(path).endswith(".old"):
            stuck(path, **how)

    for name in ("run", "new", "newer"):
        (tmp_path / name).mkdir()
        (tmp_path / name / name).touch()
    monkeypatch.setattr(shutil, "rmtree", leaves)
    publish(tmp_path / "new", target)
    assert [path.name for path in target.iterdir()] == ["new"]
    assert re.search(r"run\.\w+\.old, which was replaced, cannot be deleted", caplog.text)
    # What is left over does not stand in the way of the next.
    publish(tmp_path / "newer", target)
    assert [path.name for path in target.iterdir()] == ["newer"]
