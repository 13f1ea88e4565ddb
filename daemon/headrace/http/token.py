"""The token of commands: as configured, or made by the daemon and kept in a file that only its user can read."""

from __future__ import annotations

import os
from base64 import urlsafe_b64encode
from pathlib import Path

from headrace import runtime
from headrace.errors import HeadraceError
from headrace.settings.daemon import HttpSettings


class TokenError(HeadraceError):
    """The file of the token can't be read or created, or is not the daemon's."""

    reason = "http"
    retriable = False


def daemon_token(settings: HttpSettings) -> str:
    """Returns the daemon's token; creates the file if it is missing. Raises TokenError."""
    if token := settings.token.get_secret_value():
        return token
    file = settings.token_file
    try:
        if (known := _read(file)) is not None:
            return known
        file.parent.mkdir(parents=True, exist_ok=True)
        token = urlsafe_b64encode(runtime.random().randbytes(32)).decode().rstrip("=")
        # Atomically: a command may read it at any moment.
        fresh = file.with_name(f"{file.name}.{os.getpid()}")
        fresh.unlink(missing_ok=True)  # of a process that was killed here; in a container all have the same number
        with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as out:
            out.write(token + "\n")
            out.flush()
            runtime.sync(out.fileno())  # else a power loss may leave a part of the token, which is easier to guess
        fresh.rename(file)
    except OSError as error:
        raise _failed(file, error) from error
    return token


def command_token(settings: HttpSettings, environment: str) -> str:
    """Returns a command's token: `environment` is the value of HEADRACE_TOKEN, which has precedence. Raises
    TokenError."""
    if token := environment.strip() or settings.token.get_secret_value():
        if not (token.isascii() and token.isprintable()):  # http.client would show it in its error
            raise TokenError(
                "the token holds characters that no header may have",
                remedy="check HEADRACE_TOKEN and [http] token: it is letters, digits and signs of ASCII, on one line",
            )
        return token
    try:
        known = _read(settings.token_file)
    except OSError as error:
        raise _failed(settings.token_file, error) from error
    if known is None:
        raise TokenError(
            f"there is no token in {settings.token_file.absolute()}",
            remedy="the daemon makes it in its own working directory: run the command there, or set HEADRACE_TOKEN",
        )
    return known


def _read(file: Path) -> str | None:
    try:
        return file.read_text("ascii", errors="replace").strip() or None
    except FileNotFoundError:
        return None


def _failed(file: Path, error: OSError) -> TokenError:
    return TokenError(
        f"the token's file {file.absolute()} can't be used: {error.strerror}",
        remedy="run the command as the daemon's user, or set HEADRACE_TOKEN, or set [http] token",
    )
