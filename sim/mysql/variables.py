"""System variables with the defaults of MySQL 9 (manual, "Server System Variables"), as far as clients ask for them."""

from __future__ import annotations

from typing import Any

from sim.mysql.errors import SqlError

DEFAULTS: dict[str, Any] = {
    "autocommit": True,
    "binlog_checksum": "CRC32",
    "binlog_expire_logs_auto_purge": True,
    "binlog_expire_logs_seconds": 2_592_000,
    "binlog_format": "ROW",
    "binlog_order_commits": True,
    "binlog_row_event_max_size": 8192,
    "binlog_row_image": "FULL",
    "binlog_row_metadata": "MINIMAL",
    "binlog_row_value_options": "",
    "binlog_rows_query_log_events": False,
    "binlog_transaction_compression": False,
    "character_set_client": "utf8mb4",
    "character_set_connection": "utf8mb4",
    "character_set_results": "utf8mb4",
    "character_set_server": "utf8mb4",
    "collation_server": "utf8mb4_0900_ai_ci",
    "default_storage_engine": "InnoDB",
    "enforce_gtid_consistency": "ON",
    "gtid_mode": "ON",
    "hostname": "model",
    "innodb_lock_wait_timeout": 50,
    "interactive_timeout": 28_800,
    "lock_wait_timeout": 31_536_000,
    "log_bin": True,
    "log_replica_updates": True,
    "log_slave_updates": True,
    "lower_case_table_names": 0,
    "max_allowed_packet": 67_108_864,
    "max_binlog_size": 1_073_741_824,
    "max_execution_time": 0,
    "max_sort_length": 1024,
    "net_read_timeout": 30,
    "net_write_timeout": 60,
    "port": 3306,
    "read_only": False,
    "show_gipk_in_create_table_and_information_schema": True,
    "sort_buffer_size": 262_144,
    "sql_mode": "ONLY_FULL_GROUP_BY,STRICT_TRANS_TABLES,NO_ZERO_IN_DATE,NO_ZERO_DATE,ERROR_FOR_DIVISION_BY_ZERO,"
    "NO_ENGINE_SUBSTITUTION",
    "sql_notes": True,
    "sql_select_limit": 18_446_744_073_709_551_615,
    "super_read_only": False,
    "sync_binlog": 1,
    "time_zone": "SYSTEM",
    "transaction_isolation": "REPEATABLE-READ",
    "version_comment": "model",
    "wait_timeout": 28_800,
}


def unknown_variable(name: str) -> SqlError:
    """Returns error 1193."""
    return SqlError(1193, f"Unknown system variable '{name}'")


def as_set(before: Any, value: Any) -> Any:
    """Returns the value that a variable takes, in the kind that it had before."""
    if isinstance(before, bool):
        return str(value).upper() in ("ON", "1", "TRUE")
    return int(value) if isinstance(before, int) and str(value).lstrip("-").isdigit() else value


def shown(value: Any) -> str:
    """Returns a value as SHOW VARIABLES prints it."""
    if isinstance(value, bool):
        return "ON" if value else "OFF"
    return "" if value is None else str(value)


def selected(value: Any) -> Any:
    """Returns a value as SELECT gives it."""
    return int(value) if isinstance(value, bool) else value
