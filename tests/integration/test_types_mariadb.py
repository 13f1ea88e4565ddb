"""The column types that only MariaDB has, and its older storage of times."""

from __future__ import annotations

import pytest

from headrace.errors import NotUnderstood
from tests.type_bench import Bench, Columns, mariadb_only

pytestmark = pytest.mark.server


@mariadb_only
def test_mariadb_uuid_and_addresses(bench: Bench) -> None:
    uuids = [
        f"'{'0123456789ab'[i % 12]}1111111-2222-{version}333-{variant}444-555555555555'"
        for i, (version, variant) in enumerate((v, w) for v in range(8) for w in "048cf" if v < 8)
    ]
    uuids += ["'00000000-0000-0000-0000-000000000000'", "'ffffffff-ffff-1fff-9fff-ffffffffff00'", "UUID()"]
    uuids += ["'11111111-1111-1111-8111-111111110000'", "'12340000-0000-0000-0000-000000000000'"]
    addresses = ["'::'", "'::1'", "'1::'", "'::ffff:1.2.3.4'", "'::1.2.3.4'", "'2001:db8::1:0:0:1'", "'fe80::'"]
    addresses += [
        "'1:0:2:3:4:5:6:7'",
        "'0:1:2:3:4:5:6:7'",
        "'1:2:3:4:5:6:7:0'",
        "'::ffff:0:0'",
        "'::0.0.0.5'",
        "'::1:0:0'",
    ]
    addresses += [
        "'1:0:0:2:0:0:3:4'",
        "'ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff'",
        "'0:0:1::'",
        "'::2:3:4'",
        "'::fffe:1.2.3.4'",
    ]
    columns: Columns = {"UUID": uuids, "INET6": addresses, "INET4": ["'0.0.0.0'", "'255.255.255.255'", "'10.0.0.0'"]}
    columns |= {"BINARY(16)": ["0x01"], "INT UNSIGNED": ["4000000000"], "VARCHAR(3) CHARACTER SET latin1": ["'é'"]}
    bench.compare(columns, reported=True)


@mariadb_only
def test_mariadb_compressed_columns(bench: Bench) -> None:
    texts = ["''", "'a'", "REPEAT('家', 100)", "REPEAT('x', 101)", "'short'", "REPEAT('中文', 1000)"]
    columns: Columns = {
        "TEXT COMPRESSED": texts,
        "VARCHAR(4000) COMPRESSED": texts,
        "VARCHAR(60) COMPRESSED": texts[:2],
    }
    columns |= {"BLOB COMPRESSED": texts, "LONGBLOB COMPRESSED": [*texts, "REPEAT(0x00, 300000)"]}
    columns |= {
        "VARBINARY(200) COMPRESSED": texts[:3],
        "TINYTEXT COMPRESSED": texts[:2],
        "INT UNSIGNED": ["4000000000"],
    }
    columns |= {"TEXT COMPRESSED CHARACTER SET gbk": texts, "VARCHAR(9) CHARACTER SET latin1": ["'é'"]}
    for wrap in (0, 1):
        bench.run(f"SET column_compression_zlib_wrap = {wrap}, column_compression_threshold = 10")
        bench.compare(columns, reported=True)


@mariadb_only
def test_mariadb_times_in_the_old_storage(bench: Bench) -> None:
    columns: Columns = {}
    for fsp in range(7):
        kind = f"({fsp})" if fsp else ""
        columns[f"DATETIME{kind}"] = [
            "'0000-00-00 00:00:00'",
            "'2026-11-21 23:59:59.987654'",
            "'9999-12-31 23:59:59'",
            "'2026-00-00 00:00:00'",
        ]
        columns[f"TIMESTAMP{kind} NULL"] = [
            "'0000-00-00 00:00:00'",
            "'1970-01-01 00:00:01.000001'",
            "'2038-01-19 03:14:07.999999'",
        ]
        columns[f"TIME{kind}"] = [
            "'00:00:00'",
            "'-838:59:59.999999'",
            "'838:59:59'",
            "'-00:00:00.000001'",
            "'12:34:56.789012'",
        ]
    bench.run("SET GLOBAL mysql56_temporal_format = OFF")
    try:
        bench.compare(columns, reported=True)
        plain = {kind: values for kind, values in columns.items() if "(" not in kind}
        bench.compare(plain, reported=True)
        bench.compare(plain)
        for kind in [kind for kind in columns if "(" in kind]:  # the event does not tell how long their fractions are
            with pytest.raises(NotUnderstood):
                bench.compare({kind: columns[kind]})
    finally:
        bench.run("SET GLOBAL mysql56_temporal_format = ON")


@mariadb_only
def test_the_hidden_column_of_a_unique_text_is_not_shown(bench: Bench) -> None:
    bench.compare({"TEXT UNIQUE": ["'a'", "'b'", "'c'"], "INT UNSIGNED": ["1", "4000000000", "3"]})
