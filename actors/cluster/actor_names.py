"""Named actors: their creation and lookup, and the names of the actors of dedicated sessions and dispatchers."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote, unquote

import ray

from turnwise.memory.conversation.sessions import SessionKey

PROCESSES = "turnwise/"
"""What the names of all actors of turnwise begin with."""


def actor_name(store_id: str, key: SessionKey) -> str:
    """Return the name of a dedicated session's actor."""
    return f"{actors_of(store_id)}{quote(key.user_id, safe='', errors='surrogatepass')}/{key.session_id}"


def actors_of(store_id: str) -> str:
    """Return what the names of the actors of a store's dedicated sessions begin with."""
    return f"{processes_of(store_id)}sessions/"


def processes_of(store_id: str) -> str:
    """Return what the names of all actors begin with that work for a store."""
    return f"{PROCESSES}{store_id}/"


def dispatcher_name(store_id: str) -> str:
    """Return the name of the actor that hands a store's deliveries to their sessions."""
    return f"{processes_of(store_id)}dispatcher"


def session_of(store_id: str, name: str) -> SessionKey:
    """Return the session of an actor of this name."""
    user_id, _, session_id = name.removeprefix(actors_of(store_id)).partition("/")
    return SessionKey(session_id, unquote(user_id, errors="surrogatepass"))


def find_actor(namespace: str, name: str) -> Any:
    """Return the actor of this name, or None."""
    try:
        return ray.get_actor(name, namespace=namespace)
    except ValueError:
        return None


FOR_EVER = {"max_restarts": -1, "max_task_retries": 3}
"""Options of actors that Ray restarts however often they die, and whose calls it then repeats a few times: a call of
which processes die is not repeated for ever. Who waits for an answer asks again, for longer."""


def detached_actor(body: type, name: str, namespace: str, **options: Any) -> Any:
    """Return the class as a named actor that outlives this process; its `remote()` returns the existing one, if any.

    Ray records no events of its calls, which would cost a tenth of a turn; it lists the actor as any other.

    Args:
        options: further options of Ray.
    """
    return ray.remote(body).options(
        name=name,
        namespace=namespace,
        lifetime="detached",
        get_if_exists=True,
        num_cpus=0,
        enable_task_events=False,
        **options,
    )
