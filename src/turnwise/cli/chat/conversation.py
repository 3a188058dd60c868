"""`Conversation`: what a person and a session say to each other in `turnwise chat`."""

from __future__ import annotations

import difflib
import json
import queue
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, Literal

from turnwise.actors.client.blocking.execution import ExecutionHandle
from turnwise.actors.client.blocking.session import Session
from turnwise.cli.chat.answers import Answers
from turnwise.cli.chat.line_editor import LineEditor
from turnwise.errors import CallDecidedError, CallNotFoundError, SessionInUseError, TurnwiseError
from turnwise.memory.conversation.blocks import User
from turnwise.memory.conversation.calls.tool_calls import PendingCall
from turnwise.memory.conversation.events import AnyEvent, ApprovalRequested, RunEnded
from turnwise.memory.conversation.prompts import Prompt
from turnwise.memory.conversation.turns import Turn
from turnwise.memory.conversation.views.notebook_display import ListPage

PROMPT = "> "

INTERRUPTED, UNANSWERED = 130, 1
"""Exit codes: Ctrl+C ended it; a prompt of a pipe has no answer."""

EARLIER = 4
"""How many turns of an earlier conversation are shown."""

TITLE = 80
"""How many characters of the first prompt become the title of a new session."""

LISTED = 20
"""How many memories are listed."""

LEAVE_S = 60.0
"""How many seconds a person who leaves in the middle of an answer waits for its end. Ctrl+C ends the wait."""

SLICE_S = 0.5
"""How long one call waits for events, in seconds, and so how long it takes to stop following a run."""

HELP = {
    "/fork": "/fork [ID]            go on in a copy of the conversation; the original stays as it is",
    "/retry": "/retry                ask the last prompt again, as if its answer had not been given",
    "/memory": "/memory [WORDS]       list what is remembered, or what of it fits the words",
    "/cancel": "/cancel               stop the run that is active, such as one of another terminal",
    "/help": "/help                 list the commands",
    "/quit": "/quit                 leave; so do Ctrl+D, and Ctrl+C twice",
}
"""The commands, with what `/help` says about each."""

_MORE_HELP = (
    "Ctrl+C stops the answer and keeps what was said. A line that ends in \\ goes on in the next one.\n"
    "A prompt that begins with a slash is written with two."
)


class Conversation:
    """Reads prompts, shows answers, asks for approvals, and carries commands out.

    Args:
        as_json: print a line of JSON for each answer, and the answer in no other way.
        is_new: whether the session is new; then its first prompt becomes its title.
    """

    def __init__(self, session: Session, lines: LineEditor, answers: Answers, *, as_json: bool, is_new: bool) -> None:
        self.session = session
        self._lines = lines
        self._answers = answers
        self._as_json = as_json
        self._is_untitled = is_new
        self._is_leaving = False
        """Whether the last thing that was pressed is Ctrl+C: the next one leaves."""
        self._failed = False

    def resume(self) -> None:
        """Show how the conversation ended, and follow the run that is active."""
        latest = self.session.latest()
        turns = self.session.turns(after=latest.index - EARLIER) if latest else ListPage[Turn]()
        while turns.next is not None:  # they are large
            more = self.session.turns(after=turns.next)
            turns = ListPage([*turns, *more], more.next)
        self._lines.remember(block.text for turn in turns for block in turn.asked if isinstance(block, User))
        active = self.session.info().active_run_id
        for turn in turns if self._lines.is_terminal else ():
            self._show_prompts(turn.asked)
            if active is None or turn.run_id != active:
                self._answers.show(turn.output)
                self._explain(turn)
        if active:
            self._answers.note("this run has not ended: it is shown from its beginning")
            self._follow(self.session.execution(active))

    def _explain(self, turn: Turn) -> None:
        """Say why an earlier turn has no whole answer, if it has none."""
        if turn.status == "pending":
            self._answers.note("no run has had this prompt: /retry asks it")
        elif turn.run_id is not None and turn.status != "completed":
            reason = self.session.execution(turn.run_id).info().why
            again = "" if turn.status == "cancelled" else "; /retry asks again"
            self._answers.note(f"{turn.status}: {reason}{again}")

    def _show_prompts(self, blocks: Sequence[Any]) -> None:
        for block in blocks:
            self._answers.note(f"{PROMPT}{block.text}" if isinstance(block, User) else f"({block.kind})", "bold")

    def talk(self) -> int:
        """Read and answer until the end of the input; return the exit code."""
        while True:
            try:
                line = self._lines.read(PROMPT if self._lines.is_terminal else "")
            except EOFError:
                if self._lines.is_terminal:
                    self._answers.note("")
                return 0
            except KeyboardInterrupt:
                if self._is_leaving or not self._lines.is_terminal:
                    return INTERRUPTED
                self._is_leaving = True
                self._answers.note("\nCtrl+C again leaves; so do Ctrl+D and /quit")
                continue
            code = self._carry_out(line)
            if code is not None:
                return code

    def _carry_out(self, line: str) -> int | None:
        """Do what a line says; return the exit code if the conversation ends."""
        self._is_leaving = self._failed = False
        try:
            if self._answer_line(line):
                return 0
        except KeyboardInterrupt:
            if self._is_leaving:
                return INTERRUPTED
            self._is_leaving = True
        except EOFError:  # at a question
            self._answers.note("\nthe call still waits: `turnwise approve` and `turnwise reject` decide it")
            return 0
        except TurnwiseError as error:
            self._failed = True
            self._answers.error(error)
        if self._lines.is_terminal:
            return None
        return UNANSWERED if self._failed else INTERRUPTED if self._is_leaving else None

    def _answer_line(self, line: str) -> bool:
        """Answer a prompt or carry a command out; return whether to leave."""
        if not line.strip():
            return False
        if not line.startswith("/"):
            self._ask(line)
            return False
        if line.startswith("//"):
            self._ask(line[1:])
            return False
        word, _, rest = line.strip().partition(" ")
        if word == "/quit":
            return True
        commands: dict[str, Callable[[str], None]] = {
            "/fork": self._fork,
            "/retry": self._retry,
            "/memory": self._memory,
            "/cancel": self._cancel,
            "/help": self._help,
        }
        if word not in commands:
            near = difflib.get_close_matches(word, HELP, 1)
            self._failed = True
            self._answers.error(f"there is no command {word}{f': do you mean {near[0]}?' if near else ''} (/help)")
            return False
        commands[word](rest.strip())
        return False

    # Commands.

    def _fork(self, session_id: str) -> None:
        before = self.session.session_id
        self.session = self.session.fork(session_id=session_id or None)
        self._answers.note(f"this is session {self.session.session_id} now; {before} stays as it is")

    def _retry(self, _: str) -> None:
        latest = self.session.latest()
        if latest is None or not latest.asked:
            self._failed = True
            self._answers.error("there is nothing to ask again yet")
            return
        if latest.status != "pending":
            if active := self.session.info().active_run_id:
                raise SessionInUseError(self.session.session_id, active)
            self.session.append(*latest.asked)  # first: a session that refuses it loses nothing
            self.session.memory.forget(latest.index)
        self._ask()

    def _memory(self, words: str) -> None:
        memory = self.session.memory
        items = memory.recall(words, limit=LISTED) if words else list(memory.list(limit=LISTED))
        for item in items:
            self._answers.note(f"{item.id}  {item.text}", "")
        if not items:
            self._answers.note("nothing of that is remembered" if words else "nothing is remembered yet")

    def _cancel(self, _: str) -> None:
        is_cancelled = self.session.cancel("cancelled in a chat")
        self._answers.note("stopped" if is_cancelled else "it had ended already")

    def _help(self, _: str) -> None:
        self._answers.note("\n".join([*HELP.values(), _MORE_HELP]))

    # Answers.

    def _ask(self, *prompts: Prompt) -> None:
        """Start a run, and show its answer."""
        with self._stoppable() as stop:
            self._answers.wait()
            execution = self.session.run(*prompts)
            stop.started(execution)
            if self._is_untitled and prompts and isinstance(prompts[0], str):
                self.session.update(title=" ".join(prompts[0].split())[:TITLE])
                self._is_untitled = False
            self._show(execution, stop)

    def _follow(self, execution: ExecutionHandle) -> None:
        with self._stoppable() as stop:
            stop.started(execution)
            self._show(execution, stop)

    @contextmanager
    def _stoppable(self) -> Iterator[_Stop]:
        """While this lasts, the first Ctrl+C stops the run; the second one raises KeyboardInterrupt."""
        stop = _Stop()
        before = signal.signal(signal.SIGINT, stop.interrupt)
        try:
            yield stop
        finally:
            signal.signal(signal.SIGINT, before)
            self._answers.end_line()
            if self._lines.is_terminal and not self._as_json:
                self._answers.note("")
            self._is_leaving = stop.is_asked

    def _show(self, execution: ExecutionHandle, stop: _Stop) -> None:
        """Show a run up to its end; ask for what it waits for."""
        feed = _Feed(execution)
        stop.tell(feed.stopping)
        waits = False
        try:
            for event in feed:
                if event is None:
                    self._answers.end_line()
                    self._answers.wait("stopping")
                    continue
                if not self._as_json:
                    self._answers.show_event(event)
                waits = waits or isinstance(event, ApprovalRequested)
                if waits and feed.is_drained():
                    waits = False
                    try:
                        self._decide(execution)
                    except KeyboardInterrupt:
                        self._answers.note("")
                        stop.interrupt()
                if isinstance(event, RunEnded):
                    self._failed = event.kind not in ("run_completed", "run_cancelled")
                    self._print_json(execution, event)
        except KeyboardInterrupt:
            feed.wait(LEAVE_S)
            raise
        finally:
            feed.close()

    def _print_json(self, execution: ExecutionHandle, event: RunEnded) -> None:
        if self._as_json:
            result = {"session_id": execution.session_id, "run_id": execution.run_id, "turn": execution.turn_index}
            result |= {"state": event.kind.removeprefix("run_"), "text": event.text, "why": getattr(event, "why", None)}
            sys.stdout.write(json.dumps(result) + "\n")
            sys.stdout.flush()

    def _decide(self, execution: ExecutionHandle) -> None:
        """Ask about each call that waits."""
        for call in execution.pending():
            if not self._lines.is_terminal:
                raise _UndecidedError(f"{_waits(execution, call)}, and nobody can be asked here")
            try:
                self._decide_one(execution, call)
            except (CallDecidedError, CallNotFoundError) as error:  # somebody else was faster
                self._answers.error(error)

    def _decide_one(self, execution: ExecutionHandle, call: PendingCall) -> None:
        self._answers.ask(call.call_id, call.name, call.input, call.why)
        if call.wants == "result":
            execution.provide(call.call_id, self._question("its result: "))
            return
        question = "go over the budget? [y/n] " if call.wants == "budget" else "do it? [y/n] "
        while (answer := self._question(question).strip().lower()) not in ("y", "yes", "n", "no"):
            pass
        if answer.startswith("y"):
            execution.approve(call.call_id)
        else:
            execution.reject(call.call_id, self._question("why not? (may be empty) "))
        self._answers.wait()

    def _question(self, question: str) -> str:
        """Return an answer of the person's. Ctrl+C raises, as it does at a prompt."""
        self._answers.end_line()
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            return self._lines.ask(question)
        finally:
            signal.signal(signal.SIGINT, before)


def _waits(execution: ExecutionHandle, call: PendingCall) -> str:
    return (
        f"call {call.call_id!r} of {call.name} waits, in run {execution.run_id}: `turnwise approve` and"
        " `turnwise reject` decide it"
    )


class _UndecidedError(TurnwiseError):
    """A call waits for a decision, and this program has no terminal to ask at."""


class _Stop:
    """Cancels a run at the first interrupt, also at one before the run has begun."""

    def __init__(self) -> None:
        self.is_asked = False
        self._execution: ExecutionHandle | None = None
        self._notify: Callable[[], None] | None = None

    def started(self, execution: ExecutionHandle) -> None:
        """Set what is cancelled."""
        self._execution = execution
        if self.is_asked:
            self._cancel()

    def tell(self, tell: Callable[[], None]) -> None:
        """Set what is called at the first interrupt, maybe by a handler of a signal; call it if that has been."""
        self._notify = tell
        if self.is_asked:
            tell()

    def interrupt(self, _: int = 0, __: FrameType | None = None) -> None:
        """Cancel; the second time, raise KeyboardInterrupt. A handler of SIGINT."""
        if self.is_asked:
            raise KeyboardInterrupt
        self.is_asked = True
        self._cancel()
        if self._notify:
            self._notify()

    def _cancel(self) -> None:
        if self._execution is not None:
            # Not here: a handler may run in the middle of anything.
            threading.Thread(target=self._carry_out, args=[self._execution], daemon=True).start()

    @staticmethod
    def _carry_out(execution: ExecutionHandle) -> None:
        with suppress(TurnwiseError):  # those who follow the run get the same error
            execution.cancel("Ctrl+C")


class _Feed:
    """The events of a run, read on a thread of their own: so Ctrl+C is noticed at once, however long nothing comes."""

    def __init__(self, execution: ExecutionHandle) -> None:
        self._execution = execution
        self._events: queue.SimpleQueue[AnyEvent | Exception | Literal["stopping", "end"]] = queue.SimpleQueue()
        self._is_closed = False
        self._thread = threading.Thread(target=self._read, name="turnwise-chat", daemon=True)
        self._thread.start()

    def __iter__(self) -> Iterator[AnyEvent | None]:
        """Yield the events, and None where the person has asked to stop."""
        while (item := self._events.get()) != "end":
            if isinstance(item, Exception):
                raise item
            yield None if item == "stopping" else item

    def stopping(self) -> None:
        """Say that the person has asked to stop. A handler of a signal may call this at any time."""
        self._events.put("stopping")

    def is_drained(self) -> bool:
        """Return whether all events so far were read: then what waits is not decided yet."""
        return self._events.empty()

    def wait(self, timeout_s: float) -> None:
        """Wait for the end of the run."""
        self._thread.join(timeout_s)

    def close(self) -> None:
        """End the thread, for Ray cannot be left while a call of it waits for an answer."""
        self._is_closed = True
        self._thread.join()

    def _read(self) -> None:
        after: int | None = 0
        try:
            while after is not None and not self._is_closed:
                page = self._execution.event_page(after, wait_s=SLICE_S)
                for event in page:
                    self._events.put(event)
                after = page.next
            self._events.put("end")
        except Exception as error:  # noqa: BLE001 - raised where the events are read
            self._events.put(error)
