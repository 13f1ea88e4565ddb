"""The errors of the broker's side; those that all consumers have are in headrace_documents.errors."""

from __future__ import annotations

from headrace_documents.errors import ConsumerError


class BrokerError(ConsumerError):
    """RabbitMQ did not do what was asked of it, or the connection is gone. Trying again may help."""


class DuplicatesError(ConsumerError):
    """The store of message ids can't be used. Versions in Elasticsearch decide without it."""
