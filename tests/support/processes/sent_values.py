"""What processes of two versions send each other beside messages, by its kind: as it is sent, and as it is received.

`python sent_values.py send <folder>` writes all kinds into a folder, each into the file of its name, and `python
sent_values.py receive <folder>` reads them there. The version of the code is the one that PYTHONPATH names first.
"""

from __future__ import annotations

import asyncio
import json
import pickle
import signal
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock, patch

import ray.data
from ray import cloudpickle

from turnwise import AsyncSessionManager, EchoEngine, InProcess, LexicalMemory, OpenAIEngine, SessionManager
from turnwise.actors.cluster.ray_dataset import dataset_of
from turnwise.actors.hosting.identity import pickled
from turnwise.actors.hosting.store_spec import StoreSpec
from turnwise.actors.inference.engine import SessionView
from turnwise.actors.inference.tools.context import ToolContext
from turnwise.actors.wire_version import packed, unpacked_answer, unpacked_settings
from turnwise.dataset import ray_parts
from turnwise.dataset.ray_parts import parts_of
from turnwise.dataset.selection import Selection
from turnwise.dataset.tables import schema_of
from turnwise.http.config import load
from turnwise.http.server import processes
from turnwise.memory.longterm.retention.retention import Retention
from turnwise.replay.scale.sums import Receipt
from turnwise.stores import SQLItems

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Ray Serve's own
    from turnwise.http import ray_serve

SERVICE = {"model": "m", "base_url": "http://127.0.0.1:9/v1"}


@dataclass(frozen=True)
class Shouting:
    """An engine of the program's own, which holds one of turnwise."""

    inner: OpenAIEngine


def tool_context() -> bytes:
    session = SessionView(session_id="s", user_id="ann", agent=None, metadata={"topic": "tea"}, author="bob")
    context = ToolContext(session=session, run_id="r", turn_index=3, call_id="c", labels={"a": "b"}, try_number=2)
    return bytes(cloudpickle.dumps(context))  # as Ray does with an argument


def read_tool_context(data: bytes) -> Sequence[Any]:
    context: ToolContext = pickle.loads(data)
    return context.user_id, context.run_id, context.turn_index, dict(context.labels), context.try_number


def handles() -> bytes:
    with SessionManager("memory://handles", engine=EchoEngine(), placement=InProcess()) as manager:
        chat = manager.open("chat", user_id="ann")
        chat.add_member("bob", "reader")
        run = chat.run("hello")
        run.wait()
        return pickle.dumps([run, manager.get("chat", user_id="ann", as_user="bob")])


def read_handles(data: bytes) -> Sequence[Any]:
    run, chat = pickle.loads(data)
    return run.session_id, run.turn_index, chat.session_id, chat.user_id, chat.as_user


def replica() -> bytes:
    config = {"store": "memory://replica", "engines": {"main": SERVICE}, "packed": {"hosts": 3}, "anonymous": True}
    deployed: Any = ray_serve.deployment(config)._bound_deployment  # noqa: SLF001 - as Serve does
    return bytes(cloudpickle.dumps((deployed.func_or_class, deployed.init_args)))


def read_replica(data: bytes) -> Sequence[Any]:
    kind, arguments = cloudpickle.loads(data)
    assert issubclass(kind, ray_serve._Replica)  # noqa: SLF001 - which the receiver imports
    made: Any = SimpleNamespace()  # whose end nobody has to await
    with patch.object(AsyncSessionManager, "__aenter__", AsyncMock()):  # which would start Ray
        asyncio.run(ray_serve._Replica.__init__(made, *arguments))  # noqa: SLF001
    assembly = made._assembly  # noqa: SLF001
    return assembly.config.packed.hosts, list(assembly.engines)


def worker() -> bytes:
    config, source = load(store="memory://worker", engines={"main": SERVICE}, workers=2, port=4321)
    workers: Any = processes._Workers(config, source, None, lambda: None)  # type: ignore[arg-type]  # noqa: SLF001
    workers._wakes.close()  # noqa: SLF001
    workers._woken.close()  # noqa: SLF001
    return bytes(workers._start_with)  # noqa: SLF001


def read_worker(data: bytes) -> Sequence[Any]:
    served: list[Any] = []

    async def serve_for(assembly: Any, *_: object) -> None:
        served.append(assembly)

    with (
        patch.object(processes, "configure_logging"),
        patch.object(signal, "signal"),
        patch.object(processes, "_serve_for", serve_for),
    ):
        processes._work(data, None, None)  # type: ignore[arg-type]  # noqa: SLF001
    return served[0].config.port, list(served[0].engines)


def dataset() -> bytes:
    selection = Selection(consent={"training": "yes"})
    parts = parts_of(StoreSpec("sqlite:///no.db"), "turnwise", selection, {}, 1)
    with patch.object(ray.data, "read_datasource", lambda source, **_: source):
        tasks: Any = dataset_of(parts, schema_of(selection))
    return bytes(cloudpickle.dumps(tasks.get_read_tasks(1)))


def read_dataset(data: bytes) -> Sequence[Any]:
    (task,) = pickle.loads(data)
    read: list[Any] = []

    def read_examples(store: object, selection: Selection, *_: object) -> None:
        read.append(selection)

    async def no_page(_: object) -> None: ...

    with (
        patch.object(StoreSpec, "open_store", lambda *_: AsyncMock()),
        patch.object(ray_parts, "read_examples", read_examples),
        patch.object(ray_parts, "next_page", no_page),
    ):
        assert list(task()) == []
    return [read[0].consent]


def memory() -> bytes:
    return pickled(LexicalMemory(SQLItems("sqlite:///no.db"), retention=Retention(keep_s=9.0)))


def read_memory(data: bytes) -> Sequence[Any]:
    return [unpacked_settings(data)._retention.keep_s]  # noqa: SLF001 - as its process reads it


def engine() -> bytes:
    return pickled([Shouting(OpenAIEngine("m", base_url="http://127.0.0.1:9/v1"))])


def read_engine(data: bytes) -> Sequence[Any]:
    return [unpacked_settings(data)[0].inner.model]


def receipt() -> bytes:
    return packed(Receipt(number=1, turns=2, left=3))


def read_receipt(data: bytes) -> Sequence[Any]:
    receipt: Receipt = unpacked_answer(data)
    return receipt.number, receipt.turns, receipt.left, "mood" in vars(receipt)


KINDS: dict[str, tuple[Callable[[], bytes], Callable[[bytes], Sequence[Any]]]] = {
    "tool_context": (tool_context, read_tool_context),
    "handles": (handles, read_handles),
    "replica": (replica, read_replica),
    "worker": (worker, read_worker),
    "dataset": (dataset, read_dataset),
    "memory": (memory, read_memory),
    "engine": (engine, read_engine),
    "receipt": (receipt, read_receipt),
}


def received(folder: Path) -> dict[str, list[Any]]:
    """Return what this version reads of each kind: its values, or the refusal."""
    found: dict[str, list[Any]] = {}
    for kind, (_, read) in KINDS.items():
        try:
            found[kind] = list(read((folder / kind).read_bytes()))
        except (Exception, SystemExit) as error:  # noqa: BLE001 - the test says which it is to be
            found[kind] = [type(error).__name__, str(error)]
    return found


def main(verb: str, folder: Path) -> None:
    if verb == "send":
        for kind, (send, _) in KINDS.items():
            (folder / kind).write_bytes(send())
    else:
        (folder / "received.json").write_text(json.dumps(received(folder)))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
