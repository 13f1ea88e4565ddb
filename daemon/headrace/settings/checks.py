"""What has to fit between the sections of the configuration, and between destinations."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from headrace.rules.topics import TopicRules
from headrace.settings.daemon import StateSettings
from headrace.settings.destination import DestinationSettings
from headrace.settings.sinks import JsonlSinkSettings, topic_names

_OF_TOPICS = frozenset(
    {"dynamic_topic", "partition", "partitions", "dynamic_topic_partitions", "partition_hash", "hash", "ddl_partition"}
)


def shared_server_ids(destinations: Iterable[DestinationSettings], folder: Path) -> dict[str, str]:
    """By name, a sentence for each destination whose server id one before it has already.

    A source throws out the older of two replicas with one id, in silence; that is why this is an error.
    """
    first: dict[int, str] = {}
    problems = {}
    for destination in destinations:
        number = destination.source.server_id
        other = first.setdefault(number, destination.name)
        if other != destination.name:
            problems[destination.name] = (
                f"{folder / destination.name}.toml: source.server_id: {number} is also the server id of the "
                f"destination {other}; each needs its own (0 derives one)"
            )
    return problems


def shared_files(destinations: Iterable[DestinationSettings], folder: Path) -> dict[str, str]:
    """The same of each whose jsonl file one before it writes already: their lines and rotations would mix. Standard
    output may be shared."""
    first: dict[str, str] = {}
    problems = {}
    for destination in destinations:
        sink = destination.sink
        if not isinstance(sink, JsonlSinkSettings) or sink.path == "-":
            continue
        other = first.setdefault(os.path.realpath(sink.path), destination.name)
        if other != destination.name:
            problems[destination.name] = (
                f"{folder / destination.name}.toml: sink.path: {sink.path} is also the file of the destination "
                f"{other}; each needs its own"
            )
    return problems


def clashing(destinations: Iterable[DestinationSettings], folder: Path) -> dict[str, str]:
    """By name, a sentence for each destination that can't run beside one before it."""
    found = list(destinations)
    return {**shared_files(found, folder), **shared_server_ids(found, folder)}


def destination_problems(destination: DestinationSettings, folder: Path, *, shared: bool) -> list[str]:
    """What does not fit between the sections of a destination's file, a sentence each; `shared` says whether there is a
    section [zookeeper]."""
    file = folder / f"{destination.name}.toml"
    found = [
        *_state_problems(destination, shared),
        *_failed_problems(destination, shared),
        *_filter_problems(destination),
        *_route_problems(destination),
    ]
    return [f"{file}: {problem}" for problem in found]


def _state_problems(destination: DestinationSettings, shared: bool) -> list[str]:
    state = destination.state
    if destination.exactly_once:
        if state is not None and state.store not in ("auto", "kafka"):
            return [f'state.store: delivery = "exactly_once" keeps the position in Kafka, not in {state.store}']
        return []
    if state is None:
        return []
    if state.store == "kafka":
        return ['state.store: kafka goes with a kafka sink of delivery = "exactly_once" only']
    return _store_problems(state, shared)


def _failed_problems(destination: DestinationSettings, shared: bool) -> list[str]:
    failed = destination.failed
    if not destination.parks:
        if failed.model_fields_set:
            return ['failed: has no meaning while the sink sets no message aside (on_failure or on_oversize = "park")']
        return []
    if destination.exactly_once:
        if failed.store == "mysql":
            return ['failed.store: delivery = "exactly_once" keeps failed messages in Kafka (failed.topic)']
        return []
    if shared and failed.store != "mysql":
        # Whoever takes over on another machine has to know what stands behind what.
        return ['failed.store: with [zookeeper] failed messages are kept in MySQL: store = "mysql"']
    return []


def _filter_problems(destination: DestinationSettings) -> list[str]:
    wanted = destination.filter
    hiding = [key for key in ("include_columns", "exclude_columns", "where", "mask") if getattr(wanted, key)]
    if wanted.dml_queries and hiding:
        return [f"filter.dml_queries: the texts of statements hold the values that {', '.join(hiding)} hides"]
    return []


def _route_problems(destination: DestinationSettings) -> list[str]:
    route, problems = destination.route, list[str]()
    if destination.sink.type == "jsonl":
        strange = sorted(route.model_fields_set & _OF_TOPICS)
        problems += [f"route.{key}: has no meaning with a jsonl sink, which has no topics" for key in strange]
    try:
        TopicRules.parse(route.dynamic_topic, names=topic_names(destination.sink))
    except ValueError as error:
        problems.append(f"route.dynamic_topic: {error}")
    if destination.sink.type == "rocketmq" and (fault := topic_names(destination.sink).fault(route.topic)):
        problems.append(f"route.topic: {fault}")
    if route.partition_hash and route.partitions == 1 and not route.dynamic_topic_partitions:
        problems.append("route.partition_hash: has no meaning with one partition: set partitions")
    return problems


def main_store_problems(file: Path, state: StateSettings, shared: bool) -> list[str]:
    """What is wrong with [state] of headrace.toml."""
    return [f"{file}: {problem}" for problem in _store_problems(state, shared)]


def _store_problems(state: StateSettings, shared: bool) -> list[str]:
    if shared and state.store == "sqlite":
        # The successor on another machine would not see the position, and begin somewhere else.
        return ["state.store: sqlite can't be shared by daemons of several machines, as [zookeeper] asks for"]
    if not shared and state.store == "zookeeper":
        return ["state.store: zookeeper needs the section [zookeeper] in headrace.toml"]
    if state.store == "kafka":
        return ['state.store: kafka is the store of destinations with delivery = "exactly_once", and theirs only']
    return []
