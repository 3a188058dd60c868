"""`turnwise drain`: have all processes leave a node that is about to go, as a preStop hook does."""

from __future__ import annotations

import os
from collections.abc import Coroutine
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from turnwise.actors.cluster.ray_address import starts_own_ray
from turnwise.cli.common import AsJson, Server, of_service, run
from turnwise.cli.output import print_json, progress, write
from turnwise.errors import ConfigError
from turnwise.memory.values.ranges import MAX_SECONDS

if TYPE_CHECKING:
    from turnwise.actors.hosting.wire import DrainReport

NOT_EMPTY = 3
"""The exit code where runs were taken over, or something stays."""

GIVES_WAY = 19
"""How much niceness a command takes that runs beside the hosts of sessions, so that no caller waits for its start."""


def drain(
    *,
    node: Annotated[
        str | None, typer.Option(show_default=False, help="Ray's id of the node; the one of this machine if omitted.")
    ] = None,
    timeout: Annotated[
        float, typer.Option(min=0, max=MAX_SECONDS, help="How long runs may go on there, in seconds.")
    ] = 60.0,
    address: Annotated[
        str | None,
        typer.Option(envvar="RAY_ADDRESS", show_default=False, help="The address of the Ray cluster."),
    ] = None,
    server: Server = None,
    as_json: AsJson = False,
) -> None:
    """Have all processes of turnwise leave a node that is about to go: the preStop hook of a worker.

    Idle sessions are handed over at once, runs go on until they end, and the next ones begin elsewhere. Runs that take
    longer than the timeout are taken over: they end as interrupted or, with on_lost="resume", go on elsewhere. Ray ends
    the node once nothing runs there.

    Exits with 0 if the node is empty and no run was taken over, and with 3 if one was, or if something stays, such as
    what is in files of the node. It may be repeated. With --server, the service does it: name the node, with the token
    of an operator.
    """
    work = _drain_by_service(server, node, timeout) if server else _drain_here(address, node, timeout)
    with progress("drain"):
        report = run(work)
    if as_json:
        print_json({**asdict(report), "is_empty": report.is_empty})
    else:
        write(f"{report.processes} processes have left node {report.node_id} within {report.seconds:.1f} s")
        for name in report.late:
            write(f"taken over after {timeout:g} s: {name}")
        for name, why in report.staying.items():
            write(f"stays: {name}: {why}")
    if not report.is_empty:
        raise typer.Exit(NOT_EMPTY)


def _drain_here(address: str | None, node: str | None, timeout_s: float) -> Coroutine[Any, Any, DrainReport]:
    """Connect to the cluster; return what drains a node of it."""
    if address:
        os.environ["RAY_ADDRESS"] = address
    if starts_own_ray():
        reason = "no Ray runs here: name the cluster, as in --address head:6379"
        raise ConfigError("RAY_ADDRESS", os.environ.get("RAY_ADDRESS"), reason)
    os.nice(GIVES_WAY)  # before Ray is imported, which takes seconds of a processor
    from turnwise.actors.cluster.draining import drain_node
    from turnwise.actors.cluster.ray_runtime import connect

    connect(logs=False)
    return drain_node(node, timeout_s)


async def _drain_by_service(server: str, node: str | None, timeout_s: float) -> DrainReport:
    async with of_service(server) as manager:
        return await manager.drain(node, timeout_s=timeout_s)
