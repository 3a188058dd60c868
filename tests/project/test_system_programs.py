"""What `make programs` installs where programs are missing: in a folder of its own, with programs of the test."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from lanes import TESTS

from processes.programs import ESSENTIAL, INSTALLED

MAKEFILE = Path(__file__).parents[2] / "Makefile"
SUDO = '#!/bin/sh\n[ "$1" = -n ] && exit {allowed}\necho sudo >> "$LOG"\nexec "$@"\n'
APT = '#!/bin/sh\necho "$DEBIAN_FRONTEND" "$@" >> "$LOG"\n'


def programs(folder: Path, *words: str, **scripts: str) -> tuple[subprocess.CompletedProcess[str], list[str]]:
    """Run `make programs`, or other words, with these programs and a few basic ones; return how it ended and its calls.

    Each script may write a line for each call to the file `$LOG`.
    """
    path, log = folder / "bin", folder / "log"
    path.mkdir()
    for name in ("cat", "env", "make", "sh"):
        (path / name).symlink_to(shutil.which(name) or "")
    for name, text in scripts.items():
        (path / name).write_text(text)
        (path / name).chmod(0o755)
    command = [shutil.which("make") or "make", "-f", str(MAKEFILE), *(words or ["programs"])]
    env = {"PATH": str(path), "LOG": str(log), "HOME": os.environ.get("HOME", "/")}
    ended = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)
    return ended, log.read_text().splitlines() if log.exists() else []


def user(number: int) -> str:
    return f"#!/bin/sh\necho {number}\n"


CALLS = [" update -qq", "noninteractive install -y -qq --no-install-recommends curl chromium"]


def test_root_installs_what_is_missing(tmp_path: Path) -> None:
    ended, called = programs(tmp_path, **{"id": user(0), "apt-get": APT})
    assert ended.returncode == 0 and called == CALLS, ended.stderr


def test_others_install_it_by_sudo_if_that_asks_nothing(tmp_path: Path) -> None:
    ended, called = programs(tmp_path, **{"id": user(1000), "apt-get": APT, "sudo": SUDO.format(allowed=0)})
    assert ended.returncode == 0, ended.stderr
    assert called == ["sudo", CALLS[0], "sudo", CALLS[1]]


@pytest.mark.parametrize("sudo", [{}, {"sudo": SUDO.format(allowed=1)}])
def test_whoever_may_not_is_told_what_root_has_to_run(tmp_path: Path, sudo: dict[str, str]) -> None:
    ended, called = programs(tmp_path, **{"id": user(1000), "apt-get": APT}, **sudo)
    assert ended.returncode != 0 and called == []
    assert "run 'apt-get install curl chromium' as root" in ended.stderr


def test_without_apt_it_says_what_must_be_on_the_path(tmp_path: Path) -> None:
    ended, called = programs(tmp_path, id=user(0))
    assert ended.returncode != 0 and called == [] and "put programs of these names on the PATH" in ended.stderr


@pytest.mark.parametrize("name", ["chromium", "chromium-browser", "google-chrome"])
def test_a_chromium_that_is_there_is_enough(tmp_path: Path, name: str) -> None:
    ended, called = programs(tmp_path, **{"id": user(0), "apt-get": APT, "curl": "#!/bin/sh\n", name: "#!/bin/sh\n"})
    assert ended.returncode == 0 and called == []


def test_make_test_installs_each_program_that_tests_may_start() -> None:
    words = next(line for line in MAKEFILE.read_text().splitlines() if line.startswith("PROGRAMS := "))
    assert sorted(words.split()[2:]) == sorted(INSTALLED)


def test_tests_find_no_program_but_these() -> None:
    allowed = {*ESSENTIAL, "make", "python3", *(name for names in INSTALLED.values() for name in names)}
    (folder,) = os.environ["PATH"].split(os.pathsep)
    assert {path.name for path in Path(folder).iterdir()} <= allowed
    with pytest.raises(FileNotFoundError):
        subprocess.run(["apt-get", "--version"], check=False)


@pytest.mark.parametrize(("in_ci", "ends", "calls"), [("", 0, ["tests"]), ("1", 2, [])])
def test_make_test_more_goes_on_without_them_but_not_in_ci(
    tmp_path: Path, in_ci: str, ends: int, calls: list[str]
) -> None:
    words = ["test-more", "TESTING=", f"BIN={tmp_path}/bin", f"CI={in_ci}"]
    scripts = {"id": user(0), "python": '#!/bin/sh\necho tests >> "$LOG"\n'}
    ended, called = programs(tmp_path, *words, **scripts)
    assert (ended.returncode, called) == (ends, calls), ended.stderr
    assert "there is no curl chromium, and no apt-get to install it" in ended.stderr


@pytest.mark.parametrize(("in_ci", "word"), [("", "skipped"), ("1", "FAILED")])
def test_without_a_browser_one_line_at_the_end_says_so(tmp_path: Path, in_ci: str, word: str) -> None:
    text = "from processes.programs import path_to\n\n\n"
    for name in ("one", "two"):
        text += f"def test_{name}() -> None:\n    path_to('chromium')\n\n\n"
    (tmp_path / "test_pages.py").write_text(text)
    ran = subprocess.run(
        [sys.executable, TESTS / "lanes.py", tmp_path / "test_pages.py", "-q", "-rsf", "--rootdir", tmp_path],
        env={
            **{name: value for name, value in os.environ.items() if name != "CI"},
            **({"CI": in_ci} if in_ci else {}),
            "PATH": str(tmp_path),
            "PYTHONPATH": str(TESTS / "support"),
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        },
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    last = [line for line in ran.stdout.splitlines() if "there is no chromium on this machine" in line and word in line]
    assert ran.returncode == (1 if in_ci else 0), ran.stdout
    assert ran.stdout.splitlines()[-1] == last[-1], ran.stdout
    if not in_ci:
        assert last == ["skipped: there is no chromium on this machine: run `make programs`"]
