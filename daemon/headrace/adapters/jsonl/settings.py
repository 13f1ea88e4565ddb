"""The section [sink] of type jsonl."""

from __future__ import annotations

import os
from typing import Literal, Self

from pydantic import Field, model_validator

from headrace.rules.topics import KAFKA
from headrace.settings.adapters import Exclusive, SinkCapabilities, SinkSettings
from headrace.settings.section import Int, SecondsOrOff, SizeOrOff


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
    rotate_after: SecondsOrOff = Field(
        default=0.0,
        description="A new file is begun whenever so much time has passed, in seconds; counted from 1970 UTC, so 1h "
        "is at each full hour; 0: never.",
    )
    keep_files: Int = Field(
        default=0, ge=0, le=1_000_000, description="Rotated files that are kept, the oldest go; 0: all."
    )
    compression: Literal["none", "gzip", "zstd"] = Field(
        default="none", description="Compression of the rotated files; the present one is plain text."
    )

    @property
    def capabilities(self) -> SinkCapabilities:
        """See SinkSettings. Two sinks may write to standard output, but not into one file."""
        own = Exclusive("path", self.path, os.path.realpath(self.path)) if self.path != "-" else None
        return SinkCapabilities(has_topics=False, topic_names=KAFKA, one_log=True, exclusive=own)

    @model_validator(mode="after")
    def _check_rotation(self) -> Self:
        rotates = bool(self.rotate_bytes or self.rotate_after)
        if rotates and self.path == "-":
            raise ValueError('rotate_bytes and rotate_after have no meaning with path = "-"')
        if not rotates and (self.keep_files or self.compression != "none"):
            raise ValueError("keep_files and compression need rotate_bytes or rotate_after")
        return self
