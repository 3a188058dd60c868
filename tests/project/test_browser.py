"""What `make browser` does where there is no Chromium: in a folder of its own, with programs of the test."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

MAKEFILE = Path(__file__).parents[2] / "Makefile"
SUDO = '#!/bin/sh\n[ "$1" = -n ] && exit {allowed}\necho sudo >> "$LOG"\nexec "$@"\n'
APT = '#!/bin/sh\necho "$DEBIAN_FRONTEND" "$@" >> "$LOG"\n'


def browser(folder: Path, **programs: str) -> tuple[subprocess.CompletedProcess[str], list[str]]:
    """Run `make browser` with these programs and a few basic ones; return how it ended, and what it called."""
    path, log = folder / "bin", folder / "log"
    path.mkdir()
    for name in ("cat", "env", "sh"):
        (path / name).symlink_to(shutil.which(name) or "")
    for name, text in programs.items():
        (path / name).write_text(text)
        (path / name).chmod(0o755)
    command = [shutil.which("make") or "make", "-f", str(MAKEFILE), "browser"]
    given = {"PATH": str(path), "LOG": str(log), "HOME": os.environ.get("HOME", "/")}
    ended = subprocess.run(command, cwd=folder, env=given, capture_output=True, text=True, check=False)
    return ended, log.read_text().splitlines() if log.exists() else []


def user(number: int) -> str:
    return f"#!/bin/sh\necho {number}\n"


INSTALLED = [" update -qq", "noninteractive install -y -qq --no-install-recommends chromium"]


def test_root_installs_debians_chromium(tmp_path: Path) -> None:
    ended, called = browser(tmp_path, **{"id": user(0), "apt-get": APT})
    assert ended.returncode == 0 and called == INSTALLED, ended.stderr


def test_others_install_it_by_sudo_if_that_asks_nothing(tmp_path: Path) -> None:
    ended, called = browser(tmp_path, **{"id": user(1000), "apt-get": APT, "sudo": SUDO.format(allowed=0)})
    assert ended.returncode == 0, ended.stderr
    assert called == ["sudo", INSTALLED[0], "sudo", INSTALLED[1]]


@pytest.mark.parametrize("sudo", [{}, {"sudo": SUDO.format(allowed=1)}])
def test_whoever_may_not_is_told_what_root_has_to_run(tmp_path: Path, sudo: dict[str, str]) -> None:
    ended, called = browser(tmp_path, **{"id": user(1000), "apt-get": APT}, **sudo)
    assert ended.returncode != 0 and called == []
    assert "run 'apt-get install chromium' as root" in ended.stderr


def test_without_apt_it_says_what_must_be_on_the_path(tmp_path: Path) -> None:
    ended, called = browser(tmp_path, id=user(0))
    assert ended.returncode != 0 and called == [] and "put a Chromium named 'chromium' on the PATH" in ended.stderr


@pytest.mark.parametrize("name", ["chromium", "chromium-browser", "google-chrome"])
def test_a_chromium_that_is_there_is_enough(tmp_path: Path, name: str) -> None:
    ended, called = browser(tmp_path, **{"id": user(0), "apt-get": APT, name: "#!/bin/sh\n"})
    assert ended.returncode == 0 and called == []
