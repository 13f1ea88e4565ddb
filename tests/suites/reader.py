"""The SQL of `.test` files: what mysqltest would send in one session, without what touches more than that session."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

MYSQL = (
    "t", "innodb", "innodb_fts", "innodb_gis", "innodb_zip", "engines/funcs", "engines/iuds", "engines/rr_trx",
    "funcs_1", "funcs_2", "parts", "max_parts", "gis", "gcol", "collations", "opt_trace", "json", "jp", "jdv", "stress",
    "special", "information_schema", "binlog", "binlog_gtid", "binlog_nogtid",
)  # fmt: skip
MARIADB = (
    "main", "innodb", "innodb_fts", "innodb_gis", "innodb_zip", "engines/funcs", "engines/iuds", "engines/rr_trx",
    "funcs_1", "funcs_2", "parts", "gcol", "vcol", "versioning", "period", "sql_sequence", "json", "jp",
    "compat/oracle", "compat/maxdb", "compat/mssql", "maria", "heap", "csv", "archive", "storage_engine",
    "storage_engine/trx", "storage_engine/parts", "optimizer_unfixed_bugs", "stress", "binlog",
    "plugin/type_inet/type_inet", "plugin/type_uuid/type_uuid",
)  # fmt: skip
"""The suites that a server without plugins, replicas and files of its own runs. The others are left out."""

LEFT_OUT = re.compile(
    r"""^\s*(?:grant|revoke|kill|shutdown|restart|install|uninstall|flush|reset|purge|change|start\s+(?!transaction)\w+
    |stop|lock|unlock|backup|binlog|clone|import|load|handler|help|cache|check|checksum|show|explain|desc|describe|do
    |(?:create|drop|alter|rename)\s+(?:or\s+replace\s+)?(?:user|role|server|tablespace|undo|logfile|instance|resource)
    |set\s+(?:password|role|default|resource|global|persist)|analyze\s+(?:format|select|update|delete|insert|with))\b
    |load_file|outfile|dumpfile|get_lock|\bsleep\b|benchmark|sql_log_bin|\bbinlog_|gtid_|server_id|sql_slave
    |skip_replication|pseudo_|\bdelayed\b|\bmysql`?\s*\.|performance_schema|\bdebug|tablespace|(?:data|index)\s+directory
    |@@\s*(?:global|persist)|\bglobal\b|\bpersist|\bwsrep|innodb_lock_wait|\block_wait|wait_timeout|event_scheduler
    |\b(?:ndb\w*|federated|connect|spider|merge|mrg_myisam|blackhole|rocksdb|mroonga|s3)\b\s*(?:$|[,;)]|union)""",
    re.IGNORECASE | re.VERBOSE,
)
"""Statements about the server, its files, accounts, logs and other sessions; those that print; and tables whose rows
are not their own (MERGE, FEDERATED), or that keep none (BLACKHOLE)."""

_READS = re.compile(r"^[\s(]*(?:select|values|table|with)\b", re.IGNORECASE)
_WRITES_TOO = re.compile(r":=|\binto\b|^(?!.*\bfrom\b)", re.IGNORECASE | re.DOTALL)
_COMMAND = re.compile(
    r"append_file|assert|cat_file|change_user|character_set|chmod|connect|connection|copy_file|"
    r"copy_files_wildcard|dec|delimiter|die|diff_files|dirty_close|disconnect|echo|end_timer|error|eval|evalp|"
    r"exec|exec_in_background|execw|exit|expr|file_exists|force-cpdir|force-rmdir|horizontal_results|if|inc|"
    r"let|list_files|list_files_append_file|list_files_write_file|lowercase_result|mkdir|move_file|output|"
    r"partially_sorted_result|perl|ping|ps_protocol|query|query_attributes|query_get_value|query_horizontal|"
    r"query_vertical|real_sleep|reap|remove_file|remove_files_wildcard|replace_column|replace_numeric_round|"
    r"replace_regex|replace_result|require|reset_connection|result|result_format|rmdir|save_master_pos|send|"
    r"send_eval|send_quit|send_shutdown|shutdown_server|skip|skip_if_hypergraph|sleep|sorted_result|source|"
    r"start_timer|sync_slave_with_master|sync_with_master|system|vertical_results|wait_for_slave_to_stop|while|"
    r"write_file|write_line|(?:dis|en)able_\w+"
)
_FLOW = re.compile(r"(?:if|while)\s*\(|[{}]")
_SCAN = re.compile(
    r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|`[^`]*`|/\*.*?\*/|(?P<open>['"`]|/\*)""", re.DOTALL | re.VERBOSE
)
_VARIABLE = re.compile(r"\$(\w+)")
_LARGEST = 200_000
"""Characters of a statement; a longer one is a quote that was never closed."""
_DEEPEST = 4
"""Files that source each other."""


def files(root: Path, suites: tuple[str, ...]) -> list[Path]:
    """The tests of some suites below a server's folder of tests, by name."""
    found: list[Path] = []
    for suite in suites:
        places = (root / suite, root / "suite" / suite / "t", root / "suite" / suite)
        found += next((tests for place in places if (tests := sorted(place.glob("*.test")))), [])
    return found


def statements(path: Path, root: Path) -> Iterator[str]:
    """What a test sends that writes, or sets its session, in order; bytes that are no UTF-8 are surrogates."""
    return (sql for sql in _Reader(root).read(path) if wanted(sql))


def wanted(sql: str) -> bool:
    """Whether a statement is fed."""
    if LEFT_OUT.search(sql):
        return False
    return not _READS.match(sql) or bool(_WRITES_TOO.search(sql))


class _Reader:
    def __init__(self, root: Path) -> None:
        self.root = root
        self.variables: dict[str, str] = {}

    def read(self, path: Path, depth: int = 0) -> Iterator[str]:
        delimiter, pending, skip_to = ";", "", ""
        for line in path.read_bytes().decode("utf-8", "surrogateescape").split("\n"):
            bare = line.strip()
            if skip_to:
                skip_to = "" if bare.rstrip(";") == skip_to else skip_to
                continue
            ready: list[str] = []
            if not pending and (not bare or bare[0] == "#" or _FLOW.match(bare)):
                continue
            if not pending and bare.startswith("--"):
                if not _COMMAND.fullmatch(_word(bare[2:].strip())):
                    continue
                ready.append(bare[2:].strip())
            else:
                pending += line + "\n"
            while (end := _end(pending, delimiter)) is not None:
                ready.append(pending[:end].strip())
                pending = pending[end + len(delimiter) :].lstrip()
                if _word(ready[-1]) == "delimiter":
                    delimiter = ready.pop().split(None, 1)[1].strip()
            if len(pending) > _LARGEST:
                pending = ""
            for text in filter(None, ready):
                word = _word(text)
                rest = text[len(word) :].strip()
                if word == "delimiter":
                    delimiter = rest.removesuffix(delimiter).strip() or delimiter
                elif word == "source":
                    yield from self._source(rest, path, depth)
                elif word in ("perl", "write_file", "append_file"):
                    skip_to = rest.split()[-1] if rest.split() and rest.split()[-1].isupper() else "EOF"
                elif word == "let":
                    self._let(rest)
                elif word in ("eval", "evalp"):
                    if "$" not in (sql := self._filled(rest).removesuffix(";")):
                        yield sql
                elif not _COMMAND.fullmatch(word):
                    yield text

    def _source(self, name: str, path: Path, depth: int) -> Iterator[str]:
        """Of a file of the suite's own; those in `include` wait, start and count what belongs to mysqltest."""
        name = self._filled(name).rstrip("; ")
        if name.startswith("include/") or depth == _DEEPEST:
            return
        for place in (self.root / name, path.parent / name):
            if place.is_file():
                yield from self.read(place, depth + 1)
                return

    def _let(self, text: str) -> None:
        name, _, value = text.partition("=")
        value = self._filled(value.strip())
        if value.startswith(("`", "query_get_value", "$")):
            self.variables.pop(name.strip(" $"), None)
        else:
            self.variables[name.strip(" $")] = value

    def _filled(self, text: str) -> str:
        """With the variables whose values are known."""
        return _VARIABLE.sub(lambda found: self.variables.get(found[1], found[0]), text)


def _word(text: str) -> str:
    found = re.match(r"[\w-]+", text)
    return found[0].lower() if found else ""


def _end(text: str, delimiter: str) -> int | None:
    """Where the first delimiter is that stands outside of quotes and comments."""
    at = 0
    while (end := text.find(delimiter, at)) >= 0:
        quoted = _SCAN.search(text, at)
        if quoted is None or quoted.start() >= end:
            return end
        if quoted["open"]:
            return None
        at = quoted.end()
    return None
