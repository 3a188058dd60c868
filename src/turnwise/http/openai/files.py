"""`/openai/v1/files`: files of the user, which `input_file` and `input_image` name by their `file_id`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Header, Query, Request
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, ConfigDict, Field
from starlette.datastructures import UploadFile

from turnwise.errors import FileNotStoredError, FileRefusedError, InvalidInputError
from turnwise.http.native.files import content_of, type_of
from turnwise.http.openai.errors import OpenAIError, OpenAIRoute, invalid, not_found, unsupported
from turnwise.http.openai.pages import listed
from turnwise.http.service import Caller, RequestCaller
from turnwise.memory.files.records import FileRecord

router = APIRouter(prefix="/openai/v1/files", tags=["OpenAI files"], route_class=OpenAIRoute)

PURPOSE = "user_data"
"""The purpose of all files that are listed: they are for prompts."""

PURPOSES = ("user_data", "vision", "assistants")
"""Purposes that are accepted. Files for batches and for fine-tuning are not."""

MAX_LISTED = 10_000
"""The most files that a page has; OpenAI has the same limit."""


class _Page(BaseModel):
    model_config = ConfigDict(extra="forbid")

    purpose: str | None = None
    limit: int = Field(default=MAX_LISTED, ge=1, le=MAX_LISTED)
    order: Literal["asc", "desc"] = "desc"
    after: str | None = None


def shown(file: FileRecord) -> dict[str, Any]:
    """Return a file as OpenAI's API shows it."""
    return {
        "id": file.file_id,
        "object": "file",
        "bytes": file.size,
        "created_at": int(file.created_at),
        "filename": file.name,
        "purpose": PURPOSE,
        "status": "processed",
        "expires_at": None,
        "status_details": None,
    }


@router.post("")
async def upload(request: Request, caller: RequestCaller) -> Response:
    """Store a file, which comes as `file` of a form."""
    if not request.headers.get("content-type", "").startswith("multipart/form-data"):
        raise invalid("file", "Send the file as multipart/form-data.")
    async with request.form(max_files=1, max_fields=20) as form:
        for name in form:
            if name not in ("file", "purpose"):
                raise unsupported(name)
        file, purpose = form.get("file"), form.get("purpose")
        if not isinstance(file, UploadFile):
            raise invalid("file", "Missing required parameter: 'file'.", "missing_required_parameter")
        if purpose not in PURPOSES:
            raise invalid("purpose", f"Invalid value for 'purpose': must be one of {', '.join(PURPOSES)}.")
        files = await caller.manager.files(user_id=caller.user_id)
        try:
            stored = await files.put(file.filename or "file", file.file, media_type=type_of(file.content_type))
        except FileRefusedError as error:
            raise invalid("file", str(error)) from None
    return JSONResponse(shown(stored))


@router.get("")
async def list_files(caller: RequestCaller, page: Annotated[_Page, Query()]) -> Response:
    """List files, by the order in which they were stored."""
    files, found, after = await caller.manager.files(user_id=caller.user_id), list[FileRecord](), ""
    while part := await files.list(after, 1000):
        found += part
        after = part[-1].file_id
    found.sort(key=lambda file: (file.created_at, file.file_id), reverse=page.order == "desc")
    if page.purpose not in (None, PURPOSE):
        found = []
    ids = [file.file_id for file in found]
    if page.after is not None and page.after not in ids:
        raise invalid("after", f"File with id '{page.after}' not found.", "not_found")
    start = 0 if page.after is None else ids.index(page.after) + 1
    of_page = found[start : start + page.limit]
    return JSONResponse(listed(list(map(shown, of_page)), is_more=start + page.limit < len(found)))


@router.get("/{file_id}")
async def retrieve(file_id: str, caller: RequestCaller) -> Response:
    """Return what is known of a file."""
    return JSONResponse(shown(await _file(caller, file_id)))


@router.get("/{file_id}/content")
async def content(
    file_id: str, caller: RequestCaller, range_: Annotated[str | None, Header(alias="range")] = None
) -> Response:
    """Return the bytes of a file."""
    file = await _file(caller, file_id)
    return await content_of(await caller.manager.files(user_id=caller.user_id), file, range_)


@router.delete("/{file_id}")
async def delete(file_id: str, caller: RequestCaller) -> Response:
    """Delete a file. Conversations that have named it keep it."""
    file = await _file(caller, file_id)
    await (await caller.manager.files(user_id=caller.user_id)).delete(file.file_id)
    return JSONResponse({"id": file_id, "object": "file", "deleted": True})


async def _file(caller: Caller, file_id: str) -> FileRecord:
    try:
        return await (await caller.manager.files(user_id=caller.user_id)).info(file_id)
    except (FileNotStoredError, InvalidInputError):
        raise _no_file(file_id) from None


def _no_file(file_id: str) -> OpenAIError:
    return not_found("File", file_id)
