"""`FileRecord`: a file as the session store has it, without its bytes; and the checks of a file's name and type.

Annotations are not postponed (PEP 563) in this module, since pydantic would evaluate each of them again.
"""

import codecs
import hashlib
import mimetypes
import unicodedata
from dataclasses import dataclass
from pathlib import PurePosixPath

from turnwise.errors import FileRefusedError, shown
from turnwise.memory.conversation.sessions import DEFAULT_USER, SessionKey
from turnwise.memory.conversation.views.notebook_display import record_html
from turnwise.memory.values.ids import new_id
from turnwise.memory.values.records import Record

MAX_NAME_CHARS = 255
"""The longest name of a file, in characters."""

OF_USER = ""
"""The `session_id` of files that belong to a user, and to no session."""


@dataclass(frozen=True, kw_only=True)
class FileRecord(Record):
    """A file of a session or of a user. Its bytes are elsewhere, and shared by all files of the user with that content.

    Blocks, tools and HTTP name it by its `file_id`.
    """

    file_id: str
    user_id: str = DEFAULT_USER
    session_id: str = OF_USER
    """The session that has it; empty if it belongs to the user and to no session."""
    name: str
    media_type: str
    size: int
    """In bytes."""
    digest: str
    """The SHA-256 of its bytes, in hexadecimal digits."""
    object_id: str
    """The name of its bytes in the file store."""
    created_at: float = 0.0

    @property
    def key(self) -> SessionKey:
        """Whose it is: a session, or with an empty id its user."""
        return SessionKey(self.session_id, self.user_id)

    _repr_html_ = record_html


@dataclass(frozen=True, kw_only=True)
class FileLimits:
    """How much may be stored."""

    file_bytes: int
    """The largest file."""
    session_bytes: int
    """All files of a session, or all of a user that belong to no session."""
    session_files: int
    """How many these may be."""
    user_bytes: int
    """All files of a user, each content once."""

    def check_count(self, name: str, count: int, session_bytes: int, user_bytes: int) -> None:
        """Raise unless a file can be added.

        Args:
            count, session_bytes: the number and the bytes of its session's files, with the new one.
            user_bytes: the bytes of its user's contents, with the new one.

        Raises:
            FileRefusedError: says which bound it would break.
        """
        for field, value, most in (
            ("max_session_files", count, self.session_files),
            ("max_session_file_bytes", session_bytes, self.session_bytes),
            ("max_user_file_bytes", user_bytes, self.user_bytes),
        ):
            if value > most:
                reason = f"with it there would be {value}, and {field} is {most}; delete others first"
                raise FileRefusedError(shown(name), reason)


def new_file_id() -> str:
    """Return a new id of a file."""
    return f"file-{new_id()}"


def file_id_of(*parts: str | bytes) -> str:
    """Return the id of a file that is named by what it is of, so that storing it again makes no second one."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode(errors="surrogatepass") if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "big") + data)
    return f"file-{digest.hexdigest()[:48]}"


def check_file_name(name: object) -> str:
    """Return the name of a file if it is plain text of one line. It names nothing in a folder, so a path is harmless.

    Raises:
        FileRefusedError: it is no text, blank, too long, or has control characters or marks that change the direction
            of text.
    """
    if not isinstance(name, str) or not name.strip():
        raise FileRefusedError(shown(name), "its name must be a text that is not blank")
    if len(name) > MAX_NAME_CHARS:
        raise FileRefusedError(shown(name), f"its name has more than {MAX_NAME_CHARS} characters")
    if any(unicodedata.category(char) in ("Cc", "Cf", "Cs", "Zl", "Zp") for char in name):
        raise FileRefusedError(shown(name), "its name has control characters")
    return str.__str__(name)


_MAGIC: tuple[tuple[int, bytes, str], ...] = (
    (0, b"\x89PNG\r\n\x1a\n", "image/png"),
    (0, b"\xff\xd8\xff", "image/jpeg"),
    (0, b"GIF87a", "image/gif"),
    (0, b"GIF89a", "image/gif"),
    (8, b"WEBP", "image/webp"),
    (0, b"%PDF-", "application/pdf"),
)

HEAD_BYTES = 1_024
"""How many of the first bytes of a file `media_type_of` looks at."""


def media_type_of(name: str, head: bytes) -> str:
    """Return the media type of a file for which none was given: by its first bytes, or by its name's extension.

    What has neither, and is text in UTF-8, is plain text.
    """
    for offset, magic, media_type in _MAGIC:
        if head[offset : offset + len(magic)] == magic:
            return media_type
    if named := mimetypes.guess_type(PurePosixPath(name).name)[0]:
        return named
    text = codecs.getincrementaldecoder("utf-8")("replace").decode(head)  # which may end within a character
    is_text = bool(head) and not any(char == "\ufffd" or (char < " " and char not in "\t\n\r\f") for char in text)
    return "text/plain" if is_text else "application/octet-stream"
