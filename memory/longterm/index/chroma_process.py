"""`ChromaProcess`: Chroma in a process of its own.

Chroma holds Python's global lock while it reads and writes: a process that recalls would block for 100 ms and more each
time that vectors are stored. So a process with a folder of Chroma starts one other process for all of its folders, and
communicates with it over standard input and output.
"""

from __future__ import annotations

import atexit
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

from turnwise import __version__
from turnwise.errors import StoreError, TurnwiseError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from turnwise.memory.longterm.index.collection import VectorCollection
    from turnwise.memory.longterm.index.locations import ChromaFolder

    Key = tuple[ChromaFolder, str, str]
    """The arguments of a `VectorCollection`."""

    Array = NDArray[np.float32]

_PROGRAM = "from turnwise.memory.longterm.index.chroma_process import serve; serve()"

_ENDED = (EOFError, OSError, pickle.UnpicklingError)
"""The errors that are raised if the process has ended or does not start."""


class ChromaProcess:
    """A process that carries out the verbs of `VectorCollection`, one at a time. May be used by several threads.

    It starts with the first request, and ends when this process ends or is killed. If it is killed itself, the next
    request starts another. It first says its version, as other code may have been installed since this process started.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0
        """The id of the process that started it: a fork of that process starts its own."""

    def ask(self, key: Key, verb: str, *args: Any) -> tuple[Any, int | None]:
        """Return what a verb of a collection returns or raises, and the dimension of its vectors if that is known.

        Raises:
            StoreError: the process does not start, was killed again, or has another version of turnwise.
        """
        request = pickle.dumps((key, verb, args), pickle.HIGHEST_PROTOCOL)
        with self._lock:
            try:
                answer = self._exchange(request)
            except _ENDED:  # it may have been killed long ago; every verb may be repeated
                try:
                    answer = self._exchange(request)
                except _ENDED as error:
                    reason = f"its process ends at each request ({type(error).__name__}: {error})"
                    raise StoreError(f"vectors in {key[0]!r}: {reason}; its log says more") from error
        return cast("tuple[Any, int | None]", answer)

    def _exchange(self, request: bytes) -> Any:
        try:
            process = self._running()
            requests, answers = cast(IO[bytes], process.stdin), cast(IO[bytes], process.stdout)
            requests.write(request)
            requests.flush()
            return pickle.load(answers)  # noqa: S301 - of its own process
        except BaseException:
            # Also if this thread is interrupted: the next request would get this one's answer.
            if self._process is not None:
                self._process.kill()
            self.end()
            raise

    def end(self) -> None:
        """Let the process end, and wait for it. The next request starts another."""
        process, self._process = self._process, None
        if process is not None and self._owner == os.getpid():
            with suppress(BrokenPipeError), process:  # closes the pipes, whose end it takes for its own
                cast(IO[bytes], process.stdin).close()

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._owner != os.getpid():
            self._owner, self._process = os.getpid(), None
            atexit.register(self.end)
            self._process = subprocess.Popen(  # noqa: S603 - this program
                [sys.executable, "-P", "-c", _PROGRAM],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                start_new_session=True,  # an interrupt at the terminal is for the process that asks
            )
            release = pickle.load(cast(IO[bytes], self._process.stdout))  # noqa: S301 - of its own process
            if release != __version__:
                reason = f"turnwise {release} was installed since this process started, which has {__version__}"
                raise StoreError(f"no vectors in Chroma's folders were read or written: {reason}; start it again")
        return self._process


CHROMA_PROCESS = ChromaProcess()
"""The process for all folders that this process has open."""


class ProcessVectors:
    """The vectors of a folder, as `Vectors` and `VectorFiles`: a `VectorCollection` within Chroma's process.

    Args:
        folder: where Chroma keeps its data.
        name: what the names of the collections begin with.
        embedding: the name of the embedding function, with its settings.
    """

    def __init__(self, folder: ChromaFolder, name: str, embedding: str) -> None:
        self._key = folder, name, embedding
        self._is_open = False
        self.dimensions: int | None = None
        """See `Vectors`."""

    def add(self, keys: Sequence[str], users: Sequence[str], vectors: Array, items: Sequence[str]) -> None:
        """See `Vectors.add`."""
        self._ask("add", keys, users, vectors, items)

    def get(self, keys: Sequence[str]) -> dict[str, Array]:
        """See `Vectors.get`."""
        return cast("dict[str, Array]", self._ask("get", keys))

    def delete(self, keys: Sequence[str] | None) -> None:
        """See `Vectors.delete`."""
        self._ask("delete", keys)

    def keys(self) -> set[str]:
        """See `Vectors.keys`."""
        return cast("set[str]", self._ask("keys"))

    def push(self, changes: int) -> None:
        """See `VectorFiles.push`."""
        self._ask("push", changes)

    def overwrite(self, keys: Collection[str]) -> int:
        """See `VectorFiles.overwrite`."""
        return cast(int, self._ask("overwrite", keys))

    def scrub(self) -> None:
        """See `VectorFiles.scrub`."""
        self._ask("scrub")

    def paths(self) -> list[Path]:
        """See `VectorFiles.paths`."""
        return self._key[0].paths()

    def load_ahead(self) -> None:
        """See `LoadableAhead`: start Chroma's process and import Chroma there, if the folder is there to be read."""
        if Path(self._key[0].path).is_dir():
            CHROMA_PROCESS.ask(self._key, "load_ahead")

    def close(self) -> None:
        """See `Vectors.close`. Sends no request if the process has had none."""
        if self._is_open:
            self._ask("close")

    def _ask(self, verb: str, *args: Any) -> Any:
        self._is_open = verb != "close"
        answer, self.dimensions = CHROMA_PROCESS.ask(self._key, verb, *args)
        if isinstance(answer, TurnwiseError):
            raise answer
        return answer


def serve() -> None:
    """Write the version to standard output, then carry out requests from standard input until that ends.

    The answers go to standard output, too.
    """
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what anybody prints is no answer
    pickle.dump(__version__, answers, pickle.HIGHEST_PROTOCOL)
    answers.flush()
    collections: dict[Key, VectorCollection] = {}
    while True:
        try:
            request = pickle.load(sys.stdin.buffer)  # noqa: S301 - of the process that started this one
        except EOFError:
            return
        pickle.dump(carry_out(collections, *request), answers, pickle.HIGHEST_PROTOCOL)
        answers.flush()


def carry_out(
    collections: dict[Key, VectorCollection], key: Key, verb: str, args: Sequence[Any]
) -> tuple[Any, int | None]:
    """Return what `ask` returns, for a verb of a collection; open the collection if it is not among these."""
    from turnwise.memory.longterm.index.collection import VectorCollection

    collection = collections.get(key) or collections.setdefault(key, VectorCollection(*key))
    if verb == "close":
        del collections[key]
    try:
        return getattr(collection, verb)(*args), collection.dimensions
    except TurnwiseError as error:
        return error, collection.dimensions
    except Exception as error:  # noqa: BLE001 - whatever is raised, the caller has to know
        return StoreError(f"vectors in {key[0]!r}: {type(error).__name__}: {error}"), collection.dimensions
