"""The description of the interface: OpenAPI 3.1 as JSON, and a page of it without scripts and without anything from elsewhere."""

import json
import re
import sys
from collections.abc import Mapping
from html import escape
from typing import Any

from uwaga.serve.requests import Limits

POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

_STYLE = "body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color-scheme:light dark}pre{overflow:auto;padding:.75rem;border:1px solid}"


def document(name: str, width: int, limits: Limits, *, has_keys: bool) -> dict[str, Any]:
    """The OpenAPI description of a server with a model of this name, whose vectors have `width` numbers."""
    texts = {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": limits.items}
    ids = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1}
    model = {"type": "string", "const": name, "description": "May be left out."}
    truncate = {
        "type": "boolean",
        "description": "Read the beginning of texts that are longer than the model, in place of an error.",
    }
    direction = {
        "enum": ["Left", "left", "Right", "right"],
        "description": "With truncate, no other than the side on which the model's directory truncates.",
    }
    several_ids = {"type": "array", "items": ids, "minItems": 1, "maxItems": limits.items}
    inputs = {"oneOf": [{"type": "string"}, texts, ids, several_ids]}
    options = {
        "model": model,
        "dimensions": {
            "type": "integer",
            "minimum": 1,
            "maximum": width,
            "description": "Only the first so many numbers of each vector.",
        },
        "prompt_name": {"type": "string", "description": "A prompt of the model, put before every text."},
        "truncate": truncate,
    }
    embeddings = _request(
        limits,
        ["input"],
        input=inputs,
        **options,
        encoding_format={"enum": ["float", "base64"], "default": "float"},
        user={"type": "string", "description": "Not read."},
    )
    embed = _request(
        limits,
        ["inputs"],
        inputs=inputs,
        **options,
        normalize={"type": "boolean", "default": True, "description": "Vectors of length 1."},
        truncation_direction=direction,
    )
    passages = {
        "type": "array",
        "minItems": 1,
        "maxItems": limits.items,
        "items": {"oneOf": [{"type": "string"}, _object(["text"], text={"type": "string"})]},
    }
    cohere = _request(
        limits,
        ["query", "documents"],
        query={"type": "string"},
        documents=passages,
        model=model,
        top_n={"type": "integer", "minimum": 1},
        return_documents={"type": "boolean", "default": False},
        truncation=truncate,
        max_tokens_per_doc={
            "type": "integer",
            "minimum": 1,
            "description": "Read only the first so many tokens of each document.",
        },
        max_chunks_per_doc={
            "type": "integer",
            "minimum": 1,
            "description": "Divide each document into chunks as long as the model takes, and give the score of the best of the first so many.",
        },
    )
    tei = _request(
        limits,
        ["query", "texts"],
        query={"type": "string"},
        texts=texts,
        model=model,
        return_text={"type": "boolean", "default": False},
        raw_scores={"type": "boolean", "default": False},
        truncate=truncate,
        truncation_direction=direction,
    )
    rank = {"oneOf": [cohere, tei]}
    paths = {
        "/v1/embeddings": {"post": _posted("Vectors of texts, as OpenAI's.", embeddings, has_keys)},
        "/embed": {"post": _posted("Vectors of texts, as TEI's, with errors in its form.", embed, has_keys)},
        "/v1/rerank": {
            "post": _posted("Passages by their relevance to a query, as Cohere's and Jina's.", rank, has_keys)
        },
        "/v2/rerank": {"post": _posted("The same.", rank, has_keys)},
        "/rerank": {"post": _posted("The same, as TEI's, with errors in its form.", rank, has_keys)},
        "/v1/models": {"get": _got("The model that is served, as OpenAI's.", has_keys)},
        "/health": {"get": _got("Whether the server answers, and what waits.", False)},
        "/metrics": {"get": _got("Numbers for Prometheus.", has_keys)},
        "/openapi.json": {"get": _got("This description.", False)},
        "/docs": {"get": _got("This page.", False)},
    }
    schemes = {"key": {"type": "http", "scheme": "bearer"}} if has_keys else {}
    return {
        "openapi": "3.1.0",
        "info": {"title": f"uwaga serve {name}", "version": sys.modules["uwaga"].__version__},
        "paths": paths,
        "components": {"securitySchemes": schemes},
    }


def page(described: Mapping[str, Any]) -> str:
    """The same as HTML."""
    title = escape(described["info"]["title"])
    parts = [
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{title}</title><style>{_STYLE}</style><h1>{title}</h1>"
    ]
    for path, methods in described["paths"].items():
        for method, operation in methods.items():
            parts.append(f"<h2>{method.upper()} <code>{escape(path)}</code></h2><p>{escape(operation['summary'])}</p>")
            if body := operation.get("requestBody"):
                schema = json.dumps(body["content"]["application/json"]["schema"], indent=2)
                parts.append(f"<details><summary>Body</summary><pre>{escape(schema)}</pre></details>")
            codes = "; ".join(f"{code}: {escape(each['description'])}" for code, each in operation["responses"].items())
            parts.append(f"<p>{codes}</p>")
    return "".join(parts)


_ERRORS = {
    "401": "the key is missing or wrong",
    "408": "the body did not arrive in time",
    "413": "a body, a list, a text or all texts together are too long",
    "415": "the body is not application/json",
    "422": "the body is not what the schema says",
    "429": "the queue is full; Retry-After says when to retry",
    "500": "internal error",
    "504": "not answered in time",
}


def _posted(summary: str, schema: dict[str, Any], has_keys: bool) -> dict[str, Any]:
    errors = {code: {"description": each} for code, each in _ERRORS.items() if has_keys or code != "401"}
    body = {"required": True, "content": {"application/json": {"schema": schema}}}
    return {**_got(summary, has_keys), "requestBody": body, "responses": {"200": {"description": "done"}, **errors}}


def _got(summary: str, has_keys: bool) -> dict[str, Any]:
    security: list[dict[str, list[str]]] = [{"key": []}] if has_keys else []
    return {"summary": summary, "security": security, "responses": {"200": {"description": "done"}}}


def _object(required: list[str], **properties: object) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def _request(limits: Limits, required: list[str], **properties: object) -> dict[str, Any]:
    unread = {f"^({'|'.join(map(re.escape, limits.unread_keys))})$": {"description": "Not read."}}
    return {**_object(required, **properties), "patternProperties": unread}
