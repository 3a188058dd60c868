"""The floors that pyproject.toml promises are those on which `make test-floors` runs."""

import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import NormalizedName, canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[2]
OLDEST = {"python_version": "3.11", "python_full_version": "3.11.0"}
"""The Python for which the floors are resolved."""

APART = {
    "basedpyright",
    "build",
    "ipykernel",
    "mkdocstrings-python",
    "mypy",
    "nbclient",
    "playwright",
    "ruff",
    "simpy",
    "zensical",
}
"""Tools of developers, of which the newest are used."""


def test_each_floor_is_the_version_in_the_lock_of_the_floors() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    names = [*project["dependencies"], *(name for some in extras.values() for name in some)]
    floors: dict[NormalizedName, Version] = {}
    for requirement in map(Requirement, names):
        name = canonicalize_name(requirement.name)
        if name in APART or name == "turnwise":
            continue
        (floor,) = (Version(spec.version) for spec in requirement.specifier if spec.operator == ">=")
        floors[name] = min(floor, floors.get(name, floor))
    lines = (ROOT / "requirements-floors.lock").read_text(encoding="utf-8").splitlines()
    locked = [
        requirement
        for requirement in map(Requirement, lines)
        if requirement.marker is None or requirement.marker.evaluate(OLDEST)
    ]
    versions = {
        canonicalize_name(requirement.name): Version(str(requirement.specifier).removeprefix("=="))
        for requirement in locked
    }
    assert floors == {name: versions.get(name) for name in floors}
