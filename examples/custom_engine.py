"""An engine of your own: a model that is loaded once, streams, counts tokens, takes parameters and can be cancelled.

    pip install turnwise
    python examples/custom_engine.py

The model here is a table of which word follows which; a real one, such as llama.cpp's, would stand in its place.
"""

import asyncio
import random
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise

from turnwise import ExecutionHandle, RunCancelledError, SessionManager, Turn, Usage, blocks
from turnwise.engines import RunContext, SessionView

BOOK = "the river bends and the river runs and the bank falls and the lake stays and the water bends to the sea . " * 20


class Model:
    """Says words that follow each other in a text. Slow and blocking, as models are."""

    def __init__(self, text: str) -> None:
        self._next: dict[str, list[str]] = defaultdict(list)
        for word, after in pairwise(text.split()):
            self._next[word].append(after)

    def say(self, prompt: str, *, seed: int, most: int) -> Iterator[str]:
        dice = random.Random(f"{seed} {prompt}")  # noqa: S311 - nothing is secret here
        word = "the"
        for _ in range(most):
            yield f"{word} "
            word = dice.choice(self._next[word])


@dataclass(frozen=True)
class LocalModel:
    """The builder: settings only, since it is pickled to the processes of sessions."""

    text: str = BOOK

    def build(self, session: SessionView) -> "Runner":
        """Load the model. Called off the event loop, so it may take its time."""
        return Runner(Model(self.text))

    def not_taken(self, model: str | None, params: Mapping[str, object]) -> dict[str, str]:
        """Return the parameters of a run that the engine does not take, with the reasons: such a run is refused."""
        names = {"seed", "max_output_tokens"}
        wrong = {name: f"this engine takes {', '.join(sorted(names))}" for name in params.keys() - names}
        return wrong | ({"model": "there is one model"} if model else {})


class Runner:
    """Answers the turns of one session, one at a time."""

    def __init__(self, model: Model) -> None:
        self._model = model

    async def run(self, turn: Turn, context: RunContext) -> Sequence[blocks.AnyBlock]:
        prompts = [block.text for block in turn.blocks if block.kind == "user"]  # the whole conversation, if wanted
        most = int(context.params.get("max_output_tokens") or 12)
        words = self._model.say(prompts[-1], seed=int(context.params.get("seed") or 0), most=most)
        emitted: list[str] = []
        # A blocking model runs on a thread. A cancel arrives at the await; what was emitted until then is kept.
        while word := await asyncio.to_thread(next, words, ""):
            context.emit(word)
            emitted.append(word)
            await asyncio.sleep(0.02)
        context.report(usage=Usage(input_tokens=len(" ".join(prompts).split()), output_tokens=len(emitted)))
        context.report(stop_reason="length" if len(emitted) == most else "stop")
        return [blocks.Text(text="".join(emitted).strip())]


def main() -> None:
    with SessionManager("memory://own-engine", engine=LocalModel()) as manager:
        chat = manager.open(params={"seed": 7})
        turn = chat.run("What does the river do?").wait()
        print(f"{turn.text!r}: {turn.usage and turn.usage.output_tokens} tokens, stopped by {turn.stop_reason}")

        run = chat.run("And for how long?", params={"max_output_tokens": 1000})
        first_pieces = list(islice(pieces(run), 5))
        run.cancel("that is enough")
        try:
            run.wait()
        except RunCancelledError as cancelled:
            print(f"cancelled after {''.join(first_pieces)!r}; kept: {bool(cancelled.turn and cancelled.turn.text)}")
        print(f"and the next turn: {chat.run('Once more.').wait().text!r}")


def pieces(run: ExecutionHandle) -> Iterator[str]:
    return (event.text for event in run.events() if event.kind == "text_delta")


if __name__ == "__main__":
    main()
