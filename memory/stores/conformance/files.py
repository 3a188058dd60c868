"""Laws of stores that keep records of files: who has which, and which bytes nobody needs any more."""

from __future__ import annotations

import asyncio
import functools
from dataclasses import replace
from typing import Protocol, cast

from turnwise.errors import FileExpiredError, FileRefusedError, SessionNotFoundError
from turnwise.memory.conversation.sessions import SessionKey
from turnwise.memory.files.index import FileIndex
from turnwise.memory.files.records import FileLimits, FileRecord
from turnwise.memory.stores.base import SessionStore
from turnwise.memory.stores.conformance.fixtures import a_session, a_turn
from turnwise.memory.stores.conformance.laws import Law, collector, equal, refuses

LAWS: list[Law] = []
"""All laws of this file, in order. A store without `FileIndex` obeys them."""

ROOMY = FileLimits(file_bytes=1 << 20, session_bytes=1 << 20, session_files=100, user_bytes=1 << 20)

ANN = SessionKey("", "ann")
CHAT = SessionKey("chat", "ann")


class _Store(FileIndex, SessionStore, Protocol):
    """What the laws are about: a session store that is a `FileIndex` too."""


def _law(check: Law) -> Law:
    @functools.wraps(check)
    async def if_it_keeps_files(store: SessionStore, other: SessionStore) -> None:
        if isinstance(store, FileIndex):
            await check(store, other)

    return collector(LAWS)(if_it_keeps_files)


def a_file(ident: str = "a", key: SessionKey = CHAT, **values: object) -> FileRecord:
    """Return a file whose id, digest and object are made of `ident`."""
    fields = {"name": f"{ident} ü\u4e2d.txt", "media_type": "text/plain; charset=utf-8", "size": 10, "created_at": 1.5}
    ids = {"file_id": f"file-{ident}", "digest": f"digest-{ident}", "object_id": f"object-{ident}"}
    return FileRecord(**{**key._asdict(), **ids, **fields, **values})


async def _add(store: _Store, file: FileRecord, limits: FileLimits = ROOMY) -> FileRecord:
    await store.reserve_object(file.object_id, file.user_id)
    return await store.add_file(file, limits)


async def _with_chat(store: SessionStore) -> _Store:
    await store.create(a_session("chat", user_id="ann"))
    return cast(_Store, store)


@_law
async def check_files_come_back_as_they_were_added(store: SessionStore, other: SessionStore) -> None:
    """Of a session and of a user, page by page in the order of their ids; nobody else has them."""
    index, reader = await _with_chat(store), cast(_Store, other)
    files = [await _add(index, a_file(name)) for name in ("c", "a", "b")]
    own = await _add(index, a_file("a", ANN, digest="own", object_id="own"))
    equal(files[1], a_file("a"), "an added file")
    equal(await reader.file(CHAT, "file-b"), a_file("b"), "a file of a session")
    equal(await reader.files(CHAT), [a_file(name) for name in "abc"], "the files of a session")
    equal(await reader.files(CHAT, after="file-a", limit=1), [a_file("b")], "a page")
    equal(await reader.files(ANN), [own], "the files of a user")
    for key in (SessionKey("chat", "tom"), SessionKey("", "tom"), SessionKey("other", "ann")):
        equal((await reader.files(key), await reader.file(key, "file-a")), ([], None), f"the files of {key}")
    await refuses(SessionNotFoundError, _add(index, a_file("d", SessionKey("none", "ann"))), "a file of no session")
    equal(await reader.delete_file(CHAT, "file-b"), True, "whether there was a file to delete")
    equal(await reader.delete_file(CHAT, "file-b"), False, "whether there was a deleted file")
    equal(await index.files(CHAT), [a_file("a"), a_file("c")], "the files after a deletion")


@_law
async def check_a_content_is_kept_once_for_each_user(store: SessionStore, other: SessionStore) -> None:
    """A second file with a digest gets the first one's object; another user's does not. An id is taken once."""
    index = await _with_chat(store)
    first = await _add(index, a_file("a"))
    second = await _add(cast(_Store, other), a_file("b", ANN, digest=first.digest))
    equal(second.object_id, first.object_id, "the object of a second file")
    toms = await _add(index, a_file("t", SessionKey("", "tom"), digest=first.digest))
    equal(toms.object_id, "object-t", "the object of another user's file")
    again = await _add(index, a_file("a", name="another", object_id="object-x"))
    equal(again, first, "what is stored under an id that is taken")
    equal(sorted(await index.unused_objects(0.0)), ["object-b", "object-x"], "the objects that nobody needs")
    await index.delete_file(CHAT, "file-a")
    equal(sorted(await index.unused_objects(0.0)), ["object-b", "object-x"], "the objects, with a file left")
    await index.delete_file(ANN, "file-b")
    equal(sorted(await index.unused_objects(0.0)), ["object-a", "object-b", "object-x"], "the objects after the last")
    fresh = await _add(index, a_file("c", digest=first.digest))
    equal(fresh.object_id, "object-c", "the object of a file whose content was deleted")
    await index.drop_objects(["object-a", "object-b", "object-c", "object-t"])
    equal(await index.unused_objects(0.0), ["object-x"], "the objects that were not dropped")
    await refuses(FileExpiredError, index.add_file(a_file("d"), ROOMY), "a file whose object was not reserved")
    await index.delete_file(CHAT, "file-c")
    equal(await index.unused_objects(0.0), ["object-c", "object-x"], "an object that was used could not be dropped")


@_law
async def check_a_put_that_counts_as_dead_is_refused(store: SessionStore, other: SessionStore) -> None:
    """Once a reserved object is unused, no file gets it; an object that a file has cannot be released."""
    index, collector_ = await _with_chat(store), cast(_Store, other)
    for name in ("late", "released", "used"):
        await index.reserve_object(f"object-{name}", "ann")
    now = await index.now()
    equal(await collector_.unused_objects(now - 60.0), [], "what is unused at once")
    await index.release_object("object-released")
    equal(await collector_.unused_objects(now - 60.0), ["object-released"], "what was released")
    used = await index.add_file(a_file("used"), ROOMY)
    await index.release_object("object-used")
    equal(await collector_.unused_objects(now + 60.0), ["object-late", "object-released"], "what is unused later")
    for name in ("late", "released"):
        await refuses(FileExpiredError, index.add_file(a_file(name), ROOMY), f"a file of the {name} object")
    equal(await index.files(CHAT), [used], "the files")


@_law
async def check_limits_of_files_hold_in_the_same_step(store: SessionStore, other: SessionStore) -> None:
    """Of many puts at once, as many succeed as there is room for. A content counts once for its user."""
    index = await _with_chat(store)
    three = replace(ROOMY, session_files=3)
    puts = [_add(cast(_Store, (store, other)[n % 2]), a_file(f"{n}"), three) for n in range(8)]
    outcomes = await asyncio.gather(*puts, return_exceptions=True)
    refused = [outcome for outcome in outcomes if isinstance(outcome, FileRefusedError)]
    equal((len(await index.files(CHAT)), len(refused)), (3, 5), f"files and refusals of {outcomes}")
    await refuses(FileRefusedError, _add(index, a_file("s", size=71), replace(ROOMY, session_bytes=100)), "bytes")
    await refuses(FileRefusedError, _add(index, a_file("u", ANN, size=71), replace(ROOMY, user_bytes=100)), "bytes")
    await _add(index, a_file("fits", ANN, size=70), replace(ROOMY, user_bytes=100))
    digest = (await index.files(CHAT))[0].digest
    await _add(index, a_file("same", ANN, digest=digest), replace(ROOMY, user_bytes=100))


@_law
async def check_one_content_that_is_put_many_times_at_once_is_kept_once(
    store: SessionStore, other: SessionStore
) -> None:
    """Also while its last file is deleted: each file that was acknowledged has an object that is used."""
    index = await _with_chat(store)

    async def churn(number: int) -> None:
        own = cast(_Store, (store, other)[number % 2])
        for step in range(5):
            name = f"{number}-{step}"
            await _add(own, a_file(name, digest="same"))
            if (number + step) % 2:
                await own.delete_file(CHAT, f"file-{name}")

    await asyncio.gather(*map(churn, range(6)))
    objects = {file.object_id for file in await index.files(CHAT)}
    equal(len(objects), 1, "how many objects have the content")
    unused = await index.unused_objects(0.0)
    equal(objects & set(unused), set[str](), "what is used, and counts as unused")
    equal(len(objects | set(unused)), 30, "all objects")


@_law
async def check_sessions_take_their_files_along(store: SessionStore, other: SessionStore) -> None:
    """A fork gets its parent's files with its creation; a deletion deletes its session's, and forgetting all."""
    index = await _with_chat(store)
    first = await _add(index, a_file("a"))
    await _add(index, a_file("b", ANN, digest=first.digest))
    await _add(index, a_file("t", SessionKey("", "tom")))
    fork = SessionKey("fork", "ann")
    await store.create(replace(a_session("fork", user_id="ann"), parent="chat#0"), a_turn(0, status="completed"))
    equal(await index.files(fork), [replace(first, session_id="fork")], "the files of a fork")
    await other.delete(CHAT)
    equal((await index.files(CHAT), len(await index.files(fork))), ([], 1), "the files after a deletion")
    equal(await index.unused_objects(0.0), ["object-b"], "what nobody needs, while the fork has it")
    await store.create(a_session("chat", user_id="ann"))
    equal(await index.files(CHAT), [], "the files of a new session of the same id")
    equal(await index.forget_files("ann"), 2, "how many files were forgotten")
    equal((await index.files(fork), await index.files(ANN)), ([], []), "the files of a forgotten user")
    equal(await index.unused_objects(0.0), ["object-a", "object-b"], "what nobody needs then")
    equal(len(await index.files(SessionKey("", "tom"))), 1, "the files of another user")
