"""Tools about cities, which a session's process can import."""

from turnwise.engines import tool


@tool(approval=True)
def pay(city: str) -> str:
    """Pay a city."""
    return f"paid {city}"


@tool
def look(city: str) -> str:
    """Look at a city."""
    return f"saw {city}"
