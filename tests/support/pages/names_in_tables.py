"""Looks up the code that a table shows in passing, such as `manager.open(id, user_id=...)`: its names and arguments."""

from __future__ import annotations

import ast
import functools
import inspect
import re
from importlib import import_module
from typing import Any, get_args

from turnwise import ExecutionHandle, IfBusy, RunOptions, Session, SessionManager, Turn
from turnwise.actors.inference.engine import EngineBuilder, StepContext
from turnwise.actors.inference.tools.context import ToolContext
from turnwise.memories import MemoryContent, RecalledContent, SessionMemory, StaticMemory
from turnwise.memory.conversation.blocks import ToolResult
from turnwise.memory.conversation.events import KINDS
from turnwise.memory.event_store.base import HistoryStore
from turnwise.transcripts import Ledger

OBJECTS: dict[str, tuple[Any, ...]] = {
    "manager": (SessionManager,),
    "session": (Session,),
    "run": (ExecutionHandle,),
    "handle": (ExecutionHandle,),
    "turn": (Turn,),
    "context": (StepContext, ToolContext),
    "result": (ToolResult,),
    "content": (MemoryContent,),
}
"""What the objects are that pages name so."""

_PARTS = {"memory": SessionMemory, "recalled": RecalledContent}
"""What attributes of these objects are."""

_CLASSES = (
    *dict.fromkeys(name for classes in OBJECTS.values() for name in classes),
    *_PARTS.values(),
    EngineBuilder,
    HistoryStore,
    Ledger,
    StaticMemory,
)
"""Whose methods a page may show without their object."""

_OF_THE_READER = ("T", "Model", "MyStore")
"""Names of classes that a reader would write."""

_MODULES = ("adapters", "blocks", "conformance", "engines", "errors", "events", "memories", "stores", "strategies")
_MORE_MODULES = ("replay", "results", "testing", "transcripts")


def problems(code_text: str) -> list[str]:
    """Return what is wrong with code: names that do not exist, and arguments that a function does not take.

    What is no code, such as a command, an address or an environment variable, has no problems.
    """
    if re.fullmatch(r"[A-Z_]{2,}", code_text):
        return []
    code = re.sub(r"=(?=\s*[,)]|$)", "=...", code_text.removeprefix("@")).replace("...", "Ellipsis")
    try:
        tree = ast.parse(f"{code}: pass" if code.startswith("for ") else code)
    except SyntaxError:
        return []
    messages = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            functions = _values_of(node.func, is_called=True)
            if functions and not any(_takes(function, node) for function in functions):
                messages.append(f"{ast.unparse(node.func)} does not take these arguments")
            elif not functions:
                messages.append(f"there is no {ast.unparse(node.func)}")
        elif (
            isinstance(node, ast.Attribute) or (isinstance(node, ast.Name) and node.id[0].isupper())
        ) and not _values_of(node):
            messages.append(f"there is no {ast.unparse(node)}")
    word: ast.AST | None = tree.body[0] if len(tree.body) == 1 else None
    if isinstance(word, ast.Assign):
        word = word.targets[0]
    elif isinstance(word, ast.Expr):
        word = word.value
    if isinstance(word, ast.Name) and word.id not in _words():
        messages.append(f"nothing is called {word.id}")
    return list(dict.fromkeys(messages))


def _values_of(node: ast.AST, *, is_called: bool = False) -> list[Any]:
    """Return what an expression may be; empty if there is nothing of this name."""
    if isinstance(node, ast.Name):
        objects = [_public()[node.id]] if node.id in _public() else []
        return (
            objects + [attribute for cls in _CLASSES if (attribute := _attribute(cls, node.id)) is not None] * is_called
        )
    if not isinstance(node, ast.Attribute):
        return []
    owner = node.value
    if isinstance(owner, ast.Name):
        owners: tuple[Any, ...] = OBJECTS.get(owner.id, (_public().get(owner.id),))
    elif isinstance(owner, ast.Attribute) and owner.attr in _PARTS:
        owners = (_PARTS[owner.attr],)
    elif isinstance(owner, ast.Attribute) and ast.unparse(owner).startswith("turnwise."):
        owners = tuple(_values_of(owner))
    else:
        owners = _CLASSES  # of what a function returns
    return [attribute for owner in owners if (attribute := _attribute(owner, node.attr)) is not None]


def _attribute(owner: Any, name: str) -> Any:
    """Return an attribute, or its name if only instances have it; None if there is none."""
    if hasattr(owner, name) or not inspect.isclass(owner):
        return getattr(owner, name, None)
    sources = [_source(base) for base in owner.__mro__ if base.__module__.startswith("turnwise.")]
    return name if any(re.search(rf"\bself\.{name}\b|\n    {name}: ", source) for source in sources) else None


@functools.cache
def _source(owner: type) -> str:
    return inspect.getsource(owner)  # which parses the whole file


def _takes(function: Any, call: ast.Call) -> bool:
    if not callable(function):
        return False
    signature = inspect.signature(function)
    names = {keyword.arg for keyword in call.keywords if keyword.arg}
    options = [parameter for parameter in signature.parameters.values() if parameter.kind is parameter.VAR_KEYWORD]
    if options and "RunOptions" in str(options[0].annotation):
        names -= RunOptions.__annotations__.keys()
        signature = signature.replace(
            parameters=[parameter for parameter in signature.parameters.values() if parameter not in options]
        )
    arguments: list[Any] = [None] * ("self" in signature.parameters)
    if not any(isinstance(argument, ast.Starred) or ast.unparse(argument) == "Ellipsis" for argument in call.args):
        arguments += call.args
    try:
        signature.bind_partial(*arguments, **dict.fromkeys(names))
    except TypeError:
        return False
    return True


@functools.cache
def _public() -> dict[str, Any]:
    modules = [import_module(f"turnwise.{name}") for name in (*_MODULES, *_MORE_MODULES)]
    root = import_module("turnwise")
    names = {name: getattr(module, name) for module in (*modules, root) for name in dir(module) if name[0] != "_"}
    return {**names, **dict.fromkeys(_OF_THE_READER, object), "turnwise": root, "Ellipsis": ..., "None": None}


@functools.cache
def _words() -> set[str]:
    """Return the words that may stand alone: names of methods, parameters, kinds of events, and policies."""
    methods = [getattr(cls, name) for cls in _CLASSES for name in dir(cls) if name[0] != "_"]
    parameters = {name for item in [*_public().values(), *methods] for name in _parameters(item)}
    attributes = {name for cls in _CLASSES for name in dir(cls)}
    fields = {name for event in KINDS.values() for name in event.model_fields}
    return {
        *_public(),
        *OBJECTS,
        *parameters,
        *attributes,
        *fields,
        *KINDS,
        *get_args(IfBusy),
        *RunOptions.__annotations__,
    }


def _parameters(function: Any) -> list[str]:
    try:
        return list(inspect.signature(function).parameters)
    except (TypeError, ValueError):  # no function, or one without a signature
        return []
