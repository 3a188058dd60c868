"""Answers that are errors: `error_of` makes the error again that the service has raised, from its problem."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from turnwise.errors import (
    InvalidInputError,
    RunEndedError,
    RunFailedError,
    ServiceError,
    TurnwiseError,
    UnauthorizedError,
    shown,
    word_of,
)


def _errors(base: type[TurnwiseError]) -> Iterator[type[TurnwiseError]]:
    """Yield the errors of turnwise; a program may have derived others from them."""
    if base.__module__ == TurnwiseError.__module__:
        yield base
        for cls in base.__subclasses__():
            yield from _errors(cls)


ERRORS: Mapping[str, type[TurnwiseError]] = {word_of(cls): cls for cls in _errors(TurnwiseError)}
"""Each error by the word that names it in `error` of a problem."""

UNAUTHORIZED, NOT_TURNWISE = "unauthorized", "not_turnwise"


def error_of(url: str, status: int, problem: Mapping[str, Any]) -> TurnwiseError:
    """Return the error of a problem.

    An error that this version does not know, or that lacks a field, is a ServiceError with the problem's detail.
    """
    word, detail = str(problem.get("error", "unknown")), str(problem.get("detail", ""))
    if isinstance(invalid := problem.get("errors"), list):  # the service cannot read the request
        first: Mapping[str, Any] = invalid[0] if invalid else {}
        field = ".".join(str(part) for part in first.get("at", ())[1:]) or "request"
        return InvalidInputError(field, "...", str(first.get("why", detail)))
    if word == UNAUTHORIZED:
        return UnauthorizedError(url, status, word, detail)
    cls = ERRORS.get(word)
    if cls is None or issubclass(cls, ServiceError):
        return ServiceError(url, status, word, detail)
    fields = {name: problem[name] for name in cls.fields if name in problem}
    if "turn" in cls.fields:
        fields["turn"] = None  # a problem has none
    if missing := set(cls.fields) - fields.keys():
        return ServiceError(url, status, word, f"{detail} (without {', '.join(sorted(missing))})")
    return cls(*(fields[name] for name in cls.fields))


def not_turnwise(url: str, status: int, body: str) -> ServiceError:
    """Return the error of an answer that is none of turnwise's, such as that of a proxy."""
    remedy = "it is no answer of turnwise: compare the URL with that of the service, or look at the proxy before it"
    return ServiceError(url, status, NOT_TURNWISE, f"{shown(body)}; {remedy}")


def run_error(word: str) -> type[RunEndedError]:
    """Return the class by which a run's end is raised; RunFailedError if this version does not know the word."""
    cls = ERRORS.get(word)
    is_known = cls is not None and issubclass(cls, RunEndedError) and cls is not RunEndedError
    return cls if is_known else RunFailedError  # type: ignore[return-value]
