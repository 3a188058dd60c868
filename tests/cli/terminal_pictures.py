"""Makes the pictures of the command line in docs/images: `make pictures`.

Each is what a real terminal showed: the program runs on one, and rich draws its screen as SVG.
"""

from __future__ import annotations

import io
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import groupby
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "tests/cli"), str(ROOT / "tests/support")]

os.environ["PYTHONPATH"] = os.pathsep.join([*sys.path[:2], *filter(None, [os.environ.get("PYTHONPATH")])])

import ray  # noqa: E402 - it and its processes find the modules below by these paths
from pyte.screens import Char  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.style import Style  # noqa: E402
from rich.text import Text  # noqa: E402

from processes.terminal import CTRL_C, Terminal, turnwise  # noqa: E402
from turnwise.actors.client.blocking.manager import SessionManager  # noqa: E402
from turnwise.actors.hosting.placement import Packed  # noqa: E402
from turnwise.actors.inference.openai.engine import OpenAIEngine  # noqa: E402
from turnwise.testing import LocalProvider, Message  # noqa: E402

IMAGES = ROOT / "docs/images"

SKY = (
    "Sunlight holds all colours, and air scatters the short waves most. So the blue comes to us from everywhere, "
    "while the rest goes straight on."
)
WHALES = (
    "With one half of the brain at a time. The other half keeps them swimming, minds the calf and remembers to come "
    "up for air, as a whale breathes only when it decides to. Sperm whales sleep upright, like columns."
)


def reply(messages: list[Message]) -> str | Message:
    prompt = str(messages[-1]["content"])
    if messages[-1]["role"] == "tool":
        return "Paid. The receipt is on its way to you."
    if "Pay" in prompt:
        call = {"name": "pay", "arguments": '{"amount": 12}'}
        return {"tool_calls": [{"id": f"call-{len(messages)}", "type": "function", "function": call}]}
    return WHALES if "whales" in prompt else SKY


def draw(terminal: Terminal, name: str) -> None:
    """Write what the terminal shows as docs/images/<name>.svg."""
    screen = terminal.screen
    last = max(n for n, line in enumerate(screen.display) if line.strip())
    out = Console(record=True, width=screen.columns, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    for y in range(last + 1):
        is_dim = is_note(screen.display[y])
        cells = [screen.buffer[y][x] for x in range(screen.columns)]
        line = Text()
        for style, group in groupby(cells, partial(style_of, is_dim=is_dim)):
            line.append("".join(character.data for character in group).replace(f"{Path.cwd()}/", "/home/ann/"), style)
        line.rstrip()
        out.print(line)
    out.save_svg(str(IMAGES / f"{name}.svg"), title=f"turnwise {name}")


def style_of(cell: Char, *, is_dim: bool) -> Style:
    colour = None if cell.fg == "default" else cell.fg.replace("brown", "yellow")
    return Style(color=colour, bold=cell.bold, italic=cell.italics, dim=is_dim)


def is_note(line: str) -> bool:
    """Return whether a line is one of our own; pyte does not tell faint text from other."""
    return line.startswith(("new session", "Ctrl+C stops", "stopped:"))


@contextmanager
def shared_ray() -> Iterator[str]:
    here = "127.0.0.1"
    ray.init(
        "local",
        num_cpus=2,
        include_dashboard=False,
        log_to_driver=False,
        configure_logging=False,
        _node_ip_address=here,
    )
    try:
        yield ray.get_runtime_context().gcs_address
    finally:
        ray.shutdown()


def main() -> None:
    IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, LocalProvider(reply=reply, token_delay_s=0.02) as provider:
        os.chdir(folder)
        with shared_ray() as address:
            environ = {"RAY_ADDRESS": address, "OPENAI_API_KEY": "none", "OPENAI_BASE_URL": provider.base_url}
            os.environ |= {"NO_PROXY": "127.0.0.1"}
            chat(environ)
            top(environ, provider)


def chat(environ: dict[str, str]) -> None:
    words = ("sqlite:///turnwise.db", "--model", "gpt-5-mini", "--tool", "chat_tools:pay")
    with Terminal(*turnwise("chat", *words), env=environ, columns=90, lines=30) as terminal:
        terminal.wait_for(lambda text: text.endswith("\n>"))
        terminal.say("Why is the sky blue?")
        terminal.wait_for("straight on.")
        terminal.wait_for(lambda text: text.endswith("\n>"))
        terminal.say("How do whales sleep?")
        terminal.wait_for("The other half keeps")
        terminal.press(CTRL_C)
        terminal.wait_for("stopped:")
        terminal.wait_for(lambda text: text.endswith("\n>"))
        terminal.say("Pay the entrance of the museum, please.")
        terminal.wait_for("[y/n]")
        terminal.say("y")
        terminal.wait_for("on its way to you.")
        terminal.wait_for(lambda text: text.endswith("\n>"))
        draw(terminal, "chat")


def top(environ: dict[str, str], provider: LocalProvider) -> None:
    engine = OpenAIEngine("gpt-5-mini", base_url=provider.base_url, api_key="none")
    with SessionManager("sqlite:///top.db", engine=engine, placement=Packed(hosts=2)) as manager:
        for n in range(12):
            manager.open(f"visitor-{n}", user_id="ann").run("Why is the sky blue?")
        provider.token_delay_s = 0.5
        with Terminal(
            *turnwise("top", "sqlite:///top.db", "--every", "1"), env=environ, columns=110, lines=30
        ) as terminal:
            terminal.wait_for("MEMORY")
            runs = [manager.get(f"visitor-{n}").run("How do whales sleep?", if_busy="enqueue") for n in range(3)]
            runs += [manager.get("visitor-0").run("Why is the sky blue?", if_busy="enqueue")]
            terminal.wait_for("3 running")
            terminal.wait_for(lambda text: "queued" in text and "visitor-2" in text)
            draw(terminal, "top")
            terminal.press("q")
            terminal.wait()
        for run in runs:
            run.cancel()


if __name__ == "__main__":
    main()
