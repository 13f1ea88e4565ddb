"""Every column type at its edges, on both servers: what the binlog file decodes to equals what SELECT says."""

from __future__ import annotations

import json
import random

import pytest

from headrace.errors import NotUnderstood
from headrace.formats.canal.text import Texts
from headrace.mysql.sql.dialect import charset_named
from headrace.mysql.values.charsets import charset_of
from headrace.mysql.values.column_types import ValueOptions
from tests import versions
from tests.binlogs import decode, new_file
from tests.table_reads import rows_now
from tests.type_bench import Bench, Columns, mysql_only, since_57

pytestmark = pytest.mark.server


INTEGERS = {"TINYINT": 8, "SMALLINT": 16, "MEDIUMINT": 24, "INT": 32, "BIGINT": 64}


def test_integers_of_all_sizes_from_their_least_to_their_greatest(bench: Bench) -> None:
    columns: Columns = {"YEAR": ["0", "1901", "2155", "2026"]}  # its sign bit stands before those of the others
    for name, bits in INTEGERS.items():
        columns[name] = ["0", "1", "-1", str(-(1 << bits - 1)), str((1 << bits - 1) - 1)]
        columns[f"{name} UNSIGNED"] = ["0", "1", str(1 << bits - 1), str((1 << bits) - 1)]
    columns["TINYINT UNSIGNED NULL"] = ["200"]
    for bits in (1, 7, 8, 9, 33, 63, 64):
        columns[f"BIT({bits})"] = ["0", "1", str((1 << bits) - 1)]
        columns[f"SMALLINT UNSIGNED COMMENT 'behind bit({bits})'"] = ["65535"]
    bench.compare(columns)


DECIMALS = [(1, 0), (9, 9), (10, 2), (10, 0), (18, 9), (20, 10), (30, 30), (65, 30), (65, 0), (38, 15), (5, 3)]


def test_decimals_keep_their_sign_and_scale(bench: Bench) -> None:
    columns: Columns = {}
    for precision, scale in DECIMALS:
        whole = "9" * (precision - scale) or "0"
        most = f"{whole}.{'9' * scale}" if scale else whole
        least = f"0.{'0' * (scale - 1)}1" if scale else "1"
        columns[f"DECIMAL({precision},{scale})"] = ["0", "-0", most, f"-{most}", least, f"-{least}", "0.5", "-0.5"]
    columns["DECIMAL(12,4) UNSIGNED"] = ["0", "12345678.0001", "99999999.9999"]
    bench.compare(columns)


FLOATS = ["0", "1", "-1", "0.1", "1.1", "-3.4028234e38", "3.4028234e38", "1.17549435e-38", "16777216", "16777217"]
FLOATS += ["1e10", "123456.789", "1e-7", "3.14159274", "1.4e-45", "0.00001", "999999.9", "1e15", "1e16"]
DOUBLES = ["0", "1", "-1.5", "1e14", "1e15", "1e16", "1e17", "123456789012345", "1234567890123456", "12345678901234567"]
DOUBLES += ["1234567890123456.5", "123456789.123456789", "1e-4", "1e-5", "1.23e-7", "1e-14", "1e-15", "1e-16", "1e20"]
DOUBLES += ["1.2345678901234567e-14", "1.2345678901234567e-15", "1.7976931348623157e308", "2.2250738585072014e-308"]
DOUBLES += [
    "4.9e-324",
    "-1e-300",
    "0.30000000000000004",
    "1e22",
    "9007199254740993",
    "-0.0",
    "5e-15",
    "99999999999999.9",
]


def test_floats_and_doubles_are_the_numbers_that_were_stored(bench: Bench) -> None:
    bench.compare(
        {"FLOAT": FLOATS, "DOUBLE": DOUBLES, "FLOAT UNSIGNED": ["0", "1.5"], "DOUBLE UNSIGNED": ["1e300", "0.25"]}
        | {"FLOAT(10,3)": ["1.5", "1234567.891"], "DOUBLE(12,2)": ["1.5", "-123456789.01"]}
    )


def test_floats_with_decimals_are_printed_with_the_digits_that_select_shows(bench: Bench) -> None:
    """Also from the 18th on, where the server has zeros and the number's own digits go on."""
    rng, print_value = random.Random(4), Texts("latin1").printer
    wide = [
        1e22,
        1e25,
        1e50,
        123456789012345678901.0,
        0.1,
        1 / 3,
        *(rng.uniform(1, 10) * 10**p for p in range(-12, 45)),
    ]
    for kind in ("FLOAT(24,0)", "DOUBLE(53,0)", "DOUBLE(30,2)", "FLOAT(40,10)", "DOUBLE(60,30)", "FLOAT(7,3)"):
        bench.run("DROP TABLE IF EXISTS t")
        path = new_file(bench.server, bench.cursor)
        bench.run(f"CREATE TABLE t (id INT PRIMARY KEY, v {kind})")
        bench.run(
            f"INSERT IGNORE INTO t VALUES {', '.join(f'({n}, {x!r}), (-{n}, -{x!r})' for n, x in enumerate(wide, 1))}"
        )
        bench.cursor.execute("SELECT id, v FROM t ORDER BY id")
        expected = {int(number): text for number, text in bench.cursor.fetchall()}
        new_file(bench.server, bench.cursor)
        changes = decode(path, schema="types", known=bench.known(reported=True))
        printed = print_value(changes[0].schema.columns[1])
        assert {row[0]: json.loads(printed(row[1])) for change in changes for row in change.rows} == expected


def test_dates_and_times_of_all_precisions_also_zero_and_negative(bench: Bench) -> None:
    dates = [
        "'0000-00-00'",
        "'2026-00-00'",
        "'2026-11-00'",
        "'1000-01-01'",
        "'9999-12-31'",
        "'2024-02-29'",
        "'0001-01-01'",
    ]
    columns: Columns = {"DATE": dates}
    for fsp in range(7):
        kind = f"({fsp})" if fsp else ""
        columns[f"DATETIME{kind}"] = [
            *(
                "'0000-00-00 00:00:00'",
                "'2026-00-00 00:00:00'",
                "'1000-01-01 00:00:00'",
                "'2026-11-21 23:59:59.987654'",
            ),
            *("'9999-12-31 23:59:59'", "'1969-12-31 23:59:59.000001'", "'0001-01-01 01:01:01.999'"),
        ]
        columns[f"TIMESTAMP{kind} NULL"] = [
            *(
                "'0000-00-00 00:00:00'",
                "'1970-01-01 00:00:01'",
                "'2038-01-19 03:14:07'",
                "'2026-03-29 01:30:00.499999'",
            ),
            *("'1970-01-01 00:00:01.000001'", "'2000-02-29 12:00:00.1'"),
        ]
        columns[f"TIME{kind}"] = [
            *("'00:00:00'", "'838:59:59'", "'-838:59:59'", "'-00:00:00.000001'", "'-00:00:00.5'", "'12:34:56.789012'"),
            *("'-100:00:00.999999'", "'00:00:00.000001'", "'-838:59:58.999999'", "'24:00:00'", "'-00:00:01'"),
        ]
    bench.compare(columns)


def test_timestamps_are_printed_in_the_zone_that_is_asked_for(bench: Bench) -> None:
    bench.run("DROP TABLE IF EXISTS t")
    path = new_file(bench.server, bench.cursor)
    bench.run("CREATE TABLE t (id INT PRIMARY KEY, ts TIMESTAMP(3) NULL, old TIMESTAMP NULL)")
    moments = ["2026-03-29 00:59:59", "2026-03-29 01:00:00", "2026-10-25 00:30:00", "2026-10-25 01:30:00"]
    values = ", ".join(f"({i}, '{moment}.125', '{moment}')" for i, moment in enumerate(moments))
    bench.run(f"INSERT INTO t VALUES {values}, (9, 0, 0)")
    new_file(bench.server, bench.cursor)
    berlin = ValueOptions(time_zone="Europe/Berlin")
    changes = decode(path, schema="types", known=bench.known(), values=berlin)
    rows = [row for change in changes for row in change.rows]
    assert rows_now(bench.server, changes[0].schema, berlin) == rows
    assert [row[2] for row in rows] == [
        *("2026-03-29 01:59:59", "2026-03-29 03:00:00", "2026-10-25 02:30:00", "2026-10-25 02:30:00"),
        "0000-00-00 00:00:00",
    ]
    assert [row[1] for row in rows] == [f"{row[2]}.125" for row in rows[:4]] + ["0000-00-00 00:00:00.000"]


TEXTS = [
    *(
        "''",
        "'a'",
        "'trailing  '",
        "'家庭保洁服务'",
        "'😀☃'",
        "CONCAT('nul', CHAR(0), 'l')",
        r"'line\nquote\" back\\ tab\t'",
    ),
    *("REPEAT('长', 60)", "'\u2028\x7f'", "'a\u0301'"),
]


def test_texts_of_all_sizes(bench: Bench) -> None:
    columns: Columns = {"CHAR(0)": ["''"], "CHAR(1)": ["''", "'x'", "'字'"], "CHAR(63)": TEXTS, "CHAR(64)": TEXTS}
    columns |= {"CHAR(255)": [*TEXTS, "REPEAT('😀', 255)"], "VARCHAR(63)": TEXTS, "VARCHAR(64)": TEXTS}
    columns |= {"VARCHAR(255)": [*TEXTS, "REPEAT('😀', 255)"], "VARCHAR(3000)": [*TEXTS, "REPEAT('q', 3000)"]}
    columns |= {"TINYTEXT": TEXTS, "TEXT": [*TEXTS, "REPEAT('x', 65535)"], "MEDIUMTEXT": [*TEXTS, "REPEAT('y', 70000)"]}
    columns |= {"LONGTEXT": TEXTS, "VARCHAR(0)": ["''"], "VARCHAR(20) COLLATE utf8mb4_bin": TEXTS[:4]}
    bench.compare(columns)


UNDECODABLE = {
    "gbk": ["x'A140'", "x'61A140B0A1'"],
    "gb2312": ["x'A2A1'"],
    "big5": ["x'A3C061'"],
    "euckr": ["x'A2E8'"],
    "sjis": ["x'8540'"],
    "cp932": ["x'8540'"],
    "ujis": ["x'A9A161'"],
    "eucjpms": ["x'A9A161'"],
    "cp1250": ["x'8141'"],
    "cp1257": ["x'8141'"],
    "greek": ["x'41A4'"],
    "hebrew": ["x'41A1'"],
    "dec8": ["x'A4'"],
    "swe7": ["x'7F'"],
    "geostd8": ["x'E6'"],
    "hp8": ["x'80FF'"],
}
"""By character set, codes that the server stores and that have no Unicode character."""


def test_texts_that_have_no_unicode_character_come_as_select_prints_them(bench: Bench) -> None:
    columns = {f"VARCHAR(10) CHARACTER SET {name}": [*codes, "'a?'"] for name, codes in UNDECODABLE.items()}
    bench.compare(columns)


def test_halves_of_surrogate_pairs_come_as_a_question_mark_each(bench: Bench) -> None:
    """SELECT gives bytes for them that are not UTF-8."""
    bench.run("DROP TABLE IF EXISTS t")
    path = new_file(bench.server, bench.cursor)
    bench.run(
        "CREATE TABLE t (id INT PRIMARY KEY, u VARCHAR(9) CHARACTER SET ucs2, w VARCHAR(9) CHARACTER SET utf8mb4)",
        "INSERT INTO t VALUES (1, x'D800006100E9', _ucs2 x'0061D800'), (2, x'D83DDE00', 'b')",
    )
    new_file(bench.server, bench.cursor)
    changes = decode(path, schema="types", known=bench.known())
    rows = [row for change in changes for row in change.rows]
    assert [tuple(map(str, row)) for row in rows] == [("1", "?aé", "a?"), ("2", "??", "b")]
    assert rows_now(bench.server, changes[0].schema) == rows


def test_binary_strings_keep_every_byte(bench: Bench) -> None:
    values = ["''", "0x00", "0x0000", "0x6100", "0x00FF80", "0xE4BD", "0x2020"]
    columns: Columns = {"BINARY(1)": values[:2], "BINARY(8)": values, "BINARY(255)": values, "VARBINARY(255)": values}
    columns |= {
        "VARBINARY(256)": values,
        "TINYBLOB": values,
        "BLOB": [*values, "REPEAT(0xFF, 65535)"],
        "BIT(8)": ["255"],
    }
    columns |= {
        "MEDIUMBLOB": [*values, "REPEAT(0x00, 70000)"],
        "LONGBLOB": values,
        "CHAR(8) CHARACTER SET binary": values,
    }
    columns |= {"VARCHAR(9) CHARACTER SET binary": values, "TEXT CHARACTER SET binary": values}
    bench.compare(columns)


def test_a_number_that_is_filled_with_zeros_is_read_as_the_number(bench: Bench) -> None:
    made = "d DECIMAL(12,4) ZEROFILL, w DECIMAL(7,0) ZEROFILL, i INT(9) ZEROFILL, t TINYINT ZEROFILL, f FLOAT ZEROFILL"
    bench.run("DROP TABLE IF EXISTS t")
    path = new_file(bench.server, bench.cursor)
    bench.run(f"CREATE TABLE t ({made})", "INSERT INTO t VALUES (0, 0, 0, 0, 0), (0.5, 10, 7, 3, 1.5)")
    bench.run("INSERT INTO t VALUES (10.0001, 9999999, 2000000000, 200, 1e20)")
    new_file(bench.server, bench.cursor)
    changes = decode(path, schema="types", known=bench.known())
    rows = [row for change in changes for row in change.rows]
    assert rows_now(bench.server, changes[0].schema) == rows
    assert rows[1] == ("0.5000", "10", 7, 3, 1.5)


@pytest.mark.parametrize("bench", [*versions.MARIADB, "mysql56"], indirect=True)
def test_a_year_of_two_digits_is_read_with_four(bench: Bench) -> None:
    bench.run("DROP TABLE IF EXISTS t")
    path = new_file(bench.server, bench.cursor)
    bench.run("CREATE TABLE t (y YEAR(2) PRIMARY KEY)", "INSERT INTO t VALUES (70), (1999), (2000), (69)")
    new_file(bench.server, bench.cursor)
    changes = decode(path, schema="types", known=bench.known(reported=True))
    rows = [row for change in changes for row in change.rows]
    assert sorted(rows) == [("1970",), ("1999",), ("2000",), ("2069",)]
    assert sorted(rows_now(bench.server, changes[0].schema)) == sorted(rows)


SAMPLES = {"greek": "Ελληνικά", "hebrew": "שלום", "tis620": "สวัสดี", "koi8r": "Привет", "cp1256": "مرحبا"}
CHINESE = ("gbk", "gb2312", "gb18030", "big5")
JAPANESE = ("sjis", "cp932", "ujis", "eucjpms")


def test_every_character_set_of_the_server(bench: Bench) -> None:
    bench.cursor.execute("SELECT character_set_name FROM information_schema.character_sets ORDER BY 1")
    sets = [row[0] for row in bench.cursor.fetchall() if row[0] != "binary"]
    columns: Columns = {}
    for name in sets:
        samples = [SAMPLES.get(name, "café €ß ~\\|"), "", "Ż½ Жук 中文 保洁 日本語 ー－～ 한국어 ½"]
        if name in CHINESE or name.startswith(("utf", "ucs")):
            samples.append("家庭保潔服務中國")
        literals = ["'" + sample.replace("\\", "\\\\") + "'" for sample in samples]
        columns[f"VARCHAR(60) CHARACTER SET {name}"] = literals
        columns[f"CHAR(40) CHARACTER SET {name}"] = literals
    items = list(columns.items())
    bench.compare(dict(items[:40]))
    bench.compare(dict(items[40:]))
    bench.compare({f"TEXT CHARACTER SET {name}": columns[f"CHAR(40) CHARACTER SET {name}"] for name in sets})


def test_every_collation_of_the_server_has_its_character_set(bench: Bench) -> None:
    bench.cursor.execute(
        "SELECT id, character_set_name FROM information_schema.collation_character_set_applicability"
        if bench.mariadb
        else "SELECT id, character_set_name FROM information_schema.collations"
    )
    rows = bench.cursor.fetchall()
    assert len(rows) > 200
    for number, name in rows:
        assert charset_of(int(number)) == charset_named(name)


def test_enums_and_sets_with_many_members_and_with_none(bench: Bench) -> None:
    many = ",".join(f"'m{i}'" for i in range(300))
    sixty_four = ",".join(f"'s{i}'" for i in range(64))
    enum = "ENUM('small','it''s','中','a,b','')"
    columns: Columns = {enum: ["'small'", "'it''s'", "'中'", "'a,b'", "''", "'no member'", "0"]}
    columns |= {f"ENUM({many})": ["'m0'", "'m254'", "'m255'", "'m299'", "'x'"]}
    columns |= {"SET('a','b','中')": ["''", "'a'", "'a,中'", "'b,a'", "7"]}
    columns |= {f"SET({sixty_four})": ["''", "'s0,s63'", "18446744073709551615", "'s8,s9'"]}
    columns |= {f"SET({','.join(repr(str(i)) for i in range(n))})": ["1", "3"] for n in (8, 9, 16, 17, 24, 25, 33)}
    for charset in ("latin1", "gbk", "ucs2", "utf16", "sjis"):
        # MySQL 5.6 loses the members of two columns in ucs2 or utf16 that have the same
        columns[f"ENUM('é','中文','{charset}') CHARACTER SET {charset}"] = ["1", "2", "3"]
        columns[f"SET('é','ツ','{charset}') CHARACTER SET {charset}"] = ["1", "3", "5"]
    columns["INT UNSIGNED"] = ["4000000000"]
    columns["VARCHAR(5) CHARACTER SET latin1"] = ["'é'"]
    bench.compare(columns)


def test_enums_and_sets_as_numbers(bench: Bench) -> None:
    bench.run("DROP TABLE IF EXISTS t")
    path = new_file(bench.server, bench.cursor)
    bench.run("CREATE TABLE t (e ENUM('a','b'), s SET('a','b','c'))", "INSERT INTO t VALUES ('b','a,c'), ('', '')")
    new_file(bench.server, bench.cursor)
    (change,) = decode(path, schema="types", known=bench.known(), values=ValueOptions(enum_index=True))
    assert change.rows == [(2, 5), (0, 0)]
    assert rows_now(bench.server, change.schema, ValueOptions(enum_index=True)) == change.rows


def _json_values() -> list[str]:
    texts = [
        *("null", "true", "false", "0", "-1", "32767", "32768", "-32768", "-32769", "65535", "65536", "2147483647"),
        *("2147483648", "-2147483648", "-2147483649", "4294967295", "4294967296", "9223372036854775807"),
        *("-9223372036854775808", "18446744073709551615", "18446744073709551616", '""', '"a"', "[]", "{}", "[[]]"),
        *("[{}]", '{"a":null}', "1.0", "1.5", "-0.0", "1e20", "1e15", "1e16", "123456789012345678", "1.23e-7", "1e-5"),
        *("0.0001", "1.7976931348623157e308", "5e-324", "2.5e-15", "1e100", "100000000000000.0", "1000000000000000.0"),
        *('{"b":1,"a":2,"aa":3,"":4,"中":5,"B":6}', '{"k":"v","k":"w"}', '["\\\\u00e9\\\\ud83d\\\\ude00"]'),
        r'"\\"quote\\" back\\\\slash \\/ \\b\\f\\n\\r\\t \\u0001\\u001f \\u007f \\u2028"',
        '{"city": "北京", "tags": ["a", "b"], "n": 12, "price": 1.5, "deep": {"x": [1, [2, [3, {"y": null}]]]}}',
        "[" * 30 + "1" + "]" * 30,
    ]
    made = [f"'{text}'" for text in texts]
    return [
        *made,
        "JSON_OBJECT('long', REPEAT('x', 127), 'longer', REPEAT('y', 128), 'longest', REPEAT('字', 20000))",
        "JSON_ARRAY(REPEAT('z', 70000), 1, -40000, 70000, 5000000000, true, 1.5, JSON_OBJECT('k', JSON_ARRAY()))",
        "JSON_OBJECT(REPEAT('k', 300), REPEAT('v', 66000), 'n', NULL, 'i', 40000, 'u', -40000, 't', TRUE)",
    ]


OPAQUE = [
    "JSON_ARRAY(CAST('2026-11-21' AS DATE), CAST('0000-00-00' AS DATE))",
    "JSON_ARRAY(CAST('2026-11-21 01:02:03.000004' AS DATETIME(6)), CAST('2026-11-21 01:02:03' AS DATETIME))",
    "JSON_ARRAY(CAST('-838:59:59' AS TIME), CAST('-00:00:00.000001' AS TIME(6)), CAST('12:00:00.5' AS TIME(1)))",
    "JSON_ARRAY(TIMESTAMP('2026-11-21 01:02:03'), CAST(2026 AS YEAR))",
    "JSON_ARRAY(CAST(1.50 AS DECIMAL(10,2)), CAST(-0.001 AS DECIMAL(65,30)), CAST(0 AS DECIMAL(5,2)))",
    "JSON_ARRAY(12345678901234567890.5, -0.5, 99999999999999999999999999999999999)",
    "JSON_ARRAY(CAST(0x00FF AS BINARY), CAST('' AS BINARY), b'101', x'E4BDA0')",
    "JSON_OBJECT('blob', CAST(REPEAT('b', 70000) AS BINARY), 'point', ST_GeomFromText('POINT(1 2)'))",
    "CAST(CAST(18446744073709551615 AS UNSIGNED) AS JSON)",
    "CAST(CAST(3.00 AS DECIMAL(3,2)) AS JSON)",
    "CAST(CAST('10:11:12' AS TIME) AS JSON)",
    "CAST(1e0 AS JSON)",
    "CONCAT(REPEAT('[', 99), REPEAT(']', 99))",
    "JSON_ARRAY(CAST(REPEAT('b', 57) AS BINARY), CAST(REPEAT('b', 58) AS BINARY), CAST(REPEAT('c', 114) AS BINARY))",
]


@since_57
def test_json_documents_are_printed_as_the_server_prints_them(bench: Bench) -> None:
    bench.compare(
        {"JSON": _json_values() + ([] if bench.mariadb else OPAQUE), "INT UNSIGNED": ["1"], "JSON NULL": ["'[1]'"]}
    )


@since_57
def test_large_json_documents(bench: Bench) -> None:
    numbers = ", ".join(map(str, range(-9000, 9000)))
    members = ", ".join(f'"key{i}": {{"n": {i * 7919}, "s": "text {i}"}}' for i in range(5000))
    bench.compare({"JSON": [f"'[{numbers}]'", f"'{{{members}}}'", "'[]'"]})


def test_geometries_are_the_bytes_that_the_server_holds(bench: Bench) -> None:
    shapes = ["POINT(1 2)", "LINESTRING(0 0,1 1)", "POLYGON((0 0,1 0,1 1,0 0))", "GEOMETRYCOLLECTION(POINT(1 1))"]
    columns: Columns = {"GEOMETRY": [f"ST_GeomFromText('{shape}')" for shape in shapes]}
    columns |= {"POINT": ["ST_GeomFromText('POINT(116.4 39.9)', 4326)" if bench.mariadb else "POINT(1e300, -0.5)"]}
    columns |= {"INT UNSIGNED": ["3000000000"], "POLYGON": [f"ST_GeomFromText('{shapes[2]}')"]}
    columns |= {"VARCHAR(3) CHARACTER SET latin1": ["'é'"], "MULTIPOINT": ["ST_GeomFromText('MULTIPOINT(0 0,1 1)')"]}
    if bench.describes and not bench.mariadb:
        columns["POINT SRID 4326"] = ["ST_GeomFromText('POINT(39.9 116.4)', 4326)"]
    bench.compare(columns)


@mysql_only
def test_vectors_hold_every_float(bench: Bench) -> None:
    values = ["STRING_TO_VECTOR('[1,2.5,-0.1]')", "STRING_TO_VECTOR('[3.4028234e38]')", "0x0000803F01000000"]
    values += ["STRING_TO_VECTOR('[1e-7,16777216,123456.789,0]')"]
    bench.compare(
        {"VECTOR(4)": values, "VARCHAR(5) CHARACTER SET gbk": ["'中'"], "VECTOR": ["0x00000080"], "TEXT": ["'é'"]}
    )


@since_57
def test_generated_and_invisible_columns(bench: Bench) -> None:
    columns: Columns = {
        "INT": ["1", "2"],
        "INT AS (c0 + 1) VIRTUAL": [],
        "VARCHAR(20) AS (CONCAT('n', c0)) STORED": [],
        "VARCHAR(20) INVISIBLE": ["'seen'"],
        "INT UNSIGNED INVISIBLE DEFAULT 7": [],
        "BIGINT UNSIGNED": ["18446744073709551615"],
    }
    bench.compare(columns, inserts=bench.leaves_generated_out)
    if bench.leaves_generated_out:
        path = new_file(bench.server, bench.cursor)
        bench.run("UPDATE t SET c0 = c0 + 1")
        new_file(bench.server, bench.cursor)
        with pytest.raises(NotUnderstood, match=r"rows of types\.t lack columns \(c1, c2\): .* they are generated"):
            decode(path, schema="types", known=bench.known(), whole=True)


def test_a_table_of_300_columns(bench: Bench) -> None:
    kinds = [("INT UNSIGNED", "4294967295"), ("VARCHAR(5)", "'字'"), ("DECIMAL(8,3)", "-1.5"), ("DATE", "'2026-11-21'")]
    bench.compare({f"{kinds[i % 4][0]} COMMENT '{i}'": [kinds[i % 4][1], "NULL"] for i in range(300)})


def test_a_value_of_20_megabytes(bench: Bench) -> None:
    bench.run("DROP TABLE IF EXISTS t")
    path = new_file(bench.server, bench.cursor)
    bench.run("CREATE TABLE t (id INT PRIMARY KEY, b LONGBLOB, t LONGTEXT) DEFAULT CHARSET utf8mb4")
    bench.run("INSERT INTO t VALUES (1, REPEAT(0x00FF, 10000000), REPEAT('字', 7000000))", "UPDATE t SET id = 2")
    new_file(bench.server, bench.cursor)
    insert, update = decode(path, schema="types", known=bench.known())
    for row in (*insert.rows, *update.rows, *(update.before or [])):
        assert row[1:] == (b"\0\xff" * 10_000_000, "字" * 7_000_000)
    assert rows_now(bench.server, update.schema) == update.rows
