"""Makes the pages of docs/reference from the code: `make reference`."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from textwrap import fill
from typing import Annotated, Any, get_args, get_origin

import griffe
from typer.main import get_command

import turnwise
from turnwise import (
    adapters,
    blocks,
    client,
    conformance,
    console,
    dataset,
    engines,
    errors,
    events,
    http,
    memories,
    replay,
    results,
    stores,
    strategies,
    telemetry,
    testing,
    transcripts,
)
from turnwise.actors.client.manager import AsyncSessionManager
from turnwise.actors.hosting.verbs import VERBS
from turnwise.actors.inference.echo import EchoEngine
from turnwise.cli import app
from turnwise.errors import TurnwiseError
from turnwise.http.config import PREFIX
from turnwise.http.problems import status_of
from turnwise.http.settings import HttpSettings
from turnwise.memory.longterm.memory_access import MemoryAccess
from turnwise.memory.providers.endpoints import CHAT_ONLY, PROFILES, Profile
from turnwise.memory.values import checked_settings

ROOT = Path(__file__).parents[3]
REFERENCE = ROOT / "docs/reference"

MODULES = {
    "turnwise": "For a first program and an agent. The other modules have the rest.",
    **{
        module.__name__: (module.__doc__ or "")
        for module in (results, engines, memories, stores, strategies, transcripts, dataset)
    },
    **{
        module.__name__: (module.__doc__ or "")
        for module in (conformance, replay, testing, http, client, console, telemetry, adapters)
    },
}

OTHER_VARIABLES = {
    "TURNWISE_STORE": "The store of commands that are given none.",
    "TURNWISE_HTTP_TOKENS": (
        "Bearer tokens as JSON, for `turnwise serve` without other tokens, and for `BearerTokens.from_environment()`."
    ),
    "TURNWISE_TOKEN": (
        "The token of commands with `--server`, and in those that `turnwise serve` prints; no service reads it."
    ),
    "TURNWISE_WEBHOOK_SECRET": "The secret of the webhook that `turnwise webhooks add` adds; a random one without it.",
    "TURNWISE_SEED": "The one seed, or case, that `turnwise.testing.explore` and `exhaust` replay.",
    "OPENAI_API_KEY": "The key of `OpenAIEngine`, read where the engine is built: in the session's process.",
    "OPENAI_BASE_URL": "The server of `OpenAIEngine`, read in the same place.",
    "OPENAI_ORG_ID": "The organization that is charged, unless the engine names one.",
    "OPENAI_PROJECT_ID": "The project that is charged, unless the engine names one.",
    "OPENAI_MODEL": "The model of `turnwise chat`, `serve` and `mcp` if neither `--model` nor a file names one.",
    "ANTHROPIC_API_KEY": "The key of `AnthropicEngine`, read where the engine is built: in the session's process.",
    "ANTHROPIC_BASE_URL": "The server of `AnthropicEngine`, read in the same place.",
    "RAY_ADDRESS": "The Ray to join. Without it, and if none runs on this machine, a manager starts one.",
    "RAY_AUTH_MODE": "`token` for a Ray that asks for a token. Set it before Ray is imported.",
    "RAY_AUTH_TOKEN": "That token, unless the file `~/.ray/auth_token` has it.",
    "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT": (
        "Whether spans contain prompts and answers, if `Telemetry(content=...)` is left out: `true`, `1`, `span_only`"
        " or `span_and_event`."
    ),
    "OTEL_TRACES_EXPORTER": "The exporters of traces, such as `otlp` or `console`; `otlp` if omitted.",
    "OTEL_METRICS_EXPORTER": "The exporters of metrics, in the same way.",
    "OTEL_EXPORTER_OTLP_PROTOCOL": (
        "`grpc` or `http/protobuf`; `grpc` if omitted. `OTEL_EXPORTER_OTLP_TRACES_PROTOCOL` and"
        " `OTEL_EXPORTER_OTLP_METRICS_PROTOCOL` come first."
    ),
    "OTEL_BSP_SCHEDULE_DELAY": "How long ended spans wait to be exported together, in milliseconds.",
    "TIKTOKEN_CACHE_DIR": "Where tiktoken keeps its vocabularies, which it downloads at first use.",
}
"""Variables that no class of settings has."""

ELSEWHERE = ("typing", "turnwise._exports", "turnwise.errors.", "turnwise.memory.conversation.events")
"""What has no entry on a module's page; errors and events have pages of their own."""

NOTE = "<!-- Made from the code by `make reference`. -->\n"


def public_modules() -> Sequence[str]:
    """Return the modules that the docstring of the package names."""
    return re.findall(r"`(turnwise\.\w+)`", turnwise.__doc__ or "")


@cache
def package() -> griffe.Module:
    loaded = griffe.load("turnwise", search_paths=[str(ROOT / "src")], docstring_parser="google")
    assert isinstance(loaded, griffe.Module)
    return loaded


def pages() -> Mapping[str, str]:
    """Return the text of each page, by the name of its file."""
    texts = dict(module_pages())
    return texts | {
        "events.md": events_page(),
        "errors.md": errors_page(),
        "environment.md": environment_page(),
        "settings.md": settings_page(),
        "verbs.md": verbs_page(),
        "routes.md": routes_page(),
        "endpoints.md": endpoints_page(),
        "limits.md": limits_page(),
        "commands.md": commands_page(),
        "examples.md": examples_page(),
    }


def module_pages() -> Iterator[tuple[str, str]]:
    """Yield a page for each public module. A name that several modules have is described in the first one."""
    described: dict[str, str] = {}
    for module, about in MODULES.items():
        module_object = package() if module == "turnwise" else package()[module.partition(".")[2]]
        homes = {
            name: alias.target_path for name, alias in module_object.members.items() if isinstance(alias, griffe.Alias)
        }
        homes = {name: home for name, home in homes.items() if not home.startswith(ELSEWHERE)}
        links = [f"[`{name}`][{described[home]}]" for name, home in homes.items() if home in described]
        own = [name for name, home in homes.items() if home not in described]
        described |= {homes[name]: f"{module}.{name}" for name in own}
        lines = [f"# {module}\n", NOTE, about.strip() + "\n"]
        if module == "turnwise":
            lines.append("Errors have [a page of their own](errors.md), and so have [events](events.md).\n")
        if links:
            lines.append(f"Also here, and described elsewhere: {', '.join(links)}.\n")
        lines += [f"::: {module}.{name}\n" for name in twins_together(own)]
        if module == "turnwise":
            lines.append(f"::: {blocks.__name__}\n    options:\n      heading: turnwise.blocks\n")
        yield f"{module}.md", "\n".join(lines)


def twins_together(names: Sequence[str]) -> list[str]:
    """Return the names so that each class comes before its asynchronous twin."""
    place = {name: (index, 0) for index, name in enumerate(names)}
    twins = {name: name.removeprefix("Async") for name in names if name.removeprefix("Async") != name}
    place |= {name: (place[twin][0], 1) for name, twin in twins.items() if twin in place}
    return sorted(names, key=place.__getitem__)


def cell(text: object) -> str:
    """Return a text as it stands in a cell of a table: its first paragraph, on one line."""
    first = str(text).strip().partition("\n\n")[0]
    return re.sub(r"\s+", " ", first).replace("|", "\\|")


def table(head: str, rows: Iterator[tuple[str, ...]]) -> str:
    lines = [f"| {head} |", f"|{'---|' * (head.count('|') + 1)}"]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)]) + "\n"


def fields_of(path: str) -> Iterator[griffe.Attribute]:
    """Yield the public fields of a class, those of its bases first, as the source has them."""
    cls = package()[path]
    for base in cls.bases:
        if (base_path := getattr(base, "canonical_path", "")).startswith("turnwise."):
            yield from fields_of(base_path.removeprefix("turnwise."))
    for member in cls.members.values():
        is_field = isinstance(member, griffe.Attribute) and "instance-attribute" in member.labels
        if is_field and member.annotation and not member.name.startswith("_"):
            yield member


def events_page() -> str:
    everywhere = {field.name for field in fields_of("memory.conversation.events.Event")}
    kinds = [kind for kind in get_args(get_args(events.AnyEvent)[0]) if kind is not events.UnknownEvent]

    def rows() -> Iterator[tuple[str, ...]]:
        for cls in sorted(kinds, key=lambda cls: str(cls.model_fields["kind"].default)):
            own = [name for name in cls.model_fields if name not in everywhere]
            kind_of_storage = "live only" if cls.live else "stored, the run's last" if cls.terminal else "stored"
            kind = str(cls.model_fields["kind"].default)
            yield f"`{kind}`", kind_of_storage, cell(cls.__doc__), ", ".join(f"`{name}`" for name in own)

    shared = (
        (f"`{field.name}`", f"`{cell(field.annotation)}`", about or SHARED[field.name])
        for field, about in described_fields("memory.conversation.events.Event")
    )
    return "\n".join(
        [
            "# Events\n",
            NOTE,
            ABOUT_EVENTS,
            "All events have these fields:\n",
            table("field | type | what it is", shared),
            table("kind | kept | when | further fields", rows()),
            "An event of a kind that this version does not know is `unknown`, with `stored_kind` and `payload`.\n",
        ]
    )


ABOUT_EVENTS = """\
What `execution.events()`, `session.events()`, `manager.subscribe()` and streams over HTTP yield. Stored events are
appended before they are published, so what an event says is in the store. Live events are published only, and replayed
until the run after the next one starts.
"""

SHARED = {
    "kind": "the name of the class, such as `text_delta`",
    "session_id": "the session",
    "seq": "the number of the event, which grows within its session and has gaps",
    "turn_index": "the turn that it belongs to",
    "run_id": "the run that it belongs to",
}


COMMON_ERRORS = fill(", ".join(f"`{name}`" for name in dir(turnwise) if name.endswith("Error")), 118)

ABOUT_ERRORS = f"""\
All are in `turnwise.errors`; these are in `turnwise`, too:
{COMMON_ERRORS}.

Every error that leaves turnwise is a `TurnwiseError`. Its text says what happened, to which ids, and what to do.
Its fields have the values, and it survives pickling. A command that ends with an error exits with 1, and with 2 if it
was called wrongly.
"""

ABOUT_STATUS = """\
The remedy stands in the message, mostly behind the colon. `status` is what the service answers with; its `error` is the
name in small letters without the ending, such as `session_busy`.
"""


def errors_page() -> str:
    classes = [cls for cls in vars(errors).values() if isinstance(cls, type) and issubclass(cls, TurnwiseError)]

    def rows() -> Iterator[tuple[str, ...]]:
        for cls in classes:
            fields = ", ".join(f"`{name}`" for name in cls.fields)
            message = re.sub(r"\{(\w+)(![rs])?\}", r"<\1>", cls.message)
            yield f"`{cls.__name__}`", cell(cls.__doc__), f"`{cell(message)}`", fields, str(status_of(cls_sample(cls)))

    tree = (errors.__doc__ or "").partition("\n\n")[2].rpartition("\n\n")[0]
    return "\n".join(
        [
            "# Errors\n",
            NOTE,
            ABOUT_ERRORS,
            f"```text\n{tree}\n```\n",
            ABOUT_STATUS,
            table("error | when | message | fields | status", rows()),
        ]
    )


def cls_sample(cls: type[TurnwiseError]) -> TurnwiseError:
    return cls(*("" for _ in cls.fields))


def described_fields(path: str) -> Iterator[tuple[griffe.Attribute, str]]:
    for field in fields_of(path):
        yield field, cell(field.docstring.value) if field.docstring else ""


def default_of(field: griffe.Attribute) -> str:
    """Return a field's default, as it is written."""
    value = str(field.value) if field.value is not None else ""
    if match := re.search(r"_from_environment\('\w+', (.+), \w+\)\)?", value):
        value = match[1]
    elif match := re.match(r"(?:Field|field)\((?:default=([^,]+))?", value):
        value = match[1] or ""
    if value == "tuple(MemoryCategory)":
        value = ",".join(get_args(memories.MemoryCategory) or [category.value for category in memories.MemoryCategory])
    return f"`{value}`" if value not in ("", "None") else ""


def type_of(field: griffe.Attribute) -> str:
    """Return a field's type, without the limits of its values."""
    plain = ast.unparse(_Plain().visit(ast.parse(str(field.annotation), mode="eval")))
    return f"`{cell(plain)}`"


class _Plain(ast.NodeTransformer):
    """Replaces types with limits of their values by types without."""

    def visit_Name(self, node: ast.Name) -> ast.expr:
        alias = getattr(checked_settings, node.id, None)
        return ast.Name(get_args(alias)[0].__name__) if get_origin(alias) is Annotated else node

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        if ast.unparse(node.value) == "Annotated" and isinstance(node.slice, ast.Tuple):
            return node.slice.elts[0]
        self.generic_visit(node)
        return node


def environment_page() -> str:
    def memory() -> Iterator[tuple[str, ...]]:
        for field, about in described_fields("actors.memory.config.MemoryConfig"):
            if match := re.search(r"_from_environment\('(\w+)'", str(field.value)):
                yield f"`TURNWISE_MEMORY_{match[1]}`", default_of(field), re.sub(r":? ?`TURNWISE_\w+`", "", about)

    def prefixed(prefix: str, path: str) -> Iterator[tuple[str, ...]]:
        for field, about in described_fields(path):
            yield f"`{prefix}{field.name.upper()}`", default_of(field).replace("'", ""), about

    scalar = {"store", "history_store", "namespace", "host", "port", "workers", "console", "stop_s", "tokens"}
    scalar |= {"tokens_variable", "auth", "anonymous", "encryption"}
    names = {f"`{PREFIX}{name.upper()}`" for name in scalar}
    serve = (row for row in prefixed(PREFIX, "http.config.ServiceConfig") if row[0] in names)
    prefix = str(HttpSettings.model_config["env_prefix"])
    return "\n".join(
        [
            "# Environment variables\n",
            NOTE,
            "## Memory\n",
            "Read when a `MemoryConfig` is made that leaves the setting out. With python-dotenv, a file `.env` of the",
            "working directory, or of the nearest folder above it, is read, too.\n",
            table("variable | default | what it sets", memory()),
            "## The service\n",
            "`turnwise serve` and the deployment on Ray Serve read each key of [the configuration](settings.md) from a",
            f"variable, too: `{PREFIX}PORT`, and for a key in a table `{PREFIX}ENGINES__MAIN__MODEL`. A variable comes",
            "before the file, and an option of the command before both.\n",
            table("variable | default | what it sets", serve),
            "Limits of requests, which `create_app` reads as well:\n",
            table("variable | default | what it sets", prefixed(prefix, "http.settings.HttpSettings")),
            "## Others\n",
            table("variable | what it is", ((f"`{name}`", about) for name, about in OTHER_VARIABLES.items())),
        ]
    )


TABLES = {
    "The top of the file": "http.config.ServiceConfig",
    "`[engines.<name>]`": "http.config.EngineConfig",
    "`[[memories]]`": "http.config.MemoryTable",
    "`[working_memory]`": "http.config.NotesTable",
    "`[overflow]`": "http.config.OverflowTable",
    "`[telemetry]`": "telemetry.settings.Telemetry",
    "`[session]`": "actors.session.config.SessionConfig",
    "`[session.run_budget]`, `[session.session_budget]`": "actors.session.engines.budget.Budget",
    "`[session.prices.<model>]`": "actors.session.engines.budget.Price",
    "`[session.memory]`": "actors.memory.config.MemoryConfig",
    "`[packed]`": "actors.hosting.placement.Packed",
    "`[dedicated]`": "actors.hosting.placement.Dedicated",
    "`[http]`": "http.settings.HttpSettings",
}


def settings_page() -> str:
    def rows(path: str) -> Iterator[tuple[str, ...]]:
        for field, about in described_fields(path):
            yield f"`{field.name}`", type_of(field), default_of(field), about

    parts = [
        f"## {head}\n\n{table('key | type | default | what it sets', rows(path))}" for head, path in TABLES.items()
    ]
    return "\n".join(
        [
            "# Settings of the service\n",
            NOTE,
            "The keys of the file of `turnwise serve --config`. [The service](../service.md#configuration) shows one,",
            "and `--check` says what a file would serve, or where it is wrong.\n",
            *parts,
        ]
    )


ABOUT_VERBS = """\
What the client asks a session's process. Each verb is declared once, in `actors/hosting/verbs.py`, on the function that
carries it out; client and hosts derive from that what they do with it. Public methods have pages of their own: a method
such as `Session.run` sends one of these verbs, and some methods send several.

- A verb that **reads** changes nothing and activates nothing: if no process has the session, the store answers. A
  manager with `read_only=True` sends no others.
- A verb that **waits** counts towards `max_waits` or `max_session_waits`, and its call ends after some seconds; the
  caller asks again until its own time is over.
- A verb that uses the caller's **engine** makes the session switch to the engine, strategy and memories of the manager
  that asks.
- If the process of a session dies, its verbs are carried out by the next one, perhaps for the second time. A verb that
  may **not be repeated** ends with `SessionLostError` instead.
"""


def verbs_page() -> str:
    def rows() -> Iterator[tuple[str, ...]]:
        for verb in VERBS.values():
            parameters = [*inspect.signature(verb.carry_out).parameters.values()]
            names = [parameter.name for parameter in parameters[2 if verb.holds_engine else 1 :]]
            marks = ["reads" if verb.reads else "", "waits" if verb.waits else ""]
            marks += ["uses the engine" if verb.needs_engine else "", "" if verb.repeatable else "is not repeated"]
            about = ", ".join(filter(None, marks))
            method = getattr(MemoryAccess, verb.name.removeprefix("memory."), verb.carry_out)
            does = method.__doc__ if verb.name.startswith("memory.") else verb.carry_out.__doc__
            yield f"`{verb.name}`", ", ".join(f"`{name}`" for name in names), cell(does), about

    return "\n".join(
        ["# Verbs of a session\n", NOTE, ABOUT_VERBS, table("verb | arguments | what it does | kind", rows())]
    )


ABOUT_ROUTES = """\
What [the service](../http.md) answers. `/docs` of a running service has the fields of requests and answers, with
examples; `/openapi.json` is for programs. Ids in paths are percent-encoded. With `owner`, a route is about a session
that this user shares.
"""


def routes_page() -> str:
    paths = http.create_app(AsyncSessionManager("memory://routes", engine=EchoEngine())).openapi()["paths"]
    groups: dict[str, list[tuple[str, ...]]] = {}
    for path, routes in paths.items():
        for verb, route in routes.items() if path.startswith("/v1/") else ():
            queried = [f"`{one['name']}`" for one in route.get("parameters", ()) if one["in"] == "query"]
            about = ". ".join(filter(None, (route["summary"], cell(route.get("description", "")))))
            row = f"`{verb.upper()} {path}`", about.removesuffix(".") + ".", ", ".join(queried)
            groups.setdefault(route["tags"][0], []).append(row)
    parts = [
        f"## {name.capitalize()}\n\n{table('route | what it does | query', iter(rows))}"
        for name, rows in groups.items()
    ]
    return "\n".join(["# Routes\n", NOTE, ABOUT_ROUTES, *parts])


ABOUT_ENDPOINTS = """\
How servers differ in what they accept of `OpenAIEngine`; [endpoints](../endpoints.md) says what happens with any other.
`JSON` and `beside tools` say how an answer of a type is requested, the latter where the run has tools, too. With `tool`
it is the call of a tool, `final_answer`; with `json_object`, the schema is in the instructions.
"""

FURTHER = {
    "has_short_ids": "ids of calls are nine letters and digits",
    "answers_results": "a prompt never follows results at once",
    "alternates": "prompts in a row are one message",
    "has_content": "a message of calls has content",
    "unknown_keywords": "fewer keywords in tools",
    "has_long_ids": "ids of calls may be long",
}


def endpoints_page() -> str:
    def rows() -> Iterator[tuple[str, ...]]:
        for profile in PROFILES.values():
            with_tools = profile.json_mode if profile.schema_with_tools else "tool"
            hosts, limit = ", ".join(profile.hosts) or "by name", f"`{profile.limit_field}`"
            yield f"[{profile.name}]({profile.source})", hosts, limit, profile.json_mode, with_tools, further(profile)

    def missing() -> Iterator[tuple[str, ...]]:
        for name, lacks in {name: profile.lacks for name, profile in PROFILES.items() if profile.lacks}.items():
            seed = PROFILES[name].seed_field
            yield name, ", ".join(f"`{one}`" for one in lacks), "" if seed == "seed" else f"`{seed}`"
        yield "the Responses API", ", ".join(f"`{one}`" for one in sorted(CHAT_ONLY)), ""

    return "\n".join(
        [
            "# Servers\n",
            NOTE,
            ABOUT_ENDPOINTS,
            table("`provider` | host | limit of an answer | JSON | beside tools | also", rows()),
            "## Parameters that a server lacks\n",
            table("server | refused parameters of runs | the seed is sent as", missing()),
        ]
    )


def further(profile: Profile) -> str:
    """Return in which further ways a server differs."""
    labels = [label for name, label in FURTHER.items() if getattr(profile, name)]
    labels += [] if profile.stream_options else ["no `stream_options`"]
    return ", ".join(labels + ([] if profile.returns_thoughts == "never" else ["thoughts go back with calls"]))


ABOUT_LIMITS = """\
What has too many parts is refused before any is looked at. `TooManyError` names the bound and the count; over HTTP it
is 422, in OpenAI's dialects 400.
"""

LIMITS = {
    "MAX_BLOCKS": "memory.values.limits",
    "MAX_WAITING_BLOCKS": "memory.values.limits",
    "MAX_BRANCHES": "memory.values.limits",
    "MAX_PROMPTS_BYTES": "memory.values.limits",
    "MAX_VALUES": "memory.values.limits",
    "MAX_DEPTH": "memory.values.frozen_json",
    "MAX_MESSAGES": "memory.values.limits",
    "MAX_WINDOW_BLOCKS": "memory.values.limits",
    "MAX_TOOLS": "memory.conversation.calls.run_tools",
    "MAX_NAMES": "memory.values.limits",
    "MAX_PAGE": "memory.values.weights",
    "PAGE_BYTES": "memory.values.weights",
    "MAX_BODY_DEPTH": "http.middleware.counts",
    "MAX_DIGITS": "http.middleware.counts",
    "MAX_PARAMETERS": "http.middleware.counts",
}
"""The modules of the bounds of what one call may bring."""


def limits_page() -> str:
    def rows() -> Iterator[tuple[str, ...]]:
        for name, module in LIMITS.items():
            docstring = package()[f"{module}.{name}"].docstring
            assert docstring
            yield f"`{name}`", f"{getattr(import_module(f'turnwise.{module}'), name):,}", cell(docstring.value)

    return "\n".join(["# Limits of a call\n", NOTE, ABOUT_LIMITS, table("bound | value | what it limits", rows())])


ABOUT_COMMANDS = """\
`--help` of a command describes its options; [the command line](../cli.md) says what all share.
"""


def commands_page() -> str:
    def rows(commands: Mapping[str, Any], before: str) -> Iterator[tuple[str, ...]]:
        for name, command in commands.items():
            if group := getattr(command, "commands", None):
                yield from rows(group, f"{before} {name}")
            else:
                options = [f"`{one.opts[0]}`" for one in command.params if one.param_type_name == "option"]
                yield f"`{before} {name}`", cell(command.help), ", ".join(options)

    commands: Mapping[str, Any] = vars(get_command(app))["commands"]
    return "\n".join(
        ["# Commands\n", NOTE, ABOUT_COMMANDS, table("command | what it does | options", rows(commands, "turnwise"))]
    )


ABOUT_EXAMPLES = """\
Each is one file of the repository's folder `examples`, to copy and change; its first lines say how to run it. Without
`OPENAI_API_KEY`, a simulated model answers; with it, `OPENAI_MODEL` and `OPENAI_BASE_URL` choose the model. In
notebooks, `SessionManager` blocks the cell; `AsyncSessionManager` is awaited at the top level. Engines and tools of a
cell travel by value.
"""

OTHER_EXAMPLES = {
    "notebook.ipynb": "Sessions, turns, runs, events and memories as tables.",
    "tutorial/tutorial.ipynb": "The tutorial as a notebook.",
    "grafana.json": "A dashboard of the metrics.",
    "serve.toml": "Settings of `turnwise serve`.",
    "serve_config.yaml": "Settings of `serve deploy`.",
}
"""What examples show that are no programs."""


def examples_page() -> str:
    examples = ROOT / "examples"

    def rows(files: Iterable[Path]) -> Iterator[tuple[str, ...]]:
        for file in files:
            about = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8")))
            yield f"`{file.relative_to(examples).as_posix()}`", cell((about or "").partition("\n")[0])

    rest = ((f"`{name}`", about) for name, about in OTHER_EXAMPLES.items())
    listed = [*rows(sorted(examples.glob("*.py"))), *rows(sorted(examples.glob("*/*.py"))), *rest]
    return "\n".join(["# Examples\n", NOTE, ABOUT_EXAMPLES, table("file | what it shows", iter(listed))])


def main() -> None:
    REFERENCE.mkdir(exist_ok=True)
    for name, text in pages().items():
        (REFERENCE / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
