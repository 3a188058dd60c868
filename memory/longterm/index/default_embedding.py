"""`ChromaDefault`: Chroma's default embedding, whose files are downloaded in the background."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from turnwise.errors import StoreError

AGAIN_S = 600.0
"""After how many seconds a failed download is tried again, if vectors are requested then."""

_log = logging.getLogger(__name__)


class ChromaDefault:
    """Chroma's default embedding function, `all-MiniLM-L6-v2` as ONNX. Its files are downloaded in the background.

    While the files are not on this machine, `is_ready` is false, and a thread downloads them as Chroma does, 80 MB into
    `~/.cache/chroma`. The process logs one warning. A failed download is logged, and tried again later.

    The vectors equal those of Chroma. Chroma pads each text to 256 tokens and this class does not, so a short text
    takes an eighth of the time.
    """

    def __repr__(self) -> str:
        return "ChromaDefault()"

    @property
    def is_ready(self) -> bool:
        """Whether vectors can be made now. If not, the download of the files begins."""
        return _model.is_there()

    def load_ahead(self) -> None:
        """See `LoadableAhead`. Downloads nothing."""
        _model.load_ahead()

    def __call__(self, input: Sequence[str]) -> Any:
        """Return a vector for each text.

        Raises:
            StoreError: its files are not downloaded yet.
        """
        if not self.is_ready:
            raise StoreError("the files of Chroma's default embedding are not on this machine yet")
        return _model.embed(list(input))

    @staticmethod
    def name() -> str:
        """Return the name by which Chroma knows the function."""
        return "onnx_mini_lm_l6_v2"

    def get_config(self) -> dict[str, Any]:
        """Return an empty config: the function has no settings."""
        return {}


class DefaultModel:
    """The function of this process, once its files are there."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._function: Any = None
        self._fetching: threading.Thread | None = None
        self._again_at = 0.0
        self._is_told = False
        self._is_padded: bool | None = None
        """Whether texts are padded to one length; None until that is known."""

    def embed(self, texts: list[str]) -> list[Any]:
        """Return a vector for each text. Only once the files are there."""
        function = self._function
        with self._lock:
            if self._is_padded is None:
                self._is_padded = not _stop_padding(function)
        if self._is_padded:
            return list(function(texts))
        # Texts of different lengths do not fit into one call.
        return [vector for text in texts for vector in function([text])]

    def is_there(self) -> bool:
        if self._function is not None:
            return True
        with self._lock:
            is_fetching = self._fetching is not None and self._fetching.is_alive()
            if self._function is None and not is_fetching and time.monotonic() >= self._again_at:
                self._again_at = time.monotonic() + AGAIN_S
                self._open()
            return self._function is not None

    def load_ahead(self) -> None:
        """Load the function if its files are there. Blocks."""
        with self._lock:
            if self._function is None and self._fetching is None:
                self._find()
        if self._function is not None:
            self.embed(["ready"])

    def _find(self) -> tuple[Any, Path]:
        """Take the function if its files are there. Return it in any case, and the folder of its files."""
        from chromadb.utils.embedding_functions.onnx_mini_lm_l6_v2 import ONNXMiniLM_L6_V2 as MiniLM

        folder = Path(MiniLM.DOWNLOAD_PATH) / MiniLM.EXTRACTED_FOLDER_NAME
        function = MiniLM()
        if (folder / "model.onnx").is_file() and (folder / "tokenizer.json").is_file():
            self._function = function
        return function, folder

    def _open(self) -> None:
        function, folder = self._find()
        if self._function is not None:
            return
        if not self._is_told:
            self._is_told = True
            _log.warning(
                "the files of Chroma's default embedding, %s, are not in %s: they are fetched now, and until they are "
                "there memories find by words and context alone; "
                "pass embedding=None to use words only and stop this download",
                function.MODEL_NAME,
                folder,
            )
        self._fetching = threading.Thread(target=self._fetch, args=(function,), name="turnwise-fetch", daemon=True)
        self._fetching.start()

    def _fetch(self, function: Any) -> None:
        tqdm = function.tqdm
        function.tqdm = lambda **options: tqdm(**{**options, "disable": True})
        try:
            function(["ready"])
        except Exception as error:  # noqa: BLE001 - it is logged, and tried again by whoever asks for vectors later
            _log.info("Chroma's default embedding could not be fetched: %r", error)
            return
        self._function = function


def _stop_padding(function: Any) -> bool:
    """Stop Chroma's function from padding texts; return whether that succeeded."""
    stop = getattr(getattr(function, "tokenizer", None), "no_padding", None)
    if stop is None:  # another version of Chroma may have another tokenizer
        return False
    stop()
    return True


_model = DefaultModel()
