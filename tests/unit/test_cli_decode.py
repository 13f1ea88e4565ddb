"""`headrace decode`: what is wrong with its arguments and files, said in a sentence; no server is needed."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from headrace.cli.main import main


def said(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, str]:
    """Exit status and standard error."""
    try:
        status = main(["decode", *map(str, arguments)])
    except SystemExit as error:
        status = int(str(error.code))
    return status, capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((), "give binlog files, or --host, and not both"),
        (("a.000001", "--host", "h", "--user", "u"), "give binlog files, or --host, and not both"),
        (("--host", "h"), "--host needs --user"),
        (("a.000001", "--follow"), "--follow needs --host"),
        (("x/a.000001", "y/a.000001"), "two of the files have the same name"),
        (("a.000001", "--from", "soon"), "--from soon: should be"),
        (("a.000001", "--from", "latest"), "--from latest: should be an offset, file:offset, or a time with its zone"),
        (("a.000001", "--to", "2026-01-01T00:00:00"), "--to 2026-01-01T00:00:00: the time should have a zone"),
        (("a.000001", "--table", "("), "--table: regex 1 is invalid"),
        (("a.000001", "--skip-event", "here"), "--skip-event: should be a file and the offset"),
        (("--host", "h", "--user", "u", "--port", "0"), "--port: "),
        (("--host", "h", "--user", "u", "--password-env", "NO_SUCH"), "the environment variable NO_SUCH is not set"),
        (("--host", "h", "--user", "u", "--from", "soon"), "--from soon: should be"),
    ],
)
def test_wrong_arguments(capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], sentence: str) -> None:
    status, error = said(capsys, *arguments)
    assert status == 2
    assert sentence in error


def test_files_that_are_none(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    text, empty = tmp_path / "notes.txt", tmp_path / "empty.000001"
    bare, headless = tmp_path / "bare.000001", tmp_path / "headless.000001"
    text.write_text("hello")
    empty.write_bytes(b"")
    event = struct.pack("<IBIIIH", 0, 3, 1, 19 + 80, 103, 0) + bytes(80)
    headless.write_bytes(b"\xfebin" + event)
    bare.write_bytes(b"\xfebin")
    secret = tmp_path / "secret.000001"
    secret.write_bytes(b"\xfdbin" + bytes(600))
    for path, sentence in (
        (secret, "is encrypted"),
        (tmp_path / "gone.000001", "can't be read: No such file"),
        (tmp_path, "can't be read: Is a directory"),
        (text, "is no binlog"),
        (empty, "is no binlog"),
        (bare, "does not begin with an event that describes its format"),
        (headless, "does not begin with an event that describes its format"),
    ):
        status, error = said(capsys, path)
        assert status == 1, path
        assert sentence in error
        assert str(path) in error


def test_positions_lie_in_the_files_given(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "bare.000001"
    path.write_bytes(b"\xfebin")
    status, error = said(capsys, path, "--from", "other.000001:4")
    assert status == 1
    assert "other.000001 is none of the files given" in error
