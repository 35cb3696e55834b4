"""Requests of many kinds to a server, by many clients at once: each has an answer that is known before, or a client that vanishes.

Letters: E width of a vector.
"""

import base64
import http.client
import json
import random
import socket
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing

import numpy as np
import tiny_tokenizer
from waiting import HANG

from uwaga import TextEncoder

WORDS = [word for word in tiny_tokenizer.WORDS if not word.startswith("##")]
_LENGTHS = (1, 2, 3, 5, 8, 13, 30, 60)  # words
# Bodies that no client of these interfaces sends, and the status of each.
_HOSTILE: Sequence[tuple[bytes, int]] = (
    (b"", 422),
    (b"{", 422),
    (b"\xff\xfe\x00", 422),
    (b"[" * 100_000, 422),
    (b'{"input": NaN}', 422),
    (b'{"input": "\\ud800"}', 422),
    (b'{"input": ["cat", ""]}', 422),
    (b'{"input": "cat", "input_": 1}', 422),
    (b'{"input": [[0, 99999999]]}', 422),
    (b'{"input": "cat", "model": "another"}', 404),
    (b'{"input": "' + b"cat " * 5000 + b'"}', 413),
    (b'{"input": [' + b'"cat",' * 3000 + b'"cat"]}', 413),
)


def texts_and_vectors(encoder: TextEncoder, count: int) -> dict[str, bytes]:
    """Texts of mixed lengths, and the bytes of the vector that `encode` gives each alone."""
    generator = random.Random(0)
    lengths = [generator.choice(_LENGTHS) for _ in range(count)]
    texts = dict.fromkeys(" ".join(generator.choices(WORDS, k=length)) for length in lengths)
    return {text: encoder.encode([text])[0].tobytes() for text in texts}


class Flood:
    """What became of the requests.

    Attributes:
        counts: how many were "answered", "refused" as they should be, "vanished", or met a "broken" connection.
        wrong: what was answered otherwise.
    """

    def __init__(self, port: int, expected: Mapping[str, bytes], *, seed: int = 0) -> None:
        self.port, self.counts, self.wrong = port, Counter[str](), list[str]()
        self.expected, self.texts, self.seed = expected, list(expected), seed
        self.lock = threading.Lock()

    def run(self, requests: int, clients: int, *, may_break: bool = False) -> None:
        """Send so many requests by so many clients. may_break: the server is killed meanwhile; else a connection that breaks is wrong."""
        numbers = iter(range(requests))

        def client() -> None:
            connection = self.connect()
            while (number := self.next(numbers)) is not None:
                try:
                    kind = self.request(connection, number)
                except (OSError, http.client.HTTPException) as error:
                    kind = "broken"
                    connection.close()
                    if not may_break:
                        self.blame(f"request {number}: {error!r}")
                with self.lock:
                    self.counts[kind] += 1
            connection.close()

        threads = [threading.Thread(target=client) for _ in range(clients)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=HANG)

    def next(self, numbers: Iterator[int]) -> int | None:
        with self.lock:
            return next(numbers, None)

    def blame(self, what: str) -> None:
        with self.lock:
            self.wrong.append(what)

    def request(self, connection: http.client.HTTPConnection, number: int) -> str:
        """What became of request `number`, which is the same in every run."""
        generator = random.Random(self.seed * 1_000_003 + number)
        kind = generator.random()
        if kind < 0.1:
            return self.vanish(generator)
        if kind < 0.2:
            body, status = generator.choice(_HOSTILE)
            code, content = self.post(connection, body)
            if code != status or b"message" not in content:
                self.blame(f"request {number}: {code} and not {status} for {body[:60]!r}: {content[:200]!r}")
            return "refused"
        texts = generator.choices(self.texts, k=generator.choice((1, 1, 1, 1, 2, 7, 40)))
        is_base64 = generator.random() < 0.5
        asked = {"input": texts if len(texts) > 1 or generator.random() < 0.5 else texts[0]}
        code, content = self.post(
            connection, json.dumps(asked | ({"encoding_format": "base64"} if is_base64 else {})).encode()
        )
        if code != 200 or not self.is_right(texts, content, is_base64=is_base64):
            self.blame(f"request {number}: {code}, {content[:200]!r}")
        return "answered"

    def is_right(self, texts: Sequence[str], content: bytes, *, is_base64: bool) -> bool:
        rows = [entry["embedding"] for entry in json.loads(content)["data"]]
        vectors = [base64.b64decode(row) if is_base64 else np.float32(row).tobytes() for row in rows]
        return vectors == [self.expected[text] for text in texts]

    def post(self, connection: http.client.HTTPConnection, body: bytes) -> tuple[int, bytes]:
        connection.request("POST", "/v1/embeddings", body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        return response.status, response.read()

    def vanish(self, generator: random.Random) -> str:
        """Within the headers, within the body, while it is computed, or within the response."""
        body = json.dumps({"input": generator.choices(self.texts, k=20)}).encode()
        head = f"POST /v1/embeddings HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        whole = head.encode() + body
        end = generator.choice((20, len(head) + 20, len(whole), len(whole) + 1))
        with closing(socket.create_connection(("127.0.0.1", self.port), timeout=HANG)) as client:
            client.sendall(whole[:end])
            if end > len(whole):
                client.recv(100)
        return "vanished"
