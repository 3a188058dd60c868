"""`SessionFiles`: the files that a session's prompts, results and requests name."""

from __future__ import annotations

from collections.abc import Sequence

from turnwise.actors.session.acting import acting_member
from turnwise.actors.session.engines.session_engines import SessionEngines
from turnwise.actors.session.state.state import SessionState
from turnwise.errors import FileNotStoredError, FileRefusedError, FilesUnavailableError, InvalidPromptError
from turnwise.memory.conversation.blocks import Block, Document, Image, Text, encode, named_files
from turnwise.memory.conversation.prompts import Prompt
from turnwise.memory.conversation.sessions import SessionKey
from turnwise.memory.conversation.turns import Turn
from turnwise.memory.files.access import FileAccess, access_to
from turnwise.memory.files.attachments import (
    AnyKind,
    described_by,
    with_bytes,
    with_files,
    with_parts,
)
from turnwise.memory.files.base import FileStore
from turnwise.memory.files.index import keeps_files
from turnwise.memory.files.owned import OwnedFiles


class SessionFiles:
    """Checks that files exist before a block that names them is stored, and reads them for requests.

    A file is stored before the commit of the block that names it, by transactions of its own: a crash between leaves a
    file of the session that no block names, and never a block without its file.
    """

    def __init__(self, state: SessionState, engines: SessionEngines, store: FileStore | None) -> None:
        self._state = state
        self._engines = engines
        self._store = store
        self.is_on = store is not None and keeps_files(state.journal.store)
        """Whether there is a place for files."""

    @property
    def access(self) -> FileAccess:
        """The files of the session's store.

        Raises:
            FilesUnavailableError: there is no place for files.
        """
        return access_to(self._state.journal.store, self._store, self._engines.config.file_limits)

    def of_tools(self, author: str | None) -> OwnedFiles | None:
        """Return the session's files, for tools of a run; None where there is no place for files.

        Args:
            author: the member who has started the run, whose tools reach no other files of the session's user.
        """
        return OwnedFiles(self.access, self._key, only_own=author is not None) if self.is_on else None

    @property
    def _key(self) -> SessionKey:
        return self._state.key

    async def named(self, prompts: Sequence[Prompt], *, stores: bool = True) -> list[Prompt]:
        """Return prompts whose files the session has from now on, with their files' types and names.

        A member of a shared session can name what the session has already, and not the other files of its user.

        Args:
            stores: whether the session gets files of its user; if not, they are only looked up.

        Raises:
            InvalidPromptError: neither the session nor its user has a file; or there is no place for files.
        """
        return [await self._named(each, stores=stores) if isinstance(each, Block) else each for each in prompts]

    async def named_blocks(self, blocks: Sequence[AnyKind]) -> list[AnyKind]:
        """Return blocks as `named` does."""
        return [await self._named(block, stores=True) for block in blocks]

    async def _named(self, block: AnyKind, *, stores: bool) -> AnyKind:
        described: dict[int, Text | Image | Document] = {}
        for part in named_files(block):
            if part.file is None or part.flaw:
                continue
            try:
                access = self.access
                of_member = acting_member() is not None
                find = access.info if of_member else access.use if stores else access.find
                file = await find(self._key, part.file)
            except (FileNotStoredError, FileRefusedError, FilesUnavailableError) as error:
                raise InvalidPromptError(self._key.session_id, str(error)) from error
            described[id(part)] = described_by(part, file)
        return with_parts(block, described) if described else block

    async def moved(self, blocks: Sequence[AnyKind], *, stores: bool = True) -> list[AnyKind]:
        """Return blocks whose large attachments have become files: see `SessionConfig.max_inline_bytes`.

        Args:
            stores: whether the files are stored; if not, only their ids are told.
        """
        if not self.is_on:
            return list(blocks)

        async def put(name: str, data: bytes, media_type: str, file_id: str) -> None:
            access = self.access
            if stores and not await access.has(self._key, file_id):
                await access.put(self._key, name, data, media_type, file_id)

        return await with_files(blocks, self._engines.config.max_inline_bytes, put)

    async def moved_prompts(
        self, blocks: list[Block], encoded: list[str], *, stores: bool = True
    ) -> tuple[list[Block], list[str]]:
        """Return prompts, and their encoded texts, as `moved` does."""
        moved = await self.moved(blocks, stores=stores)
        texts = [text if new is old else encode(new) for new, old, text in zip(moved, blocks, encoded, strict=True)]
        return moved, texts

    async def for_request(self, turn: Turn) -> Turn:
        """Return a turn whose blocks have the bytes of the files that they name; it is never stored."""
        if not (named := turn.naming_files):
            return turn
        access = self.access if self.is_on else None
        return turn.replacing({place: await with_bytes(access, self._key, each) for place, each in named.items()})
