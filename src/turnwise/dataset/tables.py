"""Examples as tables of Arrow, for Parquet and Ray Data. Each kind and format has one schema."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from turnwise.dataset.messages import Example
from turnwise.dataset.selection import Selection
from turnwise.errors import ConfigError

if TYPE_CHECKING:
    import pyarrow as pa


def arrow() -> Any:
    """Return the module `pyarrow`.

    Raises:
        ConfigError: it is not installed.
    """
    try:
        import pyarrow as pa
    except ModuleNotFoundError as error:
        reason = "needs the package pyarrow: pip install 'turnwise[dataset]', or write .jsonl"
        raise ConfigError("dataset", "Parquet", reason) from error
    return pa


def schema_of(selection: Selection) -> pa.Schema:
    """Return the columns of the examples. Arguments and declarations of tools are JSON texts: they have any fields."""
    pa = arrow()
    text = pa.string()
    fields = [("role", text), ("content", text)]
    if selection.kind == "tools":
        function = pa.struct([("name", text), ("arguments", text)])
        call = pa.struct([("id", text), ("type", text), ("function", function)])
        fields += [("name", text), ("tool_call_id", text), ("tool_calls", pa.list_(call))]
    if selection.format == "openai" and selection.kind != "preference":
        fields.append(("weight", pa.int8()))
    messages = pa.list_(pa.struct(fields))
    if selection.kind == "preference":
        names = (
            [("prompt", messages), ("chosen", messages), ("rejected", messages)]
            if selection.format == "trl"
            else [
                ("input", pa.struct([("messages", messages)])),
                ("preferred_output", messages),
                ("non_preferred_output", messages),
            ]
        )
        return pa.schema(names)
    return pa.schema([("messages", messages), *([("tools", text)] if selection.kind == "tools" else [])])


def table_of(examples: Iterable[Example], schema: pa.Schema) -> pa.Table:
    """Return a table of examples."""
    return arrow().Table.from_pylist([_row(example) for example in examples], schema=schema)


def _row(example: Mapping[str, Any]) -> dict[str, Any]:
    row = dict(example)
    if "tools" in row:
        row["tools"] = json.dumps(row["tools"], ensure_ascii=False)
        row["messages"] = _with_json_arguments(row["messages"])
    return row


def _with_json_arguments(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [
        {**message, "tool_calls": [{**call, "function": _function(call["function"])} for call in message["tool_calls"]]}
        if "tool_calls" in message
        else dict(message)
        for message in messages
    ]


def _function(function: Mapping[str, Any]) -> dict[str, Any]:
    arguments = function["arguments"]
    return {
        **function,
        "arguments": arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False),
    }
