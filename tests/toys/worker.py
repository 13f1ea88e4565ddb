"""A worker process that misbehaves as the names of its destinations say; started as headrace starts its own."""

from __future__ import annotations

import os
import signal
import socket
import sys
import time

from headrace.destination.status import DestinationStatus
from headrace.errors import StateStoreError
from headrace.model import State
from headrace.workers.channel import ChannelEnded, packed, receive_now
from headrace.workers.messages import Answer, Begin, Call, Failure, Farewell, Snapshot
from headrace.workers.mirror import facts_of


def snapshot(names: list[str], done: int = 0) -> Snapshot:
    facts = {}
    for name in names:
        status = DestinationStatus(name, state=State.STREAMING)
        status.search = {"file": "bin.000001", "done": done, "total": 20} if done else None

        async def operate() -> dict[str, str]:
            return {}

        status.operate = operate
        facts[name] = facts_of(status)
    return Snapshot(facts, 0.5, 1000, 0.0, None)


def main() -> int:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sock = socket.socket(fileno=int(sys.argv[1]))
    begin: Begin = receive_now(sock)
    names, diary = [*begin.settings.destinations], begin.settings.daemon.spool / "diary"

    def note(text: str) -> None:
        with diary.open("a") as file:
            file.write(f"{begin.number} {text}\n")

    note(f"begin {','.join(names)}")
    if "ends" in names:
        return 3
    if "unopened" in names:
        sock.sendall(packed(Farewell(Failure.of(StateStoreError("the store is away", remedy="look")))))
        return 1
    if "garbage" in names:
        sock.sendall(b"\0\0\0\4nope")
        time.sleep(60)
    while True:
        sock.sendall(packed(snapshot(names)))
        try:
            call: Call = receive_now(sock)
        except ChannelEnded:
            note("the daemon is gone")
            return 0
        note(f"{call.method} {','.join(call.given[0]) if call.method in ('end', 'apply') else ''}".strip())
        if call.method == "stop" and "stubborn" not in names:
            return 0
        if call.method == "stop now" and "stubborn" not in names:
            return 1
        if call.method == "end":
            time.sleep(0.3 if "slow" in names else 0.0)
            names = [name for name in names if name not in call.given[0]]
            note("has ended them")
        if call.method == "apply":
            if "obstinate" in names:
                os.kill(os.getpid(), signal.SIGSTOP)
            names = [*call.given[0]]
        if call.method == "operate" and "dies" in names:
            return 4
        if call.method == "operate" and "silent" in names:
            continue
        if call.method == "operate" and "searches" in names:
            for done in range(1, 21):
                time.sleep(0.1)
                sock.sendall(packed(snapshot(names, done)))
            time.sleep(60)
        sock.sendall(packed(Answer(call.number, {"done": call.method})))


if __name__ == "__main__":
    sys.exit(main())
