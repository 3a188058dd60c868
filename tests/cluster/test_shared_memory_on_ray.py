"""Programs on two nodes of a cluster with one long-term memory, whose node is killed while both save and recall."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import psycopg
import pytest
from ray.util import get_node_ip_address

import turnwise
from patience import until
from processes.leaving_nodes import QUICK
from processes.ray_nodes import Nodes, kill_all, own_ray
from processes.told_program import ToldProgram, told

pytestmark = [pytest.mark.ray, pytest.mark.timeout(600)]

SUPPORT = Path(__file__).parents[1] / "support"
PROGRAM = SUPPORT / "processes/shared_memory.py"
HEAD, OTHER, VICTIM = get_node_ip_address(), "127.0.0.2", "127.0.0.3"


class Cluster:
    """Three nodes: a program is on each of two, and the memory on the third, which dies."""

    def __init__(self, first: ToldProgram, second: ToldProgram, victim: subprocess.Popen[str], database: str) -> None:
        self.first, self.second, self.victim, self.database = first, second, victim, database


@pytest.fixture
def cluster(database: str, tmp_path: Path) -> Iterator[Cluster]:
    paths = os.pathsep.join([str(Path(turnwise.__file__).parents[1]), str(SUPPORT)])
    with ExitStack() as stack:
        env = stack.enter_context(own_ray()) | {"PYTHONPATH": paths}
        nodes = stack.enter_context(Nodes(tmp_path, env, **QUICK))
        nodes.start_head()
        nodes.join(2)
        victim = nodes.join(3)
        first, second = (
            stack.enter_context(told(PROGRAM, tmp_path, env, nodes.address, node, database, name))
            for node, name in ((HEAD, "first"), (OTHER, "second"))
        )
        yield Cluster(first, second, victim, database)


def items_in(database: str) -> list[tuple[str, str]]:
    """Return the users and the ids of all items, as often as they are stored."""
    with psycopg.connect(database) as connection:
        return connection.execute(
            "SELECT user_id, id FROM turnwise_items JOIN turnwise_item_owners USING (owner)"
        ).fetchall()


def test_two_programs_share_a_memory_whose_node_dies(cluster: Cluster) -> None:
    """Both save and recall for one user, and each for one of its own. Nothing is lost, doubled or another's."""
    programs = {"first": cluster.first, "second": cluster.second}
    for (name, program), own in zip(programs.items(), (HEAD, OTHER), strict=True):
        program.ask("manage", memory_on=VICTIM, own=own, kind="vector", namespace="shared")
        program.ask("begin", users=["ann", f"user of {name}"], kind="vector")
    assert set(cluster.first.ask("node_of_memory")) == {VICTIM}
    until(lambda: all(program.ask("progress") >= 6 for program in programs.values()))
    kill_all(cluster.victim)
    until(lambda: VICTIM not in cluster.first.ask("node_of_memory"))
    before = {name: program.ask("progress") for name, program in programs.items()}
    until(lambda: all(program.ask("progress") >= before[name] + 6 for name, program in programs.items()))
    reports = {name: program.ask("end") for name, program in programs.items()}
    for name, report in reports.items():
        print(f"{name}: the longest time from one recall to the next was {report['longest_gap_s']} s")
    stored = items_in(cluster.database)
    assert len(stored) == len(set(stored))
    for name, report in reports.items():
        assert report["foreign"] == [] and report["recalls"] > 0
        for user, ids in report["saved"].items():
            found = programs[name].ask("items", user=user)
            assert set(ids) <= found.keys() and all(len(texts) == 1 for texts in found.values())
    for user in ("ann", "user of first", "user of second"):
        saved = sum(len(report["saved"].get(user, ())) for report in reports.values())
        turns = sum(report["runs"].get(user, 0) for report in reports.values())
        assert sum(owner == user for owner, _ in stored) == saved + turns, user


def test_two_programs_with_two_embeddings_for_one_memory_are_told(cluster: Cluster) -> None:
    """The program that came later makes the vectors; the other one finds items by words, and says why."""
    for program, own, dimensions in ((cluster.first, HEAD, 64), (cluster.second, OTHER, 128)):
        places = {"memory_on": own, "own": own}
        program.ask("manage", **places, kind="vector", namespace="embeddings", dimensions=dimensions)
        program.ask("open", users=["ann"], kind="vector")
        program.ask("save", user="ann", text=f"Odile grows {dimensions} dates.", id=f"dates {dimensions}")
    cluster.first.ask("save", user="ann", text="Odile sails.", id="sails")

    def trouble() -> str:
        found = cluster.first.ask("recall", user="ann", query="What does Odile grow?")
        assert {"Odile grows 64 dates.", "Odile grows 128 dates."} <= set(found["texts"])
        return str(found["trouble"] or "")

    until(lambda: "the same embedding" in trouble())
    assert '"dimensions": 128' in trouble()
    other = cluster.second.ask("recall", user="ann", query="What does Odile grow?")
    assert "Odile sails." in other["texts"] and "embedding" not in str(other["trouble"])
