"""The page of hosts: the processes of the cluster that have sessions, and how busy they are."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from turnwise.actors.hosting.wire import HostInfo
from turnwise.console.elements.frame import Frame
from turnwise.console.elements.tags import badge, fact, tag
from turnwise.console.elements.text import number

_REFRESH_S = 5.0

_NAMED = 20
"""How many sessions of a host are named."""


async def hosts_page() -> None:
    """Show the hosts, by node; for those who see the sessions of all users."""
    with Frame.of_page("hosts", "Hosts") as frame:
        tag("h1", "heading", "Hosts")
        body = tag("div", "")
    if not await frame.arrived():
        return

    async def refresh() -> float | None:
        hosts = await frame.viewer.manager.hosts() if frame.viewer.sees_all else None
        body.clear()
        with body:
            if hosts is None:
                tag("div", "card empty", "Hosts are shown to operators.")
                return None
            _show(hosts)
        return _REFRESH_S

    await frame.repeat(refresh)


def _show(hosts: Sequence[HostInfo]) -> None:
    loads = [host.load for host in hosts if host.load]
    with tag("div", "tiles"):
        _tile("Hosts", len(hosts))
        _tile("Loaded sessions", sum(load.sessions for load in loads))
        _tile("Calls under way", sum(load.calls for load in loads))
        _tile("Waiting callers", sum(load.waits for load in loads))
    if not hosts:
        tag("div", "card empty", "No process has sessions: none was used lately, or this process sees no cluster.")
    by_node: dict[str, list[HostInfo]] = defaultdict(list)
    for host in hosts:
        by_node[f"Node {host.node}" if host.node else "Without an answer"].append(host)
    most = max((load.sessions for load in loads), default=0)
    for node, its_hosts in by_node.items():
        with tag("section", "card", aria_label=node):
            tag("h2", "", f"{node}: {number(len(its_hosts))} host{'' if len(its_hosts) == 1 else 's'}")
            for host in its_hosts:
                _show_host(host, most)


def _tile(name: str, value: int) -> None:
    with tag("div", "card tile"):
        tag("div", "soft small", name)
        tag("div", "value", number(value))


def _show_host(host: HostInfo, most: int) -> None:
    load = host.load
    with tag("details"):
        with tag("summary"):
            tag("span", "", "Packed host " if host.is_packed else "Session ")
            tag("span", "", host.name.rpartition("/hosts/")[2] if host.is_packed else host.name.rpartition("/")[2])
            if host.is_replaced:
                badge("being replaced", "busy")
            if load is None:
                badge("does not answer", "bad")
            elif host.is_packed:
                tag("span", "small", f" {number(load.sessions)} sessions, {number(load.calls)} calls")
        with tag("dl", "facts"):
            fact("Actor", host.name)
            fact("Process", str(host.pid or "unknown"))
            fact("Node", host.node_id or "unknown")
            if load:
                fact("Sessions", number(load.sessions))
                fact("Calls", f"{number(load.calls)} under way, {number(load.waits)} callers wait")
                fact("Used last", ", ".join(key.full_name for key in load.recent[:_NAMED]) or "none")
    if load and host.is_packed:
        with tag("div", "meter", aria_hidden="true"):
            tag("span").style(f"left: 0; width: {load.sessions / most if most else 0:.1%}")
