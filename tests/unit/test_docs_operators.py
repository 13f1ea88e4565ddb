"""The operators' pages against the code: states, reasons, keys, fields of /health and metrics."""

from __future__ import annotations

import ast
import functools
import importlib
import pkgutil
import re
from pathlib import Path
from unittest.mock import Mock

import pytest
from prometheus_client.parser import text_string_to_metric_families

import headrace
from headrace.cluster.cluster import Cluster
from headrace.destination.status import MOVE_REASONS, TROUBLES, DestinationStatus
from headrace.errors import HeadraceError, LostKind
from headrace.http.facts import Facts
from headrace.http.fields import describe_tables
from headrace.http.health import health
from headrace.http.metrics import Metrics
from headrace.model import Gap, Position, State, TableRows
from headrace.mysql.wire.dump_errors import dump_error
from headrace.ports.lock import ClusterCounts
from headrace_consume import status as consume_status
from headrace_consume.status import ConsumeMetrics
from headrace_spark.status.metrics import SparkMetrics
from headrace_spark.status.outages import Outages
from headrace_spark.status.status import Status as SparkStatus
from tests.handles import handles_of
from tests.unit.test_docs import FENCE, NAMES, PAGES, ROOT, anchors, name, read

REPORT_MORE = ("CHANGELOG.md", "configuration.md")
"""The one tells of keys that were; the other is where the keys are taken from, and has columns of tables too."""
ENTRIES = "docs/troubleshooting.md"
TROUBLESHOOTING = [f"docs/{page}.md" for page in ("states", "reasons", "lost-positions", "troubles")]
"""Pages with a section for each state and reason."""
RUNNING = [
    f"docs/{page}.md"
    for page in ("running", "positions", "parked-messages", "cluster", "health", "sinks", "troubleshooting")
]
OPERATORS = [ROOT / page for page in ("README.md", *RUNNING, *TROUBLESHOOTING)]
OTHERS = {
    "binlog_row_metadata",
    "binlog_row_image",
    "binlog_format",
    "net_write_timeout",
    "gtid_mode",
    "max_message_size",
    "config_errors",
    "loop_delay_seconds",
    "next_file",
}
"""What these pages name like a key and is none: MySQL's and RabbitMQ's, parts of /health, and values."""


@functools.cache
def trees() -> list[ast.Module]:
    return [ast.parse(file.read_text()) for file in sorted((ROOT / "daemon" / "headrace").rglob("*.py"))]


def class_constants(name: str) -> set[str]:
    """The texts that classes of the daemon give an attribute of this name; "" is none."""
    found = set()
    for tree in trees():
        for made in (one for node in ast.walk(tree) if isinstance(node, ast.ClassDef) for one in node.body):
            targets = made.targets if isinstance(made, ast.Assign) else [getattr(made, "target", None)]
            value = getattr(made, "value", None)
            if isinstance(value, ast.Constant) and any(isinstance(t, ast.Name) and t.id == name for t in targets):
                found.add(str(value.value))
    return found - {""}


@functools.cache
def reasons() -> set[str]:
    """Every reason that the code gives an error, a state that is entered, a trouble or a move of the position."""
    found = class_constants("reason")
    for tree in trees():
        texts = {
            target.id: made.value.value
            for made in tree.body
            if isinstance(made, ast.Assign) and isinstance(made.value, ast.Constant)
            for target in made.targets
            if isinstance(target, ast.Name)
        }
        for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
            called = getattr(call.func, "attr", getattr(call.func, "id", ""))
            given = [one.value for one in call.keywords if one.arg == "reason"]
            given += {"trouble": call.args[:1], "enter": call.args[1:2]}.get(called, [])
            if called in ("trouble", "enter", "Gap"):
                named = {
                    texts.get(one.id) if isinstance(one, ast.Name) else getattr(one, "value", None) for one in given
                }
                found |= {text for text in named if isinstance(text, str)}
            assert called != "trouble" or any(isinstance(text, str) for text in named), ast.unparse(call)
    return found | {kind.value for kind in LostKind}


def troubles() -> set[str]:
    """The reasons that the code gives troubles."""
    found = set()
    for tree in trees():
        texts = {
            target.id: made.value.value
            for made in tree.body
            if isinstance(made, ast.Assign) and isinstance(made.value, ast.Constant)
            for target in made.targets
            if isinstance(target, ast.Name)
        }
        for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
            if getattr(call.func, "attr", "") == "trouble":
                first = call.args[0]
                found.add(texts[first.id] if isinstance(first, ast.Name) else ast.literal_eval(first))
    return found


def items(text: str) -> dict[tuple[str, ...], str]:
    """A list in Markdown: the names in backticks that an item begins with, and what it says of them."""
    joined = re.sub(r"\n {2,}", " ", text)
    return {
        tuple(re.findall(r"`(\w+)`", names)): said
        for names, said in re.findall(r"^- (`\w+`(?:, `\w+`)*): (.+)$", joined, re.MULTILINE)
    }


def sections() -> dict[str, str]:
    """The sections about states and reasons by their headings, without backticks."""
    found: dict[str, str] = {}
    for page in TROUBLESHOOTING:
        parts = re.split(r"^### (.+)\n", read(page), flags=re.MULTILINE)
        found |= {heading.strip("`"): text for heading, text in zip(parts[1::2], parts[2::2], strict=True)}
    return found


def test_the_metric_of_troubles_has_every_reason_that_the_code_gives_them() -> None:
    assert set(TROUBLES) == troubles()


def test_the_counter_of_moves_has_every_reason_that_the_code_gives_them() -> None:
    given = {
        one.value.value
        for tree in trees()
        for call in ast.walk(tree)
        if isinstance(call, ast.Call)
        and getattr(call.func, "id", getattr(call.func, "attr", "")) in ("Gap", "relocate")
        for one in call.keywords
        if one.arg == "reason" and isinstance(one.value, ast.Constant)
    }
    assert given - {"operator"} == set(MOVE_REASONS) - {*LostKind} == {"diverged"}, (
        "an operator's moves are not counted"
    )


def test_every_state_has_its_row_with_its_status() -> None:
    rows = dict(re.findall(r"^\| ([A-Z_]+) \| (\d+) \|", read("docs/states.md"), re.MULTILINE))
    assert rows == {state.value: "200" if state.healthy else "503" for state in State}


def test_each_state_and_each_reason_has_its_section_and_each_section_is_one_of_them() -> None:
    found = sections()
    assert found.keys() == {state.value for state in State} | reasons()
    for heading, text in found.items():
        reported = re.findall(r"^\*\*(What .+?)\.\*\*", text, re.MULTILINE)
        assert reported == ["What it means", "What to look at", "What to do"], heading


def test_the_section_of_a_state_leads_to_those_of_its_reasons() -> None:
    found = sections()
    for reason in reasons() & found.keys():
        shown = found[reason].strip().partition("\n\n")[0].partition(". ")[0]
        with_states = re.findall(r"[A-Z_]{6,}", shown) if shown.startswith("Shown with") else []
        with_states += ["POSITION_LOST"] if "[lost position](states.md#position_lost)" in shown else []
        for state in with_states:
            assert re.search(rf"\[`{reason}`\]\([\w.-]+#{reason}\)", found[state]), f"{state} does not lead to {reason}"


def test_each_state_and_each_reason_has_its_entry_which_the_texts_of_the_code_name() -> None:
    entries = re.findall(r'^- <a id="(\w+)"></a>\[`?(\w+)`?\]\([\w-]+\.md#(\w+)\): ', read(ENTRIES), re.MULTILINE)
    assert {shown for _, shown, _ in entries} == sections().keys()
    assert len(texts_of_servers()) > 15
    assert [one for one in entries if {one[0], one[2]} != {one[1].lower()}] == []


def texts_of_servers() -> list[tuple[str, str]]:
    listed = (
        read(ENTRIES).partition("MySQL and MariaDB send these texts")[2].partition("\n\nCanal and Debezium print")[0]
    )
    return re.findall(r"^- `(.+?)`:\s+\[.+?\]\([\w-]+\.md#(\w+)\)", listed, re.MULTILINE)


@pytest.mark.parametrize(("text", "section"), texts_of_servers())
def test_a_text_of_a_server_leads_to_what_headrace_shows_for_it(text: str, section: str) -> None:
    number = {"you need": 1227, "A slave ": 4052}.get(text[:8], 1236)
    error = dump_error(b"\xff" + number.to_bytes(2, "little") + b"#HY000" + text.encode(), "mysql-bin.000003:4000")
    assert error.help == f"{ENTRIES}#{section}"


def test_headraces_own_texts_are_what_the_code_says() -> None:
    listed = read(ENTRIES).partition("headrace's own texts:")[2].partition("\n## ")[0]
    texts = re.findall(r"^- `(.+?)`: ", listed, re.MULTILINE)
    code = [file.read_text() for file in (ROOT / "daemon" / "headrace").rglob("*.py")]
    assert len(texts) > 3
    assert [text for text in texts if not any(text in one for one in code)] == []


def errors() -> list[type[HeadraceError]]:
    """Every class of errors of the daemon and its commands."""
    for module in pkgutil.walk_packages(headrace.__path__, "headrace."):
        importlib.import_module(module.name)
    found: list[type[HeadraceError]] = []
    waiting = HeadraceError.__subclasses__()
    while waiting:
        found.append(waiting.pop())
        waiting += found[-1].__subclasses__()
    return [one for one in found if one.__module__.startswith("headrace.")]


def test_each_class_of_errors_says_which_section_is_about_it_and_that_section_exists() -> None:
    known, found = anchors(ROOT / ENTRIES), errors()
    assert len(found) > 40
    for one in found:
        own = [
            named
            for named in one.__mro__[: one.__mro__.index(HeadraceError)]
            if {"reason", "section"} & set(vars(named))
        ]
        assert own, f"{one.__name__} has neither a reason nor a section of its own"
        assert (one.section or one.reason) in known, one.__name__


@functools.cache
def keys() -> dict[str, set[str]]:
    """The keys of each section of the configuration, by its name without brackets; "" has all of them."""
    found: dict[str, set[str]] = {"": set()}
    for part in read("docs/configuration.md").split("\n### ")[1:]:
        heading = re.match(r"\[+([\w.]+)\]+", part)
        names = set(re.findall(r"^(?:\||-) `(\w+)` ", part, re.MULTILINE))
        assert heading, part[:80]
        found.setdefault(heading[1], set()).update(names)
        found[""] |= names
    return found


@pytest.mark.parametrize("page", [page for page in PAGES if page.name not in REPORT_MORE], ids=name)
def test_keys_that_a_page_names_are_keys_of_the_configuration(page: Path) -> None:
    known, text = keys(), FENCE.sub("", page.read_text())
    for section, key in re.findall(r"`\[{1,2}([\w.]+)\]{1,2} ([a-z]\w*)", text):
        assert key in known.get(section, set()), f"[{section}] {key}"
    for key in re.findall(r"`([a-z]\w*) = ", text):
        assert key in known[""] or key.startswith("binlog_"), key


@pytest.mark.parametrize("page", OPERATORS, ids=name)
def test_names_in_the_operators_pages_are_those_of_the_code(page: Path) -> None:
    shown = items(read("docs/health.md"))
    reported = {name for names, said in shown.items() for name in (*names, *re.findall(r"`(\w+)`", said))}
    known = keys()[""] | reported | reasons() | OTHERS | NAMES
    for word in re.findall(r"`([a-z]+(?:_[a-z0-9]+)+)`", FENCE.sub("", page.read_text())):
        assert word in known, word


def measures() -> set[str]:
    """Those that adapters publish of themselves."""
    calls = (call for tree in trees() for call in ast.walk(tree) if isinstance(call, ast.Call))
    made = [call for call in calls if getattr(call.func, "id", "") == "Measure"]
    assert made
    counts = [any(getattr(one, "value", "") == "counter" for one in call.args) for call in made]
    names = [ast.literal_eval(call.args[0]) for call in made]
    return {f"headrace_{name}{'_total' if count else ''}" for name, count in zip(names, counts, strict=True)}


async def test_metrics_are_those_of_the_code() -> None:
    status = DestinationStatus("d")
    status.stored.note(Position("u", "mysql-bin.000001", 4, commit_time_us=1))
    facts = Facts(handles_of({"d": status}), "node", cluster=Mock(spec=Cluster, counts=ClusterCounts("zookeeper")))
    printed = (await Metrics(facts).text()).decode()
    collected = [one for one in text_string_to_metric_families(printed) if one.name.startswith("headrace_")]
    real = {metric.name + ("_total" if metric.type == "counter" else "") for metric in collected} | measures()
    section = read("docs/health.md").partition("## Metrics\n")[2].partition("\n## ")[0]
    assert {name for names in items(section) for name in names} == real
    watched = [*SparkMetrics(SparkStatus(Outages())).collect(), *ConsumeMetrics(consume_status.Status()).collect()]
    real |= {metric.name + ("_total" if metric.type == "counter" else "") for metric in watched}
    for page in PAGES:
        mentioned = set(re.findall(r"\bheadrace_\w+", page.read_text())) - NAMES
        assert mentioned <= real, name(page)


def test_fields_of_health_are_those_of_the_code() -> None:
    section = read("docs/health.md").partition("## Fields of /health\n")[2].partition("\n## ")[0]
    rows = items(section)
    status = DestinationStatus("d")
    status.moves.note(Gap("r", "a", "b"))
    body = health(Facts(handles_of({"d": status}), "node"))[1]
    assert {field for fields in rows for field in fields} == body["destinations"]["d"].keys()
    parts = {fields[0]: set(re.findall(r"`(\w+)`", text)) for fields, text in rows.items() if len(fields) == 1}
    assert parts["position"] - {"_pos"} == Position("u", "mysql-bin.000001", 4).to_dict().keys()
    for field in ("received", "source", "heartbeat", "retention", "parked", "gap"):
        shown = body["destinations"]["d"][field].keys()
        assert parts[field] == shown, field
    assert parts["lost"] == {kind.value for kind in LostKind}
    for field in body.keys() - {"destinations"}:
        assert f"`{field}`" in section.partition("\n- ")[0]


def test_fields_of_tables_are_those_of_the_code() -> None:
    status = DestinationStatus("d")
    status.published.tables.add(TableRows("shop", "t", 1))
    section = read("docs/health.md").partition("## Rows by table\n")[2].partition("\n## ")[0]
    (page,) = describe_tables(status)
    assert [field for fields in items(section) for field in fields] == [*page]
