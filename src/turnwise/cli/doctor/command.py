"""`turnwise doctor`: look for what may be wrong, and say what to do."""

from __future__ import annotations

import asyncio
import os
import platform
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from turnwise.cli.common import FAILED, STORE, AsJson, sqlite_file, standby, still
from turnwise.cli.doctor.process_facts import Facts, facts
from turnwise.cli.output import console, one_line, print_json
from turnwise.errors import SchemaMissingError, SchemaVersionError, TurnwiseError
from turnwise.memory.stores.sql.sqlite_owner import lock_holder, running_owner

State = Literal["ok", "warn", "fail", "unknown"]

STYLES: Mapping[State, str] = {"ok": "green", "warn": "yellow", "fail": "bold red", "unknown": "dim"}

LITTLE, TOO_LITTLE = 1 << 30, 100 << 20
"""With less free disk space than this, in bytes, there is a warning, or a failure."""

_NOT_FOUND, _SERVER_ERROR = 404, 500  # statuses of HTTP

_GIGABYTE = 1 << 30

_RAY_FOLDERS = ("/tmp/ray", "/dev/shm")  # noqa: S108 - where Ray has its logs, and its objects


@dataclass(frozen=True)
class Finding:
    """The result of one check."""

    check: str
    state: State
    message: str
    do: str = ""
    """What to do about it."""


def doctor(
    url: Annotated[
        str,
        typer.Argument(metavar="STORE", envvar=STORE, show_default=False, help="The store to look at, if any."),
    ] = "",
    *,
    base_url: Annotated[
        str | None, typer.Option(help="The URL of the model's server; OPENAI_BASE_URL of the workers if omitted.")
    ] = None,
    start_ray: Annotated[
        bool, typer.Option("--start-ray", help="If there is no Ray to join, start one for the time of the checks.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Look for what may be wrong, and say what to do: Ray, the store, the endpoint, files and packages.

    Exits with 1 if something fails. It changes nothing, and starts no Ray unless told to. The key is never shown.
    """
    findings = list(_findings(url, base_url, start_ray=start_ray))
    if as_json:
        print_json([asdict(finding) for finding in findings])
    else:
        _show(findings)
    if any(finding.state == "fail" for finding in findings):
        raise typer.Exit(FAILED)


def _show(findings: Sequence[Finding]) -> None:
    from rich.text import Text

    out = console()
    width = max(len(finding.check) for finding in findings)
    for finding in findings:
        line = Text.assemble(
            (f"{finding.state:<7} ", STYLES[finding.state]), f"{finding.check:<{width}}  ", one_line(finding.message)
        )
        out.print(line, soft_wrap=True)
        if finding.do:
            out.print(Text(f"{'':<{width + 8}}  → {one_line(finding.do)}"), soft_wrap=True)


def _findings(store: str, base_url: str | None, *, start_ray: bool) -> Iterator[Finding]:
    yield Finding("turnwise", "ok", f"{version('turnwise')}, Python {platform.python_version()}, {sys.platform}")
    yield from _packages()
    has_ray, *about_ray = list(_ray(start_ray))
    yield from (finding for finding in about_ray if isinstance(finding, Finding))
    folders = tuple(dict.fromkeys(filter(os.path.isdir, [_folder_of(store), *_RAY_FOLDERS])))
    if store:
        yield from _store(store, _address() if has_ray else None)
    if has_ray:
        yield from _workers(base_url, folders)
    else:
        reason = "the workers' environment was not looked at: --start-ray does"
        yield Finding("workers", "unknown", reason)
        yield from _environment(facts(base_url, folders), "this process")


# Packages.


def _packages() -> Iterator[Finding]:
    for extra, names in sorted(_extras().items()):
        there = {name: _version(name) for name in names}
        lacks = [name for name, version in there.items() if version is None]
        if lacks:
            yield Finding(f"[{extra}]", "ok", f"not installed: pip install 'turnwise[{extra}]' adds {', '.join(lacks)}")
        else:
            yield Finding(f"[{extra}]", "ok", ", ".join(f"{name} {version}" for name, version in there.items()))


def _extras() -> dict[str, list[str]]:
    """Return the packages of each optional extra, but for those of turnwise's own developers and tests."""
    packages: dict[str, list[str]] = {}
    for line in requires("turnwise") or ():
        if (extra := re.search(r"extra == ['\"]([\w-]+)['\"]", line)) and extra[1] not in ("dev", "test"):
            name = re.match(r"[\w.-]+", line)
            if name and name[0] != "turnwise":
                packages.setdefault(extra[1], []).append(name[0])
    return packages


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


# Ray.


def _ray(start_ray: bool) -> Iterator[Any]:
    """Yield whether this process has a Ray, then what was found about it."""
    from turnwise.actors.cluster.ray_address import ray_to_join

    address = ray_to_join()
    if not address and not start_ray:
        reason = (
            f"{_version('ray') or 'not installed'}; none is running here: commands do without, programs start one"
            " unless they have InProcess(), and runs end with their program"
        )
        yield False
        yield Finding(
            "ray", "warn", reason, "`ray start --head` lets runs outlive programs, which find it by themselves"
        )
        return
    from turnwise.actors.cluster.diagnosis import ray_facts, ray_version
    from turnwise.actors.cluster.ray_runtime import connect

    try:
        connect(logs=False)
    except TurnwiseError as error:
        yield False
        yield Finding("ray", "fail", f"{ray_version()}; {error}")
        return
    yield True
    facts = ray_facts()
    description = f"{facts.version} at {facts.address}, {facts.nodes} node{'s' * (facts.nodes != 1)}"
    yield Finding("ray", "ok", description if address else f"{description}, started for these checks")
    if facts.dead_nodes:
        yield Finding(
            "ray nodes", "warn", f"lost: {', '.join(facts.dead_nodes)}",
            "their sessions go on elsewhere: start these nodes again, if they are missed",
        )  # fmt: skip
    cpus, memory = facts.resources.get("CPU", 0), facts.resources.get("memory", 0)
    free = f"{facts.free.get('CPU', 0):g} of {cpus:g} CPUs free, {memory / _GIGABYTE:.1f} GB for its processes"
    yield Finding("ray resources", "ok", free)
    if facts.has_token or not address:
        yield Finding("ray access", "ok", "by a token" if facts.has_token else "of this machine alone")
    else:
        yield Finding(
            "ray access", "warn", "whoever reaches its ports may run code there",
            "keep its ports inside a trusted network, or set RAY_AUTH_MODE=token",
        )  # fmt: skip


def _address() -> str:
    from turnwise.actors.cluster.ray_runtime import this_ray

    return this_ray().address


# The store.


def _store(url: str, ray: str | None) -> Iterator[Finding]:
    from turnwise.memory.stores.urls import redact, resolve_url

    try:
        resolved = resolve_url(url)
    except TurnwiseError as error:
        yield Finding("store", "fail", str(error))
        return
    if resolved.startswith("memory:"):
        yield Finding(
            "store", "warn", f"{url} lasts as long as its Ray", "use SQLite, PostgreSQL or Redis to keep sessions"
        )
        return
    file = sqlite_file(resolved)
    if file and not file.exists():
        if file.parent.is_dir() and os.access(file.parent, os.W_OK):
            yield Finding(
                "store", "warn", f"there is no file {file}", "check the path; the first program that uses it makes it"
            )
        else:
            yield Finding(
                "store", "fail", f"there is no file {file}, and none can be made", "make its folder, writable"
            )
        return
    read = asyncio.run(_read(url, redact(url)))
    yield read
    if read.state == "ok" and (text := asyncio.run(standby(url))):
        yield Finding("store server", "warn", text, "name the primary for programs that write")
    if file:
        if not os.access(file, os.W_OK):
            yield Finding("store file", "fail", f"{file} is not writable", "change its owner or its mode")
        yield _owner(file, ray)


async def _read(url: str, shown: str) -> Finding:
    """Read a store, and say what it has."""
    from turnwise.memory.stores.urls import open_store, read_only

    try:
        with still(url) as opened:
            store = await asyncio.to_thread(open_store, read_only(opened))
            try:
                count = await store.count()
            finally:
                await store.close()
    except SchemaMissingError as error:
        return Finding("store", "warn", str(error), f"turnwise migrate {shown}")
    except SchemaVersionError as error:
        is_old = error.found.isdecimal() and int(error.found) < error.known
        do = f"turnwise migrate {shown}" if is_old else "upgrade turnwise here: pip install --upgrade turnwise"
        return Finding("store", "warn" if is_old else "fail", str(error), do)
    except TurnwiseError as error:
        return Finding("store", "fail", str(error))
    return Finding("store", "ok", f"{shown}: {_schema(url)}{count:,} session{'s' * (count != 1)}")


def _schema(url: str) -> str:
    if not url.startswith(("sqlite", "postgresql")):
        return ""
    from turnwise.memory.stores.sql.schema import SCHEMA

    return f"schema version {SCHEMA.version}, "


def _owner(file: Path, ray: str | None) -> Finding:
    """Say which Ray uses a SQLite file."""
    if sys.platform == "linux":
        holder = lock_holder(file)
        if holder is None:
            return Finding("store owner", "ok", "no Ray and no other process has the file open")
        owner, by = holder.owner, f", by process {holder.pid}"
    else:
        last = running_owner(file)
        if last is None:
            return Finding("store owner", "unknown", "who had the file open last has ended; this system says no more")
        owner, by = last, ", which had it open last"
    if owner.is_process:
        return Finding(
            "store owner", "warn", f"{owner.name}, and no other may use it", "end that process, or only read"
        )
    address = owner.address
    who = f"the Ray at {address or 'an unknown address'}{by}"
    if ray is not None and ray == address:
        return Finding("store owner", "ok", f"{who}: the one that programs here join")
    from turnwise.memory.stores.store_owner import naming

    do = f"set {naming(address)}" if address else "end that process"
    return Finding("store owner", "warn", f"{who}, and no other may use it", f"{do}, or only read")


def _folder_of(store: str) -> str:
    """Return the folder whose disk the store needs."""
    from turnwise.memory.stores.urls import resolve_url

    try:
        file = sqlite_file(resolve_url(store)) if store else None
    except TurnwiseError:
        file = None
    return str(file.parent if file else Path.cwd())


# What sessions' processes find.


def _workers(base_url: str | None, folders: tuple[str, ...]) -> Iterator[Finding]:
    from turnwise.actors.cluster.diagnosis import ask_workers

    for node, answer in ask_workers(facts, base_url, folders).items():
        if isinstance(answer, Facts):
            yield from _environment(answer, f"workers on {node}")
        else:
            do = "is turnwise installed there, in the same version?"
            yield Finding("workers", "fail", f"a worker on {node} cannot look: {answer}", do)


def _environment(facts: Facts, where: str) -> Iterator[Finding]:
    own = version("turnwise")
    if facts.turnwise != own or facts.python.rpartition(".")[0] != platform.python_version().rpartition(".")[0]:
        description = f"{where}: turnwise {facts.turnwise or 'is not installed'}, Python {facts.python}"
        yield Finding("versions", "fail", description, f"install turnwise {own} on the same Python there")
    yield _key(facts, where)
    if facts.problem:
        do = "set OPENAI_BASE_URL where `ray start` runs, or give engines a base_url; is there a proxy or a firewall?"
        yield Finding(
            "endpoint",
            "fail" if facts.is_chosen else "warn",
            f"{where}: {facts.endpoint} does not answer: {facts.problem}",
            do,
        )
    else:
        yield _answer(facts, where)
    if facts.vocabulary:
        yield Finding("vocabulary", "ok", f"{where}: {facts.vocabulary}")
    else:
        reason = f"{where}: the vocabulary o200k_base is not there, and is fetched at first use"
        do = "without a network, put its file into TIKTOKEN_CACHE_DIR; else bytes are counted, which is too much"
        yield Finding("vocabulary", "warn", reason, do)
    if facts.embedding:
        yield Finding("embedding", "ok", f"{where}: {facts.embedding}")
    else:
        reason = f"{where}: Chroma's default model is not there; a VectorMemory fetches 80 MB at first use"
        yield Finding(
            "embedding", "warn", reason, "nothing, without a VectorMemory; until then it finds by words alone"
        )
    if facts.uncompiled:
        reason = f"{where}: each process compiles these again: {', '.join(facts.uncompiled)}; so it starts slowly"
        do = "run `python -m compileall` on their folders once, or unset PYTHONDONTWRITEBYTECODE where `ray start` runs"
        yield Finding("imports", "warn", reason, do)
    for folder, free in facts.free_bytes.items():
        state: State = "fail" if free < TOO_LITTLE else "warn" if free < LITTLE else "ok"
        yield Finding(
            "disk", state, f"{where}: {free / _GIGABYTE:.1f} GB free in {folder}", "make room" * (state != "ok")
        )


def _answer(facts: Facts, where: str) -> Finding:
    """Say what the endpoint answered. `_key` reports a refused key."""
    status = facts.status or 0
    answers = f"{where}: {facts.endpoint} answers"
    if status == _NOT_FOUND:
        do = "does the URL end in /v1? Some servers have no list of models: then all is well"
        return Finding("endpoint", "warn", f"{answers} 404 to GET /models", do)
    if status >= _SERVER_ERROR:
        return Finding("endpoint", "warn", f"{answers} with status {status}", "see the server's own log, or try later")
    return Finding("endpoint", "ok", answers)


def _key(facts: Facts, where: str) -> Finding:
    if facts.is_key_refused and facts.is_chosen:
        problem = "is refused" if facts.has_key else "is missing, and is needed"
        do = "correct OPENAI_API_KEY where `ray start` runs, or give engines an api_key"
        return Finding("key", "fail", f"{where}: the key for {facts.endpoint} {problem}", do)
    if not facts.has_key:
        do = "set OPENAI_API_KEY where `ray start` runs, or give engines an api_key, which travels with them"
        return Finding("key", "warn", f"{where}: OPENAI_API_KEY is not set", do)
    return Finding("key", "ok", f"{where}: OPENAI_API_KEY is set")
