"""Makes the locks of smaller installs, and of the image, from the tested ones: `make small-locks`.

requirements-no-vectors.lock lacks Chroma and what only it needs; requirements-in-process.lock lacks Ray as well;
requirements-client.lock has what `turnwise.client` needs, and nothing more. requirements-service.lock has what
deploy/Dockerfile installs beside either of the larger two.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[3]

CLIENT = "requirements-client.lock"

NEEDED_BY_CLIENT = {"httpx2", "jsonschema", "pydantic"}
"""What `turnwise.client` imports, of turnwise's requirements."""


def direct() -> set[str]:
    """Return the names of the packages that turnwise itself requires."""
    return {canonicalize_name(Requirement(line).name) for line in requires("turnwise") or [] if "extra ==" not in line}


LOCKS: dict[str, set[str]] = {
    "requirements-no-vectors.lock": {"chromadb"},
    "requirements-in-process.lock": {"chromadb", "ray"},
    CLIENT: direct() - NEEDED_BY_CLIENT,
}
"""The locks, and which of turnwise's requirements each lacks."""

SERVICE = {"turnwise": ("postgres", "redis", "encryption", "http", "telemetry"), "ray": ("serve",)}
"""The extras of the packages that the image has."""


def service_lock() -> str:
    """Return the lines of requirements-test.lock that the image needs, with all extras of `SERVICE`, without Chroma."""
    needed = {package for package in SERVICE if package != "turnwise"}
    for package, extras in SERVICE.items():
        needed |= _needed_by(package, {"chromadb"}, extras)
    return _lines("requirements-test.lock", needed)


def lock_without(missing: Collection[str]) -> str:
    """Return the lines of requirements.lock that turnwise needs where some of its requirements are not installed."""
    return _lines("requirements.lock", _needed_by("turnwise", missing))


def _lines(lock: str, needed: Collection[str]) -> str:
    lines = (ROOT / lock).read_text(encoding="utf-8").splitlines(keepends=True)
    return "".join(line for line in lines if canonicalize_name(re.split(r"[^\w.-]", line)[0]) in needed)


def _needed_by(package: str, missing: Collection[str], extras: Collection[str] = ()) -> set[str]:
    """Return the names of all packages that a package needs on this system, directly or not."""
    needed: set[tuple[str, str]] = set()
    todo = [(package, extra) for extra in ("", *extras)]
    while todo:
        name, extra = todo.pop()
        try:
            lines = requires(name) or []
        except PackageNotFoundError:  # of another system
            continue
        for requirement in map(Requirement, lines):
            if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
                required = canonicalize_name(requirement.name)
                new = {(required, extra) for extra in ("", *requirement.extras)} - needed
                if required not in missing:
                    needed |= new
                    todo += new
    return {name for name, _ in needed}


def main() -> None:
    for name, missing in LOCKS.items():
        (ROOT / name).write_text(lock_without(missing), encoding="utf-8")
    (ROOT / "requirements-service.lock").write_text(service_lock(), encoding="utf-8")


if __name__ == "__main__":
    main()
