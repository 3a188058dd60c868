"""All commands, in the order in which `turnwise --help` lists them."""

from __future__ import annotations

from importlib.metadata import version
from typing import Annotated

import typer

from turnwise.cli.accounting.quotas import quotas
from turnwise.cli.accounting.tenants import tenants
from turnwise.cli.accounting.usage import usage
from turnwise.cli.chat.command import ChatCommand, chat
from turnwise.cli.common import Command, Commands
from turnwise.cli.console import console
from turnwise.cli.doctor.command import doctor
from turnwise.cli.drain import drain
from turnwise.cli.exporting.archive import export, import_, sweep
from turnwise.cli.exporting.dataset import dataset
from turnwise.cli.files import files
from turnwise.cli.listing import ls, runs, schedules
from turnwise.cli.mcp import mcp
from turnwise.cli.memory import memory
from turnwise.cli.migrate import migrate
from turnwise.cli.replay.command import replay
from turnwise.cli.search import marks, search
from turnwise.cli.serve import serve
from turnwise.cli.session_control import approve, cancel, end, fork, reject, rm, say, schedule, share, unschedule
from turnwise.cli.show import show
from turnwise.cli.tail import tail
from turnwise.cli.top import top
from turnwise.cli.webhooks import webhooks

app = typer.Typer(
    cls=Commands,
    help="Sessions with language models, and what they remember.",
    epilog="Exit codes: 0 done, 1 an error, 2 wrong usage, 130 interrupted by Ctrl-C, 143 ended by SIGTERM.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,  # pretty tracebacks show values, and a URL may contain a password
)

app.command(cls=ChatCommand)(chat)
changes = (say, schedule, unschedule, cancel, approve, reject, share, end, rm, fork)
for command in (ls, show, search, marks, runs, schedules, usage, replay, *changes, export, dataset):
    app.command(cls=Command)(command)
app.command("import", cls=Command)(import_)
app.command(cls=Command)(sweep)
app.add_typer(files, name="files")
app.add_typer(webhooks, name="webhooks")
app.add_typer(quotas, name="quotas")
app.add_typer(tenants, name="tenants")
app.add_typer(memory, name="memory")
app.command(cls=Command)(tail)
app.command(cls=Command)(top)
app.command(cls=Command)(migrate)
app.command(cls=Command)(doctor)
app.command(cls=Command)(drain)
app.command()(serve)
app.command(cls=Command)(console)
app.command(cls=ChatCommand)(mcp)


def _print_version(requested: bool) -> None:
    if requested:
        typer.echo(f"turnwise {version('turnwise')}")
        raise typer.Exit


@app.callback()
def main(
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error, and all warnings.")] = False,
) -> None:
    """Sessions with language models, and what they remember."""
