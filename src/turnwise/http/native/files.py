"""The native API: files of sessions, and of users, which prompts name by their ids."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Annotated, Any, Self
from urllib.parse import quote

from fastapi import APIRouter, Header, Query, Request, Response
from fastapi.responses import StreamingResponse
from pydantic import Field

from turnwise.actors.client.files import AsyncFiles
from turnwise.http.middleware.paths import InPath, path_of
from turnwise.http.native.models import Shown
from turnwise.http.native.sessions import NOT_FOUND, Limit
from turnwise.http.problems import answer, documented, problem, word_of
from turnwise.http.repeats import RepeatableRoute
from turnwise.http.service import Caller, MemberCaller, RequestCaller
from turnwise.memory.files.records import FileRecord

router = APIRouter(
    route_class=RepeatableRoute,
    prefix="/v1",
    tags=["files"],
    generate_unique_id_function=lambda route: route.name,
    responses=documented(401, 409, 422, 429, 503),
)

After = Annotated[str, Query(description="Only files with a higher id: the cursor of the page before.")]
Name = Annotated[str, Query(description="For people and models; it names nothing in a folder.")]
ContentType = Annotated[
    str | None, Header(description="The file's media type; if omitted, told by its first bytes and its name.")
]
Range = Annotated[str | None, Header(description="Which bytes, such as `bytes=0-1023`; all if omitted.")]

UNTYPED = ("application/octet-stream", "application/x-www-form-urlencoded")
"""What clients send as the type of a body whose type they do not know."""


class FileShown(Shown):
    """A file, without its bytes."""

    file_id: str = Field(examples=["file-01a228d04c41e5651e2f4ff1"])
    """Pass it as `file` of an image or a document among prompts."""
    session_id: str | None
    """The session that has it; null if it belongs to the user and to no session."""
    user_id: str
    name: str
    media_type: str
    size: int
    """In bytes."""
    digest: str
    """The SHA-256 of its bytes."""
    created_at: float
    """In seconds since the epoch."""

    @classmethod
    def of(cls, file: FileRecord) -> Self:
        return cls.model_validate({**vars(file), "session_id": file.session_id or None})


class FilePage(Shown):
    """A page of files, by their ids."""

    items: list[FileShown]
    cursor: str | None
    """Pass it as `after` to get the next page; null if there is none."""

    @classmethod
    def of(cls, files: list[FileRecord], limit: int) -> Self:
        more = files[limit - 1].file_id if len(files) > limit else None
        return cls(items=list(map(FileShown.of, files[:limit])), cursor=more)


class FileDeleted(Shown):
    """Whether there was a file to delete."""

    deleted: bool


async def files_of(caller: Caller, session_id: str | None) -> AsyncFiles:
    """Return the files of a session of the caller's user, or of the user alone.

    Raises:
        SessionNotFoundError: the user has no such session.
    """
    if session_id is None:
        return await caller.manager.files(user_id=caller.user_id)
    as_user = None if caller.owner is None else caller.user_id
    return (await caller.manager.get(session_id, user_id=caller.owner or caller.user_id, as_user=as_user)).files


def type_of(content_type: str | None) -> str | None:
    """Return the type that a client gives for a file; None if it gives none."""
    return None if not content_type or content_type.partition(";")[0].strip().lower() in UNTYPED else content_type


async def content_of(files: AsyncFiles, file: FileRecord, range_: str | None) -> Response:
    """Return a file's bytes, or a part of them, as an answer that browsers store and never show.

    The first piece is read before the answer begins, so that a file that cannot be read is an error.
    """
    start, stop, status = 0, file.size, 200
    headers = {
        "Content-Disposition": f"attachment; filename*=UTF-8''{quote(file.name, safe='')}",
        "Content-Security-Policy": "sandbox; default-src 'none'",
        "Accept-Ranges": "bytes",
        "ETag": f'"{file.digest}"',
        "Cache-Control": "private",
    }
    if asked := range_of(range_, file.size):
        start, stop = asked
        if start >= stop:
            body = problem(416, "Range not satisfiable", f"the file has {file.size} bytes", error=word_of(416))
            return answer(body, {"Content-Range": f"bytes */{file.size}"})
        status = 206
        headers["Content-Range"] = f"bytes {start}-{stop - 1}/{file.size}"
    pieces = files.read(file.file_id, start, stop)
    first = await anext(aiter(pieces), b"")
    headers["Content-Length"] = str(stop - start)
    return StreamingResponse(_all(first, pieces), status, headers, media_type=file.media_type)


async def _all(first: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield first
    async for piece in rest:
        yield piece


_RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})")


def range_of(text: str | None, size: int) -> tuple[int, int] | None:
    """Return the start and the stop of a single range; None for all bytes, also if several ranges are asked for.

    A range behind the end is empty.
    """
    match = _RANGE.fullmatch((text or "").strip())
    if match is None or match.group(0) == "bytes=-":
        return None
    first, last = match.groups()
    if not first:  # the last bytes
        return max(0, size - int(last)), size
    if last and int(last) < int(first):
        return None
    return min(int(first), size), min(size, int(last) + 1) if last else size


async def _put(caller: Caller, session_id: str | None, name: str, request: Request, response: Response) -> FileShown:
    files = await files_of(caller, session_id)
    file = await files.put(name, request.stream(), media_type=type_of(request.headers.get("content-type")))
    place = ("sessions", session_id, "files") if session_id is not None else ("files",)
    response.headers["Location"] = path_of(request.scope.get("root_path", ""), "v1", *place, file.file_id)
    return FileShown.of(file)


_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
    }
}
_BYTES: dict[int | str, dict[str, Any]] = {
    200: {"content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}},
    206: {"description": "A part of the bytes."},
    **documented(404, 416),
}
_UPLOAD = documented(404, 413)


@router.post(
    "/sessions/{session_id}/files",
    summary="Store a file of a session: the body is its bytes",
    status_code=201,
    responses=_UPLOAD,
    openapi_extra=_BODY,
)
async def put_session_file(
    session_id: InPath,
    name: Name,
    caller: MemberCaller,
    *,
    request: Request,
    response: Response,
    content_type: ContentType = None,
) -> FileShown:
    """Each request stores a file of its own; equal contents are kept once. A half body stores nothing."""
    return await _put(caller, session_id, name, request, response)


@router.get("/sessions/{session_id}/files", summary="List the files of a session", responses=NOT_FOUND)
async def list_session_files(
    session_id: InPath, caller: MemberCaller, after: After = "", limit: Limit = 100
) -> FilePage:
    return FilePage.of(await (await files_of(caller, session_id)).list(after, limit + 1), limit)


@router.get("/sessions/{session_id}/files/{file_id}", summary="Get a file of a session", responses=NOT_FOUND)
async def get_session_file(session_id: InPath, file_id: InPath, caller: MemberCaller) -> FileShown:
    return FileShown.of(await (await files_of(caller, session_id)).info(file_id))


@router.get(
    "/sessions/{session_id}/files/{file_id}/content",
    summary="Get the bytes of a file of a session",
    response_class=Response,
    responses=_BYTES,
)
async def get_session_file_content(
    session_id: InPath, file_id: InPath, caller: MemberCaller, range_: Annotated[Range, Header(alias="range")] = None
) -> Response:
    """Browsers store it, and never show it."""
    files = await files_of(caller, session_id)
    return await content_of(files, await files.info(file_id), range_)


@router.delete("/sessions/{session_id}/files/{file_id}", summary="Delete a file of a session", responses=NOT_FOUND)
async def delete_session_file(session_id: InPath, file_id: InPath, caller: MemberCaller) -> FileDeleted:
    """Later requests to models say that it was deleted. May be repeated."""
    return FileDeleted(deleted=await (await files_of(caller, session_id)).delete(file_id))


@router.post(
    "/files",
    summary="Store a file of the user, which all of the user's sessions can name: the body is its bytes",
    status_code=201,
    responses=_UPLOAD,
    openapi_extra=_BODY,
)
async def put_file(
    name: Name, caller: RequestCaller, *, request: Request, response: Response, content_type: ContentType = None
) -> FileShown:
    """A session whose prompts name the file has it, too, from then on."""
    return await _put(caller, None, name, request, response)


@router.get("/files", summary="List the files of the user that belong to no session")
async def list_files(caller: RequestCaller, after: After = "", limit: Limit = 100) -> FilePage:
    return FilePage.of(await (await files_of(caller, None)).list(after, limit + 1), limit)


@router.get("/files/{file_id}", summary="Get a file of the user", responses=NOT_FOUND)
async def get_file(file_id: InPath, caller: RequestCaller) -> FileShown:
    return FileShown.of(await (await files_of(caller, None)).info(file_id))


@router.get(
    "/files/{file_id}/content",
    summary="Get the bytes of a file of the user",
    response_class=Response,
    responses=_BYTES,
)
async def get_file_content(
    file_id: InPath, caller: RequestCaller, range_: Annotated[Range, Header(alias="range")] = None
) -> Response:
    """Browsers store it, and never show it."""
    files = await files_of(caller, None)
    return await content_of(files, await files.info(file_id), range_)


@router.delete("/files/{file_id}", summary="Delete a file of the user", responses=NOT_FOUND)
async def delete_file(file_id: InPath, caller: RequestCaller) -> FileDeleted:
    """Sessions that have named the file keep it. May be repeated."""
    return FileDeleted(deleted=await (await files_of(caller, None)).delete(file_id))
