"""Calls that raise where the parts below all operations check: options by name, shapes, files of strangers, the environment."""

import math
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
import torch
from annotated_types import Ge, Gt, Le
from small_options import Inner, Outer

import uwaga
from uwaga import AttentionMap
from uwaga._base import env, untrusted
from uwaga._base.options import Count, FractionBelow1, Real, Size, Switch, read
from uwaga._base.shapes import NamedShape, bind
from uwaga.nn import MultiHeadAttention

X = torch.eye(3)
LAYER = MultiHeadAttention(3, 1)


def inner(**options: Any) -> None:
    read(Outer, {"inner": options})


def threads(patch: pytest.MonkeyPatch, text: str) -> int | None:
    patch.setenv("UWAGA_THREADS", text)
    return env.threads()
