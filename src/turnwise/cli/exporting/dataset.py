"""The command `dataset`: conversations as examples for training a model."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from turnwise.cli.common import OfAgent, OfUser, Store, reading, run
from turnwise.cli.output import note

if TYPE_CHECKING:
    from turnwise.dataset.selection import DatasetFormat, DatasetKind, Selection
else:
    from typing import Literal

    DatasetKind = Literal["chat", "preference", "tools"]
    DatasetFormat = Literal["openai", "trl"]


def dataset(
    store: Store,
    *,
    consent: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="Metadata of the sessions that may be learnt from; may be repeated."),
    ] = None,
    without_consent: Annotated[
        bool, typer.Option("--without-consent", help="Take all sessions, whether their users have consented or not.")
    ] = False,
    kind: Annotated[DatasetKind, typer.Option(help="Conversations, pairs of answers, or traces of tools.")] = "chat",
    format: Annotated[DatasetFormat, typer.Option(help="Of OpenAI's fine-tuning, or Hugging Face's TRL.")] = "openai",
    out: Annotated[
        Path | None, typer.Option(help="The file to write, .jsonl or .parquet; lines of JSON are printed if omitted.")
    ] = None,
    user: OfUser = None,
    agent: OfAgent = None,
    author: Annotated[
        list[str] | None, typer.Option(help="A member of shared sessions who has consented, too; may be repeated.")
    ] = None,
    redact: Annotated[
        str | None,
        typer.Option(metavar="MODULE:FUNCTION", help="A function that gets each text and returns what comes along."),
    ] = None,
    system: Annotated[bool, typer.Option("--system/--no-system", help="With the stored system prompts.")] = True,
    tool_results: Annotated[bool, typer.Option("--results/--no-results", help="With the results of tools.")] = True,
    mark: Annotated[str, typer.Option(help="The name of the marks that say how good an answer is.")] = "thumb",
    marked_by: Annotated[list[str] | None, typer.Option(help="Only marks of this person; may be repeated.")] = None,
) -> None:
    """Write conversations as examples for training a model: those that consent, without what was forgotten."""
    from turnwise.dataset.selection import Selection

    if bool(consent) == without_consent:
        reason = "say who has consented: --consent training=yes, or --without-consent"
        raise typer.BadParameter(reason, param_hint="--consent")
    selection = Selection(
        consent=None if without_consent else dict(map(_pair, consent or ())),
        kind=kind,
        format=format,
        user_id=user,
        agent=agent,
        authors=author or (),
        redact=_function(redact) if redact else None,
        system=system,
        tool_results=tool_results,
        mark=mark,
        marked_by=marked_by,
    )
    run(_write(store, selection, out))


async def _write(store: str, selection: Selection, out: Path | None) -> None:
    from turnwise.dataset.examples import AsyncExamples
    from turnwise.dataset.files import line_of

    async with reading(store) as manager:
        examples, count = AsyncExamples(manager, selection), 0
        if out is not None:
            count = await examples.write(out)
        else:
            async for example in examples:
                sys.stdout.write(line_of(example))
                count += 1
    note(f"examples: {count}")
    for reason, number in sorted(examples.left_out.items()):
        if number:
            note(f"left out: {number} {reason}")


def _pair(text: str) -> tuple[str, Any]:
    """Return a name and a value of metadata: JSON, or text where it is none."""
    name, is_pair, value = text.partition("=")
    if not (name and is_pair):
        raise typer.BadParameter(f"{text!r} is no NAME=VALUE, such as training=yes", param_hint="--consent")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def _function(place: str) -> Any:
    """Return the function that `module:function` names. The folder in which the command runs is searched, too."""
    from importlib import import_module

    module, _, name = place.partition(":")
    sys.path.insert(0, str(Path.cwd()))
    try:
        return getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise typer.BadParameter(f"{place!r} names no function: {error}", param_hint="--redact") from None
