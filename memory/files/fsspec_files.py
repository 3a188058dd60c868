"""`FsspecFiles`: objects as files of one folder, on a disk or at any URL that fsspec knows."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from turnwise.errors import ConfigError, CorruptRecordError, StoreError
from turnwise.memory.files.base import PIECE_BYTES

Result = TypeVar("Result")

_PART = ".part"
"""What follows the name of a file that is being written to a folder of this machine."""


class FsspecFiles:
    """Keeps each object as a file of its name in one folder.

    On a disk, an object is written under another name, synced, and renamed, so a crash leaves no part of one under its
    name. Object stores such as S3 show an object once all of it has arrived.

    Args:
        url: the path of a folder, or a URL that fsspec opens, such as `s3://bucket/folder`. The folder is made at the
            first write.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self.is_local = is_path(url)
        self._opened: tuple[Any, str] | None = None

    def __repr__(self) -> str:
        return f"FsspecFiles({shown_files_url(self._url)!r})"

    async def write(self, object_id: str, user_id: str, pieces: AsyncIterator[bytes]) -> None:
        """See `FileStore.write`."""
        path = await self._path(object_id)
        file = await self._do(lambda: self._create(path))
        try:
            async for piece in pieces:
                await self._do(lambda piece=piece: file.write(piece))  # type: ignore[misc]
            await self._do(lambda: self._finish(file, path))
        except BaseException:
            with suppress(StoreError):
                await self._do(lambda: self._discard(file, path))
            raise

    async def read(self, object_id: str, user_id: str, start: int = 0, stop: int | None = None) -> AsyncIterator[bytes]:
        """See `FileStore.read`."""
        path = await self._path(object_id)
        try:
            file = await self._do(lambda: self._file_system.open(path, "rb"))
        except StoreError as error:
            if isinstance(error.__cause__, FileNotFoundError):
                raise CorruptRecordError(f"file object {object_id}", f"its bytes are missing in {self!r}") from error
            raise
        try:
            if start:
                await self._do(lambda: file.seek(start))
            left = None if stop is None else max(0, stop - start)
            while left != 0:
                count = PIECE_BYTES if left is None else min(PIECE_BYTES, left)
                piece: bytes = await self._do(lambda count=count: file.read(count))  # type: ignore[misc]
                if not piece:
                    break
                left = None if left is None else left - len(piece)
                yield piece
        finally:
            await self._do(file.close)

    async def delete(self, object_id: str) -> None:
        """See `FileStore.delete`."""
        path = await self._path(object_id)
        await self._do(lambda: self._remove(path))

    async def close(self) -> None:
        """See `FileStore.close`. fsspec keeps its connections for other users of the URL."""

    @property
    def _file_system(self) -> Any:
        if self._opened is None:
            raise RuntimeError("it was not opened")
        return self._opened[0]

    async def _path(self, object_id: str) -> str:
        if self._opened is None:
            self._opened = await self._do(self._open)
        return f"{self._opened[1]}/{object_id}"

    def _open(self) -> tuple[Any, str]:
        try:
            from fsspec.core import url_to_fs  # type: ignore[import-untyped]

            file_system, root = url_to_fs(self._url)
        except (ImportError, ValueError) as error:
            raise ConfigError("files", shown_files_url(self._url), f"fsspec cannot open it: {error}") from error
        return file_system, str(root).rstrip("/")

    def _create(self, path: str) -> Any:
        folder = path.rpartition("/")[0]
        if self.is_local:
            Path(folder).mkdir(mode=0o700, parents=True, exist_ok=True)
            return Path(path + _PART).open("wb")
        with suppress(OSError, NotImplementedError):  # object stores need no folders; if one does, opening says so
            self._file_system.makedirs(folder, exist_ok=True)
        return self._file_system.open(path, "wb")

    def _finish(self, file: Any, path: str) -> None:
        if not self.is_local:
            file.close()
            return
        file.flush()
        os.fsync(file.fileno())
        file.close()
        Path(path + _PART).replace(path)
        folder = os.open(path.rpartition("/")[0], os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def _discard(self, file: Any, path: str) -> None:
        if self.is_local:
            file.close()
            Path(path + _PART).unlink(missing_ok=True)
        else:
            with suppress(Exception):  # classes of others raise all sorts of errors
                file.discard() if hasattr(file, "discard") else file.close()
        self._remove(path)

    def _remove(self, path: str) -> None:
        with suppress(FileNotFoundError):
            self._file_system.rm_file(path)
        if self.is_local:
            Path(path + _PART).unlink(missing_ok=True)

    async def _do(self, work: Callable[[], Result]) -> Result:
        """Do blocking work on a thread. A cancelled caller waits for the step that is under way."""
        step = asyncio.ensure_future(asyncio.to_thread(work))
        try:
            return await asyncio.shield(step)
        except asyncio.CancelledError:
            await asyncio.wait({step})
            if not step.cancelled():
                step.exception()  # else asyncio reports it as one that nobody has looked at
            raise
        except (StoreError, ConfigError):
            raise
        except Exception as error:  # fsspec's packages raise errors of their own
            reason = f"{type(error).__name__}: {error}; is the folder there, and not full?"
            raise StoreError(f"files in {shown_files_url(self._url)}: {reason}") from error


def is_path(url: str) -> bool:
    """Return whether files are in a folder of this machine, or of one that it has mounted."""
    return "://" not in url or url.startswith(("file://", "local://"))


def shown_files_url(url: str) -> str:
    """Return the URL for messages, without a user, a password or options."""
    return re.sub(r"://[^/@]*@", "://***@", url).partition("?")[0]
