"""Puts the faults of a plan into the world, and takes them back."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from headrace.mysql.replicas import replica_name
from sim import archives, lost, parked, rabbit
from sim.kafka.wire import Api
from sim.plan import DAEMONS, HOSTS, ZOOKEEPERS, Fault

if TYPE_CHECKING:
    from sim.mysql.server import Server
    from sim.mysql.session import Session
    from sim.world import World

Undo = Callable[[], None] | None


def inject(world: World, fault: Fault) -> Undo:
    """Begins a fault. Returns what ends it; None if it has no end."""
    return _KINDS[fault.kind](world, fault)


def _kill(world: World, fault: Fault) -> Undo:
    daemon = world.daemons[fault.target]
    if not daemon.running:
        return None
    daemon.kill()
    return lambda: None if daemon.running else daemon.start()


def _stop(world: World, fault: Fault) -> Undo:
    daemon = world.daemons[fault.target]
    daemon.stop()
    return lambda: None if daemon.running else daemon.start()


def _freeze(world: World, fault: Fault) -> Undo:
    process = world.process(fault.target)
    if process is None or process.frozen:
        return None
    process.freeze()
    return process.thaw


def _hang(world: World, fault: Fault) -> Undo:
    """A loop that hangs: no step runs, but the watchdog's thread does."""
    daemon = world.daemons[fault.target]
    process = daemon.process
    if process is None or not process.alive or process.frozen:
        return None
    process.freeze()
    assert daemon.runtime is not None
    daemon.runtime.hangs(True)
    runtime = daemon.runtime

    def undo() -> None:
        runtime.hangs(False)
        process.thaw()

    return undo


def _clock_jump(world: World, fault: Fault) -> Undo:
    runtime = world.daemons[fault.target].runtime
    if runtime is not None:
        runtime.offset += fault.number
    return None


def _clock_drift(world: World, fault: Fault) -> Undo:
    runtime = world.daemons[fault.target].runtime
    if runtime is None:
        return None
    runtime.set_drift(fault.number)
    return lambda: runtime.set_drift(0.0)


def _partition(world: World, fault: Fault) -> Undo:
    world.network.block(fault.target, fault.other)
    return lambda: world.network.unblock(fault.target, fault.other)


def _isolate(world: World, fault: Fault) -> Undo:
    return _cut(world, [(fault.target, host) for host in HOSTS if host != fault.target])


def _cut_off_zookeeper(world: World, fault: Fault) -> Undo:
    """No daemon reaches the lock service, which is well: all locks are lost if it takes long."""
    return _cut(world, [(daemon, server) for daemon in DAEMONS for server in ZOOKEEPERS])


def _lose_zookeeper(world: World, fault: Fault) -> Undo:
    """One daemon does not reach the lock service; it reaches its source and its sinks."""
    return _cut(world, [(fault.target, server) for server in ZOOKEEPERS])


def _cut(world: World, links: list[tuple[str, str]]) -> Undo:
    both = [pair for one, other in links for pair in ((one, other), (other, one))]
    for pair in both:
        world.network.block(*pair)

    def undo() -> None:
        for pair in both:
            world.network.unblock(*pair)

    return undo


def _slow_link(world: World, fault: Fault) -> Undo:
    pair = fault.target, fault.other
    world.network.delays[pair] = fault.number
    return lambda: (world.network.delays.pop(pair, None), None)[1]


def _reset(world: World, fault: Fault) -> Undo:
    pair = {fault.target, fault.other}
    world.network.reset(lambda one, other: {one, other} == pair)
    return None


def _cut_packet(world: World, fault: Fault) -> Undo:
    pair = {fault.target, fault.other}
    world.network.cut(lambda one, other: {one, other} == pair)
    return None


def _kill_zookeeper(world: World, fault: Fault) -> Undo:
    server = world.ensemble.servers[fault.target]
    server.kill()
    return server.restart


def _crash_broker(world: World, fault: Fault) -> Undo:
    broker = world.kafka.brokers[int(fault.target[-1])]
    if not broker.reachable:
        return None
    world.network.close(fault.target, world.kafka_port)
    world.brokers[broker.number].context().run(broker.crash)

    def undo() -> None:
        world.brokers[broker.number].context().run(broker.start)
        world.listen_broker(broker.number)

    return undo


def _lose_answers(world: World, fault: Fault) -> Undo:
    faults, number = world.kafka.faults, int(fault.target[-1])
    rule = faults.lose_answers(Api.PRODUCE, count=int(fault.number), broker=number)
    return lambda: faults.remove(rule)


def _late_answers(world: World, fault: Fault) -> Undo:
    faults, number = world.kafka.faults, int(fault.target[-1])
    rule = faults.delay_answers(fault.seconds, None, count=int(fault.number), broker=number)
    return lambda: faults.remove(rule)


def _drop_requests(world: World, fault: Fault) -> Undo:
    faults, number = world.kafka.faults, int(fault.target[-1])
    rule = faults.drop_requests(None, count=int(fault.number), broker=number)
    return lambda: faults.remove(rule)


def _move_leader(world: World, fault: Fault) -> Undo:
    for partition in world.kafka.partitions():
        others = [one for one in partition.isr if one != partition.leader and world.kafka.brokers[one].registered]
        if others:
            to = others[int(fault.number) % len(others)]
            world.kafka.move_leader(partition.topic.name, partition.number, to)
    return None


def _restart_source(world: World, fault: Fault) -> Undo:
    return world.end_source(world.mysql.stop)


def _crash_source(world: World, fault: Fault) -> Undo:
    return world.end_source(world.mysql.crash)


def _kill_connections(world: World, fault: Fault) -> Undo:
    for session in [one for one in world.mysql.sessions.values() if one.account is not None]:
        world.at_source(partial(world.mysql.kill, session.thread))
    return None


def _same_name(world: World, fault: Fault) -> Undo:
    """Another reader has the name of a daemon that reads, as with a copied configuration: the source ends ours. With a
    `number`, it has the server id that is configured, which is noticed when a dump is begun."""
    server = world.mysql
    if not server.running:
        return None
    if fault.number:
        session = server.session()
        world.at_source(lambda: server.register(session, int(fault.number), "another", 1))
        return lambda: _leave(server, session)
    ours = {replica_name(node, fault.target).uuid for node in DAEMONS}
    dump = next((dump for dump in server.dumps if dump.uuid in ours), None)
    if dump is None:
        return None
    session = server.session()
    session.user_variables["replica_uuid"] = dump.uuid
    world.at_source(lambda: server.register(session, dump.server_id, "another", 1))
    world.at_source(lambda: server.end_dumps_of(dump.uuid, dump.server_id))

    return lambda: _leave(server, session)


def _leave(server: Server, session: Session) -> None:
    server.unregister(session.thread)
    session.close()


def _slow_source(world: World, fault: Fault) -> Undo:
    """Answers come late: a table that is read for a snapshot changes meanwhile."""
    server = world.mysql
    server.delay = lambda: fault.number

    def undo() -> None:
        server.delay = lambda: world.plan.slow

    return undo


def _silent_source(world: World, fault: Fault) -> Undo:
    """The source sends nothing more on the connections that read it now, and answers on others."""
    held = [dump for dump in world.mysql.dumps if not dump.held]
    for dump in held:
        dump.hold(True)

    def undo() -> None:
        for dump in held:
            world.at_source(partial(dump.hold, False))

    return undo


def _rotate(world: World, fault: Fault) -> Undo:
    if world.mysql.running:
        world.at_source(world.mysql.rotate)
    return None


def _large_transaction(world: World, fault: Fault) -> Undo:
    world.clients.large(int(fault.number))
    return None


def _pause(world: World, fault: Fault) -> Undo:
    operator = world.operator
    operator.begin(operator.pause(fault.target))
    return lambda: operator.begin(operator.resume(fault.target))


def _resync(world: World, fault: Fault) -> Undo:
    world.operator.begin(world.operator.resync(fault.target, fault.other))
    return None


def _pause_snapshot(world: World, fault: Fault) -> Undo:
    world.operator.begin(world.operator.pause_snapshot(fault.target))
    return lambda: None


def _move_back(world: World, fault: Fault) -> Undo:
    world.operator.begin(world.operator.move_back(fault.target, fault.number))
    return None


def _restart(world: World, fault: Fault) -> Undo:
    world.operator.begin(world.operator.restart(fault.target))
    return None


def _drain(world: World, fault: Fault) -> Undo:
    operator = world.operator
    operator.begin(operator.drain(fault.target))
    return lambda: operator.begin(operator.undrain(fault.target))


def _hand_over(world: World, fault: Fault) -> Undo:
    world.operator.begin(world.operator.hand_over(fault.target, fault.other))
    return None


def _reload(world: World, fault: Fault) -> Undo:
    """A file that all daemons have is changed, and changed back."""
    for daemon in world.daemons.values():
        world.write_destination(daemon, fault.target, heartbeat={"interval": 2.5})

    def undo() -> None:
        for daemon in world.daemons.values():
            world.write_destination(daemon, fault.target)

    return undo


def _power_loss(world: World, fault: Fault) -> Undo:
    """The power is lost at one of the next writes, or now."""
    daemon = world.daemons[fault.target]
    if not daemon.running or daemon.machine is None:
        return None
    disk = daemon.machine.disk
    if not fault.number:
        daemon.lose_power()
    disk.calls_left = int(fault.number)

    def undo() -> None:
        disk.calls_left = 0
        if not daemon.running:
            daemon.start()

    return undo


def _restart_on(world: World, fault: Fault) -> None:
    """Kills a daemon, if the fault says so, which starts again on the disk as it is."""
    daemon = world.daemons[fault.target]
    if fault.other and daemon.running:
        daemon.kill()
        world.start_again(daemon)


def _disk_errors(world: World, fault: Fault) -> Undo:
    machine = world.daemons[fault.target].machine
    if machine is None or machine.disk.failing:
        return None
    disk, disk.failing = machine.disk, fault.number
    _restart_on(world, fault)
    return lambda: setattr(disk, "failing", 0.0)


def _full_disk(world: World, fault: Fault) -> Undo:
    machine = world.daemons[fault.target].machine
    if machine is None or machine.disk.full:
        return None
    disk, disk.full = machine.disk, True
    _restart_on(world, fault)
    return lambda: setattr(disk, "full", False)


_KINDS: dict[str, Callable[[World, Fault], Undo]] = {
    "kill": _kill,
    "stop": _stop,
    "freeze": _freeze,
    "hang": _hang,
    "clock jump": _clock_jump,
    "clock drift": _clock_drift,
    "freeze server": _freeze,
    "partition": _partition,
    "isolate": _isolate,
    "cut off zookeeper": _cut_off_zookeeper,
    "lose zookeeper": _lose_zookeeper,
    "slow link": _slow_link,
    "reset": _reset,
    "cut packet": _cut_packet,
    "kill zookeeper": _kill_zookeeper,
    "crash broker": _crash_broker,
    "lose answers": _lose_answers,
    "late answers": _late_answers,
    "drop requests": _drop_requests,
    "move leader": _move_leader,
    "restart source": _restart_source,
    "crash source": _crash_source,
    "kill connections": _kill_connections,
    "same server id": _same_name,
    "slow source": _slow_source,
    "silent source": _silent_source,
    "rotate": _rotate,
    "large transaction": _large_transaction,
    "pause": _pause,
    "resync": _resync,
    "pause snapshot": _pause_snapshot,
    "move back": _move_back,
    "restart": _restart,
    "drain": _drain,
    "hand over": _hand_over,
    "reload": _reload,
    "power loss": _power_loss,
    "disk errors": _disk_errors,
    "full disk": _full_disk,
    **archives.KINDS,
    **rabbit.KINDS,
    **parked.KINDS,
    **lost.KINDS,
}
