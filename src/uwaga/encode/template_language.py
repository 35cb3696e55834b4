"""Chat templates of strangers: jinja2 parses them, and an interpreter with a budget computes what transformers' sandbox would.

transformers compiles a template to Python and runs it in jinja2's sandbox, which bounds neither time nor memory. Here every node and item
costs a step and every new string its characters, so that a template ends within bounds that follow from the length of its texts. What is
not in the tables below is refused by name, and so is what has another result on another day.
"""

import json
import operator
from collections.abc import (
    Callable,
    ItemsView,
    Iterable,
    Iterator,
    KeysView,
    Mapping,
    MappingView,
    Sequence,
    ValuesView,
)
from functools import partialmethod
from typing import Any, NamedTuple, cast

import jinja2
from jinja2 import filters, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import LoopContext, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment, safe_range

from uwaga._base.terminal import printable

# A rendering may evaluate so many nodes and items, and one more for 8 characters of its texts.
_STEPS = 2**16
# It may create strings of so many characters in all, and 32 times its texts. To search a string counts as a 16th of it.
_CREATED, _CREATED_PER_CHARACTER, _SCANNED = 2**18, 32, 16
# The result may have so many characters, and 4 times its texts.
_OUTPUT, _OUTPUT_PER_CHARACTER = 2**16, 4
# Nodes inside of each other: of a template, and together with those of the macros that it calls. Each takes two or three of Python's
# 1,000 frames.
_DEPTH, _DEPTH_OF_CALLS = 100, 150
_INTEGERS = 2**63
_MAX_INDENT = 8

_METHODS: dict[type, set[str]] = {
    str: {
        "capitalize", "count", "endswith", "find", "isalnum", "isalpha", "isdigit", "islower", "isspace", "isupper", "join", "lower",
        "lstrip", "removeprefix", "removesuffix", "replace", "rfind", "rsplit", "rstrip", "split", "splitlines", "startswith", "strip",
        "title", "upper",
    },
    dict: {"get", "items", "keys", "values"},
    list: {"count", "index"},
    tuple: {"count", "index"},
}  # fmt: skip
_LOOP = {
    "cycle", "depth", "depth0", "first", "index", "index0", "last", "length", "nextitem", "previtem", "revindex", "revindex0",
}  # fmt: skip
# Of jinja2. Those of numbers would format a string.
_TESTS = {
    "defined", "undefined", "none", "boolean", "false", "true", "integer", "float", "number", "string", "mapping", "sequence", "iterable",
    "lower", "upper", "in", "odd", "even", "divisibleby",
    "==", "eq", "equalto", "!=", "ne", "<", "lt", "lessthan", "<=", "le", ">", "gt", "greaterthan", ">=", "ge",
}  # fmt: skip
_OF_NUMBERS = {"odd", "even", "divisibleby"}
# Of jinja2, with results about as long as their values.
_FILTERS: dict[str, Callable[..., Any]] = {
    "abs": abs, "capitalize": filters.do_capitalize, "count": len, "d": filters.do_default, "default": filters.do_default,
    "dictsort": filters.do_dictsort, "float": filters.do_float, "int": filters.do_int, "items": filters.do_items, "length": len,
    "lower": filters.do_lower, "reverse": filters.do_reverse, "title": filters.do_title, "upper": filters.do_upper,
}  # fmt: skip
# Filters and tests that make a string of any value first.
_OF_TEXTS = {"capitalize", "lower", "title", "upper"}
_FUNCTIONS = ("range", "dict", "namespace", "raise_exception", "strftime_now", "lipsum", "cycler", "joiner")
_OF_MACROS = {"varargs", "kwargs", "caller"}
_COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "eq": operator.eq, "ne": operator.ne, "lt": operator.lt, "lteq": operator.le, "gt": operator.gt, "gteq": operator.ge,
    "in": lambda left, right: left in right, "notin": lambda left, right: left not in right,
}  # fmt: skip
_ARITHMETIC: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv, "//": operator.floordiv, "%": operator.mod,
}  # fmt: skip
_BREAK, _CONTINUE = "break", "continue"


class TemplateFault(ValueError):
    """A template that is not valid, not evaluated here, beyond its bounds, or that raises. The message begins with a verb."""


class Unknown(NamedTuple):
    """A variable whose value is not known; a template that reads it is refused."""

    reason: str


class _Generation(Extension):
    """transformers' tag {% generation %}, which marks what an assistant says: a scope of its own."""

    tags = {"generation"}  # noqa: RUF012  # as jinja2 declares it

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


# As transformers makes it.
_ENVIRONMENT = ImmutableSandboxedEnvironment(
    trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
)


class Template:
    """A template that is parsed. Raises TemplateFault."""

    def __init__(self, source: str) -> None:
        try:
            source.encode()
            self._root = _ENVIRONMENT.parse(source)
        except (jinja2.TemplateError, RecursionError, ValueError) as error:
            raise TemplateFault(f"cannot be parsed: {printable(str(error))}") from error
        found: list[nodes.Node] = []
        level: list[nodes.Node] = [self._root]
        for _ in range(_DEPTH):
            level = [child for node in level for child in node.iter_child_nodes()]
            found += level
        if level:
            raise TemplateFault(f"has parts inside of each other more than {_DEPTH} deep")
        self._names = _names([self._root])
        has_macros = any(isinstance(node, nodes.Macro) for node in found)
        if has_macros and (names := self._names & _OF_MACROS):
            raise TemplateFault(f"has a macro that reads {min(names)}, which is not evaluated")
        if "self" in self._names:
            raise TemplateFault("reads self, which is not evaluated")
        for node in found:
            if isinstance(node, nodes.Const) and isinstance(node.value, str) and not _is_encodable(node.value):
                raise TemplateFault("has a string with a lone surrogate")
        for scope in (self._root, *(node for node in found if isinstance(node, _SCOPES))):
            _check_order(scope)

    def reads(self, name: str) -> bool:
        """Whether the name of a variable is in it."""
        return name in self._names

    def render(self, variables: Mapping[str, Any]) -> str:
        """What transformers' apply_chat_template makes of it. Raises TemplateFault."""
        try:
            return _Run(variables).render(self._root.body)
        except RecursionError:
            raise TemplateFault("has values inside of each other too deep") from None
        except (jinja2.TemplateError, ArithmeticError, LookupError, TypeError, AttributeError, ValueError) as error:
            if isinstance(error, TemplateFault):
                raise
            raise TemplateFault(f"cannot be rendered: {printable(str(error))}") from error


# Nodes in which a name that is set is another one than outside.
_SCOPES = (nodes.For, nodes.Macro, nodes.With, nodes.AssignBlock, nodes.Scope)


def _check_order(scope: nodes.Node) -> None:
    """Raises TemplateFault: a name is read in an inner scope and set after it. jinja2 resolves names before it runs: there it is undefined, whatever
    the caller gives."""
    read_inside: set[str] = set()
    known: set[str] = set()  # names that this scope has read or set before
    waiting = [*scope.iter_child_nodes()][::-1]
    while waiting:
        node = waiting.pop()
        if isinstance(node, nodes.Name):
            if node.ctx == "store" and node.name in read_inside - known:
                raise TemplateFault(f"reads {node.name} in a block and sets it after the block, which is not evaluated")
            known.add(node.name)
        elif isinstance(node, _SCOPES):
            own = (
                [node.target]
                if isinstance(node, nodes.For)
                else [*getattr(node, "args", ()), *getattr(node, "targets", ())]
            )
            bound = _names(own)
            if isinstance(node, nodes.Macro) and bound & _names(node.defaults):
                raise TemplateFault(
                    f"has the macro {node.name} with an argument as default of another, which is not evaluated"
                )
            read_inside |= _names([node], "load") - bound
            known |= {node.name} if isinstance(node, nodes.Macro) else set()
        else:
            waiting += [*node.iter_child_nodes()][::-1]


def _names(roots: Iterable[nodes.Node], *contexts: str) -> set[str]:
    """The names of variables in some nodes, which are read or set there; all, or in these contexts."""
    found = (each for root in roots for each in (root, *root.find_all(nodes.Name)) if isinstance(each, nodes.Name))
    return {each.name for each in found if not contexts or each.ctx in contexts}


def _is_encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _characters(value: Any) -> int:
    """The characters of all strings in a value."""
    if isinstance(value, dict):
        return _characters([*value, *value.values()])
    return len(value) if isinstance(value, str) else sum(map(_characters, value)) if isinstance(value, list) else 0


class _Scope:
    """The names of a block, inside of those of its parent."""

    __slots__ = ("names", "parent")

    def __init__(self, parent: "_Scope | None", names: dict[str, Any] | None = None) -> None:
        self.parent, self.names = parent, {} if names is None else names


class _Namespace:
    __slots__ = ("names",)

    def __init__(self, names: Mapping[str, Any]) -> None:
        self.names: dict[str, Any] = {}
        for name, value in names.items():
            self.set(name, value)

    def set(self, name: str, value: Any) -> None:
        if name.startswith("_"):
            raise TemplateFault(f"sets {printable(name)} of a namespace, which begins with an underscore")
        self.names[name] = value


class _Function:
    """What a template may call: one of _FUNCTIONS, a macro, or a method of a value."""

    __slots__ = ("run",)

    def __init__(self, run: Callable[..., Any]) -> None:
        self.run = run


class _Run:
    """One rendering, with what is left of its budget."""

    def __init__(self, variables: Mapping[str, Any]) -> None:
        texts = _characters(dict(variables))
        self._steps = _STEPS + texts // 8
        self._created = _CREATED + _CREATED_PER_CHARACTER * texts
        self._left = _OUTPUT + _OUTPUT_PER_CHARACTER * texts
        self._depth = 0
        self._outputs: list[list[str]] = []
        functions = {name: _Function(getattr(self, f"_call_{name}", _refusal(name))) for name in _FUNCTIONS}
        self._variables = _Scope(None, {**functions, **variables})

    def render(self, body: Sequence[nodes.Node]) -> str:
        return self._written(body, _Scope(self._variables))

    # The budget.

    def _spend(self, steps: int) -> None:
        self._steps -= steps
        if self._steps < 0:
            raise TemplateFault("takes more steps than its texts allow")

    def _create(self, characters: int) -> None:
        self._created -= characters
        if self._created < 0:
            raise TemplateFault("makes longer strings than its texts allow")

    def _walk(self, *values: Any, is_text: bool = False) -> int:
        """Pay for all that is inside of values, before they are searched, compared, hashed or written; its characters. With is_text,
        refuse what has no text that is the same every time."""
        waiting, characters = list(values), 0
        while waiting:
            value = waiting.pop()
            self._spend(1)
            if isinstance(value, str):
                characters += len(value)
                self._create(len(value) // _SCANNED)
            elif isinstance(value, range):
                self._spend(len(value))
            elif isinstance(value, dict | list | tuple | KeysView | ValuesView | ItemsView) and not (
                is_text and isinstance(value, MappingView)
            ):
                self._spend(len(value))
                waiting += [*value, *value.values()] if isinstance(value, dict) else value
            elif is_text and not isinstance(value, int | float | range | Undefined | None):
                raise TemplateFault(f"writes {_kind(value)} as text, which is not evaluated")
        return characters

    def _text(self, value: Any) -> str:
        """str(value)."""
        if not isinstance(value, str):
            self._create(4 * self._walk(value, is_text=True))
        return str(value)

    def _items(self, value: Any) -> Iterator[Any]:
        """The items of a value, each for a step."""
        for item in value:
            self._spend(1)
            yield item

    def _made(self, value: Any) -> Any:
        """A value that was computed from others of about its length."""
        if isinstance(value, str):
            self._create(len(value))
        elif isinstance(value, list | tuple):
            self._spend(len(value))
        elif type(value) is int and abs(value) >= _INTEGERS:
            raise TemplateFault("computes a whole number of more than 63 bits")
        return value

    # Statements write and assign. They return _BREAK, _CONTINUE or None.

    def _on(self, node: nodes.Node, scope: _Scope) -> Any:
        """The value of an expression, or what a statement returns."""
        self._spend(1)
        self._depth += 1
        if self._depth > _DEPTH_OF_CALLS:
            raise TemplateFault("calls macros inside of each other too deep")
        handler = getattr(self, f"_on_{type(node).__name__.lower()}", None)
        if handler is None:
            raise TemplateFault(f"has {type(node).__name__}, which is not evaluated")
        result = handler(node, scope)
        self._depth -= 1
        return result

    def _all(self, body: Iterable[nodes.Node], scope: _Scope) -> str | None:
        for node in body:
            if (signal := self._on(node, scope)) is not None:
                return str(signal)
        return None

    def _written(self, body: Iterable[nodes.Node], scope: _Scope) -> str:
        """What statements write."""
        parts: list[str] = []
        self._outputs.append(parts)
        if self._all(body, scope) is not None:
            raise TemplateFault("has a break or continue outside of a loop")
        self._outputs.pop()
        return "".join(parts)

    def _on_output(self, node: nodes.Output, scope: _Scope) -> None:
        for each in node.nodes:
            text = each.data if isinstance(each, nodes.TemplateData) else self._text(self._on(each, scope))
            self._create(len(text))
            if len(self._outputs) == 1:
                self._left -= len(text)
                if self._left < 0:
                    raise TemplateFault("has a longer result than its texts allow")
            self._outputs[-1].append(text)

    def _on_if(self, node: nodes.If, scope: _Scope) -> str | None:
        for each in (node, *node.elif_):
            if self._on(each.test, scope):
                return self._all(each.body, scope)
        return self._all(node.else_, scope)

    def _on_for(self, node: nodes.For, scope: _Scope) -> str | None:
        if node.recursive:
            raise TemplateFault("has a recursive loop, which is not evaluated")
        # jinja2's own object looks ahead exactly where a compiled template does. As there, a loop whose every pass ends in a break or
        # continue counts as empty.
        loop, is_empty = LoopContext(self._looped(node, scope), Undefined), True
        for item, _ in loop:
            inner = _Scope(scope, {"loop": loop})
            self._assign(node.target, item, inner)
            if (signal := self._all(node.body, inner)) == _BREAK:
                break
            is_empty &= signal == _CONTINUE
        return self._all(node.else_, _Scope(scope)) if is_empty else None

    def _looped(self, node: nodes.For, scope: _Scope) -> Iterator[Any]:
        for item in self._items(self._on(node.iter, scope)):
            if node.test is not None:
                inner = _Scope(scope)
                self._assign(node.target, item, inner)
                if not self._on(node.test, inner):
                    continue
            yield item

    def _on_break(self, node: nodes.Node, scope: _Scope) -> str:
        return _BREAK

    def _on_continue(self, node: nodes.Node, scope: _Scope) -> str:
        return _CONTINUE

    def _on_scope(self, node: nodes.Scope, scope: _Scope) -> str | None:
        return self._all(node.body, _Scope(scope))

    def _on_with(self, node: nodes.With, scope: _Scope) -> str | None:
        inner = _Scope(scope)
        for target, value in zip(node.targets, node.values, strict=True):
            self._assign(target, self._on(value, scope), inner)
        return self._all(node.body, inner)

    def _on_assign(self, node: nodes.Assign, scope: _Scope) -> None:
        self._assign(node.target, self._on(node.node, scope), scope)

    def _on_assignblock(self, node: nodes.AssignBlock, scope: _Scope) -> None:
        inner = _Scope(scope)
        text: Any = self._made(self._written(node.body, inner))
        self._assign(node.target, text if node.filter is None else self._filtered(text, node.filter, inner), scope)

    def _assign(self, target: nodes.Node, value: Any, scope: _Scope) -> None:
        if isinstance(target, nodes.Name):
            scope.names[target.name] = value
        elif isinstance(target, nodes.Tuple):
            for each, item in zip(target.items, list(self._items(value)), strict=True):
                self._assign(each, item, scope)
        else:
            assert isinstance(target, nodes.NSRef)
            namespace = self._found(target.name, scope)
            if not isinstance(namespace, _Namespace):
                raise TemplateFault(f"sets {printable(f'{target.name}.{target.attr}')}, and the first is no namespace")
            namespace.set(target.attr, value)

    def _on_macro(self, node: nodes.Macro, scope: _Scope) -> None:
        names = [each.name for each in node.args]
        defaults = dict(zip(reversed(names), reversed(node.defaults), strict=False))

        def run(*given: Any, **named: Any) -> str:
            if len(given) > len(names) or not named.keys() <= set(names[len(given) :]):
                raise TemplateFault(f"gives the macro {printable(node.name)} arguments that it does not take")
            values = {**dict(zip(names, given, strict=False)), **named}
            inner = _Scope(scope)
            for name in names:
                if name in values:
                    inner.names[name] = values[name]
                elif name in defaults:
                    inner.names[name] = self._on(defaults[name], inner)
                else:
                    inner.names[name] = Undefined(f"parameter {name!r} was not provided", name=name)
            return str(self._made(self._written(node.body, inner)))

        scope.names[node.name] = _Function(run)

    # Expressions.

    def _found(self, name: str, scope: _Scope | None) -> Any:
        while scope is not None:
            if name in scope.names:
                return scope.names[name]
            scope = scope.parent
        return Undefined(name=name)

    def _on_name(self, node: nodes.Name, scope: _Scope) -> Any:
        value = self._found(node.name, scope)
        if isinstance(value, Unknown):
            raise TemplateFault(f"reads {node.name}, and {value.reason}")
        return value

    def _on_const(self, node: nodes.Const, scope: _Scope) -> Any:
        return self._made(node.value)

    def _on_templatedata(self, node: nodes.TemplateData, scope: _Scope) -> str:
        return node.data

    def _on_list(self, node: nodes.List | nodes.Tuple, scope: _Scope) -> list[Any]:
        return [self._on(each, scope) for each in node.items]

    def _on_tuple(self, node: nodes.Tuple, scope: _Scope) -> tuple[Any, ...]:
        return tuple(self._on_list(node, scope))

    def _on_dict(self, node: nodes.Dict, scope: _Scope) -> dict[Any, Any]:
        pairs = [(self._on(each.key, scope), self._on(each.value, scope)) for each in node.items]
        self._walk([key for key, _ in pairs])
        return dict(pairs)

    def _on_condexpr(self, node: nodes.CondExpr, scope: _Scope) -> Any:
        if self._on(node.test, scope):
            return self._on(node.expr1, scope)
        if node.expr2 is None:
            return Undefined("an inline if-expression evaluated to false and has no else")
        return self._on(node.expr2, scope)

    def _on_and(self, node: nodes.And, scope: _Scope) -> Any:
        return self._on(node.left, scope) and self._on(node.right, scope)

    def _on_or(self, node: nodes.Or, scope: _Scope) -> Any:
        return self._on(node.left, scope) or self._on(node.right, scope)

    def _on_not(self, node: nodes.Not, scope: _Scope) -> bool:
        return not self._on(node.node, scope)

    def _on_neg(self, node: nodes.Neg, scope: _Scope) -> Any:
        return -self._on(node.node, scope)

    def _on_pos(self, node: nodes.Pos, scope: _Scope) -> Any:
        return +self._on(node.node, scope)

    def _on_compare(self, node: nodes.Compare, scope: _Scope) -> Any:
        left, result = self._on(node.expr, scope), True
        for each in node.ops:
            right = self._on(each.expr, scope)
            self._walk(left, right)
            result = _COMPARISONS[each.op](left, right)
            if not result:
                break
            left = right
        return result

    def _on_concat(self, node: nodes.Concat, scope: _Scope) -> str:
        return str(self._made("".join([self._text(self._on(each, scope)) for each in node.nodes])))

    def _on_arithmetic(self, node: nodes.BinExpr, scope: _Scope) -> Any:
        left, right = self._on(node.left, scope), self._on(node.right, scope)
        if node.operator == "%" and isinstance(left, str):
            raise TemplateFault("formats a string by %, which is not evaluated")
        for each, count in ((left, right), (right, left)):
            if node.operator == "*" and isinstance(count, int) and isinstance(each, str | list | tuple):
                (self._create if isinstance(each, str) else self._spend)(len(each) * max(count, 0))
        return self._made(_ARITHMETIC[node.operator](left, right))

    _on_add = _on_sub = _on_mul = _on_div = _on_floordiv = _on_mod = _on_arithmetic

    def _on_getattr(self, node: nodes.Getattr, scope: _Scope) -> Any:
        return self._member(self._on(node.node, scope), node.attr, attributes_first=True)

    def _on_getitem(self, node: nodes.Getitem, scope: _Scope) -> Any:
        value = self._on(node.node, scope)
        if not isinstance(node.arg, nodes.Slice):
            return self._member(value, self._on(node.arg, scope), attributes_first=False)
        ends = (node.arg.start, node.arg.stop, node.arg.step)
        return self._made(value[slice(*[None if each is None else self._on(each, scope) for each in ends])])

    def _member(self, value: Any, name: Any, *, attributes_first: bool) -> Any:
        """value.name or value[name]: jinja2 looks for an attribute and for an item, in one order or the other."""
        if isinstance(value, _Namespace):
            return value.names[name] if name in value.names else Undefined(obj=value, name=name)
        if isinstance(value, LoopContext) and name in _LOOP:
            return _Function(value.cycle) if name == "cycle" else getattr(value, name)
        is_attribute = isinstance(value, _Function) or (
            isinstance(name, str) and not isinstance(value, Undefined) and hasattr(value, name)
        )
        if not (is_attribute and attributes_first):
            self._walk(name)
            try:
                return value[name]
            except (AttributeError, TypeError, LookupError):
                if not is_attribute:
                    return Undefined(obj=value, name=name)
        if name not in _METHODS.get(type(value), ()):
            raise TemplateFault(f"reads {printable(str(name))} of {_kind(value)}, which is not evaluated")
        own = getattr(self, f"_filter_{name}", None) if name in ("join", "replace") else None
        if own is None:
            return _Function(lambda *given, **named: self._method(value, name, *given, **named))
        if name == "join":
            return _Function(lambda items: self._joined(value, list(self._items(items))))
        return _Function(lambda *given: self._replaced(value, *given))

    def _method(self, value: Any, name: str, *given: Any, **named: Any) -> Any:
        """A method of a string, list, tuple or dict, whose result is not longer than it."""
        self._walk(None if isinstance(value, dict) else value, *given, *named.values())
        if isinstance(value, str):
            if "split" in name:
                self._create(8 * len(value))  # each part has a header
            if name in ("strip", "lstrip", "rstrip", "rfind", "rsplit") and given and isinstance(given[0], str):
                self._create(len(value) * len(given[0]) // _SCANNED)  # the time that they may take
        return self._made(getattr(value, name)(*given, **named))

    def _joined(self, separator: str, items: list[Any]) -> str:
        self._create(sum(len(each) for each in items if isinstance(each, str)) + len(separator) * len(items))
        return separator.join(items)

    def _replaced(self, text: str, old: str, new: str, count: int = -1) -> str:
        self._walk(text)
        times = text.count(old) if count < 0 else min(count, text.count(old))
        self._create(len(text) + times * max(len(new) - len(old), 0))
        return text.replace(old, new, count)

    def _on_call(self, node: nodes.Call, scope: _Scope) -> Any:
        called = self._on(node.node, scope)
        if isinstance(called, Undefined):
            called()
        if not isinstance(called, _Function):
            raise TemplateFault(f"calls {_kind(called)}")
        given, named = self._arguments(node, scope)
        return called.run(*given, **named)

    def _arguments(
        self, node: nodes.Call | nodes.Filter | nodes.Test, scope: _Scope
    ) -> tuple[list[Any], dict[str, Any]]:
        if node.dyn_args is not None or node.dyn_kwargs is not None:
            raise TemplateFault("calls with * or **, which is not evaluated")
        given = [self._on(each, scope) for each in node.args]
        return given, {str(each.key): self._on(each.value, scope) for each in node.kwargs}

    def _call_range(self, *given: Any) -> range:
        return safe_range(*given)

    def _call_dict(self, *given: Any, **named: Any) -> dict[Any, Any]:
        self._walk(*given)
        return dict(*given, **named)

    def _call_namespace(self, *given: Any, **named: Any) -> _Namespace:
        return _Namespace(self._call_dict(*given, **named))

    def _call_raise_exception(self, message: Any) -> None:
        raise TemplateFault(f"raises {printable(self._text(message)[:1000])!r}")

    # Filters and tests.

    def _on_filter(self, node: nodes.Filter, scope: _Scope) -> Any:
        assert node.node is not None
        return self._filtered(self._on(node.node, scope), node, scope)

    def _filtered(self, value: Any, node: nodes.Filter, scope: _Scope) -> Any:
        given, named = self._arguments(node, scope)
        return self._filter(node.name, value, given, named)

    def _filter(self, name: str, value: Any, given: Sequence[Any], named: Mapping[str, Any]) -> Any:
        if (own := getattr(self, f"_filter_{name}", None)) is not None:
            return own(value, *given, **named)
        if name not in _FILTERS:
            raise TemplateFault(f"has the filter {printable(name)}, which is not evaluated")
        value = self._text(value) if name in _OF_TEXTS else value
        self._walk(value, *given, *named.values())
        return self._made(_FILTERS[name](value, *given, **named))

    def _filter_trim(self, value: Any, chars: str | None = None) -> Any:
        return self._method(self._text(value), "strip", chars)

    def _filter_string(self, value: Any) -> str:
        return self._text(value)

    def _filter_list(self, value: Any) -> list[Any]:
        return list(self._items(value))

    def _filter_first(self, value: Any) -> Any:
        return next(iter(value), Undefined("No first item, sequence was empty."))

    def _filter_last(self, value: Any) -> Any:
        return next(iter(reversed(value)), Undefined("No last item, sequence was empty."))

    def _filter_join(self, value: Any, d: Any = "", attribute: str | int | None = None) -> str:
        items = self._items(value) if attribute is None else self._filter_map(value, attribute=attribute)
        return self._joined(self._text(d), [self._text(each) for each in items])

    def _filter_replace(self, s: Any, old: Any, new: Any, count: int | None = None) -> str:
        return self._replaced(self._text(s), self._text(old), self._text(new), -1 if count is None else count)

    def _filter_tojson(
        self,
        x: Any,
        ensure_ascii: bool = False,
        indent: int | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        if indent is not None and not (isinstance(indent, int) and 0 <= indent <= _MAX_INDENT):
            raise TemplateFault(f"has tojson with an indent that is not from 0 to {_MAX_INDENT}")
        self._walk(x)
        # In Python, not in C: each piece is paid for before the next is made.
        encoder = json.JSONEncoder(ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
        return "".join([self._made(piece) for piece in encoder.iterencode(x)])

    def _filter_map(self, value: Any, *given: Any, **named: Any) -> Iterator[Any]:
        if not value:
            return
        if not given and "attribute" in named:
            attribute, default = named.pop("attribute"), named.pop("default", None)
            if named:
                raise TemplateFault(f"has the filter map with {printable(min(named))}")
            for item in self._items(value):
                found = self._attribute(item, attribute)
                yield default if default is not None and isinstance(found, Undefined) else found
        else:
            for item in self._items(value):
                yield self._filter(given[0], item, given[1:], named)

    def _attribute(self, item: Any, path: str | int) -> Any:
        parts = path.split(".") if isinstance(path, str) else [path]
        for part in parts:
            item = self._member(item, int(part) if str(part).isdigit() else part, attributes_first=False)
        return item

    def _selected(self, wanted: bool, has_attribute: bool, value: Any, *given: Any, **named: Any) -> Iterator[Any]:
        attribute, rest = (given[:1], given[1:]) if has_attribute else ((), given)
        for item in self._items(value or ()):
            each = self._attribute(item, *attribute) if has_attribute else item
            if bool(self._test(rest[0], each, rest[1:], named) if rest else each) == wanted:
                yield item

    _filter_select = partialmethod(_selected, True, False)
    _filter_reject = partialmethod(_selected, False, False)
    _filter_selectattr = partialmethod(_selected, True, True)
    _filter_rejectattr = partialmethod(_selected, False, True)

    def _on_test(self, node: nodes.Test, scope: _Scope) -> Any:
        value = self._on(node.node, scope)
        given, named = self._arguments(node, scope)
        return self._test(node.name, value, given, named)

    def _test(self, name: str, value: Any, given: Sequence[Any], named: Mapping[str, Any]) -> Any:
        if name not in _TESTS:
            raise TemplateFault(f"has the test {printable(str(name))}, which is not evaluated")
        if name in _OF_NUMBERS and not isinstance(value, int | float):
            raise TemplateFault(f"has the test {name} of {_kind(value)}, which is not evaluated")
        value = self._text(value) if name in _OF_TEXTS else value
        self._walk(value, *given, *named.values())
        test = cast("Callable[..., Any]", _ENVIRONMENT.tests[name])
        return test(value, *given, **named)


def _kind(value: Any) -> str:
    return "a " + ("value of no kind" if value is None else type(value).__name__.lstrip("_").lower())


def _refusal(name: str) -> Callable[..., Any]:
    def refuse(*_: Any, **__: Any) -> Any:
        raise TemplateFault(f"calls {name}, which is not evaluated")

    return refuse
