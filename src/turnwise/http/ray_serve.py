"""The service on Ray Serve, for `serve run turnwise.http.ray_serve:deployment config=serve.toml` and `serve deploy`.

`examples/serve_config.yaml` is what the latter takes. Replicas keep nothing: sessions are in the store and in actors of
the cluster, so any replica answers for any session, and a client whose replica was killed resumes its stream at
another. Here, alone in this package, Ray is imported.
"""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI
from ray import serve

from turnwise.actors.cluster.ray_runtime import connect
from turnwise.actors.wire_version import packed, unpacked_settings
from turnwise.http.assembly import Assembly, assemble
from turnwise.http.config import ServiceConfig, Source, load
from turnwise.http.server.listening import url_of
from turnwise.http.server.processes import SIGNALS, Ready, check_store, listen

MAX_ONGOING = 1000
"""How many requests, streams and waits one replica answers at once. Serve's own limit of five is for models."""

APP = "turnwise"
"""The name of the application on Serve."""


class _Replica:
    """One replica of the service, with a manager of its own.

    Serve awaits `__init__` and `__del__`, and restarts a replica whose event loop hangs. No other check restarts one:
    while the store is away, requests and `/health/ready` get 503.

    Args:
        start: the configuration and its source, `packed`: Serve pickles them once, and keeps them for later replicas,
            whose nodes may have another version.
    """

    async def __init__(self, start: bytes) -> None:  # type: ignore[misc] # Serve awaits it
        self._assembly = _assembled(start)
        await self._assembly.manager.__aenter__()

    def __serve_build_asgi_app__(self) -> FastAPI:
        # `ingress()` without an app asks each replica for its own, since an app with its manager does not pickle.
        return self._assembly.app

    async def __del__(self) -> None:
        if assembly := getattr(self, "_assembly", None):
            assembly.service.stop()
            await assembly.manager.close()


def _assembled(start: bytes) -> Assembly:
    config, source = unpacked_settings(start)
    return assemble(config, source)


def _autoscaling(least: int) -> dict[str, Any]:
    return {
        "min_replicas": least,
        "max_replicas": max(8, 2 * least),
        "target_ongoing_requests": MAX_ONGOING // 5,
    }


Replica: serve.Deployment = serve.deployment(
    name="turnwise",
    max_ongoing_requests=MAX_ONGOING,
    autoscaling_config=_autoscaling(1),
    graceful_shutdown_timeout_s=15,
    logging_config={"enable_access_log": False},
)(serve.ingress()(_Replica))
"""Replicas of the service; `serve deploy` may set other options."""


def deployment(args: Mapping[str, Any]) -> serve.Application:
    """Return the application; for `serve run`, `serve deploy` and `serve.run`.

    Ray Serve opens the port to everyone: give `tokens`, or `anonymous: true`.

    Args:
        args: `config`, the path of a TOML file on the machine where this is called; and keys as in the file, which
            override it. Values may be texts, as `serve run` gives them. The file of tokens and the variables with
            keys are read here, and on the nodes of the replicas.

    Raises:
        ConfigError: a value is wrong, or neither tokens nor `anonymous` are given.
    """
    settings = dict(args)
    file = settings.pop("config", None)
    config, source = load(file, **settings)
    if not (config.has_auth or config.anonymous):
        reason = (
            "every client that reaches Serve could do everything: give tokens, or set it to true if only you reach it"
        )
        raise source.error(("anonymous",), value=False, reason=reason)
    return bind(config, source)


def bind(config: ServiceConfig, source: Source) -> serve.Application:
    """Return the application of a configuration.

    All that the configuration names is made here once, so that an error is raised here and not in the replicas.

    Raises:
        ConfigError: something cannot be made.
    """
    _trial_assembly(config, source)
    scaled = Replica.options(
        autoscaling_config=_autoscaling(config.workers), graceful_shutdown_timeout_s=config.stop_s + 5
    )
    app: serve.Application = scaled.bind(packed((config, source)))
    return app


def serve_on_ray(config: ServiceConfig, source: Source, ready: Ready) -> None:
    """Serve by replicas until SIGTERM or SIGINT; then delete the application. For the main thread.

    `config.workers` is the least number of replicas. Serve stays if it has other applications.

    Raises:
        TurnwiseError: it cannot start: the configuration is wrong, the port is taken, the store is away, or Serve runs
            there already, with an address of its own.
    """
    assembly = _trial_assembly(config, source)  # before Ray is started
    asyncio.run(check_store(config, source))
    connect(logs=False)
    if serve.status().proxies:
        reason = "Serve runs on this Ray, and keeps its address: use `serve deploy`, or end it with `serve shutdown`"
        raise source.error(("port",), config.port, reason)
    # Only to see that the port is free, or to find a free one for port 0: Serve opens it itself.
    with listen(config, source) as bound:
        url, port = url_of(bound), bound.getsockname()[1]
    # A signal handler sends a byte, for which the main thread waits.
    wakes, woken = socket.socketpair()
    before = {number: signal.signal(number, lambda *_: wakes.send(b".")) for number in SIGNALS}
    try:
        serve.start(http_options={"host": config.host, "port": port})
        serve.run(bind(config, source), name=APP)
        ready(assembly, url)
        woken.recv(1)
    finally:
        serve.delete(APP)
        if not serve.status().applications:
            serve.shutdown()
        for number, handler in before.items():
            signal.signal(number, handler)
        wakes.close()
        woken.close()


def _trial_assembly(config: ServiceConfig, source: Source) -> Assembly:
    """Return the service as a replica will make it; it is never started."""
    if config.console:
        reason = "a page's requests must all reach one process: run `turnwise console` beside the replicas"
        raise source.error(("console",), value=True, reason=reason)
    if config.placement == "in_process":
        reason = "replicas are several processes, which share sessions in actors: take 'packed' or 'dedicated'"
        raise source.error(("placement",), config.placement, reason)
    return assemble(config, source)
