"""Faults of requests and answers: rules that apply to the next requests that fit them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from sim.kafka.wire import Api


class Kind(Enum):
    """What happens to a request."""

    DROP_REQUEST = auto()
    """It is not executed."""
    LOSE_ANSWER = auto()
    """It is executed, and its answer does not arrive."""
    TEAR_ANSWER = auto()
    """It is executed, and the connection ends in the middle of the answer."""
    DELAY_ANSWER = auto()
    """It is executed, and its answer comes late; the connection's next request is handled after it."""
    REFUSE = auto()
    """It is not executed, and its answer has an error code."""


@dataclass(slots=True)
class Fault:
    """One rule. What is None fits every request."""

    kind: Kind
    api: Api | None = None
    broker: int | None = None
    client: str | None = None
    topic: str | None = None
    """Of REFUSE only: the topic whose part of the answer has the code."""
    skip: int = 0
    """How many requests that fit pass first."""
    count: int = 1
    """For how many requests it applies; -1: until it is removed."""
    seconds: float = 0.0
    after: int = 6
    """Of TEAR_ANSWER: bytes of the answer that are sent."""
    code: int = 0
    silent: bool = False
    """Whether the connection stays open, so that the client waits; otherwise it is reset."""


class Faults:
    """The rules of a cluster, in the order in which they were made."""

    def __init__(self) -> None:
        self.rules: list[Fault] = []

    def add(self, fault: Fault) -> Fault:
        """Adds a rule, and returns it for remove()."""
        self.rules.append(fault)
        return fault

    def remove(self, fault: Fault) -> None:
        """Removes a rule that may have been used up already."""
        self.rules = [one for one in self.rules if one is not fault]

    def clear(self) -> None:
        """Removes all rules."""
        self.rules = []

    def drop_requests(
        self, api: Api | None = None, *, count: int = 1, silent: bool = False, broker: int | None = None, skip: int = 0
    ) -> Fault:
        """Makes requests vanish before they are executed."""
        return self.add(Fault(Kind.DROP_REQUEST, api, broker, skip=skip, count=count, silent=silent))

    def lose_answers(
        self, api: Api | None = None, *, count: int = 1, silent: bool = False, broker: int | None = None, skip: int = 0
    ) -> Fault:
        """Makes answers vanish."""
        return self.add(Fault(Kind.LOSE_ANSWER, api, broker, skip=skip, count=count, silent=silent))

    def tear_answers(
        self, api: Api | None = None, *, count: int = 1, after: int = 6, broker: int | None = None, skip: int = 0
    ) -> Fault:
        """Ends connections after some bytes of an answer."""
        return self.add(Fault(Kind.TEAR_ANSWER, api, broker, skip=skip, count=count, after=after))

    def delay_answers(
        self, seconds: float, api: Api | None = None, *, count: int = 1, broker: int | None = None, skip: int = 0
    ) -> Fault:
        """Delays answers."""
        return self.add(Fault(Kind.DELAY_ANSWER, api, broker, skip=skip, count=count, seconds=seconds))

    def refuse(
        self, code: int, api: Api, *, topic: str | None = None, count: int = 1, broker: int | None = None, skip: int = 0
    ) -> Fault:
        """Answers requests with an error code; `topic`: only the part of the answer for this topic."""
        return self.add(Fault(Kind.REFUSE, api, broker, skip=skip, count=count, topic=topic, code=code))

    def find(self, api: int, broker: int, client: str) -> Fault | None:
        """Returns the rule for a request, and counts it."""
        for rule in self.rules:
            if (
                rule.api in (None, api)
                and rule.broker in (None, broker)
                and rule.client in (None, client)
                and rule.count != 0
            ):
                if rule.skip:
                    rule.skip -= 1
                    continue
                if rule.count > 0:
                    rule.count -= 1
                    if not rule.count:
                        self.remove(rule)
                return rule
        return None
