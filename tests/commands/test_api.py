"""What ``smg-fast workers`` says where there is no gateway."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from smg_fast.cli import main


class NotAGateway(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(404)
        self.end_headers()
        self.wfile.write(b"<html>no such page</html>")

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def other_server() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), NotAGateway) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_nobody_listens(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{bound.getsockname()[1]}"
        assert main(["workers", "list", "--url", url]) == 1
    assert capsys.readouterr().err == f"smg-fast workers: cannot reach {url}: Connection refused\n"


def test_it_is_another_server(other_server: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["workers", "list", "--url", other_server]) == 1
    assert "smg-fast workers: this is not how a gateway answers: " in capsys.readouterr().err


def test_it_is_no_address(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["workers", "list", "--url", "nonsense"]) == 1
    assert "--url nonsense: expected http://HOST:PORT" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "the following arguments are required: ACTION"),
        (["add"], "the following arguments are required: ipc://PATH"),
        (["add", "ipc:///w", "--engine-count", "0"], "argument --engine-count: Expected `int` >= 1, got '0'"),
        (["add", "ipc:///w", "--label", "x"], "argument --label: 'x' is not NAME=TEXT"),
        (
            ["add", "ipc:///w", "--label", "x=\n"],
            r"argument --label: all characters must be printable, and '\n' is not",
        ),
        (["add", "ipc:///w", "--served-model-name", "\0"], "argument --served-model-name: all characters must be"),
        (["remove"], "the following arguments are required: WORKER"),
        (["list", "--frobnicate"], "unrecognized arguments: --frobnicate"),
    ],
)
def test_wrong_usage(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["workers", *arguments])
    assert ended.value.code == 2
    assert said in capsys.readouterr().err
