"""Requests for the lesson that are refused, from the page and from Python."""

import math

import torch

from uwaga.viewer.lesson import work_through
from uwaga.viewer.messages import Reply
from uwaga.viewer.service import ViewService
from uwaga.viewer.shown import View

ROW = [1.0, 0.0, 0.0, 0.0]
SERVICE = ViewService(View())


def asked(arguments: dict[str, object]) -> Reply:
    return SERVICE.answer({"request": "lesson", **arguments})
