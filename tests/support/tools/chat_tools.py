"""Tools of the tests of `turnwise chat`."""

from turnwise import tool

PAID: list[int] = []


@tool(approval=True)
def pay(amount: int) -> str:
    """Pay an amount."""
    return f"paid {amount}"
