"""Access tokens for SASL OAUTHBEARER, by the client credentials grant (RFC 6749, 4.4)."""

from __future__ import annotations

import base64
import functools
import re
import ssl
from typing import Any
from urllib.parse import quote_plus, urlsplit

import aiohttp
import orjson
from aiokafka.abc import AbstractTokenProvider
from aiokafka.errors import KafkaError

from headrace import runtime
from headrace.adapters.kafka.settings import KafkaSinkSettings
from headrace_common.tls import trusting

_LIMIT = 10.0
"""Maximum seconds for a request."""
_DEFAULT_LIFE = 60.0
"""Seconds that a token is used if the answer does not say how long it is valid."""
_RENEW_AFTER = 0.8
"""Share of its lifetime."""
_MAX_ANSWER = 1 << 20
_TOKEN = re.compile(r"[A-Za-z0-9\-._~+/]+=*")
"""RFC 6750, 2.1: b64token."""


class NoToken(KafkaError):  # type: ignore[misc]
    """No token was issued; the client library waits and asks again. The text contains no secret."""

    retriable = True


class TokenProvider(AbstractTokenProvider):  # type: ignore[misc]
    """Fetches a token, uses it for all connections, and renews it before it expires."""

    def __init__(self, settings: KafkaSinkSettings) -> None:
        self._settings = settings
        self._url = urlsplit(settings.oauth_token_url)
        self._token = ""
        self._renew_at = self._ends_at = 0.0
        """On the monotonic clock."""

    async def token(self) -> str:
        """Returns a valid token. Raises NoToken."""
        now = runtime.monotonic()
        if now < self._renew_at:
            return self._token
        try:
            self._token, life = await self._fetch()
        except NoToken:
            if now < self._ends_at:
                return self._token
            raise
        self._renew_at, self._ends_at = now + life * _RENEW_AFTER, now + life
        return self._token

    def forget(self) -> None:
        """Drops the token, so that a new one is fetched: something has changed at the server."""
        self._renew_at = self._ends_at = 0.0

    async def _fetch(self) -> tuple[str, float]:
        """Returns a token, and the seconds that it is valid."""
        settings = self._settings
        form = {"grant_type": "client_credentials"}
        if settings.oauth_scope:
            form["scope"] = settings.oauth_scope
        # RFC 6749, 2.3.1: both parts are form-encoded before they are joined.
        account = f"{quote_plus(settings.user)}:{quote_plus(settings.password.get_secret_value())}"
        headers = {"Authorization": "Basic " + base64.b64encode(account.encode()).decode()}
        limit = aiohttp.ClientTimeout(total=min(_LIMIT, settings.request_timeout))
        try:
            async with (
                aiohttp.ClientSession(timeout=limit, headers=headers) as session,
                # our password goes to this server only
                session.post(self._url.geturl(), data=form, allow_redirects=False, ssl=self._tls()) as answer,
            ):
                body, status = await answer.content.read(_MAX_ANSWER), answer.status
        except TimeoutError:
            raise self._failed(f"no answer within {limit.total:g} s") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise self._failed(f"{type(error).__name__}: {error}") from None
        return self._read(status, body)

    def _tls(self) -> ssl.SSLContext | bool:
        """Returns the TLS context: the system's CAs, and that of the brokers, which often belongs to the same
        organization."""
        if self._url.scheme != "https" or self._settings.tls_ca is None:
            return True
        context = trusting()
        context.load_verify_locations(self._settings.tls_ca)
        return context

    def _read(self, status: int, body: bytes) -> tuple[str, float]:
        try:
            answer: Any = orjson.loads(body)
        except orjson.JSONDecodeError:
            answer = None
        if not isinstance(answer, dict):
            raise self._failed(f"HTTP {status}, and no JSON object")
        if status != 200:
            # RFC 6749, 5.2: a word; the description may repeat what we sent.
            word = str(answer.get("error", ""))
            raise self._failed(f"HTTP {status}" + (f", {word}" if re.fullmatch(r"[a-z_]{1,60}", word) else ""))
        token, life = answer.get("access_token"), answer.get("expires_in", _DEFAULT_LIFE)
        if not isinstance(token, str) or not _TOKEN.fullmatch(token):
            raise self._failed("the answer has no access_token that is one")
        try:
            return token, max(1.0, float(life))
        except (TypeError, ValueError):
            return token, _DEFAULT_LIFE

    def _failed(self, why: str) -> NoToken:
        where = f"{self._url.scheme}://{self._url.netloc.rpartition('@')[2]}{self._url.path}"
        return NoToken(f"{where} gives no token to {self._settings.user} ({why})")


def provider_of(settings: KafkaSinkSettings) -> TokenProvider:
    """Returns the provider that all connections of an account share."""
    return _provider(settings.model_copy(update={"options": ()}))  # they can't be hashed, and do not matter here


@functools.lru_cache(maxsize=1000)
def _provider(settings: KafkaSinkSettings) -> TokenProvider:
    return TokenProvider(settings)
