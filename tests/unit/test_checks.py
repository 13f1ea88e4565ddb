"""The settings of a source that lose changes, one by one: each is named, with the SQL that mends it."""

from __future__ import annotations

import pytest

from headrace.errors import BinlogOff, GrantMissing, SourceMisconfigured
from headrace.mysql.checks import (
    Wanted,
    grant_findings,
    granted,
    refuse_incomplete,
    role_findings,
    semi_sync_finding,
    variable_findings,
)
from headrace.mysql.role import Role
from headrace.mysql.wire.grants import lacks_of, parse
from headrace.ports.finding import Finding, Level, wrong
from headrace.settings.destination import SourceSettings

GOOD = {
    "version": "9.7.4",
    "log_bin": "ON",
    "binlog_format": "ROW",
    "binlog_row_image": "FULL",
    "binlog_row_metadata": "FULL",
}


def test_a_complete_server_passes() -> None:
    refuse_incomplete(variable_findings(GOOD))


@pytest.mark.parametrize(
    ("version", "how"), [("9.7.4", "SET PERSIST"), ("5.6.24-log", "SET GLOBAL"), ("10.11.18-MariaDB", "SET GLOBAL")]
)
@pytest.mark.parametrize(
    ("name", "value", "wanted"),
    [
        ("binlog_format", "MIXED", "ROW"),
        ("binlog_format", "STATEMENT", "ROW"),
        ("binlog_row_image", "MINIMAL", "FULL"),
    ],
)
def test_a_setting_that_loses_something_is_refused_with_its_sql(
    name: str, value: str, wanted: str, version: str, how: str
) -> None:
    with pytest.raises(SourceMisconfigured) as caught:
        refuse_incomplete(variable_findings({**GOOD, "version": version, name: value}))
    assert f"{name} is {value}" in str(caught.value)
    assert f"{how} {name} = '{wanted}';" in caught.value.remedy
    assert ("my.cnf" in caught.value.remedy) is (how == "SET GLOBAL"), "it lasts until the server restarts"


def test_a_server_without_a_binlog_is_refused() -> None:
    with pytest.raises(BinlogOff, match="writes no binlog"):
        refuse_incomplete(variable_findings({**GOOD, "log_bin": "OFF"}))


def test_a_source_without_a_server_id_is_wrong_because_it_refuses_all_replicas() -> None:
    (finding,) = (one for one in variable_findings({**GOOD, "server_id": "0"}) if one.level is Level.WRONG)
    assert finding.sql == ("SET PERSIST server_id = 1;",)


@pytest.mark.parametrize(
    ("variables", "level", "said", "sql"),
    [
        ({}, Level.WARNING, "not installed", ()),
        ({"source_enabled": "OFF"}, Level.WARNING, "not enabled", ("SET PERSIST rpl_semi_sync_source_enabled = 1;",)),
        (
            {"source_enabled": "ON", "source_wait_point": "AFTER_COMMIT"},
            Level.WARNING,
            "other clients see a transaction before the archive has it",
            ("SET PERSIST rpl_semi_sync_source_wait_point = 'AFTER_SYNC';",),
        ),
        ({"master_enabled": "ON", "master_timeout": "10000"}, Level.WARNING, "the source has no AFTER_SYNC", ()),
        (
            {"master_enabled": "ON", "master_wait_point": "AFTER_SYNC", "master_timeout": "10000"},
            Level.OK,
            "waits for up to 10000 ms",
            (),
        ),
    ],
)
def test_a_source_that_does_not_wait_for_the_archive_is_found(
    variables: dict[str, str], level: Level, said: str, sql: tuple[str, ...]
) -> None:
    finding = semi_sync_finding(
        {**GOOD, **{f"rpl_semi_sync_{name}": value for name, value in variables.items()}}, "archive"
    )
    assert (finding.level, finding.sql) == (level, sql)
    assert said in finding.sentence


@pytest.mark.parametrize(
    ("grant", "schema", "right"),
    [
        ("GRANT SELECT, INSERT ON *.* TO `u`@`%`", "shop", True),
        ("GRANT ALL PRIVILEGES ON `shop`.* TO `u`@`%` WITH GRANT OPTION", "shop", True),
        ("GRANT SELECT ON 'shop'.'users' TO 'u'@'%'", "shop", True),
        ("GRANT SELECT (`id`, `n`) ON `shop`.`users` TO `u`@`%`", "shop", True),
        ("GRANT SELECT ON `shop`.* TO `u`@`%`", "Shop", True),
        ("GRANT SELECT ON `sh%`.* TO `u`@`%`", "shop", True),
        (r"GRANT SELECT ON `my\_shop`.* TO `u`@`%`", "my_shop", True),
        (r"GRANT SELECT ON `my\_shop`.* TO `u`@`%`", "my1shop", False),
        ("GRANT SELECT ON `crm`.* TO `u`@`%`", "shop", False),
        ("GRANT INSERT ON `shop`.* TO `u`@`%`", "shop", False),
        ("GRANT SELECT ON *.* TO `u`@`%`\nREVOKE SELECT ON `shop`.* FROM `u`@`%`", "shop", False),
        ("GRANT SELECT ON *.* TO `u`@`%`\nREVOKE SELECT ON `shop`.* FROM `u`@`%`", "crm", True),
        ("GRANT `reader`@`%` TO `u`@`%`", "shop", False),
        ("GRANT EXECUTE ON PROCEDURE `shop`.`p` TO `u`@`%`", "shop", False),
        ("GRANT SELECT ON shop.* TO u@`%`", "shop", True),  # sql_quote_show_create is off
        ("GRANT INSERT, SELECT ON shop.users TO u@`%`", "shop", True),
        ("GRANT SELECT ON `my-shop`.* TO u@`%`", "my-shop", True),
        ("GRANT EXECUTE ON PROCEDURE shop.p TO u@`%`", "shop", False),
        ("GRANT SELECT ON `headrace`.* TO `u`@`%`", None, False),
        ("GRANT SELECT ON `shop`.* TO `u`@`%`", None, True),
    ],
)
def test_a_grant_is_read_as_the_server_means_it(grant: str, schema: str | None, right: bool) -> None:
    assert bool({"SELECT", "ALL PRIVILEGES"} & granted(parse(grant.splitlines()), schema)) is right


@pytest.mark.parametrize(
    ("grant", "lacking"),
    [
        ("GRANT SELECT ON *.* TO `u`@`%`", ""),
        ("GRANT ALL PRIVILEGES ON `sh\\_p`.* TO `u`@`%`", ""),
        ("GRANT INSERT, SELECT ON `sh_p`.`users` TO `u`@`%`", ""),
        ("GRANT SELECT ON `sh_p`.`Users` TO `u`@`%`", "`sh_p`.`users`"),
        ("GRANT SELECT ON `SH_P`.* TO `u`@`%`", "`sh_p`.`users`"),
        ("GRANT SELECT ON sh_p.* TO u@`%`", ""),
        ("GRANT SELECT ON sh_p.users TO u@`%`", ""),
        ("GRANT SELECT (id, n), INSERT ON sh_p.users TO u@`%`", "`sh_p`.`users`"),
        ("GRANT SELECT ON *.* TO u@`%`\nREVOKE SELECT ON sh_p.* FROM u@`%`", "`sh_p`.`users`"),
        ("GRANT SELECT (`a, b`, `c``) SELECT`), INSERT ON `sh_p`.`users` TO `u`@`%`", "`sh_p`.`users`"),
        ("GRANT INSERT, SELECT (`id`) ON `sh_p`.`users` TO `u`@`%`", "`sh_p`.`users`"),
        ("GRANT INSERT ON `sh_p`.* TO `u`@`%`", "`sh_p`.`users`"),
        ("GRANT SELECT ON `sh_p`.`other` TO `u`@`%`", "`sh_p`.`users`"),
        ("GRANT SELECT ON *.* TO `u`@`%`\nREVOKE SELECT ON `sh_p`.* FROM `u`@`%`", "`sh_p`.`users`"),
        ("GRANT SELECT ON *.* TO `u`@`%`\nREVOKE INSERT ON `sh_p`.* FROM `u`@`%`", ""),
        ("GRANT SELECT ON *.* TO `u`@`%`\nREVOKE SELECT ON `crm`.* FROM `u`@`%`", ""),
    ],
)
def test_a_table_may_be_read_whole_only_by_a_right_on_all_of_it(grant: str, lacking: str) -> None:
    wanted = f"GRANT SELECT ON {lacking} TO 'u'@'%';" if lacking else ""
    assert lacks_of(parse(grant.splitlines()), "'u'@'%'", fold=False)("sh_p", "users") == wanted


def test_if_only_rights_are_missing_the_error_is_grant_missing() -> None:
    right = wrong("REPLICATION SLAVE", "u lacks REPLICATION SLAVE", sql=("GRANT REPLICATION SLAVE ON *.* TO u;",))
    with pytest.raises(GrantMissing, match="GRANT REPLICATION SLAVE"):
        refuse_incomplete([right])
    with pytest.raises(SourceMisconfigured) as caught:
        refuse_incomplete([*variable_findings({**GOOD, "binlog_format": "MIXED"}), right])
    assert type(caught.value) is SourceMisconfigured


@pytest.mark.parametrize(
    ("version", "right"),
    [
        ("9.7.4", "REPLICATION CLIENT"),
        ("10.4.32-MariaDB", "REPLICATION CLIENT"),
        ("10.5.1-MariaDB", "REPLICATION CLIENT"),
        ("10.5.2-MariaDB", "BINLOG MONITOR"),
        ("11.8.2-MariaDB", "BINLOG MONITOR"),
    ],
)
def test_the_right_to_see_the_binlog_s_end_is_the_version_s_own(version: str, right: str) -> None:
    variables = {**GOOD, "version": version}
    found = grant_findings(parse(["GRANT SELECT ON *.* TO `u`@`%`"]), "u", "'u'@'%'", Wanted(), variables)
    slave = ("GRANT REPLICATION SLAVE ON *.* TO 'u'@'%';",)
    assert [one.sql for one in found] == [slave, (f"GRANT {right} ON *.* TO 'u'@'%';",), ()]
    full = [f"GRANT SELECT, REPLICATION SLAVE, {right} ON *.* TO `u`@`%`"]
    assert all(one.level is Level.OK for one in grant_findings(parse(full), "u", "'u'@'%'", Wanted(), variables))


@pytest.mark.parametrize(
    ("schemas", "select", "wanted"),
    [
        (("shop", "crm"), "", ("GRANT SELECT ON `shop`.* TO 'u'@'%';", "GRANT SELECT ON `crm`.* TO 'u'@'%';")),
        (("shop", "crm"), "shop", ()),  # the other one may be made later
        ((), "", ("GRANT SELECT ON *.* TO 'u'@'%';",)),
    ],
)
def test_a_start_asks_for_what_is_captured_and_for_no_more(
    schemas: tuple[str, ...], select: str, wanted: tuple[str, ...]
) -> None:
    grants = ["GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO `u`@`%`"]
    grants += [f"GRANT SELECT ON `{select}`.* TO `u`@`%`"] if select else []
    found = grant_findings(parse(grants), "u", "'u'@'%'", Wanted(schemas=schemas), GOOD, any_schema=True)
    assert found[-1].sql == wanted


@pytest.mark.parametrize("metadata", ["MINIMAL", "NO_LOG", None])
def test_without_full_metadata_the_schema_history_serves_and_full_is_advised_where_it_is_known(
    metadata: str | None,
) -> None:
    variables = {name: value for name, value in GOOD.items() if name != "binlog_row_metadata"}
    if metadata:
        variables["binlog_row_metadata"] = metadata
    findings = variable_findings(variables)
    refuse_incomplete(findings)
    assert findings[-1].sql == (("SET PERSIST binlog_row_metadata = 'FULL';",) if metadata else ())
    assert findings[-1].level is (Level.WARNING if metadata else Level.OK)
    assert "SELECT" in findings[-1].sentence
    assert f"binlog_row_metadata is {metadata or 'not known to this version'}: " in findings[-1].sentence


def test_row_images_that_lack_columns_are_taken_when_the_operator_says_so() -> None:
    refuse_incomplete(variable_findings({**GOOD, "binlog_row_image": "MINIMAL"}, row_image="any"))


def test_all_that_is_missing_is_said_at_once() -> None:
    with pytest.raises(SourceMisconfigured) as caught:
        refuse_incomplete(variable_findings({**GOOD, "binlog_format": "MIXED", "binlog_row_image": "NOBLOB"}))
    assert "binlog_format" in str(caught.value)
    assert "binlog_row_image" in str(caught.value)


REPLICA = Role(read_only=True, replicates=True, running=True, lag_seconds=3.0)


def roles(role: Role, variables: dict[str, str] | None = None, **source: object) -> list[Finding]:
    settings = SourceSettings.model_validate({"host": "db", "user": "u", "password": "p", **source})
    return role_findings(role, settings, {**GOOD, **(variables or {})}, "'u'@'%'")


def test_a_server_s_role_is_said() -> None:
    assert [f.sentence for f in roles(Role(False, False))] == ["the server is writable and is not a replica"]
    assert [f.sentence for f in roles(REPLICA)] == ["the server is read-only and a replica, 3 s behind its source"]
    (stopped,) = roles(Role(True, True, running=False))
    assert stopped.level is Level.WARNING
    assert "its replication does not run" in stopped.sentence


@pytest.mark.parametrize(
    ("role", "source", "sentence"),
    [
        (REPLICA, {"read_only": "refuse"}, "is read-only"),
        (REPLICA, {"max_replica_lag": "2s"}, "a replica 3 s behind its source"),
        (Role(True, True, running=False), {"max_replica_lag": "2s"}, "does not run"),
    ],
)
def test_a_server_that_the_configuration_does_not_take_is_wrong(
    role: Role, source: dict[str, object], sentence: str
) -> None:
    (finding,) = roles(role, **source)
    assert finding.level is Level.WRONG
    assert sentence in finding.sentence
    assert finding.remedy


@pytest.mark.parametrize("name", ["log_replica_updates", "log_slave_updates"])
def test_a_replica_whose_binlog_lacks_what_it_replicates_is_wrong(name: str) -> None:
    finding = roles(REPLICA, {name: "OFF"})[-1]
    assert finding.level is Level.WRONG
    assert f"{name} is OFF" in finding.sentence
    assert f"{name} = ON" in finding.remedy
    assert all(f.level is Level.OK for f in roles(REPLICA, {name: "ON"}))
    assert all(f.level is Level.OK for f in roles(Role(False, False), {name: "OFF"})), "it matters on replicas only"


@pytest.mark.parametrize(
    ("version", "right"),
    [
        ("9.7.4", "REPLICATION CLIENT"),
        ("10.11.18-MariaDB", "SLAVE MONITOR"),
        ("10.5.8-MariaDB", "REPLICATION SLAVE ADMIN"),
        ("5.5.5-10.4.32-MariaDB-log", "REPLICATION CLIENT"),
    ],
)
def test_a_role_that_can_t_be_seen_is_a_warning_with_its_grant(version: str, right: str) -> None:
    (finding,) = roles(Role(False, None, why_unknown="denied"), {"version": version})
    assert finding.level is Level.WARNING
    assert finding.sql == (f"GRANT {right} ON *.* TO 'u'@'%';",)
