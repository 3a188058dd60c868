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
    asked = [*project["dependencies"], *(each for some in extras.values() for each in some)]
    floors: dict[NormalizedName, Version] = {}
    for each in map(Requirement, asked):
        name = canonicalize_name(each.name)
        if name in APART or name == "turnwise":
            continue
        (floor,) = (Version(spec.version) for spec in each.specifier if spec.operator == ">=")
        floors[name] = min(floor, floors.get(name, floor))
    lines = (ROOT / "requirements-floors.lock").read_text(encoding="utf-8").splitlines()
    locked = [each for each in map(Requirement, lines) if each.marker is None or each.marker.evaluate(OLDEST)]
    versions = {canonicalize_name(each.name): Version(str(each.specifier).removeprefix("==")) for each in locked}
    assert floors == {name: versions.get(name) for name in floors}
