"""Copies the documentation into a folder for MkDocs.

README becomes the index. A link to a file that is not a page becomes the file's name.

usage: scripts/site_pages.py FOLDER
"""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
OTHERS = {"README.md": "index.md", "README.zh.md": "index.zh.md", "CONTRIBUTING.md": "contributing.md"}
"""Pages that are not in docs/, and what the site calls them."""


def page(source: Path, text: str) -> str:
    """Returns the text of a page with its links as the site needs them."""

    def link(found: re.Match[str]) -> str:
        label, target = found.groups()
        if "://" in target or target.startswith("#"):
            return found[0]
        path, mark, anchor = target.partition("#")
        name = (source.parent / path).resolve().relative_to(ROOT).as_posix()
        if name in OTHERS or name.startswith("docs/"):
            return f"[{label}]({OTHERS.get(name, name.removeprefix('docs/'))}{mark}{anchor})"
        return f"`{name}`" if label.startswith("`") else f"{label} (`{name}`)"

    # The site has a choice of languages of its own.
    text = re.sub(r"^(English \| \[简体中文\]\(|\[English\]\(\S+\) \| 简体中文).*\n\n", "", text, flags=re.MULTILINE)
    return re.sub(r"\[([^\]]*)\]\(([^)\s]+)\)", link, text)


def main(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(ROOT / "docs", folder)
    for source in [*(ROOT / "docs").glob("*.md"), *(ROOT / name for name in OTHERS)]:
        name = source.relative_to(ROOT).as_posix()
        (folder / OTHERS.get(name, source.name)).write_text(page(source, source.read_text()))
    ports = sorted((ROOT / "daemon/headrace/ports").glob("[a-z]*.py"))
    (folder / "ports.md").write_text(
        "# Ports\n\nThe interfaces that an adapter implements. See [adapters](adapters.md).\n\n"
        + "".join(f"## {port.stem}\n\n::: headrace.ports.{port.stem}\n\n" for port in ports)
    )
    (folder / "ports.zh.md").write_text("# 端口\n\n适配器需要实现的接口，说明只有英文版。参见[适配器](adapters.md)。\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
