"""The package as a user gets it: it imports, its examples run, nothing is left out, the wheel is whole."""

import doctest
import importlib
import pkgutil
import re
import subprocess
import sys
import tomllib
import venv
from pathlib import Path

import pytest

import headwise.analysis
import headwise.prune

ROOT = Path(__file__).parent.parent
MODULES = [
    info.name
    for package in (headwise.prune, headwise.analysis)
    for info in pkgutil.walk_packages(package.__path__, package.__name__ + ".")
    if not info.name.endswith("__main__")
]


@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples_hold(name):
    failed, _ = doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS)
    assert failed == 0


def test_pyproject_names_every_package():
    setuptools = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    on_disk = {
        "headwise." + ".".join(init.parent.relative_to(ROOT).parts)
        for folder in ("prune", "analysis", "recipes")
        for init in (ROOT / folder).rglob("__init__.py")
    }
    assert set(setuptools["packages"]) == on_disk


def test_contributing_says_of_every_package_what_is_there():
    told = (ROOT / "CONTRIBUTING.md").read_text()
    packages = {
        init.parent.relative_to(ROOT)
        for folder in ("analysis", "prune")
        for init in (ROOT / folder).rglob("*/__init__.py")
    }
    assert not [str(package) for package in packages if f"`{package}/`" not in told]


def test_a_wheel_built_from_the_tree_imports_from_an_empty_folder(tmp_path):
    build = [sys.executable, "-m", "build", "--wheel", "--outdir", str(tmp_path / "dist"), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True, text=True)
    (wheel,) = (tmp_path / "dist").glob("headwise-*.whl")
    place = tmp_path / "env"
    venv.create(place, with_pip=False, system_site_packages=False)
    site = next((place / "lib").glob("python*/site-packages"))
    subprocess.run([sys.executable, "-m", "zipfile", "-e", str(wheel), str(site)], check=True)
    # Everything else comes from the test environment; headwise itself can only come from the wheel.
    paths = [p for p in sys.path if p.endswith("site-packages")]
    (site / "others.pth").write_text("\n".join(paths) + "\n")
    empty = tmp_path / "empty"
    empty.mkdir()
    code = (
        "import headwise.analysis, headwise.prune, headwise.recipes, importlib.resources as r;"
        "print(headwise.prune.__file__);"
        "print(sorted(p.name for p in r.files('headwise.recipes').iterdir() if p.name.endswith('.yaml')))"
    )
    python = [
        str(place / "bin" / "python"),
        "-S",
        "-c",
        f"import sys; sys.path[:0] = [{str(site)!r}]; sys.path += {paths!r}; {code}",
    ]
    done = subprocess.run(python, cwd=empty, check=True, capture_output=True, text=True)
    assert str(site) in done.stdout
    assert "quickstart.yaml" in done.stdout
    names = subprocess.run(
        [sys.executable, "-m", "zipfile", "-l", str(wheel)], capture_output=True, text=True, check=True
    ).stdout
    for folder in ("prune", "analysis"):
        for path in (ROOT / folder).rglob("*.py"):
            assert f"headwise/{path.relative_to(ROOT).as_posix()}" in names


def test_every_target_that_is_no_file_has_a_rule():
    text = (ROOT / "Makefile").read_text()
    told = re.search(r"^\.PHONY: (.+)$", text, re.MULTILINE)[1].split()
    assert sorted(told) == sorted(re.findall(r"^([a-z-]+):", text, re.MULTILINE))


def test_the_program_starts_without_what_is_slow_to_load():
    loaded = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", "import headwise.prune.cli"],
        check=True,
        capture_output=True,
        text=True,
    ).stderr
    assert "torch" not in loaded
    assert "transformers" not in loaded
