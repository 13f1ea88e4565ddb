"""The section [sink] of type jsonl."""

from __future__ import annotations

import os
from typing import Literal, Self

from pydantic import Field, model_validator

from headrace.rules.topics import KAFKA
from headrace.settings.adapters import Exclusive, SinkCapabilities, SinkSettings
from headrace_common.section import Int, SizeOrOff


class JsonlSinkSettings(SinkSettings):
    """[sink] type = "jsonl": a line a message."""

    type: Literal["jsonl"] = Field(description="The kind of sink.")
    path: str = Field(
        min_length=1,
        description='The file that lines are appended to, relative to the working directory; "-" is standard output.',
    )
    rotate_bytes: SizeOrOff = Field(
        default=0, description="A new file is begun before the present one becomes larger than this; 0: never."
    )
    keep_files: Int = Field(
        default=0, ge=0, le=1_000_000, description="Rotated files that are kept, the oldest go; 0: all."
    )

    @property
    def capabilities(self) -> SinkCapabilities:
        """Returns that two sinks may write to standard output, but not to one file."""
        own = Exclusive("path", self.path, os.path.realpath(self.path)) if self.path != "-" else None
        return SinkCapabilities(has_topics=False, topic_names=KAFKA, one_log=True, exclusive=own)

    @model_validator(mode="after")
    def _check_rotation(self) -> Self:
        if self.rotate_bytes and self.path == "-":
            raise ValueError('rotate_bytes has no meaning with path = "-"')
        if self.keep_files and not self.rotate_bytes:
            raise ValueError("keep_files needs rotate_bytes")
        return self
