"""The wheel and the sdist have every module of the tree, and work without it."""

import json
import subprocess
import sys
import sysconfig
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest

from processes.clean_install import build_wheel
from scale import share

ROOT = Path(__file__).parents[2]

# They import LangGraph, Pydantic AI, the SDKs of OpenAI's agents and of Anthropic, and MCP.
SLOW = ("turnwise.adapters", "turnwise.actors.inference.anthropic")

# A module that needs an extra is imported wherever the extra is installed.
EXTRAS = {"postgres": "psycopg", "redis": "redis"}

# Third-party packages come from this interpreter's site-packages, whose .pth files are not read, so that the editable
# install is not found. Some modules are imported with none of ours loaded, so they can be imported first.
IMPORT_ALL = """
import importlib, json, sys
wheel, site_packages, modules, first = json.loads(sys.argv[1])
sys.path += [wheel, *site_packages]
for name in modules:
    for loaded in [loaded for loaded in sys.modules if name in first and loaded.partition(".")[0] == "turnwise"]:
        del sys.modules[loaded]
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        print(json.dumps([name, None, error.name]))
    else:
        print(json.dumps([name, module.__file__, None]))
"""


def modules_in_tree() -> set[str]:
    package = ROOT / "src/turnwise"
    files = {f"turnwise/{path.name}" for path in package.glob("*.py*")} | {"turnwise/py.typed"}
    rooms = ["adapters", "cli", "client", "conformance", "console", "dataset", "http", "replay", "results"]
    rooms += ["telemetry", "testing"]
    for room in rooms:
        files |= {f"turnwise/{path.relative_to(package).as_posix()}" for path in (package / room).rglob("*.py*")}
    files = {file for file in files if "__pycache__" not in file} | {"turnwise/replay/report/report.html"}
    for folder in ("actors", "memory", "strategies"):
        files |= {
            f"turnwise/{path.relative_to(ROOT).as_posix()}"
            for path in sorted((ROOT / folder).rglob("*.py")) + sorted((ROOT / folder).rglob("*.pyi"))
        }
    return files


def files_in(wheel: zipfile.ZipFile) -> list[str]:
    return [name for name in wheel.namelist() if ".dist-info/" not in name]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    return build_wheel("--wheel", into=tmp_path_factory.mktemp("wheel"))


def test_the_wheel_has_every_module_once_and_nothing_else(wheel: zipfile.ZipFile) -> None:
    assert sorted(files_in(wheel)) == sorted(modules_in_tree())
    for name in files_in(wheel):
        assert wheel.read(name) == (ROOT / "src" / name).read_bytes()


def test_an_installed_turnwise_registers_no_faulty_store(wheel: zipfile.ZipFile) -> None:
    (entry_points,) = (name for name in wheel.namelist() if name.endswith(".dist-info/entry_points.txt"))
    assert "turnwise.stores" not in wheel.read(entry_points).decode()


def test_a_wheel_built_from_the_sdist_is_the_same(wheel: zipfile.ZipFile, tmp_path: Path) -> None:
    again = build_wheel(into=tmp_path)
    assert sorted(again.namelist()) == sorted(wheel.namelist())
    assert {name: again.read(name) for name in files_in(again)} == {name: wheel.read(name) for name in files_in(wheel)}


@pytest.mark.by_turns
def test_every_module_of_the_wheel_can_be_imported_first(wheel: zipfile.ZipFile, tmp_path: Path) -> None:
    """With `make races`, each is imported first; otherwise a few are, and others than those for which it takes long.

    Those are the ones that import libraries of many classes, which is most of what this would take; other tests import
    them from the tree, which has the same. That none needs another to be imported before it is in `test_house.py`.
    """
    wheel.extractall(tmp_path)
    names = sorted(name.removesuffix(".py").replace("/", ".") for name in files_in(wheel) if name.endswith(".py"))
    modules = [name.removesuffix(".__init__") for name in names]
    if share(20) < 20:
        modules = [name for name in modules if not name.startswith(SLOW)]
    first = modules[:: len(modules) // share(len(modules), 200)]
    site_packages = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
    task = json.dumps([str(tmp_path), site_packages, modules, first])
    command = [sys.executable, "-I", "-S", "-c", IMPORT_ALL, task]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    missing_extras = {package for package in EXTRAS.values() if find_spec(package) is None}
    imported = [json.loads(line) for line in ran.stdout.splitlines()]
    assert [name for name, _, _ in imported] == modules
    for name, file, missing in imported:
        if file is None:
            assert (missing or "").partition(".")[0] in missing_extras, (
                f"{name} needs {missing}, which is not installed"
            )
        else:
            assert Path(file).is_relative_to(tmp_path), f"{name} was imported from {file}"
