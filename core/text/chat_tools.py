"""DSML, the markup in which DeepSeek-V4.1 is told of tools and in which it calls them.

    <｜DSML｜ calls>
    <｜DSML｜ invoke name="get_weather">
    <｜DSML｜ parameter name="city" string="true">Paris</｜DSML｜ parameter>
    </｜DSML｜ invoke>
    </｜DSML｜ calls>

A text parameter stands as it is (`string="true"`), any other as JSON.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from specdecode.core.text.conversation import Tool, ToolCall
from specdecode.core.text.markers import DSML, THINK, THINK_END, Marker

_BEFORE = f"""

## Tools

You have access to a set of tools to help answer the user's question. You can invoke tools by writing a \
"<{DSML} calls>" block like the following:

<{DSML} calls>
<{DSML} invoke name="$TOOL_NAME">
<{DSML} parameter name="$PARAMETER_NAME" string="true|false">$PARAMETER_VALUE</{DSML} parameter>
...
</{DSML} invoke>
<{DSML} invoke name="$TOOL_NAME2">
...
</{DSML} invoke>
</{DSML} calls>

String parameters should be specified as is and set `string="true"`. For all other types (numbers, booleans, arrays, \
objects), pass the value in JSON format and set `string="false"`.

If thinking_mode is enabled (triggered by {THINK}), you MUST output your complete reasoning inside \
{THINK}...{THINK_END} BEFORE any tool calls or final response.

Otherwise, output directly after {THINK_END} with tool calls or final response.

### Available Tool Schemas

"""
_AFTER = """

You MUST strictly follow the above defined tool name and parameter schemas to invoke tool calls.
"""


def tools_block(tools: Sequence[Tool]) -> list[str]:
    """What the system message says of tools: pieces of which the schemas are plain text."""
    schemas = "\n".join(map(_schema, tools))
    return [*marked(_BEFORE, (THINK, THINK_END, DSML)), schemas, _AFTER]


def calls_block(calls: Iterable[ToolCall]) -> list[str]:
    """An assistant's calls as it wrote them."""
    pieces: list[str] = ["\n\n<", DSML, " calls>\n"]
    for call in calls:
        pieces += ["<", DSML, ' invoke name="', call.function.name, '">\n']
        for number, (name, value) in enumerate(_arguments(call.function.arguments)):
            is_text = isinstance(value, str)
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            pieces += ["\n" if number else "", "<", DSML, f' parameter name="{name}" string="{str(is_text).lower()}">']
            pieces += [text, "</", DSML, " parameter>"]
        pieces += ["\n</", DSML, " invoke>\n"]
    return [*pieces, "</", DSML, " calls>"]


def marked(text: str, markers: Sequence[Marker]) -> list[str]:
    """A text of our own, taken apart at its markers."""
    pieces: list[str] = [text]
    for marker in markers:
        split: list[str] = []
        for piece in pieces:
            if isinstance(piece, Marker):
                split.append(piece)
                continue
            for number, part in enumerate(piece.split(marker)):
                split += [marker, part] if number else [part]
        pieces = split
    return pieces


def _arguments(text: str) -> Iterable[tuple[str, object]]:
    """Names and values of a call's arguments; what is no JSON object is passed on as one text."""
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    return value.items() if isinstance(value, dict) else [("arguments", text)]


def _schema(tool: Tool) -> str:
    function = tool.function
    content = {"name": function.name, "description": function.description, "parameters": function.parameters}
    return json.dumps(content, ensure_ascii=False)
