"""Names with placeholders, such as `shop.{schema}.{table}`: topics, routing keys, tags."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

MAX_LENGTH = 1000


@dataclass(frozen=True, slots=True)
class Template:
    """A text with placeholders. `parts` are literal texts and names in turn, beginning and ending with a text."""

    text: str
    parts: tuple[str, ...]

    @property
    def names(self) -> frozenset[str]:
        """Returns the names of the placeholders."""
        return frozenset(self.parts[1::2])

    @classmethod
    def parse(cls, text: str, allowed: Collection[str]) -> Template:
        """Reads `{name}`; `{{` and `}}` are literal braces. Raises ValueError with the character's position."""
        if len(text) > MAX_LENGTH:
            raise ValueError(f"should have at most {MAX_LENGTH} characters")
        parts, literal, index = [], "", 0
        while index < len(text):
            char = text[index]
            if char in "{}" and text[index : index + 2] == char * 2:
                literal, index = literal + char, index + 2
            elif char == "}":
                raise ValueError(f"`}}` at character {index + 1} should be `}}}}`, or close a placeholder")
            elif char == "{":
                end = text.find("}", index)
                if end < 0:
                    raise ValueError(f"`{{` at character {index + 1} has no closing `}}` (write `{{{{` for a brace)")
                name = text[index + 1 : end]
                if name not in allowed:
                    known = ", ".join(f"{{{known}}}" for known in sorted(allowed)) or "none"
                    raise ValueError(f"{{{name}}} at character {index + 1} is not known; known placeholders: {known}")
                parts += [literal, name]
                literal, index = "", end + 1
            else:
                literal, index = literal + char, index + 1
        return cls(text, (*parts, literal))

    def render(self, **names: str) -> str:
        """Returns the text with each placeholder's value. Braces in a value have no meaning."""
        parts = self.parts
        if len(parts) == 1:
            return parts[0]
        return "".join(names[part] if index & 1 else part for index, part in enumerate(parts))
