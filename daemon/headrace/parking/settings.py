"""The common settings of sinks whose brokers confirm each message: how many times a refused one is retried."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from headrace.settings.adapters import SinkSettings
from headrace_common.section import MIB, Int, Seconds, Size


class RetrySettings(SinkSettings):
    """The base of such sinks' sections."""

    max_in_flight: Int = Field(
        default=1000, ge=1, le=100_000, description="Messages handed over and not yet confirmed."
    )
    max_in_flight_bytes: Size = Field(default=16 * MIB, description="The same in bytes.")
    request_timeout: Seconds = Field(default=30.0, description="Limit for a broker's answer.")
    retries: Int = Field(
        default=3, ge=0, le=1000, description="How often a message that the broker refuses is sent again."
    )
    retry_delay: Seconds = Field(default=3.0, description="Before the first time.")
    retry_factor: Annotated[float, Field(ge=1, le=10)] = Field(
        default=1.5, description="Each further wait is longer by this factor."
    )
    on_failure: Literal["halt", "park"] = Field(
        default="halt",
        description="A message that is refused after all retries. halt: the destination stops, and the position stays "
        "before it; park: it is parked with what comes later for its rows ([parking]), and others go on.",
    )
