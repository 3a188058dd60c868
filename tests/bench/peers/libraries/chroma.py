"""Chroma alone, as in its documentation: one collection in a folder, and a filter for the user."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from peers.peer import Model, embedding


class Chroma:
    packages: Sequence[str] = ("chromadb",)

    def __init__(self, folder: Path, model: Model) -> None:
        settings: Any = importlib.import_module("chromadb.config").Settings(anonymized_telemetry=False)
        client = importlib.import_module("chromadb").PersistentClient(path=str(folder / "chroma"), settings=settings)
        self.embed = embedding()
        self.texts = client.create_collection(
            "texts", embedding_function=None, configuration={"hnsw": {"space": "cosine"}}
        )

    async def save(self, user: str, items: Sequence[tuple[str, str]]) -> None:
        self.texts.add(
            ids=[f"{user}/{key}" for key, _ in items],
            documents=[text for _, text in items],
            embeddings=self.embed([text for _, text in items]),
            metadatas=[{"user": user}] * len(items),
        )

    async def find(self, user: str, prompts: Sequence[str]) -> list[str]:
        results = self.texts.query(
            query_embeddings=self.embed(["\n".join(prompts)]), n_results=10, where={"user": user}
        )
        return [key.partition("/")[2] for key in results["ids"][0]]

    async def close(self) -> None:
        pass
