"""Adapters and releases of frameworks whose interfaces have moved, with each adapter's real framework."""

from __future__ import annotations

import ast
import functools
import importlib
import importlib.util
import inspect
import re
import tomllib
from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pytest

import turnwise
from turnwise.errors import ConfigError, FrameworkError

PACKAGE = Path(turnwise.__file__).parent


@functools.cache
def _guarded() -> Sequence[tuple[str, ast.With]]:
    """Return each module that imports from a framework, with the block in which it does."""
    files = sorted([*PACKAGE.glob("adapters/*/*.py"), *PACKAGE.glob("http/front_ends/*.py")])
    return [
        (".".join(["turnwise", *file.relative_to(PACKAGE).with_suffix("").parts]), node)
        for file in files
        for node in ast.parse(file.read_text(encoding="utf-8")).body
        if isinstance(node, ast.With) and ast.unparse(node.items[0]).startswith("framework(")
    ]


def _imported() -> Iterator[Any]:
    for module, block in _guarded():
        imports = [node for node in block.body if isinstance(node, ast.ImportFrom)]
        for node in imports:
            yield pytest.param(module, node.module, node.names[0].name, id=f"{module}-{node.names[0].name}")


def _expected() -> Iterator[Any]:
    """Yield each parameter that a module expects of one of the framework's functions."""
    for module, block in _guarded():
        for node in ast.walk(block):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "expect":
                names = [
                    argument.value
                    for argument in node.args[1:]
                    if isinstance(argument, ast.Constant) and isinstance(argument.value, str)
                ]
                for name in names or ["input"]:
                    function = ast.unparse(node.args[0])
                    yield pytest.param(module, function, name, id=f"{module}-{function}-{name}")


def _run_again(module: str) -> None:
    """Run a module's code as its first import does. The module that is imported stays as it is."""
    spec = importlib.util.find_spec(module)
    assert spec and spec.loader
    spec.loader.exec_module(importlib.util.module_from_spec(spec))


def _packages(module: str) -> dict[str, str]:
    """Return the packages that a module's blocks name, and the releases that it was tested with."""
    calls = [block.items[0].context_expr for name, block in _guarded() if name == module]
    return {
        ast.literal_eval(call.args[0]): next(
            ast.literal_eval(keyword.value) for keyword in call.keywords if keyword.arg == "tested"
        )
        for call in calls
        if isinstance(call, ast.Call)
    }


def _check(error: FrameworkError, module: str, subject: str) -> None:
    tested = _packages(module)
    assert error.package in tested
    pattern = re.escape(subject) + ".*" + re.escape(tested[error.package])
    assert version(error.package) in str(error) and re.search(pattern, str(error)), str(error)


@pytest.mark.parametrize(("module", "source", "name"), list(_imported()))
def test_a_release_without_an_imported_name_is_one_error_with_both_versions(
    module: str, source: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    importlib.import_module(module)
    monkeypatch.delattr(importlib.import_module(source), name)
    monkeypatch.delattr(importlib.import_module(source), "__getattr__", raising=False)  # by which some import lazily
    with pytest.raises(FrameworkError) as caught:
        _run_again(module)
    _check(caught.value, module, name)


@pytest.mark.parametrize(("module", "function", "name"), list(_expected()))
def test_a_release_without_a_parameter_is_one_error_with_both_versions(
    module: str, function: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    imported = importlib.import_module(module)
    first, _, rest = function.partition(".")
    held = getattr(imported, first)
    function_found = getattr(held, rest) if rest else held
    signature = inspect.signature(function_found)
    parameters = [parameter for parameter in signature.parameters.values() if parameter.name != name]
    assert len(parameters) < len(signature.parameters)
    signatures = inspect.signature

    def moved(function: Any) -> inspect.Signature:
        return signature.replace(parameters=parameters) if function == function_found else signatures(function)

    monkeypatch.setattr("turnwise.adapters.version_checks.inspect.signature", moved)
    with pytest.raises(FrameworkError) as caught:
        _run_again(module)
    _check(caught.value, module, f"has no parameter {name}")


@pytest.mark.parametrize(
    ("module", "owner", "name"),
    [
        ("agents_sdk.graph", "agents:Handoff", "_agent_ref"),
        ("agents_sdk.model", "agents:Model", "_cleanup_on_run_end"),
        ("langgraph.graph_run", "langgraph.pregel:Pregel", "astream"),
        ("langgraph.graph_run", "langgraph.prebuilt.tool_node:ToolCallRequest", "override"),
        ("pydantic_ai.runner", "pydantic_ai.agent:AbstractAgent", "iter"),
        ("mcp.connection", "mcp.client.session:ClientSession", "validate_tool_result"),
    ],
)
def test_a_release_without_a_method_is_one_error_with_both_versions(
    module: str, owner: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = f"turnwise.adapters.{module}"
    importlib.import_module(module)
    source, _, kind = owner.partition(":")
    monkeypatch.delattr(getattr(importlib.import_module(source), kind), name)
    with pytest.raises(FrameworkError) as caught:
        _run_again(module)
    _check(caught.value, module, name)


def test_the_extra_that_an_adapter_names_installs_its_framework() -> None:
    extras = tomllib.loads((PACKAGE.parents[1] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for module, block in _guarded():
        call = block.items[0].context_expr
        assert isinstance(call, ast.Call)
        package = ast.literal_eval(call.args[0])
        extra = next(ast.literal_eval(keyword.value) for keyword in call.keywords if keyword.arg == "extra")
        named = [re.split("[<>=]", requirement)[0] for requirement in extras["optional-dependencies"][extra]]
        assert package in named, f"{module}: extra {extra!r} has no {package}"


@pytest.mark.parametrize("module", sorted({module for module, _ in _guarded()}))
def test_a_missing_framework_is_an_error_that_says_what_to_install(
    module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    importlib.import_module(module)

    def version_of(package: str) -> str:
        raise PackageNotFoundError(package)

    monkeypatch.setattr("turnwise.adapters.version_checks.version", version_of)
    with pytest.raises(ConfigError, match=r"pip install 'turnwise\["):
        _run_again(module)
