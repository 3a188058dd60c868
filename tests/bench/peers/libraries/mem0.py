"""mem0 with local parts: its default vector store in a folder, and the same embedding as the others have."""

from __future__ import annotations

import importlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from peers.peer import Model, embedding


class Embedder:
    """What mem0 asks of an embedding."""

    def __init__(self) -> None:
        self._embed = embedding()

    def embed(self, text: str, memory_action: str | None = None) -> list[float]:
        return [float(value) for value in self._embed([text])[0]]


class Mem0:
    packages: Sequence[str] = ("mem0ai", "qdrant-client")

    def __init__(self, folder: Path, model: Model) -> None:
        os.environ |= {"MEM0_TELEMETRY": "False", "MEM0_DIR": str(folder / "mem0")}
        no_key = {"config": {"api_key": "none"}}  # its parts for OpenAI are made, and never asked
        store = {"path": str(folder / "qdrant"), "embedding_model_dims": 384, "on_disk": True}
        self.memory: Any = importlib.import_module("mem0").Memory.from_config(
            {
                "llm": {"provider": "openai", **no_key},
                "embedder": {"provider": "openai", **no_key},
                "vector_store": {"provider": "qdrant", "config": store},
                "history_db_path": str(folder / "history.db"),
            }
        )
        self.memory.embedding_model = Embedder()

    async def save(self, user: str, items: Sequence[tuple[str, str]]) -> None:
        for key, text in items:
            self.memory.add(text, user_id=user, metadata={"item": key}, infer=False)

    async def find(self, user: str, prompts: Sequence[str]) -> list[str]:
        results = self.memory.search("\n".join(prompts), filters={"user_id": user}, top_k=10)
        return [memory["metadata"]["item"] for memory in results["results"]]

    async def close(self) -> None:
        pass
