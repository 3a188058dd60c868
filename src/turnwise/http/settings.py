"""`HttpSettings`: limits and defaults of the service."""

from typing import Any, Literal

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from turnwise.http.server.connections import ConnectionLimits, protocol_of
from turnwise.memory.values.ranges import MAX_COUNT, MAX_SECONDS

OnDisconnect = Literal["keep", "cancel"]
"""What happens to a run whose client went away while it waited or read the run's events."""


class HttpSettings(BaseSettings):
    """Limits and defaults of the service; each is also read from the environment, as `TURNWISE_HTTP_MAX_BODY_BYTES`."""

    model_config = SettingsConfigDict(env_prefix="TURNWISE_HTTP_", extra="forbid", frozen=True)

    on_disconnect: OnDisconnect = "keep"
    """What happens to a run whose client disconnects; a request's header `X-On-Disconnect` overrides it."""
    max_body_bytes: int = Field(default=4 << 20, ge=1, le=MAX_COUNT)
    """A request with a larger body is answered with 413, before it is read to its end."""
    max_body_values: int = Field(default=20_000, ge=1, le=MAX_COUNT)
    """A request whose JSON has more values (list elements, members of objects, lists and objects) is answered with 422
    before it is read as JSON, since that would hold up all other requests."""
    max_header_bytes: int = Field(default=32 << 10, ge=256, le=MAX_COUNT)
    """A request whose header is larger is answered with 431; one much larger is not read to its end."""
    max_streams_per_user: int = Field(default=100, ge=1, le=MAX_COUNT)
    """Event streams and long polls that one user may have open at a time; one more is answered with 429."""
    max_streams: int = Field(default=10_000, ge=1, le=MAX_COUNT)
    """The same limit for all users together, and for those of a service without authentication."""
    heartbeat_s: float = Field(default=15.0, gt=0, le=MAX_SECONDS)
    """A stream that has been silent for so long sends a comment, so that proxies do not close it."""
    max_wait_s: float = Field(default=300.0, gt=0, le=MAX_SECONDS)
    """How long a request may wait for a run to end; then it is answered with the run as it is."""
    max_schedules_per_user: int = Field(default=100, ge=1, le=MAX_COUNT)
    """Schedules that all sessions of a user may have together; a request that adds one more is answered with 409.
    Requests at the same moment may exceed it. What programs and models schedule counts, and is not refused."""
    max_webhooks_per_user: int = Field(default=0, ge=0, le=MAX_COUNT)
    """Webhooks that a user who is no operator may have, each told of this user's sessions alone; one more is refused
    with 409. By default webhooks are for operators only, and others get 403: a store has 100 webhooks at most, and each
    makes the service call another program. Requests at the same moment may exceed it."""
    models: tuple[str, ...] = ()
    """Models that requests of OpenAI's API may ask the first engine for, beside its own. A request that names a model
    that is neither here nor an engine's is answered with 404, so that nobody chooses what the key pays for."""
    cors_origins: tuple[str, ...] = ()
    """Origins whose pages may use the service from a browser; none by default."""

    max_connections: int = Field(default=10_000, ge=1, le=MAX_COUNT)
    """Connections that a process has open at a time, or half of the files that it may still open, if these are fewer.
    One more closes the one that has waited longest for its client; while all are being answered, it gets 503."""
    max_header_s: float = Field(default=10.0, gt=0, le=MAX_SECONDS)
    """How long a client may take to send a request's header, in seconds; then it is answered with 408."""
    max_stall_s: float = Field(default=30.0, gt=0, le=MAX_SECONDS)
    """How long a client may take for each 16 KiB of a body that it sends, or of an answer that it reads, in seconds;
    then its connection is closed."""

    @property
    def protocol(self) -> dict[str, Any]:
        """What uvicorn is told: bounds of connections, each time for a server of its own."""
        limits = ConnectionLimits(self.max_connections, self.max_header_s, self.max_stall_s)
        return protocol_of(limits, self.max_header_bytes)
