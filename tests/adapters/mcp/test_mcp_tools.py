"""Tools and resources of MCP servers, by the official client: real programs, and real streamable HTTP."""

from __future__ import annotations

import asyncio
import json
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, HTTPServer, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NoReturn

import httpx2
import pytest
from mcp import MCPError, StdioServerParameters, types
from ray import cloudpickle

from frameworks import city_mcp, rough_mcp
from patience import within
from tools.tool_calls import answer, call, context, error, use
from turnwise.actors.inference.tools.registry import ToolRegistry
from turnwise.actors.inference.tools.tool import Tool
from turnwise.adapters import McpHttp, McpStdio, mcp_documents, mcp_tools
from turnwise.adapters.mcp import connection
from turnwise.errors import ConfigError, ToolServerError
from turnwise.memory.conversation.blocks import Document, Image, Text

WAIT_S = 60.0

until = within(WAIT_S)

CITY, ROUGH = city_mcp.__file__, str(Path(city_mcp.__file__).with_name("rough_mcp.py"))


@pytest.fixture(scope="module")
def notes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("city") / "notes"


@pytest.fixture(scope="module")
def city(notes: Path) -> McpStdio:
    """A server of the official package, whose one process all tests of this module share."""
    return McpStdio(sys.executable, [CITY, str(notes)])


@pytest.fixture
def rough(tmp_path: Path) -> Callable[..., McpStdio]:
    """Makes servers that behave badly."""
    return lambda how="well", **settings: McpStdio(
        sys.executable, ["-I", "-S", ROUGH, how, str(tmp_path / "notes")], **settings
    )


@pytest.fixture
def rough_notes(tmp_path: Path) -> Callable[[], list[str]]:
    return lambda: (tmp_path / "notes").read_text().splitlines()


def named(name: str, tools: list[Tool]) -> Tool:
    return next(tool for tool in tools if tool.name == name)


def started_by(lines: list[str]) -> list[int]:
    """Return the processes that notes name."""
    return [int(line.split()[1]) for line in lines if line.startswith(("start", "child"))]


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # the latter if it ends between opening and reading
        return False


# What a server has


def test_tools_are_called_as_ours_by_one_server_for_all(city: McpStdio, notes: Path) -> None:
    tools = mcp_tools(city, prefix="city_")
    weather = named("city_weather", tools)
    assert weather.description == "Return the weather of a city."
    assert weather.parameters["properties"]["city"]["type"] == "string"
    assert answer(weather, city="Rome") == "rain in Rome"
    assert answer(named("city_pay_fine", tools), euros=3) == "paid 3 euros"
    assert "'city' is a required property" in error(weather)
    assert notes.read_text().splitlines()[1:] == ["weather Rome", "pay 3"]
    assert error(named("city_fail", tools), why="it rains").endswith("fail: it rains")

    copy: Tool = pickle.loads(cloudpickle.dumps(named("city_pid", mcp_tools(city, prefix="city_"))))
    same = named("pid", mcp_tools(McpStdio(sys.executable, [CITY, str(notes)])))
    assert answer(copy) == answer(same)
    assert notes.read_text().count("start") == 1


def test_structured_content_is_json_and_not_said_twice(city: McpStdio) -> None:
    tools = mcp_tools(city)
    forecast = call(ToolRegistry(*tools), "forecast", city="Rome").result
    assert forecast.data == {"city": "Rome", "degrees": 17} and forecast.blocks == ()
    cities = call(ToolRegistry(*tools), "cities").result
    assert cities.data == ("Paris", "Rome") and cities.blocks == ()


def test_pictures_are_blocks_and_sounds_are_said_to_be_left_out(city: McpStdio) -> None:
    result = call(ToolRegistry(*mcp_tools(city)), "postcard", city="Rome").result
    assert result.text == "Greetings from Rome"
    assert result.blocks == (
        Image.from_bytes(city_mcp.PNG, "image/png"),
        Text(text="[audio (audio/wav, 300 bytes) is left out: models get no sound]"),
    )


def test_resources_are_documents_and_can_be_read_by_tools(city: McpStdio) -> None:
    rome, city_map = mcp_documents(city)
    assert rome == Document(name="rome", text="# Rome\nAll roads lead there.")
    assert city_map == Image.from_bytes(city_mcp.PNG, "image/png")
    assert mcp_documents(city, "guide://city/rome.md") == [
        Document(name="rome.md", text="# Rome\nAll roads lead there.")
    ]
    with pytest.raises(ToolServerError, match=r"resource 'guide://city/oslo\.md': Unknown resource"):
        mcp_documents(city, "guide://city/oslo.md")

    tools = mcp_tools(city, allow=[], resources=True)
    assert [tool.name for tool in tools] == ["list_resources", "read_resource"]
    listed = answer(tools[0])
    assert listed.splitlines()[0] == "[resource rome at guide://city/rome.md (text/markdown): A guide to Rome.]"
    read = call(ToolRegistry(*tools), "read_resource", uri="guide://city/rome.md").result
    assert read.blocks == (Document(name="rome.md", text="# Rome\nAll roads lead there."),)
    assert "Unknown resource" in error(tools[1], uri="guide://city/oslo.md")


def test_approvals_and_repeats_are_by_name_by_hint_or_by_a_function(city: McpStdio) -> None:
    def approved(**settings: Any) -> set[str]:
        tools = mcp_tools(city, **settings)
        return {tool.name for tool in tools if tool.needs_approval({"euros": 750}, context())}

    everything = {tool.name for tool in mcp_tools(city)}
    assert approved() == set() and approved(approve=True) == everything
    assert approved(approve=["pay.fine", "die"]) == {"pay_fine", "die"}
    dear = {"pay.fine": lambda arguments, _: arguments["euros"] > 100}
    assert approved(approve=dear) == {"pay_fine"}
    assert not named("pay_fine", mcp_tools(city, approve=dear)).needs_approval({"euros": 3}, context())
    unread = approved(approve=lambda tool: not (tool.annotations and tool.annotations.read_only_hint))
    assert unread == everything - {"weather"}

    assert [tool.name for tool in mcp_tools(city) if tool.repeatable] == ["weather"]
    assert [tool.name for tool in mcp_tools(city, repeatable=["pid"]) if tool.repeatable] == ["pid"]
    assert not any(tool.repeatable for tool in mcp_tools(city, repeatable=False))
    for setting in ("approve", "repeatable", "allow", "deny"):
        with pytest.raises(ConfigError, match=r"pay_fine.*is no tool of the server.*'pay\.fine'"):
            approved(**{setting: ["pay_fine"]})


def test_tools_that_a_server_adds_are_listed_at_the_next_request(city: McpStdio) -> None:
    before = mcp_tools(city)
    assert "sing" not in {tool_before.name for tool_before in before}
    assert answer(named("learn", before)) == "learnt"
    until(lambda: "sing" in {tool.name for tool in mcp_tools(city)})
    assert answer(named("sing", mcp_tools(city))) == "la la"


# Servers that behave badly


def test_a_list_is_asked_for_once_and_in_all_its_pages(
    rough: Callable[..., McpStdio], rough_notes: Callable[[], list[str]]
) -> None:
    names = [tool.name for tool in mcp_tools(rough("pages"))]
    assert names == [tool.name for tool in mcp_tools(rough("pages"))]
    assert names == sorted(["echo", "freeze", "rude", "die", "slowly_checked", "variable"]), "in a fixed order"
    assert rough_notes().count("tools/list") == 6
    with pytest.raises(ToolServerError, match="lists more than 1000 tools"):
        mcp_tools(rough("endless pages"))


def test_an_ended_server_is_started_again_and_reports_the_cut_call(
    rough: Callable[..., McpStdio], rough_notes: Callable[[], list[str]]
) -> None:
    tools = mcp_tools(rough())
    message = error(named("die", tools), text="a")
    assert message.startswith("ToolServerError: MCP server") and message.endswith("it may or may not have taken effect")
    assert answer(named("echo", tools), text="b") == '{"text": "b"}'
    first, second = started_by(rough_notes())
    os.kill(second, signal.SIGKILL)
    until(lambda: not is_alive(second))
    time.sleep(0.1)  # until its end is noticed: a call that comes before is cut off, which is shown above
    assert answer(named("echo", tools), text="c") == '{"text": "c"}'
    assert len(started_by(rough_notes())) == 3 and not is_alive(first)


def test_a_server_that_nobody_uses_is_ended(
    rough: Callable[..., McpStdio], rough_notes: Callable[[], list[str]]
) -> None:
    tools = mcp_tools(rough(idle_s=0.1))
    until(lambda: not is_alive(started_by(rough_notes())[0]))
    assert answer(named("echo", tools), text="a") == '{"text": "a"}'


def test_a_server_that_hangs_is_started_again_once_nobody_waits_for_it(
    rough: Callable[..., McpStdio], rough_notes: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "PROBE_S", 0.3)
    tools = mcp_tools(rough(), timeout_s=0.3)
    assert error(named("freeze", tools), text="a") == "TimeoutError: the tool did not end within 0.3 s"
    patient = named("echo", mcp_tools(rough(), timeout_s=WAIT_S))
    assert answer(patient, text="b") == '{"text": "b"}'
    starts = started_by(rough_notes())
    assert len(starts) == 2 and not is_alive(starts[0])


def test_rubbish_beside_messages_is_ignored_and_a_wrong_result_is_an_error(rough: Callable[..., McpStdio]) -> None:
    tools = mcp_tools(rough("garbage"))
    assert answer(named("echo", tools), text="a") == '{"text": "a"}'
    assert "it sent what cannot be used" in error(named("rude", tools), text="a")
    assert answer(named("echo", tools), text="b") == '{"text": "b"}'


@pytest.mark.parametrize(
    ("how", "settings", "reason"),
    [
        ("mute", {"connect_timeout_s": 1.0}, r"it did not answer within 1 s; it writes .* what is no message"),
        ("missing module", {}, r"it ended before it answered; it wrote: ModuleNotFoundError: there is no module"),
        ("", {"command": "no-such-program"}, r"it wrote: cannot start 'no-such-program': No such file"),
        ("", {"cwd": "/no/such/folder"}, r"FileNotFoundError: .*'/no/such/folder'"),
    ],
)
def test_a_server_that_cannot_be_started_is_one_typed_error(
    rough: Callable[..., McpStdio], how: str, settings: Mapping[str, Any], reason: str
) -> None:
    rough_server = rough(how)
    server = McpStdio(
        settings.get("command", rough_server.command),
        rough_server.args,
        **{k: v for k, v in settings.items() if k != "command"},
    )
    with pytest.raises(ToolServerError, match=reason):
        mcp_tools(server)


def test_of_errors_that_come_together_the_one_is_told_that_is_no_mere_end(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> NoReturn:
        ended = MCPError(code=types.CONNECTION_CLOSED, message="it ended")
        raise ExceptionGroup("both", [ended, BrokenPipeError("the pipe broke")])

    monkeypatch.setattr(connection, "stdio_client", broken)
    with pytest.raises(ToolServerError, match="BrokenPipeError: the pipe broke"):
        mcp_tools(McpStdio(sys.executable))


@pytest.mark.parametrize("how", ["slow", "endless", "elsewhere"])
def test_schemas_that_may_take_forever_are_refused_and_others_can_be_had(
    rough: Callable[..., McpStdio], how: str
) -> None:
    with pytest.raises(ConfigError, match=r"the schema of its tool 'evil' cannot be used .*: leave it out by deny="):
        mcp_tools(rough(how))
    tools = mcp_tools(rough(how), deny=["evil"])
    text = "a" * 40 + "!"
    assert "does not match" in error(named("slowly_checked", tools), text=text)  # in linear time


def test_names_are_made_such_as_models_can_call_and_never_twice(rough: Callable[..., McpStdio]) -> None:
    with pytest.raises(ConfigError, match="two of its tools are called 'a_b' here"):
        mcp_tools(rough("twins"))
    assert "a_b" in {tool.name for tool in mcp_tools(rough("twins"), deny=["a/b"])}
    first, second = (tool for tool in mcp_tools(rough("long")) if tool.name.startswith("x"))
    assert first.name != second.name and len(first.name) == len(second.name) == 64
    assert answer(mcp_tools(rough("long"), allow=["echo"])[0], self="me") == '{"self": "me"}'


def test_a_server_gets_only_the_variables_that_are_named(
    rough: Callable[..., McpStdio], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CITY_KEY", "from-the-environment")
    monkeypatch.setenv("OTHER_KEY", "of-nobody")
    tools = mcp_tools(rough(env={"GIVEN_KEY": "given-to-it"}, inherit=["CITY_KEY"]), allow=["variable"])
    values = [answer(*tools, text=f"{name}_KEY") for name in ("CITY", "GIVEN", "OTHER")]
    assert values == ["from-the-environment", "given-to-it", "none"]
    sent = cloudpickle.dumps(tools)
    assert b"from-the-environment" not in sent and b"given-to-it" in sent
    assert "given-to-it" not in repr(tools)


def test_keys_that_a_server_writes_and_its_options_are_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    program = (
        "import os, sys, time\n"
        "key = os.environ['KEY']\n"
        "for piece in ('the key: ', key[:9], key[9:], '\\nthe lines: ' + os.environ['LINES'] + ' end'):\n"
        "    sys.stderr.write(piece)\n"
        "    sys.stderr.flush()\n"
        "    time.sleep(0.05)\n"
    )
    keys = {"KEY": "first-half-second-half", "LINES": "-----BEGIN A KEY-----\nhidden-in-many-lines"}
    caplog.set_level("INFO", logger="turnwise.adapters.mcp.connection")
    with pytest.raises(ToolServerError, match=r"it wrote: \*\*\* end"):
        mcp_tools(McpStdio(sys.executable, ["-c", program, "--token=of-nobody"], env=keys))
    name = Path(sys.executable).name
    assert caplog.messages == [f"{name}: the key: ***", f"{name}: the lines: ***", f"{name}: *** end"]
    assert McpStdio("/bin/serve", ["--token=abc"]).label == "serve"
    assert McpStdio("/bin/serve", ["postgresql://ann:abc@db/x"]).label == "serve postgresql://ann:***@db/x"


@pytest.mark.by_turns
def test_no_program_of_a_server_is_left_when_its_process_is_killed(
    tmp_path: Path, rough_notes: Callable[[], list[str]]
) -> None:
    """The server ignores the end of its input and SIGTERM, and has a child that knows of neither."""
    program = (
        "import sys, time\n"
        "from turnwise.adapters import McpStdio, mcp_tools\n"
        "mcp_tools(McpStdio(sys.executable, sys.argv[1:]))\n"
        "print('ready', flush=True)\n"
        "time.sleep(600)\n"
    )
    args = [sys.executable, "-c", program, "-I", "-S", ROUGH, "stubborn", str(tmp_path / "notes")]
    process = subprocess.Popen(args, stdout=subprocess.PIPE, text=True)
    assert process.stdout and process.stdout.readline() == "ready\n"
    pids = started_by(rough_notes())
    assert len(pids) == 2 and all(map(is_alive, pids))
    process.kill()
    process.wait()
    process.stdout.close()
    until(lambda: not any(map(is_alive, pids)))


def test_a_call_that_is_cancelled_leaves_the_others_alone(city: McpStdio) -> None:
    async def main() -> None:
        registry = ToolRegistry(*mcp_tools(city))
        slow = asyncio.create_task(registry.call(use("sleep", {"seconds": 0.5}), context()))
        weather = asyncio.create_task(registry.call(use("weather", {"city": "Oslo"}), context()))
        await asyncio.sleep(0.1)
        slow.cancel()
        assert (await weather).result.text == "rain in Oslo"

    asyncio.run(main())


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        (7, r"server='7': must be McpStdio"),
        ("ftp://example.org", r"url.*must be an http"),
        ({"command": " "}, r"command.*must not be blank"),
        ({"command": "a", "args": "-v"}, r"args='-v': must be a list of texts"),
        ({"command": "a", "env": {"A": 1}}, r"env=\['A'\]: must map texts to texts"),
        ({"command": "a", "idle_s": 0}, r"idle_s=0: must be a number of seconds, above 0"),
        ({"url": "http://h/", "token": "a", "http_client": print}, r"http_client.*cannot be combined"),
    ],
)
def test_settings_that_cannot_be_are_refused_before_anything_starts(settings: Any, reason: str) -> None:
    def make() -> Any:
        if not isinstance(settings, dict):
            return mcp_tools(settings)
        return McpHttp(**settings) if "url" in settings else McpStdio(**settings)

    with pytest.raises(ConfigError, match=reason):
        make()


def test_parameters_of_the_mcp_package_are_settings_of_a_server(rough: Callable[..., McpStdio]) -> None:
    its = rough()
    parameters = StdioServerParameters(command=its.command, args=list(its.args))
    assert answer(mcp_tools(parameters, allow=["echo"])[0], text="a") == '{"text": "a"}'


# HTTP


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def started(port: int) -> subprocess.Popen[bytes]:
    process = subprocess.Popen([sys.executable, CITY, "--http", str(port)])

    def listens() -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    until(listens)
    return process


@pytest.mark.by_turns
def test_a_server_over_http_is_used_again_after_it_was_restarted() -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}/mcp"
    with pytest.raises(ToolServerError, match=rf"MCP server '{url}': ConnectError"):
        mcp_tools(url)
    process = started(port)
    try:
        tools = mcp_tools(url)
        first = answer(named("pid", tools))
        assert call(ToolRegistry(*tools), "postcard", city="Rome").result.attachments
        process.kill()
        process.wait()
        assert "ConnectError" in error(named("pid", tools))
        process = started(port)
        assert answer(named("pid", tools)) != first
        assert "connection was lost during the call" in error(named("die", tools), city="Rome")
    finally:
        process.kill()
        process.wait()


CUT = threading.Event()


class CutStream(httpx2.AsyncByteStream):
    """The first piece of a stream, and its end after `CUT`."""

    def __init__(self, stream: httpx2.AsyncByteStream) -> None:
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for piece in self._stream:
            yield piece
            while not CUT.is_set():
                await asyncio.sleep(0.01)
            return

    async def aclose(self) -> None:
        await self._stream.aclose()


class Proxy(httpx2.AsyncHTTPTransport):
    """Ends the stream by which a server says what changes, the first time."""

    has_cut = False

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        response = await super().handle_async_request(request)
        if b"subscriptions/listen" in request.content and not self.has_cut:
            self.has_cut = True
            assert isinstance(response.stream, httpx2.AsyncByteStream)
            response.stream = CutStream(response.stream)
        return response


def through_a_proxy() -> httpx2.AsyncClient:
    return httpx2.AsyncClient(transport=Proxy(), timeout=WAIT_S)


@pytest.mark.by_turns
def test_new_tools_are_found_after_a_proxy_ended_the_silent_stream() -> None:
    port = free_port()
    process = started(port)
    try:
        server = McpHttp(f"http://127.0.0.1:{port}/mcp", http_client=through_a_proxy)
        learn = named("learn", mcp_tools(server))
        CUT.set()
        time.sleep(0.3)  # until its end is noticed
        assert "sing" not in {tool.name for tool in mcp_tools(server)}
        assert answer(learn) == "learnt"
        until(lambda: "sing" in {tool.name for tool in mcp_tools(server)})
    finally:
        process.kill()
        process.wait()


@contextmanager
def answering(call: Callable[[str], Any]) -> Iterator[ThreadingHTTPServer]:
    """Serve the tools of `rough_mcp` by HTTP, with sessions. `call` gets a tool's name, and returns what is special:
    a JSON-RPC error, a status, or a status with an error."""

    class Answers(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if "id" not in request:
                return self.answer(202)
            special = call(request["params"]["name"]) if request["method"] == "tools/call" else None
            if isinstance(special, int):
                return self.answer(special)
            status, special = special if isinstance(special, tuple) else (200, special)
            result = None if special else rough_mcp.answer(request)
            outcome = {"result": result} if result else {"error": special or {"code": -32601, "message": "unknown"}}
            return self.answer(status, {"jsonrpc": "2.0", "id": request["id"], **outcome})

        def answer(self, status: int, message: Mapping[str, Any] | None = None) -> None:
            body = json.dumps(message).encode() if message else b""
            self.send_response(status)
            self.send_header("Content-Type", "application/json" if message else "text/plain")
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Mcp-Session-Id", "s1")
            with suppress(OSError):  # nobody waits any more
                self.end_headers()
                self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield server
        finally:
            server.shutdown()


def test_a_call_that_arrived_is_not_repeated_when_another_does_not() -> None:
    begun, ends = threading.Event(), threading.Event()

    def take(name: str) -> None:
        if name == "variable":
            begun.set()
            ends.wait(WAIT_S)

    async def main(server: ThreadingHTTPServer) -> list[str]:
        registry = ToolRegistry(*mcp_tools(f"http://127.0.0.1:{server.server_port}/mcp"))
        first = asyncio.create_task(registry.call(use("variable", {"text": "HOME"}), context()))
        await asyncio.to_thread(begun.wait, WAIT_S)
        await asyncio.to_thread(server.shutdown)
        server.socket.close()  # no new connections; what it has begun it ends
        second = await registry.call(use("echo"), context())
        return [(await first).result.text, second.result.text]

    with answering(take) as server:
        try:
            messages = asyncio.run(main(server))
        finally:
            ends.set()
    assert [message.endswith("it may or may not have taken effect") for message in messages] == [True, True], messages


def test_after_a_call_that_was_given_up_none_is_repeated() -> None:
    """A call that is given up may be on its way for ever, so nobody knows which one a lost connection has cut."""
    begun, ends = threading.Event(), threading.Event()

    def take(name: str) -> None:
        if name == "variable":
            begun.set()
            ends.wait(WAIT_S)

    async def main(server: ThreadingHTTPServer) -> list[str]:
        registry = ToolRegistry(*mcp_tools(f"http://127.0.0.1:{server.server_port}/mcp"))
        given_up = asyncio.create_task(registry.call(use("variable", {"text": "HOME"}), context()))
        await asyncio.to_thread(begun.wait, WAIT_S)
        given_up.cancel()
        await asyncio.wait({given_up})
        answered = await registry.call(use("echo"), context())
        await asyncio.to_thread(server.shutdown)
        server.socket.close()
        cut = await registry.call(use("echo"), context())
        return [answered.result.text, cut.result.text]

    with answering(take) as server:
        try:
            answer, error = asyncio.run(main(server))
        finally:
            ends.set()
    assert "may or may not" not in answer and error.endswith("it may or may not have taken effect"), (answer, error)


def test_a_call_is_repeated_only_when_the_server_forgot_the_session() -> None:
    calls: list[str] = []
    expired, unknown = {"code": -32001, "message": "Session not found"}, {"code": -32601, "message": "no such method"}
    special: list[Any] = [404, None, {"code": -32600, "message": "Session terminated"}]
    special += [(404, expired), None, expired, (404, unknown)]

    def take(name: str) -> Any:
        calls.append(name)
        return special.pop(0)

    with answering(take) as server:
        echo = named("echo", mcp_tools(f"http://127.0.0.1:{server.server_port}/mcp"))
        assert answer(echo, text="a") == '{"text": "a"}' and len(calls) == 2
        assert error(echo, text="b").endswith("Session terminated") and len(calls) == 3
        assert answer(echo, text="c") == '{"text": "c"}' and len(calls) == 5
        assert error(echo, text="d").endswith("Session not found") and len(calls) == 6
        assert error(echo, text="e").endswith("no such method") and not special


def test_a_token_is_sent_and_a_refusal_says_its_status() -> None:
    tokens_seen: list[str] = []

    class Refuses(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            tokens_seen.append(self.headers.get("Authorization", ""))
            self.send_response(401)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    tokens = iter(["first-token", "second-token", "third-token"])
    with HTTPServer(("127.0.0.1", 0), Refuses) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        server_settings = McpHttp(f"http://127.0.0.1:{server.server_port}/mcp?key=hidden", token=lambda: next(tokens))
        with pytest.raises(ToolServerError, match=r"/mcp': Server returned an error response \(HTTP 401\)"):
            mcp_tools(server_settings)
        server.shutdown()
    assert tokens_seen[:2] == ["Bearer first-token", "Bearer second-token"]
    assert "hidden" not in repr(ToolServerError(server_settings.label, "x"))


async def test_a_line_that_is_too_long_is_left_out_to_its_end(caplog: pytest.LogCaptureFixture) -> None:
    """A secret that is half in what is kept and half not would not be recognised."""
    key = "sk-of-a-server-0123456789"
    caplog.set_level("INFO", logger="turnwise.adapters.mcp.connection")
    told: list[str] = []
    with connection.StandardError(McpStdio("it", env={"KEY": key}), told.append) as errors:
        for line in (key * 50_000 + "\n", "the next line\n", key * 50_000):
            await asyncio.to_thread(errors.file.write, line)
            await asyncio.to_thread(errors.file.flush)
    left_out = "(what it wrote here, without an end of line, is left out)"
    assert caplog.messages == [f"it: {left_out}", "it: the next line", f"it: {left_out}"]
    assert told == [f"{left_out}\n", "the next line\n", f"{left_out}\n"]
