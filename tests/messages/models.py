"""Calls of models, encoders and rerankers that raise."""

from uwaga import Reranker, TextEncoder
from uwaga.encode import BatchEncoder
