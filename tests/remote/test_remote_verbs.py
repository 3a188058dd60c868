"""A manager of a service has the verbs of a manager, with the same arguments, in both families."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from turnwise.actors.client.blocking.manager import SessionManager
from turnwise.actors.client.execution import AsyncExecutionHandle
from turnwise.actors.client.files import AsyncFiles
from turnwise.actors.client.manager import AsyncSessionManager
from turnwise.actors.client.session import AsyncSession
from turnwise.actors.client.session_memory import AsyncSessionMemory
from turnwise.actors.client.subscriptions import AsyncSubscription
from turnwise.actors.client.webhooks import AsyncWebhook
from turnwise.client import (
    AsyncRemoteExecutionHandle,
    AsyncRemoteFiles,
    AsyncRemoteManager,
    AsyncRemoteSession,
    AsyncRemoteSessionMemory,
    AsyncRemoteSubscription,
    AsyncRemoteWebhook,
    RemoteExecutionHandle,
    RemoteFiles,
    RemoteManager,
    RemoteSession,
    RemoteSessionMemory,
    RemoteSubscription,
    RemoteWebhook,
)

FAMILIES: list[tuple[type[Any], type[Any], type[Any]]] = [
    (AsyncSessionManager, AsyncRemoteManager, RemoteManager),
    (AsyncSession, AsyncRemoteSession, RemoteSession),
    (AsyncExecutionHandle, AsyncRemoteExecutionHandle, RemoteExecutionHandle),
    (AsyncSessionMemory, AsyncRemoteSessionMemory, RemoteSessionMemory),
    (AsyncFiles, AsyncRemoteFiles, RemoteFiles),
    (AsyncWebhook, AsyncRemoteWebhook, RemoteWebhook),
    (AsyncSubscription, AsyncRemoteSubscription, RemoteSubscription),
]

LEFT_OUT = {
    "AsyncSessionManager.config": "a setting of the service, with functions and engines that no JSON has",
    "AsyncSessionManager.client": "the service's connection to its store and to its processes",
    "AsyncSessionManager.engines": "objects of the service's process; `session.use` and `open` take their names",
    "AsyncSessionManager.is_read_only": "a setting of the service; a change raises ReadOnlyStoreError",
    "AsyncSessionManager.memory": "each of the user's sessions reaches the same memory; its routes name one",
    "AsyncSession.actor": "a handle of Ray, of which this process is no part",
}
"""What a service does not offer to callers, and why."""


def public(cls: type[Any]) -> dict[str, Any]:
    names = {name: value for base in reversed(cls.__mro__) if base is not object for name, value in vars(base).items()}
    return {
        name: value
        for name, value in names.items()
        if not name.startswith("_") and (inspect.isfunction(value) or isinstance(value, property))
    }


@pytest.mark.parametrize(("local", "remote", "blocking"), FAMILIES, ids=lambda cls: cls.__name__)
def test_a_remote_class_has_each_verb_or_says_why_not(local: Any, remote: Any, blocking: Any) -> None:
    missing = public(local).keys() - public(remote).keys()
    assert {f"{local.__name__}.{name}" for name in missing} == {
        name for name in LEFT_OUT if name.startswith(f"{local.__name__}.")
    }
    assert public(remote).keys() == public(blocking).keys()
    assert not public(remote).keys() - public(local).keys(), "a verb of one manager is one of all"


@pytest.mark.parametrize(("local", "remote", "blocking"), FAMILIES, ids=lambda cls: cls.__name__)
def test_a_remote_verb_takes_the_same_arguments(local: Any, remote: Any, blocking: Any) -> None:
    for name, verb in public(remote).items():
        own, original = (public(cls)[name] for cls in (remote, local))
        assert isinstance(own, property) is isinstance(original, property), name
        if inspect.isfunction(verb):
            for cls in (remote, blocking):
                same = inspect.signature(public(cls)[name]).parameters
                assert [*map(plain, same.values())] == [*map(plain, inspect.signature(original).parameters.values())], (
                    f"{cls.__name__}.{name}"
                )
            kinds = [inspect.iscoroutinefunction(function) for function in (own, original)]
            assert kinds[0] == kinds[1], f"{name} is awaited in both or in none"


def plain(parameter: inspect.Parameter) -> Any:
    return parameter.name, parameter.kind, parameter.default, str(parameter.annotation)


def test_a_manager_says_what_it_cannot_use() -> None:
    for wrong in ("chat.example.com", "ftp://chat.example.com", "", 7, None):
        with pytest.raises(Exception, match="URL of a service"):
            RemoteManager(wrong)  # type: ignore[arg-type]
    assert "chat.example.com" in repr(RemoteManager("https://chat.example.com/v1/"))
    assert not issubclass(RemoteManager, SessionManager)
