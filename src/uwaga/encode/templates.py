"""Chat templates of strangers, rendered as transformers does: in jinja2's sandbox, which bounds neither time nor memory, and therefore in a
process of its own (`template_program`), which ends when a rendering takes too long."""

import json
import os
import subprocess
import sys
import threading
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from uwaga._base.terminal import printable

_PROGRAM = Path(__file__).with_name("template_program.py")


class TemplateFault(ValueError):
    """A template that fails or exceeds its bounds. The message begins with a verb."""


class Template:
    """A template that any thread may render, and any process after a fork.

    Attributes:
        process: renders; None before the first rendering, after a fork, and after a rendering that exceeded its bounds.
    """

    def __init__(self, source: str) -> None:
        self._source = source
        self._forget()
        _TEMPLATES.add(self)

    def _forget(self) -> None:
        """Let the next rendering start a process: after a fork, another thread may hold the lock, and the pipes are the parent's."""
        self._lock = threading.Lock()
        self.process: subprocess.Popen[bytes] | None = None

    def render(self, variables: Mapping[str, Any], conversations: Sequence[object]) -> list[str]:
        """Render each conversation, a list of messages, as transformers' apply_chat_template. Raises TemplateFault."""
        with self._lock:
            if (process := self.process) is None:
                # -P: the folder of the program must not be one that it imports from.
                command = [sys.executable, "-P", str(_PROGRAM)]
                try:
                    process = subprocess.Popen(
                        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
                    )
                except OSError as error:
                    raise TemplateFault(f"needs a process of its own: {error}") from error
                weakref.finalize(self, _end, process, os.getpid())
                try:
                    self._ask(process, self._source)
                except TemplateFault:
                    self.process = None
                    raise
            return self._ask(process, [variables, conversations])

    def _ask(self, process: subprocess.Popen[bytes], value: object) -> list[str]:
        self.process = None  # if this is interrupted, the process still has a reply to give
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps(value).encode() + b"\n")
            process.stdin.flush()
            reply: list[str] | str = json.loads(process.stdout.readline())
        except (OSError, ValueError):
            raise TemplateFault("takes more than 10 seconds or 1 GiB of memory") from None
        self.process = process
        if isinstance(reply, str):
            raise TemplateFault(f"cannot be rendered: {printable(reply)}")
        return reply


def _end(process: subprocess.Popen[bytes], owner: int) -> None:
    if os.getpid() == owner:
        process.kill()
        process.communicate()


def _forget_all() -> None:
    for template in list(_TEMPLATES):
        template._forget()


_TEMPLATES = weakref.WeakSet[Template]()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)
