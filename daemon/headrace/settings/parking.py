"""The section [parking] as a model: where refused messages wait, and when they are sent again."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from headrace_common.section import MIB, Int, Seconds, Section, Size


class ParkingSettings(Section):
    """[parking]: messages that the sink refuses, where it says `park`."""

    store: str = Field(
        default="state",
        description="state: the destination's state store; mysql: the table headrace_parked_message of a MySQL server, "
        "which daemons of several machines share. With ZooKeeper it has to be mysql.",
    )
    max_messages: Int = Field(
        default=100_000, ge=1, le=100_000_000, description="When so many wait, the destination stops instead."
    )
    max_bytes: Size = Field(default=1024 * MIB, description="The same in bytes of their bodies.")
    delay: Seconds = Field(default=10.0, description="Before a message is sent again for the first time.")
    delay_factor: Annotated[float, Field(ge=1, le=10)] = Field(
        default=2.0, description="Each further wait is longer by this factor."
    )
    max_delay: Seconds = Field(default=600.0, description="And never longer than this.")
    attempts: Int = Field(
        default=20,
        ge=1,
        le=1_000_000,
        description="After so many attempts a message waits for an operator (NEEDS_OPERATOR).",
    )
