"""How formats write calls that no marker begins: the name of a tool at a line's beginning does. Pure."""

from abc import ABC, abstractmethod
from collections.abc import Mapping

import msgspec

from millrace_runtime.grammar.documents import write_json
from millrace_runtime.grammar.formats import pythonic
from millrace_runtime.grammar.formats.marked_calls import END_OBJECT, match_name, write_object
from millrace_runtime.grammar.json_schema.places import move_references
from millrace_runtime.grammar.lark import SPACE, LarkWriter, escape, write_choice, write_regex
from millrace_runtime.grammar.parameters import CallableTool, Tools, write_arguments
from millrace_runtime.grammar.reasoning import BOUND


class LineFormat(ABC):
    """One format."""

    tag: str
    """The marker that may stand before a call, also within a text."""
    end: str = r"/[ \n]{1,4}/?"
    """The expression of what may stand behind the last one."""

    def write_forced(self, lark: LarkWriter, tools: Tools, *, is_one_call: bool) -> str:
        """Return the expression of an answer that is calls: one, or a list in a format that has lists."""
        first = write_choice([self.write_call(lark, tool) for tool in tools])
        return f"{first} {self.write_behind(lark, tools, is_one_call=is_one_call)}"

    def write_either(self, lark: LarkWriter, tools: Tools, *, is_one_call: bool) -> str:
        """Return the expression of such an answer, or of the answer that the client binds."""
        first = write_choice([self.write_alternative(lark, tool) for tool in tools])
        behind = self.write_behind(lark, tools, is_one_call=is_one_call)
        return f"({lark.mark(self.tag)}? {first} {behind} | {BOUND})"

    def write_answer(self, lark: LarkWriter, tools: Tools) -> str:
        """Return the expression of calls, with or without a text before them, or of a text."""
        tokens = lark.tokens()
        parts = lark.add("part", f"ANY {tokens}") + "*" if tokens else ""
        begun = write_choice([self._write_begun(lark, tool) for tool in tools])
        behind = self.write_behind(lark, tools, is_one_call=False)
        calls = lark.add("calls", self.write_forced(lark, tools, is_one_call=False))
        more = f"({self.write_between(lark)} {calls})*"
        return f"{parts} ({begun} {behind} {more} {self.end} | ANY)"

    def _write_begun(self, lark: LarkWriter, tool: CallableTool) -> str:
        """Return the expression of a text and the first call in it.

        The first name of a tool ends the text, so what a parser takes for a call can't hide in it. A pattern
        of texts without names would do the same, but has more states than the compiler allows.
        """
        line = rf"(\n|{escape(self.tag)}\s*)"
        begun = lark.add("line[lazy]", write_regex(rf"(\s*|(.|\n)*{line}){self.match_begin(tool)}"))
        return f"{begun} {self.write_rest(lark, tool)}"

    def write_between(self, lark: LarkWriter) -> str:
        """Return the expression of what stands between two calls, or lists of them: a call ends its line."""
        tag = lark.mark(self.tag)
        return rf"(/\n{{1,4}}/ {tag}? | {tag})"

    @abstractmethod
    def match_begin(self, tool: CallableTool) -> str:
        """Return the pattern of a call's beginning, up to the name at least."""

    @abstractmethod
    def write_rest(self, lark: LarkWriter, tool: CallableTool) -> str:
        """Return the expression of the call behind that."""

    def write_call(self, lark: LarkWriter, tool: CallableTool) -> str:
        """Return the expression of a whole call."""
        return f"{write_regex(self.match_begin(tool))} {self.write_rest(lark, tool)}"

    def write_alternative(self, lark: LarkWriter, tool: CallableTool) -> str:
        """Return the same for an answer that may be the client's own grammar instead."""
        return self.write_call(lark, tool)

    def write_behind(self, lark: LarkWriter, tools: Tools, *, is_one_call: bool) -> str:  # noqa: ARG002
        """Return the expression of a list's other calls and its end."""
        return ""


class _Llama3(LineFormat):
    tag = "<|python_tag|>"
    end = r"/[ \n;]{1,8}/?"

    def write_between(self, lark: LarkWriter) -> str:
        return rf"/[ \n]*;?[ \n]*/ {lark.mark(self.tag)}?"

    def match_begin(self, tool: CallableTool) -> str:
        return match_name(tool)

    def write_rest(self, lark: LarkWriter, tool: CallableTool) -> str:
        head = write_regex(rf'({SPACE})?,({SPACE})?"parameters"({SPACE})?:({SPACE})?')
        return f"{head} {write_arguments(lark, tool)} {END_OBJECT}"

    def write_call(self, lark: LarkWriter, tool: CallableTool) -> str:
        return write_object(lark, tool, "parameters")

    def write_alternative(self, lark: LarkWriter, tool: CallableTool) -> str:  # noqa: ARG002
        """Return the call in the words of JSON alone.

        The compiler reads the longest word, so the pattern of a call's beginning would hide the same
        beginning of the client's own JSON.
        """
        inner = "#/properties/parameters"
        parameters = move_references(tool.schema, inner)
        keys = {"name": {"enum": tool.names}, "parameters": parameters}
        call = {"type": "object", "properties": keys, "required": list(keys), "additionalProperties": False}
        return write_json(call, msgspec.structs.replace(tool.origin, inner=inner))


class _Glm4(LineFormat):
    tag = "<|assistant|>"

    def match_begin(self, tool: CallableTool) -> str:
        return rf"{tool.pattern}\n"

    def write_rest(self, lark: LarkWriter, tool: CallableTool) -> str:
        return write_arguments(lark, tool)


class _Pythonic(LineFormat):
    tag = "<|python_start|>"

    def match_begin(self, tool: CallableTool) -> str:
        return rf"\[{pythonic.match_begin(tool)}"

    def write_rest(self, lark: LarkWriter, tool: CallableTool) -> str:
        return pythonic.write_rest(lark, tool)

    def write_alternative(self, lark: LarkWriter, tool: CallableTool) -> str:
        """Return the call with the bracket apart, which may begin a list of the client's own JSON, too."""
        return f'"[" {pythonic.write_call(lark, tool)}'

    def write_behind(self, lark: LarkWriter, tools: Tools, *, is_one_call: bool) -> str:
        if is_one_call:
            return '"]"'
        call = lark.add("item", write_choice([pythonic.write_call(lark, tool) for tool in tools]))
        return f'(/, ?/ {call})* "]"'


LINE_FORMATS: Mapping[str, LineFormat] = {"glm4": _Glm4(), "llama3": _Llama3(), "pythonic": _Pythonic()}
"""By the names of the formats."""
