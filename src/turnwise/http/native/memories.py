"""The native API: long-term memories of a session's user, and the session's notes."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Self

from fastapi import APIRouter, Query, Request
from pydantic import Field, model_validator

from turnwise.http.bounded import Bounds
from turnwise.http.middleware.paths import InPath
from turnwise.http.native.models import Body, ForgottenShown, Shown, example
from turnwise.http.native.sessions import CONFLICT, NOT_FOUND, Cursor, Limit
from turnwise.http.problems import documented
from turnwise.http.repeats import RepeatableRoute
from turnwise.http.service import MemberCaller
from turnwise.http.sse import wait_for
from turnwise.memory.conversation.memory_use import MemoryUse
from turnwise.memory.longterm.base import MemoryItem, Status
from turnwise.memory.longterm.memory_types import MemoryCategory, MemoryType
from turnwise.memory.longterm.retention.about import About, Mention, Reason
from turnwise.memory.values.limits import MAX_NAMES

router = APIRouter(
    route_class=RepeatableRoute,
    prefix="/v1/sessions/{session_id}",
    tags=["memory"],
    generate_unique_id_function=lambda route: route.name,
    responses=documented(401, 422, 429, 503),
)

Type = Annotated[MemoryType, Field(strict=False)]
Category = Annotated[MemoryCategory, Field(strict=False)]


class Save(Body):
    """A text to keep."""

    model_config = example(text="Prefers trains to planes.", type="preferences", topic="travel")
    bounds: ClassVar[Bounds] = {"aliases": ("MAX_NAMES", MAX_NAMES)}

    text: str
    type: Type = MemoryType.GENERAL
    topic: str | None = None
    """The subject, in a word or two."""
    id: str | None = None
    """A new one if omitted. If an item with this id exists, or was deleted, nothing changes."""
    name: str | None = None
    """The name of the thing that the text describes."""
    aliases: list[str] = Field(default_factory=list)
    expires_at: float | None = None
    """When it stops being recalled, in seconds since the epoch."""
    memory: str | None = None
    """The memory's name; the first writable one if omitted."""


class Saved(Shown):
    """An item that was saved."""

    model_config = example(id="0193f2a4c0de5f1a2b3c4d5e")

    id: str


class Recall(Body):
    """What to look for."""

    model_config = example(query="How does Ann like to travel?", limit=5, category="semantic")

    bounds: ClassVar[Bounds] = {"types": ("MAX_NAMES", MAX_NAMES)}

    query: str
    limit: Annotated[int, Field(ge=1, le=1000)] = 10
    types: list[Type] | None = None
    category: Category | None = None
    as_of: float | None = None
    """Find what was valid at this time, in seconds since the epoch."""


class RecallApart(Body):
    """What to look for in each memory."""

    model_config = example(query="How does Ann like to travel?")

    query: str
    limit: Annotated[int, Field(ge=1, le=1000)] = 10


class Change(Body):
    """What to change of an item; what is omitted stays."""

    model_config = example(status="resolved")
    bounds: ClassVar[Bounds] = {"aliases": ("MAX_NAMES", MAX_NAMES)}

    text: str | None = None
    type: Type | None = None
    topic: str | None = None
    name: str | None = None
    aliases: list[str] = Field(default_factory=list)
    status: Status = "active"
    expires_at: float | None = None


class Item(Body):
    """An item."""

    model_config = example(id="0193f2a4c0de5f1a2b3c4d5e")

    id: str


class Items(Body):
    """Items."""

    model_config = example(ids=["0193f2a4c0de5f1a2b3c4d5e"])

    bounds: ClassVar[Bounds] = {"ids": ("MAX_NAMES", MAX_NAMES)}

    ids: Annotated[list[str], Field(min_length=1)]


class MentionToForget(Body):
    """An item as a preview has it. Its memory and id are needed; the turn, so that no memory gets it later."""

    model_config = example(
        memory="VectorMemory", id="0193f2a4:0-2~5d1c", session_id="chat-1", turn_index=3, is_turn=True
    )

    memory: str
    id: str
    text: str = ""
    why: Reason = "words"
    type: Type | None = None
    session_id: str | None = None
    turn_index: int | None = None
    is_turn: bool = False
    in_profile: bool = False
    created_at: float = 0.0


class ForgetAbout(Body):
    """What to forget: a text, or those `mentions` and `notes` of a preview that are to go."""

    model_config = example(text="I drive a Volvo")
    bounds: ClassVar[Bounds] = {"mentions": ("MAX_NAMES", MAX_NAMES), "notes": ("MAX_NAMES", MAX_NAMES)}

    text: str | None = None
    preview: bool = False
    """Whether to answer what would be deleted for the text, and delete nothing."""
    mentions: list[MentionToForget] = Field(default_factory=list)
    notes: list[str] = Field(default_factory=list)

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if (self.text is None) is not bool(self.mentions or self.notes):
            raise ValueError("pass either a text, or mentions and notes of a preview")
        if self.preview and self.text is None:
            raise ValueError("a preview needs a text")
        return self

    @property
    def about(self) -> About:
        """The mentions and notes that are to go."""
        mentions = tuple(Mention(**mention.model_dump()) for mention in self.mentions)
        return About(mentions=mentions, notes=tuple(self.notes))


class ForgetTurn(Body):
    """The turn to forget."""

    model_config = example(turn_index=3)

    turn_index: int
    verify: bool = False
    """Whether memories are checked afterwards for remains."""


class Use(Body):
    """How later runs use long-term memory."""

    model_config = example(use="read")

    use: MemoryUse | bool


class Notes(Body):
    """Notes: a text, or what their format is made of."""

    model_config = example(content="# Plan\n- book a room")

    content: Any


class ItemShown(Shown):
    """An item of a memory."""

    id: str
    text: str
    type: MemoryType
    category: MemoryCategory
    topic: str | None
    name: str | None
    aliases: list[str]
    session_id: str | None
    """The session that it comes from."""
    turn_index: int | None
    created_at: float
    updated_at: float | None
    superseded_at: float | None
    superseded_by: str | None
    expires_at: float | None
    status: Status
    pinned: bool
    score: float | None
    """How relevant a recalled item is, from 0 to 1."""
    words: list[str]
    """The words of the query that it has."""
    passage: str | None
    """The relevant part of a long text."""
    memory: str | None
    """The name of its memory."""

    @classmethod
    def of(cls, item: MemoryItem) -> ItemShown:
        own = {name: getattr(item, name) for name in _ITEM_FIELDS}
        own |= {"category": item.type.category, "aliases": list(item.aliases), "words": list(item.words)}
        return cls(**own, session_id=item.source.session_id, turn_index=item.source.turn_index)


_MADE = ("category", "aliases", "words", "session_id", "turn_index")
_ITEM_FIELDS = [name for name in ItemShown.model_fields if name not in _MADE]


class ItemsShown(Shown):
    """Items; of a recall, the best first."""

    items: list[ItemShown]


class RecalledItemsShown(ItemsShown):
    """Items that were recalled, the best first."""

    trouble: str | None
    """Why items may be missing or ranked worse than usual; null if none are."""


class ItemPage(ItemsShown):
    """A page of items."""

    cursor: str | None
    """Pass it to get the next page; null if there is none."""


class RecalledShown(Shown):
    """What each kind of memory recalled."""

    static: list[ItemShown]
    extracted: list[ItemShown]
    vector: list[ItemShown]
    failed: dict[str, str]
    """Why memories recalled nothing, by their names."""


class Found(Shown):
    """Whether the item exists."""

    model_config = example(found=True)

    found: bool


class MentionShown(Shown):
    """An item of a memory that belongs to a subject."""

    memory: str
    id: str
    text: str
    """Of a long text, what says the subject."""
    why: Reason
    type: MemoryType | None
    session_id: str | None
    turn_index: int | None
    """The turn that it comes from."""
    is_turn: bool
    """Whether it is all of a turn."""
    in_profile: bool
    created_at: float

    @classmethod
    def of(cls, mention: Mention) -> MentionShown:
        return cls(**{name: getattr(mention, name) for name in cls.model_fields})


class AboutShown(Shown):
    """What memories and notes have about a subject."""

    mentions: list[MentionShown]
    """What belongs to it."""
    notes: list[str]
    """Parts of the notes."""
    similar: list[MentionShown]
    """What may belong to it; it is not deleted unless it is passed as `mentions`."""
    failed: dict[str, str]
    """Why memories could not be searched, by their names."""

    @classmethod
    def of(cls, about: About) -> AboutShown:
        mentions, similar = (list(map(MentionShown.of, part)) for part in (about.mentions, about.similar))
        return cls(mentions=mentions, notes=list(about.notes), similar=similar, failed=dict(about.failed))


class DeletedShown(Shown):
    """How many items existed, and what memories still have of the turns that they come from."""

    model_config = example(deleted=1, left=[])

    deleted: int
    left: list[MentionShown]
    """Pass them to forget-about as `mentions` to delete them, too."""


class NotesShown(Shown):
    """The session's notes."""

    model_config = example(content="# Plan\n- book a room")

    content: str


class Done(Shown):
    """Whether it is done."""

    model_config = example(done=True)

    done: bool


@router.get("/memory", summary="List what memories keep for the user", responses=NOT_FOUND)
async def list_memory(
    session_id: InPath,
    caller: MemberCaller,
    *,
    category: MemoryCategory | None = None,
    type: MemoryType | None = None,
    memory: Annotated[str | None, Query(description="Only of the memory with this name.")] = None,
    cursor: Cursor = None,
    limit: Limit = 100,
) -> ItemPage:
    query: dict[str, Any] = {"category": category, "type": type, "memory": memory, "cursor": cursor, "limit": limit}
    page = await caller.on_session(session_id, lambda session: session.memory.list(**query))
    return ItemPage(items=list(map(ItemShown.of, page)), cursor=page.cursor)


@router.post("/memory", summary="Save a text", status_code=201, responses=NOT_FOUND | documented(403))
async def save_memory(session_id: InPath, body: Save, caller: MemberCaller) -> Saved:
    options = body.model_dump(exclude={"text"})
    return Saved(id=await caller.on_session(session_id, lambda session: session.memory.save(body.text, **options)))


@router.post("/memory/recall", summary="Find items that are relevant to a query", responses=NOT_FOUND)
async def recall_memory(session_id: InPath, body: Recall, caller: MemberCaller) -> RecalledItemsShown:
    options = body.model_dump(exclude={"query"})
    items = await caller.on_session(session_id, lambda session: session.memory.recall(body.query, **options))
    return RecalledItemsShown(items=list(map(ItemShown.of, items)), trouble=items.trouble)


@router.post("/memory/recall-apart", summary="Find relevant items, by kinds of memories", responses=NOT_FOUND)
async def recall_memory_apart(session_id: InPath, body: RecallApart, caller: MemberCaller) -> RecalledShown:
    recalled = await caller.on_session(
        session_id, lambda session: session.memory.recall_apart(body.query, limit=body.limit)
    )
    parts = {name: list(map(ItemShown.of, getattr(recalled, name))) for name in ("static", "extracted", "vector")}
    return RecalledShown(**parts, failed=dict(recalled.failed))


@router.patch("/memory/items/{item_id}", summary="Change an item", responses=NOT_FOUND | documented(403))
async def update_memory(session_id: InPath, item_id: InPath, body: Change, caller: MemberCaller) -> Found:
    changes = body.model_dump(include=body.model_fields_set)
    return Found(found=await caller.on_session(session_id, lambda session: session.memory.update(item_id, **changes)))


@router.post("/memory/pin", summary="Pin an item to the user's profile", responses=NOT_FOUND | documented(403))
async def pin_memory(session_id: InPath, body: Item, caller: MemberCaller) -> Found:
    return Found(found=await caller.on_session(session_id, lambda session: session.memory.pin(body.id)))


@router.post("/memory/unpin", summary="Undo a pin", responses=NOT_FOUND | documented(403))
async def unpin_memory(session_id: InPath, body: Item, caller: MemberCaller) -> Found:
    return Found(found=await caller.on_session(session_id, lambda session: session.memory.unpin(body.id)))


@router.post("/memory/delete", summary="Delete items", responses=NOT_FOUND | documented(403))
async def delete_memory(session_id: InPath, body: Items, caller: MemberCaller) -> DeletedShown:
    deleted = await caller.on_session(session_id, lambda session: session.memory.delete(*body.ids))
    return DeletedShown(deleted=deleted.count, left=list(map(MentionShown.of, deleted.left.mentions)))


@router.post(
    "/memory/forget-about", summary="Forget a subject in all memories and notes", responses=NOT_FOUND | documented(403)
)
async def forget_about(session_id: InPath, body: ForgetAbout, caller: MemberCaller) -> AboutShown:
    """Answers what was deleted; with `preview`, what would be."""
    if body.preview and body.text is not None:
        text = body.text
        about = await caller.on_session(session_id, lambda session: session.memory.find_about(text))
    else:
        what = body.about if body.text is None else body.text
        about = await caller.on_session(session_id, lambda session: session.memory.forget_about(what))
    return AboutShown.of(about)


@router.post("/memory/forget", summary="Forget what a turn added", responses=CONFLICT)
async def forget_turn(session_id: InPath, body: ForgetTurn, caller: MemberCaller) -> ForgottenShown:
    """No later request has the turn, and memories delete what they derived of it; the history still shows it."""
    options = {"verify": body.verify}
    done = await caller.on_session(session_id, lambda session: session.memory.forget(body.turn_index, **options))
    return ForgottenShown.of(done)


@router.put("/memory/use", summary="Set how later runs use memories", status_code=204, responses=NOT_FOUND)
async def use_memory(session_id: InPath, body: Use, caller: MemberCaller) -> None:
    await caller.on_session(session_id, lambda session: session.memory.use(body.use))


@router.get("/memory/wait", summary="Wait until memories have all turns that ended", responses=NOT_FOUND)
async def wait_for_memory(
    session_id: InPath,
    caller: MemberCaller,
    request: Request,
    timeout_s: Annotated[float, Query(ge=0, allow_inf_nan=False, description="Seconds to wait at most.")] = 30.0,
) -> Done:
    timeout_s = min(timeout_s, caller.service.settings.max_wait_s)
    work = caller.on_session(session_id, lambda session: session.memory.wait(timeout_s))
    return Done(done=bool(await wait_for(request, caller, work)))


@router.get("/notes", summary="Read the session's notes", responses=NOT_FOUND)
async def read_notes(session_id: InPath, caller: MemberCaller) -> NotesShown:
    return NotesShown(content=await caller.on_session(session_id, lambda session: session.memory.read_notes()))


@router.put("/notes", summary="Replace the notes", responses=NOT_FOUND)
async def replace_notes(session_id: InPath, body: Notes, caller: MemberCaller) -> NotesShown:
    content = await caller.on_session(session_id, lambda session: session.memory.replace_notes(body.content))
    return NotesShown(content=content)


@router.patch("/notes", summary="Merge into the notes", responses=NOT_FOUND)
async def merge_notes(session_id: InPath, body: Notes, caller: MemberCaller) -> NotesShown:
    return NotesShown(
        content=await caller.on_session(session_id, lambda session: session.memory.merge_notes(body.content))
    )


@router.delete("/notes", summary="Reset the notes", responses=NOT_FOUND)
async def clear_notes(session_id: InPath, caller: MemberCaller) -> Found:
    """Answers whether a text was stored."""
    return Found(found=await caller.on_session(session_id, lambda session: session.memory.clear_notes()))
