"""The file of the token that the daemon makes: whole or missing, whenever the daemon or its machine ends."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from headrace import runtime
from headrace.http.token import command_token, daemon_token
from headrace.settings.daemon import HttpSettings


@pytest.fixture
def settings(tmp_path: Path) -> HttpSettings:
    return HttpSettings.model_validate({"token_file": str(tmp_path / "var" / "headrace.token")})


def test_a_token_is_made_once(settings: HttpSettings) -> None:
    token = daemon_token(settings)
    assert daemon_token(settings) == token == command_token(settings, "")
    assert settings.token_file.stat().st_mode & 0o777 == 0o600


def test_what_a_killed_process_of_the_same_number_left_keeps_no_daemon_from_starting(settings: HttpSettings) -> None:
    settings.token_file.parent.mkdir()
    left = settings.token_file.with_name(f"headrace.token.{os.getpid()}")
    left.write_text("half a tok")
    token = daemon_token(settings)
    assert settings.token_file.read_text() == f"{token}\n"
    assert not left.exists()


def test_a_token_is_on_the_disk_before_it_has_its_name(settings: HttpSettings, monkeypatch: Any) -> None:
    synced = list[str]()

    def sync(descriptor: int, *, metadata: bool = True) -> None:
        assert not settings.token_file.exists()
        synced.append(Path(f"/proc/self/fd/{descriptor}").read_text())

    monkeypatch.setattr(runtime.current(), "sync", sync)
    token = daemon_token(settings)
    assert synced == [f"{token}\n"]
