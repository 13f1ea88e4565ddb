"""Adds native code to headrace's wheel, if cargo is available: hatchling calls this, also for an editable installation.

HEADRACE_NATIVE in the environment: `require` fails a build without it, `off` makes one without it, and a path names a
library that cargo has already built."""

from __future__ import annotations

import os
import shutil
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

COST = "rows will be made by Python, which takes about five times the CPU: docs/install.md#native-code"


class NativeCode(BuildHookInterface[Any]):
    """One wheel for any Python from 3.11 on; without native code it is for any machine too."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Raises SystemExit if native code is required and there is none."""
        asked = os.environ.get("HEADRACE_NATIVE", "")
        if asked == "off":
            missing, library = "HEADRACE_NATIVE is off", None
        elif asked in ("", "require"):
            missing, library = self._built()
        else:
            missing, library = f"HEADRACE_NATIVE names no file: {asked}", Path(asked)
        if library is not None and library.is_file():
            force = "force_include_editable" if version == "editable" else "force_include"
            build_data[force][str(library.resolve())] = "headrace_native.abi3.so"
            build_data["pure_python"] = False
            platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
            build_data["tag"] = f"cp311-abi3-{platform}"
        elif asked in ("", "off"):
            self.app.display_warning(f"headrace: {missing}; {COST}")
        else:
            raise SystemExit(f"headrace: {missing}")

    def _built(self) -> tuple[str, Path | None]:
        """Returns the library that cargo builds, or why there is none."""
        if shutil.which("cargo") is None:
            return "no Rust tool chain", None
        # The same folder as that of the scripts, so that a clone builds each crate once.
        target = Path(os.environ.get("CARGO_TARGET_DIR") or Path(self.root, ".cache/cargo-target"))
        command = ["cargo", "build", "--release", "--locked", "--target-dir", str(target)]
        if subprocess.run(command, cwd=Path(self.root, "native")).returncode != 0:
            return "cargo can't build native code, and says why above", None
        return "cargo builds for another system", target / "release/libheadrace_native.so"
