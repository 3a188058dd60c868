"""The programs of the system that tests may start: what every Debian has, and what `make test` installs.

Each process of the tests has a folder of links to these programs as its `PATH`, so that a test which starts another
one fails on every machine, not only on a bare one.
"""

import os
import shutil
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path

import pytest

INSTALLED: Mapping[str, Sequence[str]] = {
    "chromium": ("chromium", "chromium-browser", "google-chrome"),
    "curl": ("curl",),
}
"""The names that each of `PROGRAMS` of the Makefile may have."""

ESSENTIAL = (
    *(
        "basename",
        "bash",
        "cat",
        "chmod",
        "cp",
        "cut",
        "date",
        "dirname",
        "env",
        "expr",
        "false",
        "findmnt",
        "getopt",
        "grep",
    ),
    *("head", "id", "ln", "ls", "mkdir", "mktemp", "mv", "nice", "od", "readlink", "rm", "sed", "sh", "sleep", "sort"),
    *("tail", "tee", "test", "touch", "tr", "true", "uname", "useradd", "which", "wc"),
)
"""What is on each Debian, and `make` beside it."""

LACKING = "there is no {} on this machine: run `make programs`"


def path_to(name: str) -> str:
    """Return the path of a program that `make test` installs, or skip the test, if it is not there. In CI, fail it."""
    path = next(filter(None, map(shutil.which, INSTALLED[name])), None)
    if path is None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(LACKING.format(name))
    return path


def link_programs(folder: Path) -> None:
    """Link the programs that tests may start into a folder."""
    for name in (*ESSENTIAL, "make", "python3", *chain(*INSTALLED.values())):
        if path := shutil.which(name):
            (folder / name).symlink_to(path)
