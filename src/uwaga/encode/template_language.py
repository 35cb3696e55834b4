"""Chat templates of strangers, as transformers computes them: in jinja2's sandbox, here with a budget and a list of what may be used.

transformers compiles a template to Python and runs it in jinja2's sandbox, which bounds neither time nor memory. Here the same sandbox runs
it, and each step has a price: before a template is compiled, each loop, macro and operation gets a filter that pays. So a template ends
within bounds that follow from the length of its texts. What is not in the tables below raises TemplateFault when it is reached, and so does
a function with another result on another day.
"""

import json
from collections.abc import Callable, ItemsView, Iterable, Iterator, KeysView, Mapping, MappingView, ValuesView
from contextvars import ContextVar
from functools import partial
from typing import Any, Never

import jinja2
from jinja2 import filters, nodes, tests
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext, Macro, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment, safe_range
from jinja2.utils import Namespace, pass_context
from jinja2.visitor import NodeTransformer

from uwaga._base.terminal import printable

# Nodes and items that a rendering may evaluate, with one more for 8 characters of its texts.
_STEPS = 2**16
# Characters of all strings that it may create, with 32 times its texts. A search of a string costs a 16th of its length.
_CREATED, _CREATED_PER_CHARACTER, _SCANNED = 2**18, 32, 16
# Characters that the result may have, with 4 times its texts.
_OUTPUT, _OUTPUT_PER_CHARACTER = 2**16, 4
# Nodes inside each other: jinja2 takes several of Python's 1,000 frames for each.
_DEPTH = 100
_INTEGERS = 2**63
_MAX_INDENT = 8
_ERRORS = (jinja2.TemplateError, ArithmeticError, LookupError, TypeError, AttributeError, NameError, ValueError)

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
# jinja2's tests.
_TESTS = (
    "defined", "undefined", "none", "boolean", "false", "true", "integer", "float", "number", "string", "mapping", "sequence", "iterable",
    "lower", "upper", "in", "odd", "even", "divisibleby",
    "==", "eq", "equalto", "!=", "ne", "<", "lt", "lessthan", "<=", "le", ">", "gt", "greaterthan", ">=", "ge",
)  # fmt: skip
_OF_NUMBERS = {"odd", "even", "divisibleby"}  # they compute %, which would format a string
# Filters of jinja2 whose results are about as long as their values.
_FILTERS: dict[str, Callable[..., Any]] = {
    "abs": abs, "capitalize": filters.do_capitalize, "count": len, "d": filters.do_default, "default": filters.do_default,
    "dictsort": filters.do_dictsort, "float": filters.do_float, "int": filters.do_int, "items": filters.do_items, "length": len,
    "lower": filters.do_lower, "reverse": filters.do_reverse, "title": filters.do_title, "upper": filters.do_upper,
}  # fmt: skip
# Filters and tests that make a string of any value first.
_OF_TEXTS = {"capitalize", "lower", "title", "upper"}
# Filters of jinja2 that take the items of a value one by one, and call filters, tests and `getitem` of the environment for each.
_OF_ITEMS = ("map", "select", "reject", "selectattr", "rejectattr")
_REFUSED_FUNCTIONS = ("strftime_now", "lipsum", "cycler", "joiner")
# Statements that are computed, and their subclasses. Any other statement is replaced by an error.
_STATEMENTS = (
    nodes.Output, nodes.For, nodes.If, nodes.Macro, nodes.With, nodes.Assign, nodes.AssignBlock, nodes.Scope, nodes.Break, nodes.Continue,
)  # fmt: skip
# Names of filters that pay. A template cannot write them as filters, since they have spaces, and `call_filter` rejects them as strings.
_PRICES = _SPENT, _ITEMS, _WALKED, _MADE, _JOINED, _REFUSED = tuple(f"a price: {n}" for n in range(6))


class TemplateFault(ValueError):
    """A template that fails or exceeds its bounds. The message begins with a verb."""


def _refuse(what: str) -> Never:
    raise TemplateFault(f"{what}, which is not evaluated")


def _refuse_call(name: str, /, *_: Any, **__: Any) -> Never:
    _refuse(f"calls {name}")


class Unknown(jinja2.StrictUndefined):
    """A variable whose value is unknown; a template that reads it raises TemplateFault."""

    def __init__(self, reason: str, name: str) -> None:
        super().__init__(f"reads {name}, and {reason}", name=name, exc=TemplateFault)  # type: ignore[arg-type]


class Template:
    """A parsed and compiled template. Raises TemplateFault."""

    def __init__(self, source: str) -> None:
        try:
            source.encode()
            root = _ENVIRONMENT.parse(source)
            _check(root)
            self._names = {name_node.name for name_node in root.find_all(nodes.Name)}
            self._price = _price(root)
            self._compiled = _ENVIRONMENT.from_string(_Priced().visit(root).set_environment(_ENVIRONMENT))
        except TemplateFault:
            raise
        except (jinja2.TemplateError, RecursionError, MemoryError, SyntaxError, ValueError) as error:
            raise TemplateFault(f"cannot be parsed: {printable(str(error))}") from error

    def reads(self, name: str) -> bool:
        """Whether the template has a variable of this name."""
        return name in self._names

    def render(self, variables: Mapping[str, Any]) -> str:
        """Render the template as transformers' apply_chat_template. Raises TemplateFault."""
        texts = _characters(dict(variables))
        left = _OUTPUT + _OUTPUT_PER_CHARACTER * texts
        budget = _Budget(texts)
        token, pieces = _BUDGET.set(budget), list[str]()
        try:
            budget.pay(*self._price)
            for piece in self._compiled.root_render_func(self._compiled.new_context(dict(variables))):
                left -= len(piece)
                if left < 0:
                    raise TemplateFault("has a longer result than its texts allow")
                pieces.append(piece)
            result = "".join(pieces)
            result.encode()
        except TemplateFault:
            raise
        except RecursionError:
            raise TemplateFault("has values or calls inside of each other too deep") from None
        except _ERRORS as error:
            raise TemplateFault(f"cannot be rendered: {printable(str(error))}") from error
        finally:
            _BUDGET.reset(token)
        return result


def _characters(value: Any) -> int:
    """Count the characters of all strings in a value."""
    if isinstance(value, dict):
        return _characters([*value, *value.values()])
    return len(value) if isinstance(value, str) else sum(map(_characters, value)) if isinstance(value, list) else 0


class _Budget:
    """What a rendering may still spend."""

    def __init__(self, texts: int) -> None:
        self._steps, self._created = _STEPS + texts // 8, _CREATED + _CREATED_PER_CHARACTER * texts

    def pay(self, steps: int, characters: int = 0) -> None:
        self._steps -= steps
        if self._steps < 0:
            raise TemplateFault("takes more steps than its texts allow")
        self._created -= characters
        if self._created < 0:
            raise TemplateFault("makes longer strings than its texts allow")

    def walk(self, *values: Any, is_text: bool = False) -> int:
        """Pay for all that is inside values before they are searched; return their characters.

        With is_text, reject a value whose text is not the same every time.
        """
        waiting, characters = list(values), 0
        while waiting:
            value = waiting.pop()
            self.pay(1)
            if isinstance(value, Unknown):
                str(value)  # raises
            if isinstance(value, str):
                characters += len(value)
                self.pay(0, len(value) // _SCANNED)
            elif isinstance(value, range):
                self.pay(len(value))
            elif isinstance(value, dict | list | tuple | KeysView | ValuesView | ItemsView) and not (
                is_text and isinstance(value, MappingView)
            ):
                self.pay(len(value))
                waiting += [*value, *value.values()] if isinstance(value, dict) else value
            elif is_text and not isinstance(value, int | float | range | Undefined | None):
                _refuse(f"writes {_kind(value)} as text")
        return characters

    def text(self, value: Any) -> str:
        """Return str(value)."""
        if not isinstance(value, str):
            self.pay(0, 4 * self.walk(value, is_text=True))
        return str(value)

    def items(self, value: Any, steps: int = 1, characters: int = 0) -> Iterator[Any]:
        """Yield the items of a value, and pay for each."""
        for item in value:
            self.pay(steps, characters)
            yield item

    def made(self, value: Any) -> Any:
        """Pay for a value that was computed from others of about its length, and return it."""
        if isinstance(value, str):
            self.pay(0, len(value))
        elif isinstance(value, list | tuple):
            self.pay(len(value))
        elif type(value) is int and abs(value) >= _INTEGERS:
            raise TemplateFault("computes a whole number of more than 63 bits")
        return value

    def joined(self, separator: str, items: Iterable[Any]) -> str:
        texts = [self.text(item) for item in items]
        self.pay(0, sum(map(len, texts)) + len(separator) * len(texts))
        return separator.join(texts)

    def replaced(self, text: str, old: str, new: str, count: int = -1) -> str:
        self.walk(text)
        times = text.count(old) if count < 0 else min(count, text.count(old))
        self.pay(0, len(text) + times * max(len(new) - len(old), 0))
        return text.replace(old, new, count)

    def called(self, value: Any, name: str, *arguments: Any, **named: Any) -> Any:
        """Call a method of a string, list, tuple or dict whose result is not longer than the value."""
        self.walk(None if isinstance(value, dict) else value, *arguments, *named.values())
        if isinstance(value, str):
            if "split" in name:
                self.pay(0, 8 * len(value))  # each part has a header
            if name in ("strip", "lstrip", "rstrip", "rfind", "rsplit") and arguments and isinstance(arguments[0], str):
                self.pay(0, len(value) * len(arguments[0]) // _SCANNED)  # these methods may take so much time
        return self.made(getattr(value, name)(*arguments, **named))


_BUDGET: ContextVar[_Budget] = ContextVar("_BUDGET")


def _check(root: nodes.Node) -> None:
    """Raise TemplateFault if the template is nested too deeply, or has a long number."""
    level = [root]
    for _ in range(_DEPTH):
        level = [child for node in level for child in node.iter_child_nodes()]
        if any(
            isinstance(constant, nodes.Const) and type(constant.value) is int and constant.value >= _INTEGERS
            for constant in level
        ):
            raise TemplateFault("computes a whole number of more than 63 bits")
    if level:
        raise TemplateFault(f"has parts inside of each other more than {_DEPTH} deep")


def _price(*roots: nodes.Node) -> tuple[int, int]:
    """Count steps and characters of nodes without loops and macros, which pay themselves."""
    steps, characters, waiting = 0, 0, list(roots)
    while waiting:
        node = waiting.pop()
        steps += 1
        characters += len(node.data) if isinstance(node, nodes.TemplateData) else 0
        if isinstance(node, nodes.For):
            waiting += [node.iter, *node.else_]
        elif not isinstance(node, nodes.Macro):
            waiting += node.iter_child_nodes()
    return steps, characters


def _paying(node: Any, name: str, *arguments: int | str) -> nodes.Filter:
    return nodes.Filter(node, name, [nodes.Const(value) for value in arguments], [], None, None)


class _Priced(NodeTransformer):
    """Make loops, macros and operations of a template pay, and other statements raise."""

    def generic_visit(self, node: nodes.Node, *_: Any, **__: Any) -> nodes.Node:
        if isinstance(node, nodes.Stmt) and not isinstance(node, (*_STATEMENTS, nodes.ExprStmt)):
            return nodes.Output([_paying(nodes.Const(None), _REFUSED, f"has {type(node).__name__}")])
        return super().generic_visit(node)

    def visit_For(self, node: nodes.For) -> nodes.Node:
        price = _price(*node.body, *([] if node.test is None else [node.test]))
        self.generic_visit(node)
        node.iter = _paying(node.iter, _ITEMS, *price)
        return node

    def visit_Macro(self, node: nodes.Macro) -> nodes.Node:
        price = _price(*node.body, *node.defaults)
        self.generic_visit(node)
        node.body.insert(0, nodes.ExprStmt(_paying(nodes.Const(None), _SPENT, *price)))
        return node

    def visit_AssignBlock(self, node: nodes.AssignBlock) -> nodes.Node:
        self.generic_visit(node)
        node.filter = node.filter or _paying(None, _MADE)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return _paying(nodes.List(node.nodes), _JOINED)

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:
        self.generic_visit(node)
        node.expr = _paying(node.expr, _WALKED)
        for op in node.ops:
            op.expr = _paying(op.expr, _WALKED)
        return node

    def visit_Pair(self, node: nodes.Pair) -> nodes.Node:
        self.generic_visit(node)
        node.key = _paying(node.key, _WALKED)
        return node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:
        self.generic_visit(node)
        return _paying(node, _MADE) if isinstance(node.arg, nodes.Slice) else node


class _Generation(Extension):
    """transformers' tag {% generation %}, which is a scope of its own."""

    tags = {"generation"}  # noqa: RUF012  # as jinja2 declares it

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


class _Function:
    """A function that a template may call: a global, or a method of a value."""

    def __init__(self, run: Callable[..., Any]) -> None:
        self._run = run

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self._run(*arguments, **named)


class _Environment(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset(ImmutableSandboxedEnvironment.default_binop_table)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "**" or (operator == "%" and isinstance(left, str)):
            _refuse("computes a power" if operator == "**" else "formats a string by %")
        if isinstance(left, MappingView) or isinstance(right, MappingView):
            _refuse(f"computes {operator} of a view")
        budget = _BUDGET.get()
        for factor, count in ((left, right), (right, left)):
            if operator == "*" and isinstance(count, int) and isinstance(factor, str | list | tuple):
                size = len(factor) * max(count, 0)
                budget.pay(*((0, size) if isinstance(factor, str) else (size,)))
        return budget.made(self.binop_table[operator](left, right))

    def call(self, context: Context, called: Any, *arguments: Any, **named: Any) -> Any:
        _BUDGET.get().pay(len(arguments) + len(named))
        if not isinstance(called, _Function | Macro | Undefined):
            raise TemplateFault(f"calls {_kind(called)}")
        return super().call(context, called, *arguments, **named)

    def call_filter(self, name: str, *arguments: Any, **named: Any) -> Any:
        """Call a filter that the template names by a string, as in map("upper")."""
        if name in _PRICES:
            _refuse(f"has the filter {name}")
        return super().call_filter(name, *arguments, **named)

    def getattr(self, obj: Any, attribute: str) -> Any:
        return self._member(obj, attribute, attributes_first=True)

    def getitem(self, obj: Any, argument: Any) -> Any:
        return self._member(obj, argument, attributes_first=False)

    def _member(self, value: Any, name: Any, *, attributes_first: bool) -> Any:
        """Return value.name or value[name]: jinja2 tries both, in one of two orders."""
        budget = _BUDGET.get()
        if isinstance(value, Namespace) and not str(name).startswith("_"):
            return getattr(value, name, Undefined(obj=value, name=name))
        if isinstance(value, LoopContext) and name in _LOOP:
            return _Function(value.cycle) if name == "cycle" else getattr(value, name)
        is_attribute = isinstance(value, _Function | Macro) or (
            isinstance(name, str) and not isinstance(value, Undefined) and hasattr(value, name)
        )
        if not (is_attribute and attributes_first):
            budget.walk(name)
            try:
                return value[name]
            except (AttributeError, TypeError, LookupError):
                if not is_attribute:
                    return Undefined(obj=value, name=name)
        if name not in _METHODS.get(type(value), ()):
            _refuse(f"reads {printable(str(name))} of {_kind(value)}")
        if name == "join":
            return _Function(lambda items: budget.joined(value, budget.items(items)))
        if name == "replace":
            return _Function(lambda *arguments: budget.replaced(value, *arguments))
        return _Function(lambda *arguments, **named: budget.called(value, name, *arguments, **named))


class _Allowed(dict[str, Callable[..., Any]]):
    """Filters or tests by name. Any other name raises TemplateFault when it is used."""

    def __missing__(self, name: str) -> Callable[..., Any]:
        what = "filter" if "trim" in self else "test"
        return lambda *_, **__: _refuse(f"has the {what} {printable(name)}")

    def get(self, name: str, default: Any = None) -> Any:
        return self[name]


def _priced(name: str, function: Any) -> Callable[..., Any]:
    """Return a filter or a test that pays."""

    def priced(value: Any, *arguments: Any, **named: Any) -> Any:
        if name in _OF_NUMBERS and not isinstance(value, int | float):
            _refuse(f"has the test {name} of {_kind(value)}")
        budget = _BUDGET.get()
        value = budget.text(value) if name in _OF_TEXTS else value
        budget.walk(value, *arguments, *named.values())
        result = budget.made(function(value, *arguments, **named))
        return budget.items(result) if isinstance(result, Iterator) else result

    return priced


def _item_filter(name: str) -> Callable[..., Any]:
    function = filters.FILTERS[name]

    @pass_context
    def priced(context: Context, value: Any, *arguments: Any, **named: Any) -> Any:
        budget = _BUDGET.get()
        budget.pay(len(arguments) + len(named))
        return function(context, budget.items(value or ()), *arguments, **named)

    return priced


def _first(value: Any) -> Any:
    return next(iter(value), Undefined("No first item, sequence was empty."))


def _last(value: Any) -> Any:
    return next(iter(reversed(value)), Undefined("No last item, sequence was empty."))


@pass_context
def _join(context: Context, value: Any, d: Any = "", attribute: str | int | None = None) -> str:
    budget = _BUDGET.get()
    items = budget.items(value) if attribute is None else _ALLOWED_FILTERS["map"](context, value, attribute=attribute)
    return budget.joined(budget.text(d), items)


def _replace(s: Any, old: Any, new: Any, count: int | None = None) -> str:
    budget = _BUDGET.get()
    return budget.replaced(budget.text(s), budget.text(old), budget.text(new), -1 if count is None else count)


def _tojson(
    x: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    if indent is not None and not (isinstance(indent, int) and 0 <= indent <= _MAX_INDENT):
        raise TemplateFault(f"has tojson with an indent that is not from 0 to {_MAX_INDENT}")
    budget = _BUDGET.get()
    budget.walk(x)
    # In Python and not in C, so that each piece is paid for before the next one is made.
    encoder = json.JSONEncoder(ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
    return "".join([budget.made(piece) for piece in encoder.iterencode(x)])


def _walked(value: Any) -> Any:
    _BUDGET.get().walk(value)
    return value


_ALLOWED_FILTERS: dict[str, Callable[..., Any]] = {
    **{name: _priced(name, function) for name, function in _FILTERS.items()},
    **{name: _item_filter(name) for name in _OF_ITEMS},
    "first": _first, "last": _last, "join": _join, "replace": _replace, "tojson": _tojson,
    "list": lambda value: list(_BUDGET.get().items(value)),
    "string": lambda value: _BUDGET.get().text(value),
    "trim": lambda value, chars=None: _BUDGET.get().called(_BUDGET.get().text(value), "strip", chars),
    _SPENT: lambda _, steps, characters: _BUDGET.get().pay(steps, characters),
    _ITEMS: lambda value, steps, characters: _BUDGET.get().items(value, 1 + steps, characters),
    _WALKED: _walked,
    _MADE: lambda value: _BUDGET.get().made(value),
    _JOINED: lambda values: _BUDGET.get().joined("", values),
    _REFUSED: lambda _, what: _refuse(what),
}  # fmt: skip


@pass_context
def _written(context: Context, value: Any) -> str:
    """Return the text of a value; with the context, jinja2 cannot call this when it compiles."""
    budget = _BUDGET.get()
    return str(budget.made(budget.text(value)))


def _dict(*arguments: Any, **named: Any) -> dict[Any, Any]:
    budget = _BUDGET.get()
    budget.walk(*arguments)
    return dict(*(values if isinstance(values, dict) else budget.items(values) for values in arguments), **named)


def _raise(message: Any) -> Never:
    raise TemplateFault(f"raises {printable(_BUDGET.get().text(message)[:1000])!r}")


def _kind(value: Any) -> str:
    return "a " + ("value of no kind" if value is None else type(value).__name__.lstrip("_").lower())


# With the settings of transformers, but not optimised: jinja2 would compute constants when it compiles, without a price.
_ENVIRONMENT = _Environment(
    trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols], optimized=False, finalize=_written
)
_ENVIRONMENT.filters = _Allowed(_ALLOWED_FILTERS)
_ENVIRONMENT.tests = _Allowed({name: _priced(name, tests.TESTS[name]) for name in _TESTS})  # type: ignore[assignment]
_ENVIRONMENT.globals = {
    "range": _Function(safe_range),
    "dict": _Function(_dict),
    "namespace": _Function(lambda *arguments, **named: Namespace(_dict(*arguments, **named))),
    "raise_exception": _Function(_raise),
    **{name: _Function(partial(_refuse_call, name)) for name in _REFUSED_FUNCTIONS},
}
