"""The server's responses: its page, replies, and the errors of invalid requests."""

import json

import pytest
from saved_pages import read_reply
from waiting import until

from uwaga.viewer.server.app import MAX_BODY_BYTES

STRICT = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-embedder-policy": "require-corp",
    "cache-control": "no-store",
}


def test_the_page_holds_no_data_but_its_messages_no_script_and_no_style(client) -> None:
    page = client.send("GET", "/")
    assert (page.status, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
    text = page.body.decode()
    assert "<title>a text - uwaga</title>" in text
    assert client.token not in text
    assert [line for line in text.splitlines() if "<script" in line or "style" in line] == [
        '<link rel="stylesheet" href="/app.css">',
        '<script type="application/json" data-uwaga-language>{"language":"en","messages":{},"names":{"en":"English",'
        '"pl":"Polski","pt":"Português","ja":"日本語","zh":"中文"}}</script>',
        '<script type="module" src="/app.js"></script>',
    ]


def test_scripts_and_styles_with_the_lesson_and_without_it(client, small_front) -> None:
    text = client.send("GET", "/?language=pl&lesson=").body.decode()
    assert '<link rel="stylesheet" href="/lesson.css">' in text
    assert '<script type="module" src="/lesson.js"></script>' in text
    assert "app." not in text
    assert client.send("GET", "/lesson.js").body.decode().endswith(".lessonView);\n")
    script, styles = client.send("GET", "/app.js"), client.send("GET", "/app.css")
    assert script.headers["content-type"] == "text/javascript; charset=utf-8"
    assert script.body.decode().endswith('startPage(document.getElementById("uwaga"));\n')
    assert "lessonView" not in script.body.decode()
    assert styles.headers["content-type"] == "text/css; charset=utf-8"
    assert b".uwaga" in styles.body


def test_the_page_is_in_the_language_of_its_address_of_the_view_or_of_the_browser(client) -> None:
    def language(path: str, accept: str | None = None) -> str:
        page = client.send("GET", path, **({} if accept is None else {"Accept_Language": accept}))
        assert page.headers["content-language"] in page.body.decode().split("<html ")[1].split(">")[0]
        return page.headers["content-language"]

    assert language("/") == "en"
    assert language("/", "de, pl;q=0.8, ja;q=0.5") == "pl"
    assert language("/?language=ja", "pl") == "ja"
    assert language("/?language=%3Cscript%3E", "pt-BR") == "pt"
    assert language("/", "*;q=x,,;;q=1" + 5000 * "a") == "en"


def test_a_request_gets_the_bytes_of_its_reply(client) -> None:
    answer = client.ask({"request": "echo", "text": "żółw"})
    assert (answer.status, answer.headers["content-type"]) == (200, "application/octet-stream")
    reply = read_reply(answer.body)
    assert reply.meta == {"request": {"request": "echo", "text": "żółw"}}
    assert reply.arrays[0].tolist() == [0, 1, 2]


def test_every_response_has_the_security_headers(client, small_front) -> None:
    answers = [client.send("GET", path) for path in ("/", "/app.js", "/nothing")]
    answers += [client.ask({"request": "echo"}), client.ask({"request": "?"}), client.ask({"request": "fail"})]
    answers += [client.send("GET", "/", Host="attacker.example"), client.send("PUT", "/")]
    assert [answer.status for answer in answers] == [200, 200, 404, 200, 400, 500, 403, 405]
    for answer in answers:
        assert {name: answer.headers.get(name) for name in STRICT} == STRICT
        assert "access-control-allow-origin" not in answer.headers
        assert "server" not in answer.headers


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nothing", 404),
        ("POST", "/", 405),
        ("DELETE", "/app.js", 405),
        ("GET", "/ask", 405),
        ("OPTIONS", "/ask", 405),
    ],
)
def test_unknown_paths_and_methods_are_refused(client, method: str, path: str, status: int) -> None:
    answer = client.send(method, path)
    assert (answer.status, bool(answer.error)) == (status, True)
    assert ("allow" in answer.headers) == (status == 405)


def test_invalid_requests_are_refused(client) -> None:
    def refused(question, **headers: str) -> tuple[int, str]:
        answer = client.ask(question, **headers)
        return answer.status, answer.error

    token = "the token is missing or wrong: open the URL that the program has printed"
    assert refused({"request": "echo"}, X_Uwaga_Token="") == (403, token)
    assert refused({"request": "echo"}, X_Uwaga_Token=client.token[:-1]) == (403, token)
    kind = "the Content-Type of a request must be application/json"
    assert refused({"request": "echo"}, Content_Type="text/plain") == (415, kind)
    assert refused({"request": "echo"}, Content_Type="") == (415, kind)
    assert refused(b"") == (400, "the request is not valid JSON: Expecting value: line 1 column 1 (char 0)")
    assert refused(b'{"request": NaN}') == (400, "the request is not valid JSON: NaN is not a JSON number")
    assert refused([1]) == (400, "the request must contain a JSON object, not list")
    assert refused({"request": "nothing"}) == (400, "unknown request 'nothing'")
    # A charset parameter in Content-Type is accepted.
    assert client.ask({"request": "echo"}, Content_Type="Application/JSON; charset=utf-8").status == 200


def test_an_internal_error_is_logged_and_the_server_continues(client, caplog: pytest.LogCaptureFixture) -> None:
    answer = client.ask({"request": "fail"})
    assert (answer.status, answer.error) == (500, "internal error; the program's log has the traceback")
    assert b"a defect" not in answer.body
    until(lambda: "RuntimeError: a defect" in caplog.text)
    assert client.ask({"request": "echo"}).status == 200


def test_a_too_large_body_is_refused(client) -> None:
    fits = {"request": "echo", "text": ""}
    fits["text"] = "x" * (MAX_BODY_BYTES - len(json.dumps(fits)))
    assert client.ask(fits).status == 200
    fits["text"] += "x"
    answer = client.ask(fits)
    assert (answer.status, answer.error) == (413, f"the body of the request exceeds {MAX_BODY_BYTES:,} bytes")
