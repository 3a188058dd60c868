"""`turnwise drain`: have all processes leave a node that is about to go, as a preStop hook does."""

from __future__ import annotations

import os
from dataclasses import asdict
from typing import Annotated

import typer

from turnwise.actors.cluster.ray_address import starts_own_ray
from turnwise.cli.common import AsJson, run
from turnwise.cli.output import print_json, progress, write
from turnwise.errors import ConfigError
from turnwise.memory.values.ranges import MAX_SECONDS

NOT_EMPTY = 3
"""The exit code where runs were taken over, or something stays."""


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
    as_json: AsJson = False,
) -> None:
    """Have all processes of turnwise leave a node that is about to go: the preStop hook of a worker.

    Idle sessions are handed over at once, runs go on until they end, and the next ones begin elsewhere. Runs that take
    longer than the timeout are taken over: they end as interrupted or, with on_lost="resume", go on elsewhere. Ray ends
    the node once nothing runs there.

    Exits with 0 if the node is empty and no run was taken over, and with 3 if one was, or if something stays, such as
    what is in files of the node. It may be repeated.
    """
    if address:
        os.environ["RAY_ADDRESS"] = address
    if starts_own_ray():
        reason = "no Ray runs here: name the cluster, as in --address head:6379"
        raise ConfigError("RAY_ADDRESS", os.environ.get("RAY_ADDRESS"), reason)
    from turnwise.actors.cluster.draining import drain_node
    from turnwise.actors.cluster.ray_runtime import connect

    connect(logs=False)
    with progress("drain"):
        report = run(drain_node(node, timeout))
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
