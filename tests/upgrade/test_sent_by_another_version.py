"""What this version and a later one send each other beside messages: it is understood, or refused with both named.

The later one has one field more, before the others, in each class that `ADDED` names. Each kind is sent by the code
that sends it, and read by the code that receives it, in processes of both versions.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from processes.later_version import add_fields, edit, make_later
from processes.sent_values import KINDS, main, received

SCRIPT = Path(__file__).parents[1] / "support/processes/sent_values.py"

UNKNOWN = {
    "tool_context": "SessionView has 'mood'",
    "handles": "SessionRef has 'mood'",
    "replica": "has '",
    "worker": "has '",
    "dataset": "has 'mood'",
    "memory": "Retention has 'mood'",
    "engine": "OpenAIEngine has 'mood'",
}
"""What of each kind this version does not know."""

READ: dict[str, list[Any]] = {
    "tool_context": ["bob", "r", 3, {"a": "b"}, 2],
    "handles": ["chat", 0, "chat", "ann", "bob"],
    "replica": [3, ["main"]],
    "worker": [4321, ["main"]],
    "dataset": [{"training": "yes"}],
    "memory": [9.0],
    "engine": ["m"],
    "receipt": [1, 2, 3, False],
}


@pytest.fixture(scope="module")
def later(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_later(tmp_path_factory.mktemp("later"))
    add_fields(folder)
    edit(
        folder / "turnwise/http/config.py",
        '    store: str = "sqlite',
        '    mood: str = "calm"\n    store: str = "sqlite',
    )
    return folder


def run_in(later: Path, verb: str, folder: Path) -> None:
    path = os.pathsep.join([str(later), os.environ["PYTHONPATH"]])
    done = subprocess.run(
        [sys.executable, SCRIPT, verb, folder],
        env=os.environ | {"PYTHONPATH": path},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def from_later(later: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    """What this version reads of what the later one has sent."""
    folder = tmp_path_factory.mktemp("from-later")
    run_in(later, "send", folder)
    return received(folder)


@pytest.fixture(scope="module")
def from_earlier(later: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    """What the later version reads of what this one has sent."""
    folder = tmp_path_factory.mktemp("from-earlier")
    main("send", folder)
    run_in(later, "receive", folder)
    found: dict[str, list[Any]] = json.loads((folder / "received.json").read_text())
    return found


@pytest.mark.by_turns
@pytest.mark.parametrize("kind", UNKNOWN)
def test_a_setting_that_this_version_does_not_know_is_refused_with_both_named(
    kind: str, from_later: dict[str, list[Any]]
) -> None:
    error, says = from_later[kind]
    assert error in ("WireVersionError", "SystemExit"), says
    assert UNKNOWN[kind] in says and "which this version does not know" in says
    assert "0.1.0 (wire version 1)" in says and "0.2.0 (wire version 1)" in says and "upgrade the older one" in says


def test_what_another_process_has_found_is_read_without_what_this_version_does_not_know(
    from_later: dict[str, list[Any]],
) -> None:
    assert from_later["receipt"] == READ["receipt"]


@pytest.mark.by_turns
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "receipt"])
def test_what_an_earlier_version_sends_is_understood_with_the_defaults_of_what_it_lacks(
    kind: str, from_earlier: dict[str, list[Any]]
) -> None:
    assert from_earlier[kind] == READ[kind]
