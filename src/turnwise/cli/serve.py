"""`turnwise serve`: serve the sessions of a store over HTTP."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from turnwise.cli.common import STORE
from turnwise.cli.output import print_json
from turnwise.errors import ConfigError

if TYPE_CHECKING:
    from turnwise.http.assembly import Assembly
    from turnwise.http.config import ServiceConfig, Source

MODEL = "OPENAI_MODEL"
"""The variable that names the model if neither an option nor the configuration does."""

TOKENS = "TURNWISE_HTTP_TOKENS"
"""The variable with bearer tokens, for a service that is told of no other way to know its users."""

TOKEN = "TURNWISE_TOKEN"  # noqa: S105 - the name of the variable
"""The variable from which the printed commands take the caller's token."""


def serve(
    store: Annotated[
        str | None,
        typer.Argument(
            help="Where sessions are kept: sqlite:///file.db, postgresql://user@host/name or redis://host;"
            " if omitted, what TURNWISE_STORE names, or sqlite:///turnwise.db, and with --demo a temporary file."
        ),
    ] = None,
    *,
    model: Annotated[
        str | None, typer.Option(help="The model; OPENAI_MODEL, else gpt-5-mini. OPENAI_API_KEY has its key.")
    ] = None,
    base_url: Annotated[str | None, typer.Option(help="The URL of a server that speaks OpenAI's API.")] = None,
    host: Annotated[str | None, typer.Option(help="The address to listen on; 127.0.0.1 if omitted.")] = None,
    port: Annotated[int | None, typer.Option(help="The port to listen on; 8000 if omitted, and 0 takes any.")] = None,
    placement: Annotated[
        Literal["packed", "dedicated", "in_process"] | None,
        typer.Option(
            help="Where sessions run: packed in a few processes, in a dedicated one each, or in_process: in this one,"
            " without Ray. packed if omitted."
        ),
    ] = None,
    packed: Annotated[int | None, typer.Option(help="How many processes the sessions share; 4 if omitted.")] = None,
    workers: Annotated[int | None, typer.Option(help="How many processes answer requests; 1 if omitted.")] = None,
    ray_serve: Annotated[
        bool, typer.Option("--ray-serve", help="Answer requests by replicas on Ray Serve: at least --workers.")
    ] = False,
    console: Annotated[bool, typer.Option("--console", help="Serve the web console at /console.")] = False,
    demo: Annotated[
        bool, typer.Option("--demo", help="Where OPENAI_API_KEY is not set, simulate a model: no key, no network.")
    ] = False,
    config: Annotated[Path | None, typer.Option(help="A TOML file with settings; options here come first.")] = None,
    tokens: Annotated[Path | None, typer.Option(help="A JSON file of bearer tokens and their users.")] = None,
    telemetry: Annotated[
        bool, typer.Option("--telemetry", help="Export traces and metrics, as the OTEL_* variables say.")
    ] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Make all that is configured, say what would be served, and start nothing.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON; with --check.")] = False,
) -> None:
    """Serve sessions over HTTP until SIGTERM: the native API, OpenAI's, and a web console."""
    if as_json and not check:
        raise typer.BadParameter("only --check prints JSON", param_hint="--json")
    options: dict[str, Any] = {"store": store, "host": host, "port": port, "workers": workers, "tokens": tokens}
    options |= {
        "placement": placement,
        "packed": None if packed is None else {"hosts": packed},
        "console": console or None,
    }
    options |= {"telemetry": {} if telemetry else None}
    chosen = {name: value for name, value in options.items() if value is not None}
    with ExitStack() as stack:
        stack.enter_context(_ended_by_sigterm())
        if demo and not os.environ.get("OPENAI_API_KEY") and not (model or config):
            model, base_url = "stand-in", stack.enter_context(_stand_in())
        if demo and store is None and config is None:
            folder = stack.enter_context(TemporaryDirectory(prefix="turnwise-"))
            chosen["store"] = f"sqlite:///{folder}/sessions.db"
        elif store is None and config is None and (named := os.environ.get(STORE)):
            chosen["store"] = named
        _serve(config, chosen, _engine(model, base_url), ray_serve=ray_serve, check=check, as_json=as_json)


def _engine(model: str | None, base_url: str | None) -> Mapping[str, Any]:
    """Return what the options say about the engine."""
    if base_url and not (model or os.environ.get(MODEL)):
        raise ConfigError("--base-url", base_url, "give --model, too")
    return {name: value for name, value in (("model", model), ("base_url", base_url)) if value}


def _serve(
    file: Path | None,
    chosen: dict[str, Any],
    engine: Mapping[str, Any],
    *,
    ray_serve: bool,
    check: bool,
    as_json: bool,
) -> None:
    """Read the configuration, and check or serve it."""
    try:
        from turnwise.http import config as configuration
        from turnwise.http.assembly import assemble
        from turnwise.http.server import processes
        from turnwise.http.server.log import configure_logging
    except ModuleNotFoundError as error:
        reason = f"there is no module {error.name}: pip install 'turnwise[http]'"
        raise ConfigError("turnwise serve", "http", reason) from None
    configure_logging()
    config, source = configuration.load(file, **chosen)
    if engine and config.engines:
        raise ConfigError("--model", engine.get("model"), f"{file} has engines: change the model there")
    model = os.environ.get(MODEL)
    if engine or (not config.engines and (model or os.environ.get("OPENAI_API_KEY"))):
        chosen["engines"] = {"main": {"model": model or configuration.DEFAULT_MODEL, **engine}}
        config, source = configuration.load(file, **chosen)
    if not config.has_auth and os.environ.get(TOKENS):
        chosen["tokens_variable"] = TOKENS
        config, source = configuration.load(file, **chosen)
    if check:
        _report(assemble(config, source), source, as_json=as_json)
    elif ray_serve:
        try:
            from turnwise.http.ray_serve import serve_on_ray
        except ModuleNotFoundError as error:
            reason = f"there is no module {error.name}: pip install 'ray[serve]'"
            raise ConfigError("--ray-serve", True, reason) from None
        serve_on_ray(config, source, _print_commands)
    else:
        processes.serve(config, source, _print_commands)


@contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """Let SIGTERM end the process in order, as long as nothing else is done about it: while the service starts."""
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _stand_in() -> Iterator[str]:
    """Simulate a model as long as this lasts; yields its URL."""
    from turnwise.testing.local_provider.server import LocalProvider

    os.environ |= {"NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}  # sessions inherit it
    with LocalProvider(token_delay_s=0.02) as provider:
        yield provider.base_url


def _report(assembly: Assembly, source: Source, *, as_json: bool) -> None:
    """Say what would be served, once the store has answered."""
    import asyncio

    from turnwise.http.server.processes import check_store
    from turnwise.memory.stores.urls import redact

    config = assembly.config
    asyncio.run(check_store(config, source))
    auth = config.auth or (
        f"tokens from {config.tokens or config.tokens_variable}" if config.has_auth else "nobody asked"
    )
    rows = {
        "store": redact(config.store),
        "listens on": f"{config.host}:{config.port}, {config.workers} worker{'s' * (config.workers > 1)}",
        "users": auth,
        "sessions": str(config.session_placement),
    }
    for name, engine in assembly.engines.items():
        tools = [tool.name for tool in getattr(getattr(engine, "registry", None), "tools", ())]
        rows[f"engine {name}"] = ", ".join(
            [str(getattr(engine, "model", type(engine).__name__)), *(f"tool {tool}" for tool in tools)]
        )
    for n, memory in enumerate(config.memories):
        rows[f"memory {n}"] = memory.object or f"{memory.kind}: {redact(str(memory.store or memory.file))}"
    if config.telemetry:
        rows["telemetry"] = "exported as the OTEL_* variables say"
    rows["serves"] = " ".join([*assembly.app.openapi()["paths"], *(["/console"] if config.console else [])])
    if as_json:
        print_json(rows)
        return
    width = max(map(len, rows))
    for name, text in rows.items():
        typer.echo(f"{name:<{width}}  {text}")
    typer.echo("valid: `turnwise serve` with the same options serves this")


def commands(assembly: Assembly, url: str) -> list[str]:
    """Return what to try: commands of the shell, and the console's URL. With tokens, they take one from a variable."""
    has_auth = assembly.config.has_auth
    bearer = f' -H "Authorization: Bearer ${TOKEN}"' if has_auth else ""
    post = f"curl -s{bearer} -H 'Content-Type: application/json' '{url}/v1/sessions"
    open_it, run_it = '{"id": "hello"}', '{"prompt": "Hello!"}'
    key = f"__import__('os').environ['{TOKEN}']" if has_auth else "'none'"
    make = f"from openai import OpenAI; client = OpenAI(base_url='{url}/openai/v1', api_key={key})"
    ask = f"client.responses.create(model='{next(iter(assembly.engines))}', input='Hello!').output_text"
    return [
        f"{post}' -d '{open_it}' && {post}/hello/runs?wait_s=60' -d '{run_it}'",
        f'{_python()} -c "{make}; print({ask})"',
        *([f"{url}/console"] if assembly.config.console else []),
    ]


def _python() -> str:
    """Return the command of this Python, which has turnwise and openai."""
    executable = shutil.which("python")
    if executable and Path(executable).resolve() == Path(sys.executable).resolve() and sys.prefix in executable:
        return "python"
    path = Path(sys.executable)
    return shlex.quote(str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path))


def _print_commands(assembly: Assembly, url: str) -> None:
    typer.echo(f"turnwise serves {_shown(assembly.config)} at {url}; its API: {url}/docs\n\nTry:\n")
    for command in commands(assembly, url):
        typer.echo(f"  {command}\n")
    if assembly.config.has_auth:
        typer.echo(f"{TOKEN} is the token that they send.")
    if not assembly.config.console:
        typer.echo(f"--console adds a web console at {url}/console.")
    typer.echo("Stop it with Ctrl+C or SIGTERM.")
    sys.stdout.flush()


def _shown(config: ServiceConfig) -> str:
    from turnwise.memory.stores.urls import redact

    return redact(config.store)
