"""Files of a conversation: the list beside it, what is attached to the next prompt, and the bytes up and down."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from fastapi import Request
from fastapi.responses import JSONResponse, Response

from turnwise.actors.client.session import AsyncSession
from turnwise.console.access.viewer import Viewer
from turnwise.console.elements.dialogs import confirmed
from turnwise.console.elements.frame import Frame
from turnwise.console.elements.tags import badge, button, link, replace_text, tag
from turnwise.console.elements.text import file_size, moment
from turnwise.errors import FileNotStoredError, FilesUnavailableError, TurnwiseError
from turnwise.http.native.files import content_of, type_of
from turnwise.http.problems import answer, problem_of
from turnwise.memory.conversation.blocks import Document, Image
from turnwise.memory.files.records import FileRecord

CONTENT, UPLOAD = "session/file", "session/files"
"""The addresses of a file's bytes, and of uploads. `turnwise.http.middleware.uploads` knows the second."""

PAGE = 100
"""How many files are listed at once."""

_CHARS = 600
"""How many characters are shown of the reason why a file was not stored."""

_UPLOADS = """async (event) => {
  const input = event.target, files = [...input.files];
  input.disabled = true;
  for (const file of files) {
    const to = %s + "&name=" + encodeURIComponent(file.name);
    const type = file.type || "application/octet-stream";
    try {
      const answer = await fetch(to, {method: "POST", body: file, headers: {"Content-Type": type}});
      emit(await answer.json());
    } catch (error) {
      emit({detail: file.name + " could not be sent: try it again"});
    }
  }
  input.value = "";
  input.disabled = false;
}"""
"""Sends the chosen files, one after the other, each as the body of a request, so that none is held in memory."""


async def download(request: Request, id: str, file: str, user: str = "") -> Response:
    """Return the bytes of a file of a conversation, which browsers store; only pages of the console show pictures."""
    try:
        files = (await Viewer.of(request.scope).session(id, user)).files
        return await content_of(files, await files.info(file), request.headers.get("range"))
    except TurnwiseError as error:
        return answer(problem_of(error))


async def upload(request: Request, id: str, name: str, user: str = "") -> Response:
    """Store the body of a request as a file of a conversation. Half a body stores nothing."""
    try:
        session = await Viewer.of(request.scope).session(id, user)
        media_type = type_of(request.headers.get("content-type"))
        file = await session.files.put(name, request.stream(), media_type=media_type)
    except TurnwiseError as error:
        return answer(problem_of(error))
    return JSONResponse({"file_id": file.file_id}, 201)


def file_url(viewer: Viewer, session: AsyncSession, file_id: str) -> str:
    """Return the address of a file's bytes."""
    return viewer.url(CONTENT, id=session.session_id, user=viewer.named(session.user_id), file=file_id)


class SessionFiles:
    """The files of a conversation; hidden while there are none, or where there is no place for files.

    Args:
        may_delete: whether the viewer may delete them.
    """

    def __init__(self, frame: Frame, session: AsyncSession, *, may_delete: bool) -> None:
        self._frame = frame
        self._session = session
        self._may_delete = may_delete
        self._shown: tuple[FileRecord, ...] | None = None
        self.has_place = True
        """Whether the store has a place for files, as far as is known."""
        with tag("details", "files hidden") as self._whole:
            self._heading: Any = tag("summary", "", "Files")
            with tag("div", "card panel"), tag("table", "list", aria_label="Files of this conversation"):
                with tag("thead"), tag("tr"):
                    for name in ("Name", "Type", "Size", "Stored", "Actions"):
                        tag("th", "", name, scope="col")
                self._body = tag("tbody")
            self._more: Any = tag("div", "soft small", "")

    async def refresh(self) -> None:
        """Show what the store says now."""
        if not self.has_place:
            return
        try:
            files = await self._session.files.list(limit=PAGE + 1)
        except FilesUnavailableError:
            self.has_place = False
            return
        if (newly := tuple(files)) == self._shown:
            return
        self._shown = newly
        is_cut = len(files) > PAGE
        replace_text(self._heading, f"Files: {PAGE if is_cut else len(files)}{' and more' if is_cut else ''}")
        replace_text(self._more, f"`turnwise files ls` lists those after the first {PAGE}." if is_cut else "")
        self._body.clear()
        with self._body:
            for file in files[:PAGE]:
                self._show_row(file)
        self._whole.classes(remove="hidden") if files else self._whole.classes(add="hidden")
        self._whole.update()

    def _show_row(self, file: FileRecord) -> None:
        with tag("tr", "", aria_label=file.name):
            tag("td", "", file.name, title=file.file_id)
            tag("td", "", file.media_type)
            tag("td", "number", file_size(file.size))
            tag("td", "", moment(file.created_at))
            with tag("td"):
                url = file_url(self._frame.viewer, self._session, file.file_id)
                link("Download", url, "button quiet", download=True, aria_label=f"Download {file.name}")
                if self._may_delete:
                    button("Delete", lambda: self._delete(file), "quiet bad", aria_label=f"Delete {file.name}")

    async def _delete(self, file: FileRecord) -> None:
        with self._frame.client.content:  # not in the row, which may go while the viewer is asked
            reason = "Messages that name it stay. Later requests to models say that the file was deleted."
            is_confirmed = await confirmed(f"Delete {file.name}?", reason, "Delete the file")
        if is_confirmed:
            await self._session.files.delete(file.file_id)
            self._frame.wake.set()


class Attachments:
    """The button that attaches files to the next prompt, and those that are attached.

    A file is stored among those of the session as soon as it is chosen. One that is taken away again stays there.
    """

    def __init__(self, frame: Frame, session: AsyncSession) -> None:
        self._frame = frame
        self._session = session
        self._files: list[FileRecord] = []
        viewer = frame.viewer
        to = viewer.url(UPLOAD, id=session.session_id, user=viewer.named(session.user_id))
        with tag("label", "button attach") as self.choose:
            tag("span", "", "Attach")
            chosen = tag("input", "", type="file", multiple=True, aria_label="Attach files")
            chosen.on("change", self._attach, js_handler=_UPLOADS % json.dumps(to))

    def build(self) -> None:
        """Make the place where the attached files are shown."""
        self._row = tag("div", "row attached", aria_live="polite")

    @property
    def blocks(self) -> list[Image | Document]:
        """What the prompt has of them: pictures as such, and all others as documents."""
        return [
            Image(file=file.file_id) if file.media_type.startswith("image/") else Document(file=file.file_id)
            for file in self._files
        ]

    def take(self) -> list[FileRecord]:
        """Take all files away, and return them."""
        files, self._files = self._files, []
        self._show()
        return files

    def put_back(self, files: list[FileRecord]) -> None:
        """Attach files again that a prompt could not bring."""
        self._files = [*files, *self._files]
        self._show()

    async def _attach(self, event: Any) -> None:
        sent = event.args if isinstance(event.args, dict) else {}
        if not isinstance(file_id := sent.get("file_id"), str):
            self._frame.show_error(TurnwiseError(str(sent.get("detail") or "the file was not stored")[:_CHARS]))
            return
        try:
            file = await self._session.files.info(file_id)
        except FileNotStoredError:
            return  # it was deleted meanwhile
        if file not in self._files:
            self.put_back([file])
        self._frame.wake.set()

    def _show(self) -> None:
        self._row.clear()
        with self._row:
            for file in self._files:
                badge(f"{file.name} · {file_size(file.size)}")
                button("Remove", self._without(file), "quiet", aria_label=f"Do not send {file.name}")

    def _without(self, file: FileRecord) -> Callable[[], None]:
        def remove() -> None:
            self._files = [other for other in self._files if other.file_id != file.file_id]
            self._show()

        return remove
