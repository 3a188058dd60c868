"""What a configuration names by import path."""

from turnwise.actors.inference.echo import EchoEngine
from turnwise.actors.inference.tools.tool import tool
from turnwise.http.auth import Identity

engine = EchoEngine()


@tool
def weather(city: str) -> str:
    """Return the weather of a city."""
    return f"rain in {city}"


def auth(connection: object) -> Identity:
    return Identity("ann")
