"""Uses of the RocketMQ client below its documented interface, which are only here. Imported before the client."""

from __future__ import annotations

import logging
import sys
import types
from typing import Any

KNOWN_VERSIONS = {"rocketmq-python-client": ("5.1.2",)}
"""Versions that all of this was tested with, on a real cluster. It relies on the one name of the module
rocketmq.v5.log, `logger`; on the producer's rpc_client, client_configuration and sign(); and on QueryRouteRequest."""

_TOPIC_NOT_FOUND = 40402


def _keep_log_out_of_home() -> None:
    """Prevents the client's own log, which it would write to the home directory as soon as it is imported."""
    stub, logger = types.ModuleType("rocketmq.v5.log"), logging.getLogger("rocketmq-python-client")
    logger.addHandler(logging.NullHandler())
    logger.propagate = False
    stub.logger = logger  # type: ignore[attr-defined]
    sys.modules.setdefault("rocketmq.v5.log", stub)


_keep_log_out_of_home()

from rocketmq.grpc_protocol import QueryRouteRequest  # noqa: E402


def route_fault(producer: Any, topic: str) -> str:
    """Asks why a topic has no route, and waits for the answer; returns "" if nothing answers: the client's own error is
    the same for both. Never raises."""
    try:
        known = producer.client_configuration
        endpoints, limit = known.rpc_endpoints, known.request_timeout
        request = QueryRouteRequest()
        request.topic.name, request.topic.resource_namespace = topic, known.namespace
        request.endpoints.CopyFrom(endpoints.endpoints)
        asked = producer.rpc_client.query_topic_route_async(endpoints, request, producer.sign(), timeout=limit)
        status = asked.result(limit).status
    except Exception:
        return ""
    if status.code == _TOPIC_NOT_FOUND:
        return f"there is no topic {topic}"
    return f"the topic {topic} had no route when it was asked for ({status.message or status.code})"


def abort_channels(producer: Any) -> None:
    """Ends the connections before shutdown(), whose last request would wait for a cluster that is unavailable."""
    producer.rpc_client.stop()
