"""Writes small binlogs that hold every kind of event and many column types: what fuzzing begins with."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pymysql

from devstack import Stack

_TABLE = (
    "CREATE TABLE t (id INT PRIMARY KEY, a VARCHAR(20), j JSON, n BIGINT UNSIGNED, d DECIMAL(20,5), f FLOAT, g DOUBLE,"
    " dt DATETIME(3), ts TIMESTAMP(6) NULL, tm TIME(2), da DATE, y YEAR, e ENUM('x','y','家'), s SET('p','q','r'),"
    " b BIT(11), bl BLOB, tx MEDIUMTEXT, bi BINARY(5), vb VARBINARY(300), ge GEOMETRY{more}) CHARACTER SET utf8mb4"
)
_ROW = (
    'INSERT INTO t SET id={id}, a=\'家庭保洁\', j=\'{{"a": [1, "x", null, 1.5, {{"b": true}}], "n": -70000}}\', n=7,'
    " d=-12345.678, f=1.5, g=-2e10, dt='2026-02-03 04:05:06.789', ts='2026-02-03 04:05:06.123456', tm='-838:59:59',"
    " da='1000-01-01', y=2026, e='家', s='p,r', b=5, bl=x'00ff', tx=REPEAT('y', 300), bi=x'0100', vb=x'aa00',"
    " ge=ST_GeomFromText('POINT(1 2)')"
)
_XA = (
    "XA START 'x1'", "INSERT INTO t (id) VALUES (10)", "XA END 'x1'", "XA PREPARE 'x1'", "XA COMMIT 'x1'",
    "XA START 'x2','b',7", "INSERT INTO t (id) VALUES (11)", "XA END 'x2','b',7", "XA PREPARE 'x2','b',7",
    "XA ROLLBACK 'x2','b',7",
    "XA START 'x3'", "INSERT INTO t (id) VALUES (12)", "XA END 'x3'", "XA COMMIT 'x3' ONE PHASE",
)  # fmt: skip
_DDL = (
    "ALTER TABLE t ADD COLUMN z INT DEFAULT 5 COMMENT 'it''s', DROP COLUMN b, RENAME COLUMN a TO `a ``b`",
    "INSERT INTO t (id) VALUES (50)",
    "CREATE TABLE u LIKE t", "RENAME TABLE u TO `v-1`", "TRUNCATE TABLE `v-1`", "DROP TABLE `v-1`",
    "CREATE TABLE w SELECT id, j FROM t", "CREATE INDEX i ON w (id)", "DROP INDEX i ON w",
    "CREATE OR REPLACE VIEW vv AS SELECT 1", "GRANT SELECT ON fz.* TO 'canal'@'%'",
)  # fmt: skip
_IMAGES = (
    "SET binlog_row_image=MINIMAL", "UPDATE t SET n=6 WHERE id=1", "DELETE FROM t WHERE id=2",
    "SET binlog_row_image=NOBLOB", "UPDATE t SET n=8 WHERE id=1", "SET binlog_row_image=FULL",
)  # fmt: skip


def make(folder: Path) -> None:
    """Fills `folder` with mysql-full.bin, mysql-minimal.bin and mariadb.bin."""
    folder.mkdir(parents=True, exist_ok=True)
    with Stack() as stack:
        for metadata in ("FULL", "MINIMAL"):
            server = stack.mysql(None, f"--binlog-row-metadata={metadata}", name=f"seed-{metadata.lower()}")
            _mysql(server)
            shutil.copyfile(server.datadir / "mysql-bin.000001", folder / f"mysql-{metadata.lower()}.bin")
            server.stop()
        server = stack.mariadb(name="seed-mariadb")
        _mariadb(server)
        shutil.copyfile(server.datadir / "mysql-bin.000001", folder / "mariadb.bin")


def _session(server: Any) -> Any:
    return pymysql.connect(**server.connection("root"), autocommit=True, charset="utf8mb4")


def _mysql(server: Any) -> None:
    connection = _session(server)
    with connection, connection.cursor() as cursor:
        for statement in (
            "RESET BINARY LOGS AND GTIDS", "CREATE DATABASE fz", "USE fz", _TABLE.format(more=", ve VECTOR(3)"),
            _ROW.format(id=1), _ROW.format(id=2), "INSERT INTO t (id) VALUES (3)",
            "SET gtid_next='AUTOMATIC:tag'", "UPDATE t SET n=n+1", "SET gtid_next='AUTOMATIC'",
            "UPDATE t SET ve=TO_VECTOR('[1,2,3]') WHERE id=1", *_XA, *_IMAGES,
            "SET binlog_row_value_options=PARTIAL_JSON",
            "UPDATE t SET j=JSON_SET(j,'$.a[1]',2,'$.b',1.5) WHERE id=1",
            "UPDATE t SET j=JSON_REMOVE(j,'$.a') WHERE id=1",
            "SET binlog_row_value_options=''",
            "SET binlog_transaction_compression=ON", _ROW.format(id=20), "UPDATE t SET n=n+1",
            "SET binlog_transaction_compression=OFF",
            "SET binlog_rows_query_log_events=ON", "DELETE FROM t WHERE id=20", *_DDL,
            "SET binlog_format=STATEMENT", "UPDATE t SET n=9 WHERE id=1", "SET binlog_format=ROW", "FLUSH BINARY LOGS",
        ):  # fmt: skip
            cursor.execute(statement)


def _mariadb(server: Any) -> None:
    connection = _session(server)
    with connection, connection.cursor() as cursor:
        more = ", u UUID, i4 INET4, i6 INET6, vc VARCHAR(100) COMPRESSED"
        for statement in (
            "RESET MASTER", "CREATE DATABASE fz", "USE fz", _TABLE.format(more=more), _ROW.format(id=1),
            _ROW.format(id=2), "UPDATE t SET u=UUID(), i4='1.2.3.4', i6='::1', vc=REPEAT('c', 90)",
            *_XA, *_IMAGES, *(_DDL[0].replace("DROP COLUMN b", "DROP COLUMN bi"), *_DDL[1:]),
            "SET binlog_alter_two_phase=1", "ALTER TABLE t ADD COLUMN zz INT", "SET binlog_alter_two_phase=0",
            "SET GLOBAL log_bin_compress=ON", "SET GLOBAL log_bin_compress_min_len=10",
        ):  # fmt: skip
            cursor.execute(statement)
    connection = _session(server)
    with connection, connection.cursor() as cursor:
        for statement in (
            "USE fz", "INSERT INTO t (id, tx) VALUES (60, REPEAT('x', 200)), (61, REPEAT('y', 200))",
            "UPDATE t SET tx=REPEAT('z', 200) WHERE id>50", f"ALTER TABLE t COMMENT '{'long ' * 30}'",
            "DELETE FROM t WHERE id>50", "SET GLOBAL log_bin_compress=OFF", "FLUSH BINARY LOGS",
        ):  # fmt: skip
            cursor.execute(statement)
