"""[sink.options]: further arguments of aiokafka's clients, each under its own name there."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Mapping
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient

_INSTEAD = {
    "acks": "it is always all",
    "enable_idempotence": "it is always true",
    "bootstrap_servers": "set bootstrap_servers",
    "client_id": "set client_id",
    "compression_type": "set compression",
    "linger_ms": "set linger in [queue]",
    "max_batch_size": "set batch_bytes",
    "max_request_size": "set max_request_size",
    "request_timeout_ms": "set request_timeout",
    "transactional_id": "set transactional_id",
    "transaction_timeout_ms": "set transaction_timeout",
    "security_protocol": "set tls and sasl_mechanism",
    "ssl_context": "set tls_ca, tls_certificate and tls_key",
    "sasl_mechanism": "set sasl_mechanism",
    "sasl_plain_username": "set user",
    "sasl_plain_password": "set password",
    "sasl_oauth_token_provider": "set oauth_token_url",
    "isolation_level": "committed messages are read",
    "auto_offset_reset": "headrace knows where it reads",
    "enable_auto_commit": "headrace commits no offsets",
}
"""Arguments that headrace sets itself, and what to do instead."""


def _arguments(client: Any) -> dict[str, Any]:
    """Returns the arguments of a client with their defaults."""
    return {name: one.default for name, one in inspect.signature(client).parameters.items()}


def faults(options: Mapping[str, Any]) -> list[str]:
    """Returns what is wrong with the options, a sentence each."""
    known: dict[str, Any] = {}
    for client in (AIOKafkaProducer, AIOKafkaConsumer, AIOKafkaAdminClient):
        known |= _arguments(client)
    plain = {name for name, default in known.items() if isinstance(default, bool | int | str)} - _INSTEAD.keys()
    found = []
    for name, value in options.items():
        if name in _INSTEAD:
            found.append(f"{name} can't be set here: {_INSTEAD[name]}")
        elif name not in known:
            near = [f", did you mean {one}?" for one in difflib.get_close_matches(name, plain, 1)]
            found.append(f"{name} is no argument of aiokafka's clients{''.join(near)}")
        elif name not in plain:
            found.append(f"{name} can't be set in a file")
        elif type(value) is not type(known[name]):
            found.append(f"{name} should be as its default in aiokafka, {known[name]!r}")
    return found


def for_client(options: Mapping[str, Any], client: Any) -> dict[str, Any]:
    """Returns the options that a class of clients has arguments for."""
    return {name: value for name, value in options.items() if name in _arguments(client)}
