"""`Titles`: has the engine give a session its title, in the background."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace
from functools import partial

from turnwise.actors.inference.completion import CompletionContext, ask, within
from turnwise.actors.inference.no_answer import NoAnswer
from turnwise.actors.session.engines.session_engines import SessionEngines
from turnwise.actors.session.engines.side_bill import SideBill
from turnwise.actors.session.engines.spending import Spending
from turnwise.actors.session.state.session_tasks import SessionTasks
from turnwise.actors.session.state.state import SessionState
from turnwise.actors.session.state.transactor import Transactor
from turnwise.errors import LimitError
from turnwise.memory.background import log_failure
from turnwise.memory.conversation.blocks import System, User, answer_text
from turnwise.memory.conversation.events import TitleChanged
from turnwise.memory.conversation.turns import TurnRecord
from turnwise.memory.values.plain_text import plain

LAST_INDEX = 2
"""After turns with a higher index a session without a title stays without: three turns try."""

SHOWN_CHARS = 2000
"""How much of the prompts, and of the answer, the engine is shown, in characters each."""

TITLE_CHARS = 80
"""The longest title that is stored, in characters."""

TIMEOUT_S = 60.0
"""How long the engine may take, in seconds."""

INSTRUCTIONS = (
    "Write a title for the conversation below: two to six words, in its language, without quotation marks or a full "
    "stop. Answer with the title alone."
)

_MARKS = "\"'`*_#\u201c\u201d\u201e\xab\xbb\u2018\u2019 "
"""Quotation marks and marks of Markdown."""


class Titles:
    """Gives a session its title, if `SessionConfig.title` is "auto": by its engine, from its first turn.

    It begins once the turn has ended, beside what follows, and delays nothing. A failure is logged, and the next of the
    first three turns tries again. A title that a caller has set stays. Agents' sessions get none. What the engine has
    spent counts as the session's, and within its budget.

    While it awaits the following, other work may run, and the process may crash:

    | awaited | what else may run | what a crash leaves |
    |---|---|---|
    | the engine | everything; a caller may set a title, which stays | no title; the next turn tries again |
    | its commit | reads, streaming | the title, its event and its usage, or none of them |
    """

    def __init__(
        self,
        state: SessionState,
        transactor: Transactor,
        engines: SessionEngines,
        tasks: SessionTasks,
        *,
        spending: Spending,
        bill: SideBill,
    ) -> None:
        self._state = state
        self._journal = state.journal
        self._transactor = transactor
        self._engines = engines
        self._spending = spending
        self._bill = bill
        self._tasks = tasks
        self._work: asyncio.Task[None] | None = None

    def watch(self) -> None:
        """Begin to make a title if the session is to have one and has none. Called after each run; does not wait."""
        session, head = self._journal.session, self._state.head
        if self._engines.config.title != "auto" or session.title or session.called_by or session.status == "ended":
            return
        is_at_work = self._work is not None and not self._work.done()
        if head and head.status == "completed" and head.index <= LAST_INDEX and not is_at_work:
            self._work = self._tasks.spawn(self._give_title(head))

    async def _give_title(self, turn: TurnRecord) -> None:
        resources = self._engines.current
        if isinstance(resources.builder, NoAnswer):
            return
        try:
            self._spending.check_session(self._transactor.unbilled)
            prompt_blocks = await self._journal.blocks.read(turn.prompt)
            prompts = "\n".join(block.text for block in prompt_blocks if isinstance(block, User))
            answer = answer_text(await self._journal.blocks.read(turn.output))
            conversation = f"User: {prompts[:SHOWN_CHARS]}\n\nAssistant: {answer[:SHOWN_CHARS]}"
            request = [System(text=INSTRUCTIONS), User(text=conversation)]
            context = CompletionContext(self._state.view(), partial(self._bill.charge, "title"))
            grace_s = self._engines.config.cancel_grace_s
            call = partial(ask, resources.builder, request, context, self._engines.off_loop, grace_s)
            title = title_of(answer_text(await within(call, TIMEOUT_S, grace_s)))
            await self._transactor.run(partial(self._store, title))
        except LimitError:
            return  # the session's budget is used up, of which runs tell
        except Exception as error:  # noqa: BLE001 - whatever an engine raises, a title is never in the way
            if not self._journal.lost:
                log_failure(self._tasks.name("giving it a title"), error)

    async def _store(self, title: str) -> None:
        session = self._journal.session
        if title and not session.title and session.status != "ended":
            await self._transactor.commit(replace(session, title=title), [(TitleChanged, {"title": title})])
        else:
            await self._transactor.store_unbilled()


def title_of(answer: str) -> str:
    """Return the title in an engine's answer: its first line with words, without marks around it; "" if it has none."""
    for line in plain(answer).splitlines():
        words = re.sub(r"\s+", " ", re.sub(r"^\W*title\W*:", "", line, flags=re.IGNORECASE)).strip(_MARKS + ".")
        if words:
            return words if len(words) <= TITLE_CHARS else f"{words[: TITLE_CHARS - 1].rstrip()}…"
    return ""
