"""The section [sink] of type rabbitmq as a model."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from headrace.parking.settings import RetrySettings
from headrace.rules.templates import Template
from headrace.settings.adapters import SinkCapabilities
from headrace_common.rabbitmq_section import QueueType, RabbitMqSection

KEY_NAMES = ("topic", "schema", "table", "partition")
"""Names that a routing key may contain."""


class RabbitMqSinkSettings(RetrySettings, RabbitMqSection):
    """[sink] type = "rabbitmq"."""

    type: Literal["rabbitmq"] = Field(description="The kind of sink.")
    exchange: str = Field(
        default="",
        max_length=255,
        description='The exchange (rabbitmq.exchange); "" is the default one, whose routing keys are names of queues.',
    )
    exchange_type: Literal["topic", "direct", "fanout", "headers"] = Field(
        default="topic", description="Its type, where it is declared."
    )
    declare: bool = Field(
        default=False, description="Whether the exchange, and `queue`, are made when they are missing; durable ones."
    )
    queue: str = Field(
        default="", max_length=255, description="With declare: a queue that is made and bound to the exchange."
    )
    queue_type: QueueType = Field(default="quorum", description="Its type.")
    binding: str = Field(default="#", max_length=255, description="The routing key that it is bound by.")
    routing_key: str = Field(
        default="{topic}",
        description="The routing key: text with {topic}, {schema}, {table} and {partition}. As in Canal it is the "
        "topic that [route] chooses.",
    )
    mandatory: bool = Field(
        default=True,
        description="Whether a message that reaches no queue is returned to us as refused; without it the broker drops "
        "it in silence.",
    )
    persistent: bool = Field(default=True, description="Whether messages outlive the broker (delivery mode 2).")

    @property
    def capabilities(self) -> SinkCapabilities:
        return SinkCapabilities(
            address=Template.parse(self.routing_key, KEY_NAMES),
            retries=True,
            parks=self.on_failure == "park",
            parks_by="on_failure",
        )

    @field_validator("routing_key")
    @classmethod
    def _check_key(cls, value: str) -> str:
        Template.parse(value, KEY_NAMES)
        return value

    @model_validator(mode="after")
    def _check(self) -> Self:
        given = self.model_fields_set
        if not self.declare and (strange := sorted(given & {"queue", "queue_type", "binding", "exchange_type"})):
            raise ValueError(f"{', '.join(strange)} has no meaning without declare = true")
        return self
