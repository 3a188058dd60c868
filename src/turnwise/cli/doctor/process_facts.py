"""`facts`: what a process finds in its environment. `turnwise doctor` asks this of sessions' processes, too."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import platform
import shutil
import sys
import tempfile
import urllib.error
import urllib.request
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from urllib.parse import urlsplit

OPENAI = "https://api.openai.com/v1"

ANSWER_S = 8.0
"""How long an endpoint may take to answer, in seconds."""

_VOCABULARY = "https://openaipublic.blob.core.windows.net/encodings/o200k_base.tiktoken"
"""The address under which tiktoken keeps the vocabulary of today's models."""

_REFUSED = (401, 403)

_IMPORTED = ("asyncio", "ray", "openai", "pydantic", "sqlalchemy", "turnwise")
"""Packages that take long to import, and are imported by each process of a session, of the standard library too."""


@dataclass(frozen=True, kw_only=True)
class Facts:
    """The facts about one process. It has no secret."""

    python: str
    turnwise: str | None
    endpoint: str
    """The host that engines without a `base_url` ask."""
    is_chosen: bool
    """Whether a key or a URL was set, so that it is meant to be asked."""
    has_key: bool
    is_key_refused: bool
    problem: str | None
    """Why the endpoint did not answer; None if it did."""
    status: int | None
    """The status of its answer to a request for its models; None if it did not answer."""
    vocabulary: str | None
    """The file of the vocabulary; None if it is not there."""
    embedding: str | None
    """The folder of the embedding model; None if it is not there."""
    free_bytes: dict[str, int]
    """Free disk space, by folder."""
    uncompiled: tuple[str, ...]
    """Packages that each process compiles again when it imports them."""


def facts(base_url: str | None, folders: tuple[str, ...]) -> Facts:
    """Look at this process's environment, and ask the endpoint for its models. Blocks for seconds at most."""
    url = base_url or os.environ.get("OPENAI_BASE_URL") or OPENAI
    key = os.environ.get("OPENAI_API_KEY")
    status, problem = _ask(url, key)
    try:
        own = version("turnwise")
    except PackageNotFoundError:
        own = None
    return Facts(
        python=platform.python_version(),
        turnwise=own,
        endpoint=urlsplit(url).netloc.rpartition("@")[2],
        is_chosen=bool(key or base_url or os.environ.get("OPENAI_BASE_URL")),
        has_key=bool(key),
        is_key_refused=status in _REFUSED,
        problem=problem,
        status=status,
        vocabulary=_vocabulary(),
        embedding=_embedding(),
        free_bytes={folder: shutil.disk_usage(folder).free for folder in folders if Path(folder).is_dir()},
        uncompiled=tuple(name for name in _IMPORTED if _is_compiled_each_time(name)),
    )


def _ask(url: str, key: str | None) -> tuple[int | None, str | None]:
    """Return the status with which the endpoint answers, and why it does not answer. Any status is an answer."""
    if urlsplit(url).scheme not in ("http", "https"):
        return None, "it is no http(s) URL"
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    request = urllib.request.Request(f"{url.partition('?')[0].rstrip('/')}/models", headers=headers)  # noqa: S310 - checked
    try:
        with urllib.request.urlopen(request, timeout=ANSWER_S) as answer:  # noqa: S310 - checked
            return answer.status, None
    except urllib.error.HTTPError as error:
        return error.code, None
    except (OSError, ValueError) as error:
        return None, str(getattr(error, "reason", error))


def _vocabulary() -> str | None:
    folder = os.environ.get("TIKTOKEN_CACHE_DIR") or os.environ.get("DATA_GYM_CACHE_DIR")
    name = hashlib.sha1(_VOCABULARY.encode()).hexdigest()  # noqa: S324 - as tiktoken names its files
    file = Path(folder or Path(tempfile.gettempdir()) / "data-gym-cache") / name
    return str(file) if file.is_file() and file.stat().st_size else None


def _embedding() -> str | None:
    folder = Path.home() / ".cache/chroma/onnx_models/all-MiniLM-L6-v2/onnx"
    is_there = all((folder / name).is_file() for name in ("model.onnx", "tokenizer.json"))
    return str(folder) if is_there else None


def _is_compiled_each_time(package: str) -> bool:
    """Return whether there is no bytecode of a package, and none may be written."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None or Path(importlib.util.cache_from_source(spec.origin)).exists():
        return False
    return sys.dont_write_bytecode or not os.access(Path(spec.origin).parent, os.W_OK)
