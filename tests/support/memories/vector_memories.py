"""Items, embedding functions and servers for tests of vector memories."""

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from turnwise.memory.longterm.base import MemoryItem
from turnwise.memory.longterm.index.locations import ChromaServer
from turnwise.memory.longterm.index.vector_index import EmbeddingFunction
from turnwise.testing.embedding import HashEmbedding


def item(id: str, text: str = "A fact", **values: Any) -> MemoryItem:
    return MemoryItem(id=id, text=text, **values)


@contextmanager
def chroma_server(folder: Path) -> Iterator[ChromaServer]:
    """Run a server of Chroma on this machine's loopback."""
    port = free_port()
    chroma = Path(sys.executable).parent / "chroma"
    log = (folder / "log").open("w")
    process = subprocess.Popen(
        [chroma, "run", "--path", folder / "data", "--host", "127.0.0.1", "--port", str(port)], stdout=log, stderr=log
    )
    try:
        deadline = time.monotonic() + 60
        while not _listens(port):
            assert process.poll() is None and time.monotonic() < deadline, (folder / "log").read_text()
            time.sleep(0.05)
        yield ChromaServer(host="127.0.0.1", port=port)
    finally:
        process.terminate()
        process.wait()
        log.close()


def free_port() -> int:
    """Return a port of the loopback that nobody listens on."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def _listens(port: int) -> bool:
    with socket.socket() as client:
        return not client.connect_ex(("127.0.0.1", port))


def bytes_in(folder: Path) -> bytes:
    """Return what all files in a folder hold."""
    return b"".join(file.read_bytes() for file in folder.rglob("*") if file.is_file())


class FlakyEmbedding(HashEmbedding):
    """Fails while a test says so, counts its calls, and may change its mind about its dimensions."""

    is_ready = True

    def __init__(self, dimensions: int = 64, made_of: str = "flaky") -> None:
        super().__init__(dimensions)
        self.down = False
        self.goes_on = threading.Event()
        """It hangs while this is not set."""
        self.goes_on.set()
        self.calls: list[int] = []
        self.made_of = made_of

    def __call__(self, input: Sequence[str]) -> list[Any]:
        self.calls.append(len(input))
        self.goes_on.wait()
        if self.down:
            raise ConnectionError("embeddings are down")
        return super().__call__(input)

    def get_config(self) -> dict[str, Any]:
        return {"made_of": self.made_of}


def constant(dimensions: int, value: float = 1.0) -> EmbeddingFunction:
    """Return an embedding function without a name, as old ones are, that gives the same vector for any text."""

    class Constant:
        def __call__(self, input: Any) -> Any:
            return np.full((len(input), dimensions), value)

    return Constant()
