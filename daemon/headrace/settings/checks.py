"""Checks between the sections of the configuration, and between destinations."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from headrace.rules.topics import TopicRules
from headrace.settings.adapters import MORE, Sections
from headrace.settings.daemon import StateSettings
from headrace.settings.destination import DestinationSettings

_OF_TOPICS = frozenset(
    {"dynamic_topic", "partition", "partitions", "dynamic_topic_partitions", "partition_hash", "hash", "ddl_partition"}
)


def clashing(destinations: Iterable[DestinationSettings], folder: Path) -> dict[str, str]:
    """Returns by name a sentence for each destination that uses a resource of an earlier one.

    That is a file, in which their lines would mix; a server id: a source silently disconnects the older of two replicas
    with one id; or the archive of another source."""
    first: dict[tuple[str, str], str] = {}
    archives: dict[str, DestinationSettings] = {}
    problems: dict[str, str] = {}
    for destination in destinations:
        if (archive := destination.archive) is not None:
            former, key = archives.setdefault(archive.place, destination), "url" if archive.url else "path"
            if not _addresses(former) & _addresses(destination):
                problems[destination.name] = (
                    f"{folder / destination.name}.toml: archive.{key}: {archive.url or archive.path} is the archive of "
                    f"another source, that of the destination {former.name}; each source needs its own"
                )
            elif former.archive != archive:
                problems[destination.name] = (
                    f"{folder / destination.name}.toml: archive: differs from that of the destination {former.name}, "
                    f"which has the same {key}"
                )
            elif _acknowledges(former) is not _acknowledges(destination):
                problems[destination.name] = (
                    f'{folder / destination.name}.toml: source.semi_sync: must be "archive" for all destinations that '
                    f"share an archive, or for none; that of the destination {former.name} is "
                    f'"{former.source.semi_sync}"'
                )
        number, own = destination.source.server_id, destination.sink.capabilities.exclusive
        taken = [("source.server_id", str(number), str(number), "server id", " (0 derives one)")]
        if own is not None:
            taken.append((f"sink.{own.key}", own.value, own.identity, "file", ""))
        for key, value, identity, what, hint in taken:
            other = first.setdefault((what, identity), destination.name)
            if other != destination.name:
                problems[destination.name] = (
                    f"{folder / destination.name}.toml: {key}: {value} is also the {what} of the destination {other}; "
                    f"each needs its own{hint}"
                )
    return problems


def _acknowledges(destination: DestinationSettings) -> bool:
    return destination.source.semi_sync == "archive"


def _addresses(destination: DestinationSettings) -> set[tuple[str, int]]:
    source = destination.source
    return {(source.host, source.port), *((one.host, one.port) for one in source.standby)}


def destination_problems(destination: DestinationSettings, folder: Path, service: str, sections: Sections) -> list[str]:
    """Returns conflicts between the sections of a destination's file, a sentence each; `service` is the name of the
    cluster service, "" without one."""
    file = folder / f"{destination.name}.toml"
    found = [
        *_state_problems(destination, service, sections),
        *_archive_problems(destination),
        *_service_problems(destination, service),
        *_parking_problems(destination, service),
        *_filter_problems(destination),
        *_route_problems(destination),
        *_message_problems(destination),
    ]
    return [f"{file}: {problem}" for problem in found]


def _state_problems(destination: DestinationSettings, service: str, sections: Sections) -> list[str]:
    state, sink = destination.state, destination.sink
    if destination.exactly_once:
        if state is not None and state.store not in ("auto", sink.type):
            return [f'state.store: delivery = "exactly_once" keeps the position in {sink.type}, not in {state.store}']
        return []
    if state is None:
        return []
    return store_problems(state, service, sections)


def _archive_problems(destination: DestinationSettings) -> list[str]:
    if destination.source.semi_sync == "archive" and destination.archive is None:
        return ['source.semi_sync: "archive" needs [archive]']
    return []


def _service_problems(destination: DestinationSettings, service: str) -> list[str]:
    key, other = destination.sink.capabilities.shares_by, f", and not [{service}]" if service else ""
    needed = f"sink.{key}: needs a section [zookeeper] in headrace.toml{other}"
    return [needed] if key and service != "zookeeper" else []


def _parking_problems(destination: DestinationSettings, service: str) -> list[str]:
    parking = destination.parking
    if not destination.parks:
        if parking.model_fields_set:
            return ['parking: has no meaning while the sink parks no message (on_failure or on_oversize = "park")']
        return []
    if destination.exactly_once:
        if parking.store != "state":
            return [f'parking.store: delivery = "exactly_once" keeps parked messages in {destination.sink.type}']
        return []
    if service and parking.store == "state":
        # A successor on another machine must know which messages wait for which.
        return [f'parking.store: with [{service}] parked messages are kept in MySQL: store = "mysql"']
    return []


def _filter_problems(destination: DestinationSettings) -> list[str]:
    wanted = destination.filter
    hiding = [key for key in ("include_columns", "exclude_columns", "where", "mask") if getattr(wanted, key)]
    texts = "filter.dml_queries" if wanted.dml_queries else f"message.{destination.message.format}.query"
    if hiding and (wanted.dml_queries or destination.message.capabilities.queries):
        return [f"{texts}: the texts of statements hold the values that {', '.join(hiding)} hides"]
    return []


def _message_problems(destination: DestinationSettings) -> list[str]:
    only, given = destination.sink.capabilities.message_format, destination.message.format
    if only and given != only:
        return [f'message.format: a {destination.sink.type} sink takes "{only}" only']
    return []


def _route_problems(destination: DestinationSettings) -> list[str]:
    route, sink, problems = destination.route, destination.sink, list[str]()
    can = sink.capabilities
    if not can.has_topics:
        strange = sorted(route.model_fields_set & _OF_TOPICS)
        problems += [f"route.{key}: has no meaning with a {sink.type} sink, which has no topics" for key in strange]
    try:
        TopicRules.parse(route.dynamic_topic, names=can.topic_names)
    except ValueError as error:
        problems.append(f"route.dynamic_topic: {error}")
    if can.needs_topic and (fault := can.topic_names.fault(route.topic)):
        problems.append(f"route.topic: {fault}")
    if route.partition_hash and route.partitions == 1 and not route.dynamic_topic_partitions:
        problems.append("route.partition_hash: has no meaning with one partition: set partitions")
    return problems


def store_problems(state: StateSettings, service: str, sections: Sections) -> list[str]:
    """Returns what is wrong with a section [state], a sentence each."""
    store, services, alone = state.store, sections.names("cluster"), sections.names("state")
    if store == "auto" or (service and store == service):
        return []
    if store in services:
        return [f"state.store: {store} needs the section [{store}] in headrace.toml"]
    if store in alone:
        if not service:
            return []
        # A successor on another machine would not see the position, and begin at another one.
        return [f"state.store: {store} can't be shared by daemons of several machines, as [{service}] asks for"]
    if store in sections.names("sink"):
        return [f'state.store: {store} is the store of destinations with delivery = "exactly_once", and theirs only']
    return [f"state.store: should be one of {', '.join(('auto', *alone, *services))}; {MORE}"]
