"""The parts of aetcd that are used, and only here: messages and stubs of etcd's API. Its client has no TLS, knows one
server, and lets a token expire."""

from __future__ import annotations

import os

os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # gRPC reads it once: errors have the cause
import grpc
import grpc.aio
from aetcd import rpc

KNOWN_VERSIONS = {"aetcd": ("1.0.0",)}
"""Versions that this was tested with, on real servers."""

__all__ = ["grpc", "rpc"]
