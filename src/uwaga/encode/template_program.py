"""A program of its own that renders a chat template, which `templates` starts. It imports jinja2 and nothing of uwaga.

Each line of its input is JSON: the template, then [variables, conversations] again and again. The reply is a list of texts, or an error as a
string. The sandbox is that of transformers' apply_chat_template, without what gives another text another time.
"""

import faulthandler
import json
import re
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import version
from typing import Any, Never

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

_SECONDS, _SECONDS_EACH, _MEMORY = 10, 0.01, 2**30  # of a line, and more of it for each conversation; of the process
# Characters of the texts: so many times those of the line, and some more for each.
_LONGER, _MORE = 4, 2**16
_SAFE = (3, 1, 6)  # older versions have known ways out of the sandbox


class _Generation(Extension):
    """transformers' tag {% generation %}, which marks what an assistant said."""

    tags = {"generation"}  # noqa: RUF012  # as jinja2 declares it

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_said"), [], [], body).set_lineno(line)

    def _said(self, caller: Callable[[], str]) -> str:
        return caller()


class _Namespace(Namespace):
    """A namespace without private names, as in transformers."""

    def __setitem__(self, name: str, value: Any) -> None:
        if str(name).startswith("_"):
            raise jinja2.TemplateError(f"a namespace cannot have {name}")
        super().__setitem__(name, value)


def _namespace(*arguments: Any, **named: Any) -> Namespace:
    result = _Namespace()
    for name, value in dict(*arguments, **named).items():
        result[name] = value
    return result


def _raise(message: Any) -> Never:
    raise jinja2.TemplateError(message)


def _today(_: object) -> Never:
    raise jinja2.TemplateError("strftime_now gives another text on another day")


def _tojson(
    x: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _compiled(source: str) -> jinja2.Template:
    if tuple(map(int, re.findall("[0-9]+", version("jinja2"))[:3])) < _SAFE:
        raise jinja2.TemplateError("needs jinja2 3.1.6 or newer: pip install -U jinja2")
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    of_ours: dict[str, Any] = {
        "raise_exception": _raise,
        "strftime_now": _today,
        "dict": lambda *a, **b: dict(*a, **b),
        "namespace": _namespace,
    }
    environment.globals |= of_ours
    del environment.globals["lipsum"], environment.filters["random"]
    return environment.from_string(source)


def _rendered(template: jinja2.Template, line: bytes, variables: dict[str, Any], conversations: list[Any]) -> list[str]:
    texts, left = [], _LONGER * len(line) + _MORE * len(conversations)
    for messages in conversations:
        texts.append(template.render({**variables, "messages": messages}))
        texts[-1].encode()
        left -= len(texts[-1])
        if left < 0:
            raise jinja2.TemplateError("the result is longer than its texts allow")
    return texts


def _run() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that started this one ends it
    with suppress(ImportError, ValueError, OSError):  # a system without this limit
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    template: jinja2.Template | None = None
    for line in sys.stdin.buffer:
        faulthandler.dump_traceback_later(_SECONDS, exit=True)
        reply: list[str] | str = []
        try:
            value = json.loads(line)
            if template is None:
                template = _compiled(value)
            else:
                faulthandler.dump_traceback_later(_SECONDS + _SECONDS_EACH * len(value[1]), exit=True)
                reply = _rendered(template, line, *value)
        except Exception as error:  # noqa: BLE001  # a template raises what Python raises
            reply = str(error)[:1000] or type(error).__name__
        faulthandler.cancel_dump_traceback_later()
        sys.stdout.write(json.dumps(reply) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    _run()
