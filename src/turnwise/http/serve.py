"""The service on Ray Serve, for `serve run turnwise.http.serve:deployment config=serve.toml` and for `serve deploy`.

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

    Serve restarts it if its event loop hangs. A store that is away does not restart it: requests get 503 meanwhile, and
    so does `/health/ready`.
    """

    async def __init__(self, config: ServiceConfig, source: Source) -> None:  # type: ignore[misc] # as Serve takes it
        self._assembly = assemble(config, source)
        await self._assembly.manager.__aenter__()

    def __serve_build_asgi_app__(self) -> FastAPI:
        return self._assembly.app

    async def __del__(self) -> None:
        if assembly := getattr(self, "_assembly", None):
            assembly.service.stop()
            await assembly.manager.close()


Replica: serve.Deployment = serve.deployment(
    name="turnwise",
    max_ongoing_requests=MAX_ONGOING,
    autoscaling_config={"min_replicas": 1, "max_replicas": 8, "target_ongoing_requests": MAX_ONGOING // 5},
    graceful_shutdown_timeout_s=15,
    logging_config={"enable_access_log": False},
)(serve.ingress()(_Replica))
"""Replicas of the service; `serve deploy` may set other options."""


def deployment(args: Mapping[str, Any]) -> serve.Application:
    """Return the application; for `serve run`, `serve deploy` and `serve.run`.

    Ray Serve opens the port to everyone: give `tokens`, or `anonymous: true`.

    Args:
        args: `config`, the path of a TOML file on the machine where this is called; and keys of the file, which come
            before the file's. The file of tokens and the variables with keys are read on the replicas' nodes.

    Raises:
        ConfigError: a value is wrong, or neither tokens nor `anonymous` are given.
    """
    settings = dict(args)
    file = settings.pop("config", None)
    # Values on a command line are texts.
    config, source = load(file, **{key: _parsed(value) for key, value in settings.items()})
    if not (config.has_auth or config.anonymous):
        reason = (
            "every client that reaches Serve could do everything: give tokens, or set it to true if only you reach it"
        )
        raise source.error(("anonymous",), value=False, reason=reason)
    return bind(config, source)


def bind(config: ServiceConfig, source: Source) -> serve.Application:
    """Return the application with a configuration, of which all that it names has been made once to see that it can be.

    Raises:
        ConfigError: something cannot be made.
    """
    _checked(config, source)
    least = config.workers
    scaled = Replica.options(
        autoscaling_config={
            "min_replicas": least,
            "max_replicas": max(8, 2 * least),
            "target_ongoing_requests": MAX_ONGOING // 5,
        },
        graceful_shutdown_timeout_s=config.stop_s + 5,
    )
    app: serve.Application = scaled.bind(config, source)
    return app


def serve_on_ray(config: ServiceConfig, source: Source, ready: Ready) -> None:
    """Serve by replicas until SIGTERM or SIGINT; then delete the application. For the main thread.

    `config.workers` is the least number of replicas. Serve stays if it has other applications.

    Raises:
        TurnwiseError: it cannot start: the configuration is wrong, the port is taken, the store is away, or Serve runs
            there already, with an address of its own.
    """
    assembly = _checked(config, source)
    asyncio.run(check_store(config, source))
    connect(logs=False)
    if serve.status().proxies:
        reason = "Serve runs on this Ray, and keeps its address: use `serve deploy`, or end it with `serve shutdown`"
        raise source.error(("port",), config.port, reason)
    with listen(config, source) as bound:
        url, port = url_of(bound), bound.getsockname()[1]
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


def _checked(config: ServiceConfig, source: Source) -> Assembly:
    if config.console:
        reason = "a page's requests must all reach one process: run `turnwise console` beside the replicas"
        raise source.error(("console",), value=True, reason=reason)
    return assemble(config, source)


def _parsed(value: Any) -> Any:
    """Return a value of a command line: true and false are no texts."""
    return {"true": True, "false": False}.get(value, value) if isinstance(value, str) else value
