"""The steps of deploy/Dockerfile, one by one. `make test-image` builds the image, which takes an engine and a base."""

from __future__ import annotations

import fnmatch
import re
import shutil
import subprocess
import sys
import zipfile
from importlib.metadata import distribution
from pathlib import Path

import pytest

from deploying.kustomize import DEPLOY, OVERLAYS, containers_of, render
from pages.small_locks import LOCKS, ROOT, service_lock

DOCKERFILE = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
STEPS = [
    (step.partition(" ")[0], step.partition(" ")[2])
    for step in re.sub(r"\\\n\s*", "", re.sub(r"(?m)^#.*\n", "", DOCKERFILE)).splitlines()
    if step
]
"""The instructions, each with its arguments."""

SOURCES = [word for name, words in STEPS if name == "COPY" and "--from" not in words for word in words.split()[:-1]]
"""The files and folders that are copied from the repository."""


def test_the_lock_of_the_image_is_made_from_the_tested_one() -> None:
    assert (ROOT / "requirements-service.lock").read_text(encoding="utf-8") == service_lock()


@pytest.mark.parametrize("name", ["requirements.lock", *(name for name, lacks in LOCKS.items() if "ray" not in lacks)])
def test_both_locks_of_an_image_agree(name: str) -> None:
    assert name in SOURCES
    lines = [*(ROOT / name).read_text(encoding="utf-8").splitlines(), *service_lock().splitlines()]
    names = [line.partition("==")[0] + line.partition(" ;")[2] for line in sorted(set(lines))]
    assert len(names) == len(set(names)), "each package has one version"


def test_what_is_copied_is_there_and_not_ignored() -> None:
    ignored = (DEPLOY / "Dockerfile.dockerignore").read_text(encoding="utf-8").splitlines()
    kept = [line.removeprefix("!") for line in ignored if line.startswith("!")]
    for source in SOURCES:
        assert (ROOT / source).exists()
        assert any(fnmatch.fnmatch(source, pattern) for pattern in kept)


def test_the_wheel_is_built_of_what_is_copied(tmp_path: Path) -> None:
    for source in SOURCES:
        if (ROOT / source).is_dir():
            hidden = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / source, tmp_path / "build" / source, symlinks=True, ignore=hidden)
        else:
            (tmp_path / "build").mkdir(exist_ok=True)
            shutil.copy(ROOT / source, tmp_path / "build" / source)
    (step,) = (words for name, words in STEPS if name == "RUN" and " wheel " in words)
    words = step.partition(" && ")[0].split()
    assert words[0] == "/opt/building/bin/pip"
    command = [sys.executable, "-m", "pip", *words[1:]]
    subprocess.run(command, cwd=tmp_path / "build", check=True, capture_output=True)
    (wheel,) = (tmp_path / "build/wheels").iterdir()
    names = zipfile.ZipFile(wheel).namelist()
    assert {"turnwise/__init__.py", "turnwise/actors/__init__.py", "turnwise/cli/serve.py"} <= set(names)


def test_the_image_has_the_programs_that_the_manifests_call() -> None:
    installed = {
        entry.name
        for name in ("turnwise", "ray")
        for entry in distribution(name).entry_points.select(group="console_scripts")
    }
    for overlay in OVERLAYS:
        for container in containers_of(render(DEPLOY / overlay)):
            if container["image"].rpartition(":")[0].endswith("turnwise"):
                hook = container.get("lifecycle", {}).get("preStop", {}).get("exec", container)
                for command in (container.get("command"), hook.get("command")):
                    assert command is None or command[0] in installed


def test_nothing_in_the_image_runs_as_root() -> None:
    stage = STEPS[max(at for at, (name, _) in enumerate(STEPS) if name == "FROM") :]
    assert ("USER", "1000:1000") in stage
    assert not [step for step in stage[stage.index(("USER", "1000:1000")) :] if step[0] in ("RUN", "COPY")]


def test_the_build_names_no_image_but_its_base() -> None:
    assert [words.split()[0] for name, words in STEPS if name == "FROM"] == ["${BASE}", "${BASE}"]
    assert not re.search(r"(?m)^# *syntax *=", DOCKERFILE), "an engine would fetch that image from its registry"


def test_the_standard_library_is_compiled_for_a_user_who_may_not_write_there() -> None:
    stage = STEPS[max(at for at, (name, _) in enumerate(STEPS) if name == "FROM") :]
    compiled = [
        at for at, (name, words) in enumerate(stage) if name == "RUN" and words.startswith("python -m compileall")
    ]
    assert compiled and compiled[0] < stage.index(("USER", "1000:1000"))


@pytest.mark.parametrize(
    ("engines", "called"),
    [
        (("buildah", "docker"), ["buildah build --isolation chroot", "buildah from", "buildah run", "buildah rm"]),
        (("docker",), ["docker build", "docker run"]),
    ],
)
def test_the_image_is_tried_with_the_engine_that_is_there(
    tmp_path: Path, engines: tuple[str, ...], called: list[str]
) -> None:
    log = tmp_path / "log"
    for name in engines:
        (tmp_path / name).write_text(f'#!/bin/sh\necho "{name} $*" >> {log}\n')
        (tmp_path / name).chmod(0o755)
    for name in ("make", "sh"):
        (tmp_path / name).symlink_to(shutil.which(name) or "")
    command = [str(tmp_path / "make"), "--no-print-directory", "test-image", "BASE=mine", "ARGS=--no-cache"]
    ran = subprocess.run(command, cwd=ROOT, env={"PATH": str(tmp_path)}, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    lines = log.read_text(encoding="utf-8").splitlines()
    assert [line.startswith(start) for line, start in zip(lines, called, strict=True)] == [True] * len(called), lines
    assert "--build-arg BASE=mine --no-cache ." in lines[0]
