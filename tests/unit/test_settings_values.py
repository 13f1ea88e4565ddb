"""Single values of the configuration: starts, filters, durations, sizes and addresses, right and wrong."""

from datetime import UTC, datetime

import pytest

from headrace.rules.patterns import compile_filter, split_patterns
from headrace.settings.values import StartAt, StartEarliest, StartGtid, StartLatest, StartTime, parse_start
from headrace_common.values import parse_duration, parse_host_port, parse_size

UUID = "3e11fa47-71ca-11e1-9e33-c80aa9429562"


@pytest.mark.parametrize(
    ("value", "start"),
    [
        ("earliest", StartEarliest()),
        (" latest ", StartLatest()),
        ("mysql-bin.000003:4", StartAt("mysql-bin.000003", 4)),
        (f"{UUID}:1-5:7", StartGtid(f"{UUID}:1-5:7")),
        (f"{UUID}:1-5,\n{UUID}:tag_1:8", StartGtid(f"{UUID}:1-5,{UUID}:tag_1:8")),
        (f"{UUID}:1-3:tag:1-2", StartGtid(f"{UUID}:1-3:tag:1-2")),
        ("0-1-100,1-2-3", StartGtid("0-1-100,1-2-3")),
        ("2026-01-31T12:00:00Z", StartTime(datetime(2026, 1, 31, 12, tzinfo=UTC))),
        ("2026-01-31T20:00:00+08:00", StartTime(datetime(2026, 1, 31, 12, tzinfo=UTC))),
        (datetime(2026, 1, 31, 12, tzinfo=UTC), StartTime(datetime(2026, 1, 31, 12, tzinfo=UTC))),
    ],
)
def test_starts(value: object, start: object) -> None:
    assert parse_start(value) == start


@pytest.mark.parametrize(
    "value",
    ["", "now", "mysql-bin.3:4", "mysql-bin.000003:3", f"{UUID}:0", f"{UUID}:1,0-1-2", "2026-01-31T12:00:00", 5, True],
)
def test_no_starts(value: object) -> None:
    with pytest.raises(ValueError, match="should"):
        parse_start(value)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("", []),
        (" , ,", []),
        (r"shop\..*", [(0, r"shop\..*")]),
        (r"db\.a, db\.b", [(0, r"db\.a"), (7, r"db\.b")]),
        (r"db\.t{1,3},x", [(0, r"db\.t{1,3}"), (11, "x")]),
        (r"db\.(a,b),x", [(0, r"db\.(a,b)"), (10, "x")]),
        (r"db\.[,(],x", [(0, r"db\.[,(]"), (9, "x")]),
        (r"a\,b,c\(,d", [(0, r"a\,b"), (5, r"c\("), (9, "d")]),
    ],
)
def test_commas_in_brackets_do_not_split(text: str, parts: list[tuple[int, str]]) -> None:
    assert split_patterns(text) == parts


def test_filters_match_as_in_canal() -> None:
    compile_filter("a[[b]")  # Python would warn
    (pattern,) = compile_filter(r"shop\.serve_.*")
    assert pattern.fullmatch("Shop.Serve_Sync")
    assert not pattern.fullmatch("workshop.serve_sync")
    with pytest.raises(ValueError, match="regex 2 is invalid at character 7: multiple repeat"):
        compile_filter("a, b*+*")


@pytest.mark.parametrize(
    ("value", "seconds"), [("10s", 10), ("500ms", 0.5), ("2m", 120), ("1.5h", 5400), (3, 3), (0.25, 0.25), ("7", 7)]
)
def test_durations(value: object, seconds: float) -> None:
    assert parse_duration(value) == seconds


@pytest.mark.parametrize(("value", "size"), [("64MiB", 1 << 26), ("900KiB", 921600), (5, 5), ("1 GB", 10**9), ("9", 9)])
def test_sizes(value: object, size: int) -> None:
    assert parse_size(value) == size


@pytest.mark.parametrize("value", ["", "s", "-1s", "1 year", True, None, [], "1e3", "٣s"])
def test_no_durations_and_no_sizes(value: object) -> None:
    for parse in (parse_duration, parse_size):
        with pytest.raises(ValueError, match="should be"):
            parse(value)


def test_addresses() -> None:
    assert parse_host_port("[::1]:0") == ("::1", 0)
    for text in ("::1:80", "h:", ":80", "h:65536", "h:x", ""):
        with pytest.raises(ValueError, match="should"):
            parse_host_port(text)
