"""Dataclasses of settings check their fields by the types of the fields."""

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import pytest
from pydantic import PlainValidator

from turnwise.errors import ConfigError
from turnwise.memory.values.checked_settings import Count, Names, NotBlank, PositiveSeconds, checked_settings


def _is_key(value: Any) -> Any:
    if not callable(value):
        raise ValueError("must be a function")
    return value


@dataclass(frozen=True)
@checked_settings("door {0.name!r}: ")
class Door:
    name: NotBlank
    side: Literal["left", "right"] = "left"
    wait_s: PositiveSeconds | None = None
    people: Count = 0
    guests: Names = ()
    note: int = 0
    key: Annotated[Any, PlainValidator(_is_key)] = field(default=print, repr=False)

    def __post_init__(self) -> None:
        if len(self.guests) > self.people:
            raise ConfigError("guests", self.guests, "must be people")


@pytest.mark.parametrize(
    ("invalid", "message"),
    [
        ({"side": "top"}, "door 'a': side='top': must be 'left' or 'right'"),
        ({"wait_s": 0}, r"door 'a': wait_s=0: must be a number of seconds, above 0 and up to 1e\+09"),
        ({"people": True}, "door 'a': people=True: must be a whole number from 0 to 2147483647"),
        ({"guests": "ada"}, "door 'a': guests='ada': must be a list of names"),
        ({"key": "hush"}, "door 'a': key='str': must be a function"),
        ({"guests": ["ada"]}, r"guests=\('ada',\): must be people"),
    ],
)
def test_a_field_that_does_not_fit_its_type_is_refused_by_its_name(invalid: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=f"^{message}$"):
        Door("a", **invalid)


def test_a_validator_converts_a_value_and_other_fields_are_not_checked() -> None:
    guests: Any = ["ada"]
    note: Any = "anything"
    door = Door("a", wait_s=None, people=1, guests=guests, note=note)
    assert (door.guests, str(door.note)) == (("ada",), "anything")
