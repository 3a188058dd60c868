"""Where files are kept: the URL of a manager, or the folder beside a SQLite file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from turnwise.errors import ConfigError
from turnwise.memory.files.fsspec_files import is_path, shown_files_url

SUFFIX = "-files"
"""What follows the name of a SQLite file in the name of the folder with its files."""


def check_files_url(files: Any) -> str:
    """Return where files are kept, so that it means the same in every process: a path is made absolute.

    Raises:
        ConfigError: it is neither a path nor a URL.
    """
    if isinstance(files, os.PathLike):
        files = os.fspath(files)
    if not isinstance(files, str) or not files.strip() or "\0" in files:
        raise ConfigError("files", files, "pass the path of a folder, or a URL of fsspec, such as s3://bucket/folder")
    if not is_path(files):
        if files.startswith(("http://", "https://")):
            raise ConfigError("files", shown_files_url(files), "nothing can be written there: pass a folder")
        return files
    path = files.partition("://")[2] if "://" in files else files
    return str(Path(path).expanduser().resolve())


def files_beside(store_url: str) -> str | None:
    """Return the folder for the files of a store that none was given for: beside a SQLite file; None for others.

    Args:
        store_url: a resolved URL.
    """
    scheme, _, rest = store_url.partition("://")
    if not scheme.startswith("sqlite"):
        return None
    path = unquote(rest.partition("?")[0].removeprefix("/").removeprefix("file:"))
    return f"{path}{SUFFIX}"
