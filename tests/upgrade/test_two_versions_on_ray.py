"""Two nodes of one cluster, of which one has a later version of the code, on one PostgreSQL, while both work.

What fits works with the right values; what does not is refused by an error that names both versions, and nothing of it
is done. No run is lost or doubled.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Self

import psycopg
import pytest
from ray.util import get_node_ip_address

import turnwise
from patience import until
from processes.later_version import add_fields, make_later
from processes.ray_nodes import Nodes, own_ray
from processes.told_program import told
from turnwise.memory.stores.sql.rows import whole_body

pytestmark = [pytest.mark.ray, pytest.mark.timeout(600)]

SUPPORT = Path(__file__).parents[1] / "support"
PROGRAM = SUPPORT / "processes/version_program.py"
EARLIER, LATER = get_node_ip_address(), "127.0.0.2"
"""The nodes: the head has this version, the other one the later."""


class Cluster:
    """The nodes, and a program of each version. Each test has a namespace, and sessions, of its own."""

    def __init__(self, database: str, folder: Path) -> None:
        self.database, self.folder = database, folder
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        folder = self.folder
        with ExitStack() as stack:
            later = make_later(folder / "later")
            add_fields(later)
            paths = {
                EARLIER: os.pathsep.join([str(Path(turnwise.__file__).parents[1]), str(SUPPORT)]),
                LATER: os.pathsep.join([str(later), str(SUPPORT)]),
            }
            env = stack.enter_context(own_ray())
            nodes = stack.enter_context(Nodes(folder, env, PYTHONPATH=paths[EARLIER]))
            nodes.start_head()
            nodes.join(2, PYTHONPATH=paths[LATER])
            self.earlier, self.later = (
                stack.enter_context(
                    told(PROGRAM, folder, env | {"PYTHONPATH": path}, nodes.address, node, self.database, str(folder))
                )
                for node, path in paths.items()
            )
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def open_gate(self, name: str) -> None:
        (self.folder / name).touch()

    def prompts(self, *session_ids: str) -> Counter[str]:
        """Return how often each prompt was stored as a turn of these sessions."""
        with psycopg.connect(self.database) as connection:
            rows = connection.execute(
                "SELECT body FROM turnwise_turns t JOIN turnwise_sessions s ON s.key = t.session"
                " JOIN turnwise_blocks b ON b.log = s.key"
                " WHERE b.at = (t.prompt::json->0->>1)::int AND s.session_id = ANY(%s)",
                (list(session_ids),),
            ).fetchall()
        return Counter(json.loads(whole_body(body))["text"] for (body,) in rows)

    def states(self, *session_ids: str) -> Counter[str]:
        """Return how many runs of these sessions are in which state."""
        with psycopg.connect(self.database) as connection:
            rows = connection.execute(
                "SELECT r.state FROM turnwise_runs r JOIN turnwise_sessions s ON s.key = r.session"
                " WHERE s.session_id = ANY(%s)",
                (list(session_ids),),
            ).fetchall()
        return Counter(state for (state,) in rows)


@pytest.fixture(scope="module")
def cluster(postgres: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with psycopg.connect(postgres.format("postgres"), autocommit=True) as connection:
        connection.execute("CREATE DATABASE two_versions")
    with Cluster(postgres.format("two_versions"), tmp_path_factory.mktemp("versions")) as cluster:
        yield cluster
    with psycopg.connect(postgres.format("postgres"), autocommit=True) as connection:
        connection.execute("DROP DATABASE two_versions WITH (FORCE)")


def names_both(message: str) -> bool:
    return "0.1.0 (wire version 1)" in message and "0.2.0 (wire version 1)" in message and "upgrade" in message


def has_completed(cluster: Cluster, session_id: str, runs: int) -> bool:
    return cluster.states(session_id) == {"completed": runs}


@pytest.mark.parametrize("hosts", [0, 2])
def test_earlier_callers_use_later_processes(cluster: Cluster, hosts: int) -> None:
    """As the guide says: first the processes of sessions, then their callers."""
    program, names = cluster.earlier, {"namespace": f"callers{hosts}", "session_id": f"chat{hosts}"}
    program.ask("place", address=LATER)
    assert program.ask("manage", namespace=names["namespace"], hosts=hosts, memory=True) == "0.1.0"
    program.ask("open", **names, title="A chat", metadata={"topic": "tea"})
    answered = program.ask("run", **names, prompt="hello")
    assert answered == {"text": "done: hello", "index": 0, "labels": {"from": "0.1.0"}}
    assert program.refusal("run", **names, prompt="fail twice")[0] == "RunFailedError"
    program.ask("save", **names, text="Ada keeps bees.", id="bees")
    until(lambda: "Ada keeps bees." in program.ask("recall", **names, query="bees"))  # a busy one finds less at first
    program.ask("schedule", **names, prompt="later", key="soon", after_s=3600.0)
    read = program.ask("read", **names)
    assert read["session"] == [names["session_id"], "default", "A chat"] and read["metadata"] == {"topic": "tea"}
    assert read["node"] == LATER and read["texts"] == ["done: hello", ""] and read["next"] == 2
    assert read["states"] == ["completed", "failed"] and read["schedules"] == [["soon", "enqueue"]]
    assert read["events"].count("run_started") == 2
    listed = program.ask("hosts", namespace=names["namespace"])
    assert sum(host["sessions"] or 0 for host in listed) == 1 and {host["node"] for host in listed} == {LATER}


def test_later_callers_are_refused_by_earlier_processes_and_nothing_is_done(cluster: Cluster) -> None:
    program, names = cluster.later, {"namespace": "refused", "session_id": "refused"}
    program.ask("place", address=EARLIER)
    assert program.ask("manage", namespace="refused", memory=True) == "0.2.0"
    program.ask("open", **names)
    for _ in range(2):
        error, message = program.refusal("run", **names, prompt="hello")
        assert error == "WireVersionError" and names_both(message), message
    assert not cluster.states("refused")
    program.ask("place", address=LATER)
    until(lambda: "error" not in program.try_to("run", **names, prompt="again"))
    assert cluster.prompts("refused") == {"again": 1} and cluster.states("refused") == {"completed": 1}
    assert program.ask("read", **names)["node"] == LATER


def test_sessions_move_between_packed_hosts_of_two_versions(cluster: Cluster) -> None:
    """Later hosts take over from earlier ones, with runs that are under way and others that wait behind them."""
    ids = [f"packed{number}" for number in range(6)]
    cluster.earlier.ask("place", address=EARLIER)
    cluster.earlier.ask("manage", namespace="packed", hosts=2)
    for name in ids:
        cluster.earlier.ask("open", namespace="packed", session_id=name)
    prompts = ["hold packed", "second", "third"]
    runs = {
        (name, prompt): cluster.earlier.ask("begin", namespace="packed", session_id=name, prompt=prompt)
        for name in ids
        for prompt in prompts
    }
    cluster.later.ask("place", address=LATER)
    cluster.later.ask("manage", namespace="packed", hosts=3)
    for name in ids:  # each is at its run still, in an earlier process
        error, message = cluster.later.refusal("begin", namespace="packed", session_id=name, prompt="fourth")
        assert error == "WireVersionError" and names_both(message), message
    cluster.open_gate("packed")
    for (name, prompt), run_id in runs.items():
        waits = {"namespace": "packed", "session_id": name, "run_id": run_id}
        assert cluster.earlier.ask("wait", **waits) == f"done: {prompt}"
    for name in ids:
        assert cluster.later.ask("run", namespace="packed", session_id=name, prompt="fourth")["index"] == 3
    assert cluster.prompts(*ids) == dict.fromkeys([*prompts, "fourth"], len(ids))
    assert cluster.states(*ids) == {"completed": 4 * len(ids)}
    for name in ids:
        answered = cluster.earlier.ask("run", namespace="packed", session_id=name, prompt="fifth")
        assert answered == {"text": "done: fifth", "index": 4, "labels": {"from": "0.1.0"}}
        assert cluster.later.ask("read", namespace="packed", session_id=name)["node"] == LATER
    until(lambda: {host["node"] for host in cluster.later.ask("hosts", namespace="packed")} == {LATER})


def test_messages_and_schedules_go_from_one_version_to_the_other(cluster: Cluster) -> None:
    """Sessions of namespaces of their own, so that the dispatchers of both versions hand deliveries to each other."""
    places = {"there": (cluster.earlier, EARLIER), "here": (cluster.later, LATER)}
    for name, (program, node) in places.items():
        program.ask("place", address=node)
        program.ask("manage", namespace=name)
        program.ask("open", namespace=name, session_id=name)
        assert program.ask("run", namespace=name, session_id=name, prompt="hello")["text"] == "done: hello"
    for number in range(3):
        for name, (program, _) in places.items():
            (other,) = places.keys() - {name}
            program.ask("send", namespace=name, session_id=name, to=other, text=f"note {number}")
            words = {"prompt": f"timer {number}", "key": f"k{number}", "after_s": 0.1}
            program.ask("schedule", namespace=name, session_id=name, **words)
    expected = {"hello": 1} | {f"{word} {number}": 1 for word in ("note", "timer") for number in range(3)}
    for name in places:
        until(partial(has_completed, cluster, name, len(expected)))
        assert cluster.prompts(name) == expected
    assert len(cluster.later.ask("nodes_of", word="/dispatcher")) >= 2


def test_a_session_of_one_version_asks_a_memory_of_the_other(cluster: Cluster) -> None:
    """A memory's process begins where its manager is opened first; the sessions' ones elsewhere."""
    program = cluster.earlier
    program.ask("place", address=LATER)
    program.ask("manage", namespace="memories", memory=True)
    program.ask("open", namespace="memories", session_id="first")
    program.ask("save", namespace="memories", session_id="first", text="Odile grows dates.", id="dates")
    program.ask("place", address=EARLIER)
    program.ask("open", namespace="memories", session_id="second")
    program.ask("run", namespace="memories", session_id="second", prompt="hello")
    program.ask("save", namespace="memories", session_id="second", text="Odile sails.", id="sails")
    words = {"namespace": "memories", "session_id": "second", "query": "What does Odile grow?"}
    until(lambda: {"Odile grows dates.", "Odile sails."} <= set(program.ask("recall", **words)))
    assert program.ask("read", namespace="memories", session_id="second")["node"] == EARLIER
    nodes = program.ask("nodes_of", word="turnwise/memory/")
    assert [node for name, node in nodes.items() if name.startswith("memories ")] == [LATER]


def test_a_tool_that_is_a_task_on_a_node_of_the_other_version(cluster: Cluster) -> None:
    """A later worker takes the context of an earlier session; an earlier one refuses that of a later session."""
    is_error, text = cluster.earlier.ask("call_tool", address=LATER)
    assert not is_error and json.loads(text) == {"version": "0.2.0", "user": "bob", "mood": "calm"}
    is_error, text = cluster.later.ask("call_tool", address=EARLIER)
    assert is_error and text.startswith("WireVersionError: ") and names_both(text), text
    assert "ToolContext: " in text or "SessionView has 'mood'" in text, text
