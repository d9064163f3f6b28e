"""Where a source can be at fault, and how its text reads then. Only bodies of functions are looked at."""

import ast
import re
from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """What a fault is."""

    NEGATED_CONDITION = "negated condition"
    DROPPED_AWAIT = "dropped await"
    OFF_BY_ONE = "off by one"
    LOST_FENCE = "lost fence"
    SWAPPED_ARGUMENT = "swapped argument"


@dataclass(frozen=True)
class Edit:
    """One fault: these bytes of the source become others. The first line is 1."""

    kind: Kind
    line: int
    start: int
    end: int
    text: bytes


@dataclass(frozen=True)
class Change:
    """The lines of an edit before and after it, with as many lines round them as make them unique."""

    line: int
    before: str
    after: str


CLOSE = (ast.Name, ast.Attribute, ast.Call, ast.Subscript)
"""What binds closer than a sum."""
ENDS = (ast.Return, ast.Raise, ast.Continue, ast.Break)
OTHER_OPERATOR = {b"<": b"<=", b"<=": b"<", b">": b">=", b">=": b">"}
UNSWAPPED = frozenset(
    {"cast", "getattr", "hasattr", "isinstance", "issubclass", "max", "min", "print", "setattr", "TypeVar"}
)
"""Calls whose arguments have no order, or whose swap fails at once wherever it is."""
LOGGED = frozenset({"critical", "debug", "error", "exception", "info", "log", "warning"})
ON_DEVICE = re.compile(r"cuda|triton", re.IGNORECASE)
LAST_ONE = re.compile(rb"\s*[+-]\s*1$")
LONGEST_FENCE = 2
"""Statements."""


def find_edits(source: str) -> list[Edit]:
    """Return all faults that this source can have, in the order of its text.

    Left out: what only type checkers or a main program run, what only logs, and functions that need a GPU:
    Triton's (`_kernel`), and those that name CUDA or Triton.
    """
    finder = _Finder(source)
    finder.visit(ast.parse(source))
    return sorted(finder.edits, key=lambda edit: (edit.start, edit.end, edit.kind, edit.text))


def apply(source: str, edit: Edit) -> str:
    """Return the source with this fault."""
    raw = source.encode()
    return (raw[: edit.start] + edit.text + raw[edit.end :]).decode()


def is_python(source: str) -> bool:
    """Whether this compiles."""
    try:
        compile(source, "fault", "exec", dont_inherit=True)
    except SyntaxError:
        return False
    return True


def describe(source: str, edit: Edit) -> Change:
    """Return the edit as whole lines that the source has once, so that they are found when others moved."""
    raw = source.encode()
    first = raw.rfind(b"\n", 0, edit.start) + 1
    last = _end_of_line(raw, edit.end)
    while source.count(raw[first:last].decode()) > 1:
        first = raw.rfind(b"\n", 0, max(first - 1, 0)) + 1
        last = _end_of_line(raw, min(last + 1, len(raw)))
    after = raw[first : edit.start] + edit.text + raw[edit.end : last]
    return Change(edit.line, raw[first:last].decode(), after.decode())


def _end_of_line(raw: bytes, place: int) -> int:
    end = raw.find(b"\n", place)
    return len(raw) if end < 0 else end


class _Finder(ast.NodeVisitor):
    """Collects edits."""

    def __init__(self, source: str) -> None:
        self.edits: list[Edit] = []
        self._raw = source.encode()
        lines = self._raw.splitlines(keepends=True)
        self._starts = [0]
        for line in lines:
            self._starts.append(self._starts[-1] + len(line))
        self._is_within_function = False

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        """Look at the body alone: defaults, decorators and annotations are no code of the function."""
        if node.name.endswith("_kernel") or ON_DEVICE.search(ast.unparse(node)):
            return
        outside, self._is_within_function = self._is_within_function, True
        for statement in node.body:
            self.visit(statement)
        self._is_within_function = outside

    visit_AsyncFunctionDef = visit_FunctionDef  # noqa: N815 - ast names it

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        """Look at the value alone."""
        if node.value is not None:
            self.visit(node.value)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """Pass over it: Python 3.11 does not say where its parts are."""

    def visit_Expr(self, node: ast.Expr) -> None:
        """Pass over what only logs."""
        if not _is_logging(node):
            self.generic_visit(node)

    def visit_If(self, node: ast.If) -> None:
        """A condition can be negated, a guard lost."""
        if re.search(r"\b(TYPE_CHECKING|__name__)\b", ast.unparse(node.test)):
            return
        if all(_is_logging(statement) for statement in node.body) and not node.orelse:
            return
        self._negate(node.test)
        if self._is_fence(node):
            self._add(Kind.LOST_FENCE, node, b"pass")
        self.generic_visit(node)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        """A condition can be negated."""
        self._negate(node.test)
        self.generic_visit(node)

    def visit_comprehension(self, node: ast.comprehension) -> None:
        """A condition can be negated."""
        for test in node.ifs:
            self._negate(test)
        self.generic_visit(node)

    def visit_Await(self, node: ast.Await) -> None:
        """It can be dropped."""
        self._add(Kind.DROPPED_AWAIT, node, re.sub(rb"^await\s*", b"", self._text(node)))
        self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> None:
        """A bound can be on the other side."""
        if len(node.ops) == 1 and isinstance(node.ops[0], ast.Lt | ast.LtE | ast.Gt | ast.GtE):
            start, end = self._end(node.left), self._start(node.comparators[0])
            if found := re.search(rb"[<>]=?", self._raw[start:end]):
                place = start + found.start()
                self._edit(Kind.OFF_BY_ONE, node, place, start + found.end(), OTHER_OPERATOR[found[0]])
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        """A one that is added or taken away can be forgotten."""
        text = self._text(node)
        if isinstance(node.op, ast.Add | ast.Sub) and _is_count(node.right) and LAST_ONE.search(text):
            self._add(Kind.OFF_BY_ONE, node, LAST_ONE.sub(b"", text))
        self.generic_visit(node)

    def visit_Subscript(self, node: ast.Subscript) -> None:
        """An index or a bound can be the next one."""
        if _is_count(node.slice):
            self._add_one(node.slice)
        elif isinstance(node.slice, ast.Slice):
            for bound in (node.slice.lower, node.slice.upper):
                if bound is not None:
                    self._add_one(bound)
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        """Two arguments beside each other can be swapped; a range can be one longer."""
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if name == "range" and node.args:
            self._add_one(node.args[:2][-1])
        if name not in UNSWAPPED and not _is_logging_call(node):
            self._swap(node)
        self.generic_visit(node)

    def _swap(self, node: ast.Call) -> None:
        values = [keyword.value for keyword in node.keywords if keyword.arg is not None]
        pair = node.args[:2] if len(node.args) > 1 else values[:2]
        if len(pair) < len("ab") or any(isinstance(value, ast.Starred) for value in pair):
            return
        first, second = pair
        if self._text(first) != self._text(second):
            between = self._raw[self._end(first) : self._start(second)]
            text = self._text(second) + between + self._text(first)
            self._edit(Kind.SWAPPED_ARGUMENT, first, self._start(first), self._end(second), text)

    def _negate(self, test: ast.expr) -> None:
        text = self._text(test)
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            self._add(Kind.NEGATED_CONDITION, test, re.sub(rb"^not\b\s*", b"", text))
        else:
            self._add(Kind.NEGATED_CONDITION, test, b"not (" + text + b")")

    def _add_one(self, node: ast.expr) -> None:
        if isinstance(node, ast.Constant) and type(node.value) is int:
            self._add(Kind.OFF_BY_ONE, node, str(node.value + 1).encode())
        elif isinstance(node, CLOSE):
            self._add(Kind.OFF_BY_ONE, node, self._text(node) + b" + 1")
        else:
            self._add(Kind.OFF_BY_ONE, node, b"(" + self._text(node) + b") + 1")

    def _is_fence(self, node: ast.If) -> bool:
        return (
            not node.orelse
            and self._text(node).startswith(b"if")
            and isinstance(node.body[-1], ENDS)
            and len(node.body) <= LONGEST_FENCE
            and not any(isinstance(part, ast.NamedExpr) for part in ast.walk(node.test))
        )

    def _add(self, kind: Kind, node: ast.expr | ast.stmt, text: bytes) -> None:
        self._edit(kind, node, self._start(node), self._end(node), text)

    def _edit(self, kind: Kind, node: ast.expr | ast.stmt, start: int, end: int, text: bytes) -> None:
        if self._is_within_function:
            self.edits.append(Edit(kind, node.lineno, start, end, text))

    def _text(self, node: ast.expr | ast.stmt) -> bytes:
        return self._raw[self._start(node) : self._end(node)]

    def _start(self, node: ast.expr | ast.stmt) -> int:
        return self._starts[node.lineno - 1] + node.col_offset

    def _end(self, node: ast.expr | ast.stmt) -> int:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self._starts[node.end_lineno - 1] + node.end_col_offset


def _is_count(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and type(node.value) is int


def _is_logging(statement: ast.stmt) -> bool:
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Call)
        and _is_logging_call(statement.value)
    )


def _is_logging_call(node: ast.Call) -> bool:
    function = node.func
    return (
        isinstance(function, ast.Attribute)
        and function.attr in LOGGED
        and re.search(r"log(ger|ging)?$", ast.unparse(function.value), re.IGNORECASE) is not None
    )
