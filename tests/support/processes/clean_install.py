"""The wheel with its requirements and nothing else: what a user has after `pip install turnwise`."""

import re
import subprocess
import sys
import zipfile
from importlib.metadata import packages_distributions
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).parents[3]

GUARD = """
import sys

HIDDEN = {hidden!r}


class Hides:
    def find_spec(self, name, path=None, target=None):
        if name in HIDDEN:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)


sys.meta_path.insert(0, Hides())
"""
"""Python imports this first, in each process. `pip install` of the lock into a new environment takes a minute."""


def build_wheel(*options: str, into: Path) -> zipfile.ZipFile:
    """Build the wheel and return it."""
    command = [sys.executable, "-m", "build", "--no-isolation", *options, "--outdir", str(into), str(ROOT)]
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    (wheel,) = into.glob("*.whl")
    return zipfile.ZipFile(wheel)


def hidden_modules(lock_name: str = "requirements.lock") -> set[str]:
    """Return the modules that are here, and not where only this lock was installed."""
    lock = (ROOT / lock_name).read_text(encoding="utf-8")
    required = {_normal(name) for name in re.findall(r"^[\w.-]+", lock, re.MULTILINE)} | {
        "pip",
        "setuptools",
        "turnwise",
    }
    modules = {name for name, homes in packages_distributions().items() if required.isdisjoint(map(_normal, homes))}
    return modules - _BROUGHT_BY_RAY


def clean_install(folder: Path, lock_name: str = "requirements.lock") -> str:
    """Unpack the wheel in a folder; return the PYTHONPATH of a Python that has only it and the lock's packages."""
    build_wheel("--wheel", into=folder).extractall(folder / "installed")
    (folder / "installed/sitecustomize.py").write_text(GUARD.format(hidden=hidden_modules(lock_name)), encoding="utf-8")
    return str(folder / "installed")


_BROUGHT_BY_RAY = {
    path.name.partition(".")[0]
    for folder in ("thirdparty_files", "_private/runtime_env/agent/thirdparty_files")
    for path in Path(find_spec("ray").submodule_search_locations[0], folder).iterdir()  # type: ignore[union-attr, index]
}
"""Modules that Ray has in folders of its own."""


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
