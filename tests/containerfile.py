"""What packaging/Containerfile says, and a daemon as a container begins with: its source is away."""

import re
from pathlib import Path

FILE = Path(__file__).parents[1] / "packaging/Containerfile"
AWAY = """
[source]
host = "127.0.0.1"
port = 1
user = "canal"
password = "p"
[sink]
type = "null"
"""


def instructions() -> list[tuple[str, str]]:
    """Each instruction with what follows it, in order."""
    text = re.sub(r"\\\n", " ", re.sub(r"^#.*\n", "", FILE.read_text(), flags=re.MULTILINE))
    return [(word, rest.strip()) for word, _, rest in (line.partition(" ") for line in text.splitlines() if line)]


def final(name: str) -> str:
    """What the last stage says of an instruction that it has once."""
    found = instructions()
    stage = found[max(number for number, (word, _) in enumerate(found) if word == "FROM") :]
    (value,) = [rest for word, rest in stage if word == name]
    return value
