"""`FileTable`: the records of files and objects of a store in memory, with the rules that every `FileIndex` keeps."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from turnwise.errors import FileExpiredError
from turnwise.memory.conversation.sessions import SessionKey
from turnwise.memory.files.records import FileLimits, FileRecord
from turnwise.memory.values.records import replace


@dataclass(slots=True)
class _Object:
    user_id: str
    reserved_at: float | None
    """When it was reserved; None once it was used, or is unused."""
    digest: str = ""
    size: int = 0
    uses: int = 0


class FileTable:
    """Files by whose they are, and the objects with their bytes. Each method is one change."""

    def __init__(self) -> None:
        self._files: defaultdict[SessionKey, dict[str, FileRecord]] = defaultdict(dict)
        self._objects: dict[str, _Object] = {}

    def of(self, key: SessionKey) -> Mapping[str, FileRecord]:
        """Return the files of a session, or of a user, by id."""
        return self._files.get(key, {})

    def reserve(self, object_id: str, user_id: str, now: float) -> None:
        """See `FileIndex.reserve_object`."""
        self._objects[object_id] = _Object(user_id, now)

    def release(self, object_id: str) -> None:
        """See `FileIndex.release_object`."""
        if (own := self._objects.get(object_id)) and not own.uses:
            own.reserved_at = None

    def add(self, file: FileRecord, limits: FileLimits) -> FileRecord:
        """See `FileIndex.add_file`."""
        files = self.of(file.key)
        if existing := files.get(file.file_id):
            if existing.object_id != file.object_id:
                self.release(file.object_id)
            return existing
        contents = {
            object_id: content
            for object_id, content in self._objects.items()
            if content.uses and content.user_id == file.user_id
        }
        object_id = next((name for name, content in contents.items() if content.digest == file.digest), None)
        user_bytes = sum(content.size for content in contents.values()) + (0 if object_id else file.size)
        session_bytes = sum(each.size for each in files.values()) + file.size
        limits.check_count(file.name, len(files) + 1, session_bytes, user_bytes)
        if object_id is None:
            own = self._objects.get(file.object_id)
            if own is None or own.reserved_at is None:
                raise FileExpiredError(file.file_id)
            own.reserved_at, own.digest, own.size = None, file.digest, file.size
            object_id = file.object_id
        elif object_id != file.object_id:
            self.release(file.object_id)
        self._objects[object_id].uses += 1
        added = self._files[file.key][file.file_id] = replace(file, object_id=object_id)
        return added

    def copy(self, source: SessionKey, fork: SessionKey) -> None:
        """Give a fork the files of the session that it was forked from."""
        for file_id, file in self.of(source).items():
            self._objects[file.object_id].uses += 1
            self._files[fork][file_id] = replace(file, session_id=fork.session_id)

    def delete(self, key: SessionKey, file_id: str) -> bool:
        """See `FileIndex.delete_file`."""
        file = self._files[key].pop(file_id, None)
        if not self._files[key]:
            del self._files[key]
        if file:
            self._objects[file.object_id].uses -= 1
        return file is not None

    def delete_all(self, key: SessionKey) -> int:
        """Delete the files of a session, or of a user that belong to no session; return how many there were."""
        return sum(self.delete(key, file_id) for file_id in list(self.of(key)))

    def forget(self, user_id: str) -> int:
        """See `FileIndex.forget_files`."""
        return sum(self.delete_all(key) for key in list(self._files) if key.user_id == user_id)

    def unused(self, reserved_before: float, limit: int) -> list[str]:
        """See `FileIndex.unused_objects`."""
        for content in self._objects.values():
            if content.reserved_at is not None and content.reserved_at < reserved_before:
                content.reserved_at = None
        unused = (name for name, content in self._objects.items() if not content.uses and content.reserved_at is None)
        return sorted(unused)[:limit]

    def drop(self, object_ids: Sequence[str]) -> None:
        """See `FileIndex.drop_objects`."""
        for object_id in object_ids:
            content = self._objects.get(object_id)
            if content and not content.uses and content.reserved_at is None:
                del self._objects[object_id]
