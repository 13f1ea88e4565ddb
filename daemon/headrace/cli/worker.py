"""A worker process of `headrace run`, which starts it: what it is to do comes over a descriptor that it inherits."""

from __future__ import annotations

import asyncio
import signal
import socket
import sys

import structlog

from headrace import __version__
from headrace.cli.main import loop_factory
from headrace.cli.process import begin_process, supervisor_of
from headrace.cli.wiring import Wiring
from headrace.errors import HeadraceError
from headrace.workers.channel import Channel, ChannelEnded, receive_now
from headrace.workers.messages import Begin
from headrace.workers.worker import Worker
from headrace_common import logs

log = structlog.get_logger(__name__)


def main() -> int:
    """Runs a worker; its exit status."""
    # Only the daemon ends a worker in order; what a terminal says is for the daemon.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    version, number = sys.argv[1:]
    if version != __version__:  # what the two say to each other is the same within a version alone
        print(
            f"headrace: version {__version__} was installed while a daemon of version {version} runs: "
            "restart the daemon",
            file=sys.stderr,
        )
        return 1
    sock = socket.socket(fileno=int(number))
    sock.set_inheritable(False)
    try:
        begin: Begin = receive_now(sock)
    except ChannelEnded:
        return 1  # the daemon has ended before it said what to do
    form = begin.settings.log
    logs.configure(form.format, form.level, more={"worker": begin.number})
    with asyncio.Runner(loop_factory=loop_factory(begin.settings.daemon.event_loop)) as runner:
        return runner.run(_work(begin, sock))


async def _work(begin: Begin, sock: socket.socket) -> int:
    begin_process(begin.settings)
    wiring = Wiring(begin.settings, node=begin.node, address=begin.address)
    supervisor = supervisor_of(begin.settings, wiring)
    worker = Worker(
        await Channel.open(sock), supervisor, lambda: wiring.cluster.counts if wiring.cluster is not None else None
    )
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, worker.stop)
    try:
        # One destination's store that can't be opened must not keep the others of this worker from running.
        return await worker.run(lambda: wiring.open(stores=False))
    except HeadraceError as error:
        log.error("a worker can't begin", error=error.told())
        return 1
    finally:
        await wiring.close()


if __name__ == "__main__":
    sys.exit(main())
