"""The house rules: the direction of imports, public names, and errors."""

import ast
import functools
import graphlib
import importlib
import inspect
import os
import pickle
import re
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import turnwise
from pages import blocking_family, reference_pages
from turnwise import (
    adapters,
    blocks,
    client,
    conformance,
    console,
    dataset,
    engines,
    errors,
    events,
    http,
    memories,
    replay,
    results,
    stores,
    strategies,
    telemetry,
    testing,
    transcripts,
)
from turnwise.actors.client import steps
from turnwise.actors.client.blocking import steps as blocking_steps
from turnwise.client import steps as remote_steps
from turnwise.client.blocking import steps as blocking_remote_steps

ROOT = Path(__file__).parents[2]
SRC = ROOT / "src"
FLOORS = [
    *("errors", "memory", "strategies", "actors", "client", "telemetry", "adapters", "http", "console", "testing"),
    *("conformance", "dataset", "replay", "cli"),
]
ROOMS = {
    "memory": [
        "growing_pauses",
        "background",
        "values",
        "conversation",
        "deliveries",
        "quotas",
        "providers",
        "tokens",
        "files",
        "stores",
        "event_store",
        "user_ids",
        "archive",
        "longterm",
        "working",
    ],
    "actors": [
        "wire_version",
        "inference",
        "memory",
        "session",
        "dispatch",
        "hosting",
        "in_process",
        "cluster",
        "client",
    ],
}
"""The rooms and single files of a floor: each imports from those before it only."""
ERRORS: list[Any] = [cls for _, cls in inspect.getmembers(errors, inspect.isclass) if cls.__module__ == errors.__name__]


@dataclass
class Source:
    """What these tests ask about a file of the package; the syntax trees of all files take a lot of memory."""

    doc: str
    imports: list[tuple[int, str]] = field(default_factory=list)
    """The line and the full name of each import."""
    only_types: set[int] = field(default_factory=set)
    """The lines that only type checkers read."""
    loaded: set[str] = field(default_factory=set)
    """What is imported when the file is."""
    classes: dict[str, list[str]] = field(default_factory=dict)
    """The names of the bases of each class."""


@functools.cache
def source_of(path: Path) -> Source:
    tree = ast.parse(path.read_text(encoding="utf-8"), str(path))
    source = Source(ast.get_docstring(tree) or "", loaded={*loaded_by(tree.body)})
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            source.imports += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            source.imports += [(node.lineno, f"{module}.{alias.name}") for alias in node.names]
        elif isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            source.only_types |= {line for part in node.body for line in range(part.lineno, (part.end_lineno or 0) + 1)}
        elif isinstance(node, ast.ClassDef):
            bases = [ast.unparse(base) for base in node.bases]
            source.classes[node.name] = [base.partition("[")[0].rpartition(".")[2] for base in bases]
    return source


def loaded_by(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Yield the full names that these statements import when they are carried out: not those in functions."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            yield from loaded_by(node.orelse)
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.expr):
            yield from loaded_by(ast.iter_child_nodes(node))


def files_of(floor: str) -> list[Path]:
    folder = ROOT / floor if floor in ("memory", "strategies", "actors") else ROOT / "src/turnwise" / floor
    modules = sorted(folder.rglob("*.py"))
    files = [ROOT / "src/turnwise/errors.py"] if floor == "errors" else modules
    assert files, floor
    return files


@pytest.mark.parametrize("floor", FLOORS)
def test_imports_run_from_actors_to_strategies_to_memory_to_errors_and_only_actors_import_ray(floor: str) -> None:
    below = ["_exports", "__version__", *FLOORS[: FLOORS.index(floor) + 1]]
    for path in files_of(floor):
        only_types = source_of(path).only_types if floor == "errors" else set()
        for line, name in source_of(path).imports:
            top, _, rest = name.partition(".")
            place = f"{path.relative_to(ROOT)}:{line} imports {name}"
            assert top != "", f"{place}, relatively: write turnwise.<module>"
            assert top != "ray" or floor in ("actors", "telemetry", "testing") or path.name == "ray_serve.py", (
                f"{place}: Ray is for actors/"
            )
            assert top != "opentelemetry" or floor == "telemetry", f"{place}: OpenTelemetry is for telemetry/"
            assert top not in FLOORS, f"{place}: its import name begins with turnwise"
            if top == "turnwise" and line not in only_types:
                assert rest.partition(".")[0] in below, f"{place}: {floor} may import from {below}"


@pytest.mark.parametrize("floor", ROOMS)
def test_a_room_imports_only_from_the_rooms_before_it(floor: str) -> None:
    rooms = ROOMS[floor]
    for path in files_of(floor):
        room = path.relative_to(ROOT / floor).with_suffix("").parts[0]
        if room == "__init__":
            continue
        assert room in rooms, f"{path.relative_to(ROOT)}: say in ROOMS which rooms it may import from"
        for line, name in source_of(path).imports:
            if name.startswith(f"turnwise.{floor}.") and line not in source_of(path).only_types:
                imported_room = name.split(".")[2]
                place = f"{path.relative_to(ROOT)}:{line} imports {name}"
                assert imported_room in rooms[: rooms.index(room) + 1], f"{place}: {room} comes before {imported_room}"


def test_only_the_cluster_loads_ray() -> None:
    """So sessions in the caller's process need none; `tools.registry` asks for it when a tool is a Ray function."""
    for path in files_of("actors"):
        if path.relative_to(ROOT / "actors").parts[0] != "cluster":
            loaded = [name for name in source_of(path).loaded if name.partition(".")[0] == "ray"]
            assert not loaded, f"{path.relative_to(ROOT)} imports {loaded}: Ray is for actors/cluster"


def test_no_module_imports_itself_by_way_of_others() -> None:
    """So each module can be imported first."""
    files = [Path(folder, name) for folder, _, names in os.walk(SRC / "turnwise", followlinks=True) for name in names]
    parts = {path: path.relative_to(SRC).with_suffix("").parts for path in files if path.suffix == ".py"}
    paths = {".".join(part).removesuffix(".__init__"): path for path, part in parts.items()}
    imported: dict[str, set[str]] = {}
    for module, path in paths.items():
        names = {name if name in paths else name.rpartition(".")[0] for name in source_of(path.resolve()).loaded}
        loading = {*parents_of(module), module}
        imported[module] = (names | {parent for name in names for parent in parents_of(name)} - loading) & paths.keys()
    graphlib.TopologicalSorter(imported).prepare()  # a CycleError names the modules


@pytest.mark.parametrize("floor", [floor for floor in FLOORS if floor != "errors"])
def test_each_room_says_what_is_in_it_and_from_where_to_import(floor: str) -> None:
    rooms = [path for path in files_of(floor) if path.name == "__init__.py"]
    assert rooms
    for path in rooms:
        doc = source_of(path).doc
        place = path.relative_to(ROOT)
        assert len(doc.split("\n")) >= 3, f"{place}: say in two or three lines what is in it"
        assert re.search(r"\b[Ii]mport", doc), (
            f"{place}: say who may import from it, or from where its names are imported"
        )


def test_no_room_has_more_than_20_files() -> None:
    rooms = Counter(
        file.parent.relative_to(ROOT).as_posix()
        for floor in ("actors", "memory", "strategies", "src", "tests", "examples")
        for file in (ROOT / floor).rglob("*")
        if file.is_file() and file.suffix != ".pyc"
    )
    assert {room: files for room, files in rooms.items() if files > 20} == {}


def test_chains_of_inheritance_grow_no_longer() -> None:
    """Errors are a tree, and not counted. `docs/design/stores.md` says what is more than two steps, and why."""
    named: dict[str, str] = {}
    bases: dict[str, set[str]] = {}
    for path in [path for floor in FLOORS if floor != "errors" for path in files_of(floor)]:
        classes = source_of(path).classes
        here = {name: f"{path.stem}.{name}" for name in classes}
        named |= here
        for name, base_names in classes.items():
            bases[here[name]] = {here.get(base, base) for base in base_names} - {here[name]}

    def steps(name: str) -> int:
        above = [named.get(base, base) for base in bases[name]]
        return max((1 + steps(base) for base in above if base in bases), default=0)

    deep = {name: steps(name) for name in bases if steps(name) > 2}
    below = {base.rpartition(".")[2] for name in deep for base in bases[name]}
    assert below == {"SecureDeleteDatabase", "AddsOutput", "RunEnded"}, deep
    assert max(deep.values()) == 4, deep


def parents_of(name: str) -> set[str]:
    """Return the packages that a module is in."""
    parts = name.split(".")
    return {".".join(parts[:count]) for count in range(1, len(parts))}


def test_nobody_imports_from_the_package_root() -> None:
    for path in [*(ROOT / "src/turnwise").glob("*.py"), *(path for floor in FLOORS for path in files_of(floor))]:
        for line, name in source_of(path).imports:
            top, _, rest = name.partition(".")
            place = f"{path.relative_to(ROOT)}:{line} imports {name}"
            assert top != "turnwise" or "." in rest or rest == "__version__", (
                f"{place}: import from the module that owns the name"
            )


def test_the_stand_in_provider_has_nothing_of_turnwise_so_that_neither_hides_mistakes_of_the_other() -> None:
    package = "turnwise.testing.local_provider"
    for path in sorted((ROOT / "src" / package.replace(".", "/")).rglob("*.py")):
        for line, name in source_of(path).imports:
            its_own = name.startswith(package) or name.partition(".")[0] in sys.stdlib_module_names
            assert its_own, f"{path.relative_to(ROOT)}:{line} imports {name}"


PUBLIC = [
    turnwise,
    adapters,
    client,
    conformance,
    console,
    dataset,
    engines,
    http,
    memories,
    replay,
    results,
    stores,
    strategies,
    telemetry,
    testing,
    transcripts,
]
"""The modules with a stub of names. `WHOLE`, and `errors` with tests of its own below, export all that they define."""
WHOLE = [blocks, events]
NAMES = [(module, name) for module in PUBLIC for name in dir(module)] + [
    (module, name)
    for module in WHOLE
    for name, value in inspect.getmembers(module)
    if getattr(value, "__module__", None) == module.__name__ and not name.startswith("_")
]


def test_each_public_module_can_be_imported_in_all_ways() -> None:
    """That type checkers find them too is in `test_types.py`."""
    named = reference_pages.public_modules()
    assert {module.__name__ for module in PUBLIC} | {"turnwise.errors", "turnwise.events", "turnwise.blocks"} == {
        "turnwise",
        *named,
    }
    for name in named:
        _, _, last = name.partition(".")
        module = importlib.import_module(name)
        namespace: dict[str, Any] = {}
        exec(f"import {name}; from turnwise import {last}; import {name} as other", namespace)
        assert namespace["other"] is module and namespace[last] is module and getattr(turnwise, last) is module
        for name_in_module in [attribute for attribute in dir(module) if not attribute.startswith("_")][:1]:
            exec(f"from {name} import {name_in_module}", namespace)
            assert namespace[name_in_module] is getattr(module, name_in_module)


@pytest.mark.parametrize("module", PUBLIC)
def test_a_public_module_has_the_names_of_its_stub_and_no_others(module: ModuleType) -> None:
    assert dir(module)
    for name in dir(module):
        assert getattr(module, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'SesionManager'"):
        getattr(module, "SesionManager")  # noqa: B009 - mypy would find it


def test_the_root_has_only_names_for_a_first_program_and_an_agent() -> None:
    assert len(dir(turnwise)) <= 60
    assert {"SessionManager", "OpenAIEngine", "SessionConfig", "TurnwiseError"} <= set(dir(turnwise))


def test_a_public_name_has_a_docstring_of_its_own() -> None:
    """If it is a class, a function or a module: for others, Python keeps none."""
    for module, name in NAMES:
        value = getattr(module, name)
        if isinstance(value, type | ModuleType) or inspect.isroutine(value):
            doc = vars(value).get("__doc__") if isinstance(value, type) else value.__doc__
            assert doc, name
            assert not doc.startswith(f"{name}("), "the signature that dataclass() puts where a docstring is missing"


def drawn_errors() -> dict[str, str | None]:
    """Return each error in the tree in the docstring of `turnwise.errors`, with its base class."""
    drawn: dict[str, str | None] = {}
    branch: list[str] = []
    for prefix, name in re.findall(r"^([│├└─ ]*)([A-Z]\w+)(?= {2}|$)", errors.__doc__ or "", re.MULTILINE):
        depth, odd = divmod(len(prefix), 4)
        assert not odd, f"{name} is drawn askew"
        assert depth <= len(branch), f"{name} hangs from nothing"
        assert name not in drawn, f"{name} is drawn twice"
        drawn[name] = branch[depth - 1] if depth else None
        branch = [*branch[:depth], name]
    return drawn


def sample(cls: type[errors.TurnwiseError]) -> errors.TurnwiseError:
    """Return an error with a different value in each field."""
    hints = {name: hint for base in reversed(cls.__mro__) for name, hint in inspect.get_annotations(base).items()}
    numbers = {
        name: 7001 + index
        for index, name in enumerate(cls.fields)
        if re.search(r"\b(int|float)\b", str(hints.get(name)))
    }
    return cls(*(numbers.get(name, f"<the {name}>") for name in cls.fields))


def test_the_blocking_family_is_what_the_asynchronous_one_makes() -> None:
    modules = blocking_family.family()
    for family in {path.parent for path in modules}:
        existing = {*family.glob("*.py")}
        assert {path.name for path in existing - modules.keys()} == {"__init__.py", "steps.py"}
    for path, text in modules.items():
        assert path.read_text(encoding="utf-8") == text, f"{path.name}: run `make blocking`"


@pytest.mark.parametrize("package", ["turnwise.actors.client.", "turnwise.client."])
def test_neither_family_of_clients_imports_from_the_other_and_what_they_share_from_none(package: str) -> None:
    folder = ROOT / "actors/client" if package.startswith("turnwise.actors") else ROOT / "src/turnwise/client"
    for path in sorted(folder.rglob("*.py")):
        room = path.parent.name
        allowed = {"blocking": f"{package}blocking.", "shared": f"{package}shared."}.get(room, package)
        assert room in ("client", "services", "blocking", "shared"), path
        for line, name in source_of(path).imports:
            if name.startswith(package) and not name.startswith(f"{package}shared."):
                is_other = room in ("client", "services") and name.startswith(f"{package}blocking.")
                place = f"{path.relative_to(ROOT)}:{line} imports {name}"
                assert name.startswith(allowed) and not is_other, place


@pytest.mark.parametrize("pair", [(steps, blocking_steps), (remote_steps, blocking_remote_steps)])
def test_both_families_have_the_same_steps(pair: tuple[ModuleType, ModuleType]) -> None:
    """By which alone they differ, beside the words of `PHRASES`."""
    awaited, blocking = (
        {name for name, step in vars(module).items() if getattr(step, "__module__", "") == module.__name__}
        for module in pair
    )
    assert awaited == blocking


def test_the_error_tree_in_the_docstring_is_the_real_one() -> None:
    assert drawn_errors() == {
        cls.__name__: None if cls is errors.TurnwiseError else cls.__bases__[0].__name__ for cls in ERRORS
    }


def test_error_classes_end_in_error_and_have_a_docstring() -> None:
    for cls in ERRORS:
        assert cls.__name__.endswith("Error")
        assert issubclass(cls, errors.TurnwiseError)
        assert vars(cls).get("__doc__"), cls


def test_an_error_survives_a_pickle_round_trip() -> None:
    for cls in ERRORS:
        error = sample(cls)
        again = pickle.loads(pickle.dumps(error))
        assert type(again) is cls
        assert again.args == error.args
        assert vars(again) == vars(error)
        assert str(again) == str(error)


def test_an_errors_message_has_all_its_fields() -> None:
    for cls in ERRORS:
        error = sample(cls)
        for name in sorted(set(cls.fields) - {"turn"}):
            assert str(getattr(error, name)) in str(error), (cls, name)


def test_each_cited_case_is_in_the_list_of_cases() -> None:
    page = (ROOT / "docs/design/cases.md").read_text(encoding="utf-8")
    cases = {int(number) for number in re.findall(r"^(\d+)\. ", page, re.MULTILINE)}
    assert cases == set(range(1, 66))
    for path in sorted((ROOT / "tests").rglob("*.py")):
        for cited in re.findall(r"\b[Cc]ases? ((?:[1-9]\d*(?:, | and )?)+)", path.read_text(encoding="utf-8")):
            numbers = {int(number) for number in re.findall(r"\d+", cited)}
            assert numbers <= cases, f"{path.relative_to(ROOT)} cites {numbers - cases}"


def test_importing_the_manager_loads_no_library_that_a_first_program_may_not_need() -> None:
    heavy = ["chromadb", "fastapi", "httpx", "openai", "ray", "sqlalchemy", "tiktoken", "typer"]
    program = f"import sys; from turnwise import SessionManager; print([n for n in {heavy} if n in sys.modules])"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"


def test_importing_the_manager_imports_no_running_session_and_builds_no_block_or_event() -> None:
    """Each would take a tenth of the import, and pydantic looks for plugins in all packages at the first one."""
    unused = ["session.runs.run_driver", "session.state.state", "hosting.stored_source", "hosting.memory.memory_host"]
    names = [*(f"turnwise.actors.{name}" for name in unused), "turnwise.memory.archive.export", "pydantic.networks"]
    program = f"""import sys
from turnwise import SessionManager
from turnwise.memory.conversation import blocks, events
classes = [blocks.Block, blocks.Unknown, *blocks.KINDS.values(), *events.KINDS.values()]
print([n for n in {names} if n in sys.modules], [c for c in classes if c.__pydantic_complete__])"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[] []"


def test_a_manager_on_ray_imports_no_running_session() -> None:
    """Those run in processes of their own, whose start waits for the manager's imports."""
    program = """import sys
from turnwise.actors.client.shared.runtimes import runtime_of
from turnwise.actors.hosting.placement import Dedicated
runtime_of(Dedicated(), "turnwise")
from turnwise.actors.cluster import actor_lookup, dispatcher_process
parts = "turnwise.actors.session.core", "turnwise.actors.session.runs", "turnwise.actors.session.state"
print([name for name in sys.modules if name.startswith(parts)])"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"


def test_each_page_of_the_docs_is_in_the_navigation_of_the_site() -> None:
    nav = tomllib.loads((ROOT / "zensical.toml").read_text(encoding="utf-8"))["project"]["nav"]
    listed = list(pages_in(nav))
    existing = {page.relative_to(ROOT / "docs").as_posix() for page in (ROOT / "docs").rglob("*.md")}
    assert not existing - set(listed), "give each a place in `nav` in zensical.toml"
    assert sorted(listed) == sorted(existing)


def test_each_page_of_the_design_has_at_most_120_lines() -> None:
    for page in (ROOT / "docs/design.md", *(ROOT / "docs/design").glob("*.md")):
        assert page.read_text(encoding="utf-8").count("\n") <= 120, page.name


def test_the_reference_is_made_from_the_code_as_it_is() -> None:
    pages, existing = reference_pages.pages(), {page.name: page for page in (ROOT / "docs/reference").glob("*.md")}
    assert set(pages) == set(existing)
    for name, text in pages.items():
        assert existing[name].read_text(encoding="utf-8") == text, f"{name}: run `make reference`"


def pages_in(nav: Iterable[dict[str, Any]]) -> Iterator[str]:
    """Yield the pages of a part of the navigation."""
    for value in (value for section in nav for value in section.values()):
        if isinstance(value, str):
            yield value
        else:
            yield from pages_in(value)
