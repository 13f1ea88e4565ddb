"""A session: what a client of the model does, by SQL or by methods (the truth of a test)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from sim.mysql import ddl, information, queries, shows, variables
from sim.mysql.accounts import Account
from sim.mysql.engine import View
from sim.mysql.errors import ServerDown, SqlError, no_column, no_schema, no_table
from sim.mysql.history import Committed, Xid
from sim.mysql.result import Result, plain
from sim.mysql.schema import Definition, Key, Row, Table
from sim.mysql.sql.definitions import parse_ddl
from sim.mysql.sql.expressions import Scope, compile_expression, time_text
from sim.mysql.sql.tree import Control, Delete, Explain, Insert, Select, Set, Show, Update
from sim.mysql.transactions import Transaction, filled, taken

if TYPE_CHECKING:
    from sim.mysql.engine import Engine
    from sim.mysql.rows import RowWriter
    from sim.mysql.server import Server

KeyValue = Any
"""One value or a tuple of values of the primary key, or a dict of columns and the values that rows have there."""


_NO_XA = "NON-EXISTING"
"""The state of an XA transaction in a session that has none."""


class Session:
    """One client. `account` is None for the test itself, which may do everything. All methods raise SqlError for a
    refusal, and ServerDown once the server has ended the session."""

    def __init__(self, server: Server, thread: int, account: Account | None = None, host: str = "localhost") -> None:
        self.server, self.thread, self.account, self.host = server, thread, account, host
        self.schema = ""
        self.transaction: Transaction | None = None
        self.settings: dict[str, Any] = {}
        """System variables that differ from the global ones."""
        self.user_variables: dict[str, Any] = {}
        self.command, self.row_count, self.insert_id = "Sleep", -1, 0
        self.alive = True
        self._explicit = False
        """Whether BEGIN or the like has begun the transaction."""
        self._snapshot: int | None = None

    @property
    def engine(self) -> Engine:
        return self.server.engine

    def close(self) -> None:
        """Ends it; an open transaction is rolled back."""
        if self.alive:
            self._end()
            self.alive = False
            self.server.sessions.pop(self.thread, None)

    def _require(self) -> None:
        if not self.alive or not self.server.running:
            raise ServerDown("the server has ended the session")

    # -- facts for expressions ----------------------------------------------------------------------------------------

    def now_us(self) -> int:
        return self.server.now()

    def now(self, digits: int) -> str:
        return time_text(self.server.now(), digits)

    def system(self, scope: str, name: str) -> Any:
        if scope != "global" and name in self.settings:
            return variables.selected(self.settings[name])
        return variables.selected(self.server.variable(name))

    def setting(self, name: str) -> Any:
        """Returns the session's value of a system variable."""
        return self.settings[name] if name in self.settings else self.server.variable(name)

    def user(self, name: str) -> Any:
        return self.user_variables.get(name)

    def call(self, function: str) -> Any:
        name = self.account.name if self.account else "root"
        known = {
            "ROW_COUNT": self.row_count,
            "LAST_INSERT_ID": self.insert_id,
            "CONNECTION_ID": self.thread,
            "CURRENT_USER": f"{name}@%",
            "USER": f"{name}@{self.host}",
            "DATABASE": self.schema or None,
            "VERSION": self.server.version,
        }
        if function not in known:
            raise SqlError(1305, f"FUNCTION {function} does not exist")
        return known[function]

    @property
    def raw_results(self) -> bool:
        """Returns whether texts are sent in their own character sets."""
        return self.settings.get("character_set_results", "") is None

    # -- tables -------------------------------------------------------------------------------------------------------

    def allows(self, privilege: str, schema: str = "", table: str = "") -> bool:
        return self.account is None or self.account.has(privilege, schema, table)

    def sees(self, schema: str, table: str) -> bool:
        return self.account is None or self.account.sees(schema, table)

    def table(self, schema: str, name: str, privilege: str) -> Table:
        """Returns a table that the account may use. Raises SqlError: 1046, 1049, 1142, 1146."""
        if not schema:
            raise SqlError(1046, "No database selected")
        if not self.allows(privilege, schema, name):
            who = f"'{self.account.name if self.account else ''}'@'{self.host}'"
            raise SqlError(1142, f"{privilege} command denied to user {who} for table '{name}'")
        if schema not in self.engine.catalog.schemas:
            raise no_schema(schema)
        found = self.engine.catalog.find(schema, name)
        if found is None:
            raise no_table(schema, name)
        return found

    def virtual(self, schema: str, name: str) -> tuple[dict[str, str], Sequence[Row]]:
        return information.table(self, schema, name)

    def read_view(self, table: Table) -> int | None:
        """Returns the snapshot that a SELECT sees; None: the present state. Raises SqlError 1412."""
        if self._explicit and self._snapshot is None and self.setting("transaction_isolation") == "REPEATABLE-READ":
            self._snapshot = self.engine.take_snapshot()
        if self._snapshot is not None and table.begun > self._snapshot:
            raise SqlError(1412, "Table definition has changed, please retry transaction")
        return self._snapshot

    def locking(self) -> Transaction | None:
        """Returns the transaction in which a SELECT locks rows; None if it would end with the statement."""
        return self._own() if self._several else None

    @property
    def _several(self) -> bool:
        """Returns whether a transaction goes on after the present statement."""
        return self._explicit or self._xa_state != _NO_XA or not self.setting("autocommit")

    # -- statements ---------------------------------------------------------------------------------------------------

    def execute(self, sql: str) -> Result:
        """Runs one statement."""
        self._require()
        try:
            if sql in shows.FIXED:
                return shows.fixed(self, sql)
            result = self._run_template(sql) or self._run_any(sql)
        except SqlError as error:
            self.row_count = -1
            if error.errno in (1064, 1109, 1193, 1305):
                self.server.unknown.append(sql)
            raise
        self.row_count = -1 if result.columns else result.affected
        return result

    def query(self, sql: str) -> list[dict[str, Any]]:
        """Returns the rows of a statement by the names of columns."""
        return self.execute(sql).dicts()

    def _run_any(self, sql: str) -> Result:
        statement = self.server.parsed(sql)
        return self._run_ddl(sql) if statement is None else self._run(statement, sql)

    def _run_template(self, sql: str) -> Result | None:
        template = self.server.template(sql)
        if template is None:
            return None
        with self._changing(sql, update=True) as transaction:
            return queries.point_update(self, *template, transaction)

    def _run(self, statement: Any, sql: str) -> Result:
        if isinstance(statement, Select):
            if statement.table is not None:
                self._require_xa(_NO_XA, "ACTIVE")
            return queries.select(self, statement)
        if isinstance(statement, Insert | Update | Delete):
            return self._run_change(statement, sql)
        if isinstance(statement, Set):
            return self._run_set(statement)
        if isinstance(statement, Show):
            return shows.show(self, statement)
        if isinstance(statement, Explain):
            return self._explain(statement)
        assert isinstance(statement, Control)
        return self._run_control(statement)

    def _run_change(self, statement: Insert | Update | Delete, sql: str) -> Result:
        with self._changing(sql, update=isinstance(statement, Update)) as transaction:
            if isinstance(statement, Insert):
                result = queries.insert(self, statement, transaction)
                self.insert_id = result.insert_id or self.insert_id
                return result
            if isinstance(statement, Update):
                return queries.update(self, statement, transaction)
            return queries.delete(self, statement, transaction)

    def _explain(self, statement: Explain) -> Result:
        inner = statement.statement
        right = {Insert: "INSERT", Update: "UPDATE", Delete: "DELETE", Select: "SELECT"}[type(inner)]
        name = inner.table or ("", "")
        self.table(name[0] or self.schema, name[1], right)
        return plain(("id", "select_type", "table"), [(1, right, name[1])])

    def _run_set(self, statement: Set) -> Result:
        scope_of_values = Scope(self, {})
        for scope, name, expression in statement.values:
            default = expression == ("default",)
            value = None if default else compile_expression(expression, scope_of_values).value
            if scope == "user":
                self.user_variables[name] = value
                continue
            before = self.server.variable(name)  # raises for an unknown one
            if scope in ("global", "persist"):
                self.server.set_variable(name, variables.as_set(before, value))
            elif default:
                self.settings.pop(name, None)
            else:
                wanted = None if value is None else variables.as_set(before, value)
                if name == "autocommit" and wanted and not self.setting(name) and not self._explicit:
                    self.commit()
                self.settings[name] = wanted
        return Result()

    def _run_control(self, statement: Control) -> Result:
        words, xid = statement.words, statement.xid
        if words.startswith("XA "):
            return self._run_xa(words, statement.name, xid)
        simple = {"BEGIN": self.begin, "COMMIT": self.commit, "ROLLBACK": self.rollback}
        if words in ("START TRANSACTION", "START TRANSACTION READ ONLY"):
            self.begin()
        elif words in simple:
            simple[words]()
        elif words == "START TRANSACTION WITH CONSISTENT SNAPSHOT":
            self.begin(snapshot=True)
        elif words == "SAVEPOINT":
            self.savepoint(statement.name)
        elif words == "ROLLBACK TO":
            self.rollback_to(statement.name)
        elif words == "RELEASE":
            self._with_savepoint(statement.name).release(statement.name)
        elif words == "SET TRANSACTION":
            pass
        elif words == "USE":
            self.use(statement.name)
        else:
            self.server.control(self, words, statement.name)
        return Result()

    def use(self, schema: str) -> None:
        """Chooses the session's database."""
        if schema not in self.engine.catalog.schemas:
            raise no_schema(schema)
        self.schema = schema

    def _run_xa(self, words: str, phase: str, xid: Xid | None) -> Result:
        if xid is None:
            rows = [(one[0], len(one[1]), len(one[2]), one[1] + one[2]) for one in self.engine.prepared]
            return plain(("formatID", "gtrid_length", "bqual_length", "data"), rows)
        if words == "XA START":
            self.xa_start(xid)
        elif words == "XA END":
            self.xa_end(xid)
        elif words == "XA PREPARE":
            self.xa_prepare(xid)
        elif words == "XA COMMIT":
            self.xa_commit(xid, one_phase=bool(phase))
        else:
            self.xa_rollback(xid)
        return Result()

    def _run_ddl(self, sql: str) -> Result:
        self.ddl(sql)
        return Result()

    def ddl(self, sql: str) -> Committed:
        """Runs a statement about databases or tables, which commits an open transaction."""
        self._require()
        self.commit()
        statement = parse_ddl(sql)
        name = statement.name
        right = {"create": "CREATE", "create database": "CREATE", "alter": "ALTER"}.get(statement.kind, "DROP")
        schema = name[0] or self.schema
        if not self.allows(right, schema, name[1]):
            who = f"'{self.account.name if self.account else ''}'@'{self.host}'"
            if "database" in statement.kind:
                raise SqlError(1044, f"Access denied for user {who} to database '{schema}'")
            raise SqlError(1142, f"{right} command denied to user {who} for table '{name[1]}'")
        self._require_writable()
        logged, undo = ddl.apply(self.engine, statement, self.schema, sql)
        return self.engine.commit_statement(logged, self.thread, undo)

    def _require_writable(self) -> None:
        if self.server.variable("super_read_only") or (
            self.server.variable("read_only") and not self.allows("CONNECTION_ADMIN")
        ):
            option = "--super-read-only" if self.server.variable("super_read_only") else "--read-only"
            raise SqlError(
                1290, f"The MySQL server is running with the {option} option so it cannot execute this statement"
            )

    # -- transactions -------------------------------------------------------------------------------------------------

    def begin(self, *, snapshot: bool = False) -> None:
        """Begins a transaction; `snapshot`: its reads see the present state (WITH CONSISTENT SNAPSHOT)."""
        self._require()
        self.commit()
        self._explicit = True
        if snapshot:
            self._snapshot = self.engine.take_snapshot()

    def _describe(self, definition: Definition) -> tuple[int, bytes, RowWriter]:
        return self.engine.describe(definition, full=self.setting("binlog_row_metadata") == "FULL")

    def _own(self) -> Transaction:
        """Returns the present transaction, a new one if there is none."""
        if self.transaction is None:
            size, texts = self.setting("binlog_row_event_max_size"), self.setting("binlog_rows_query_log_events")
            self.transaction = Transaction(self._describe, self.schema, self.thread, size, texts=texts)
            self.transaction.released = self.engine.wake_waiters
            self.transaction.zone = self.setting("time_zone")
            self.transaction.compressed = self.setting("binlog_transaction_compression")
        return self.transaction

    @contextmanager
    def _changing(self, text: str = "", *, update: bool = False) -> Iterator[Transaction]:
        """Yields the transaction that a statement changes rows in; undoes the statement if it fails. `update`: it is an
        UPDATE, and not an INSERT that changes a row."""
        self._require()
        self._require_writable()
        self._require_xa(_NO_XA, "ACTIVE")
        transaction = self._own()
        mark = transaction.mark()
        try:
            yield transaction
        except BaseException:
            transaction.back(mark)
            if not self._several:
                self._end()
            raise
        transaction.write(mark[0], text, update=update)
        if not self._several:
            self.commit()

    def commit(self) -> Committed | None:
        """Commits; returns None if nothing was changed."""
        self._require()
        self._require_xa(_NO_XA)
        transaction, made = self.transaction, None
        if transaction is not None and transaction.changes:
            made = self.engine.commit_rows(transaction)
        self._end()
        return made

    def rollback(self) -> None:
        """Undoes the transaction."""
        self._require()
        self._require_xa(_NO_XA)
        self._end()

    def _end(self) -> None:
        transaction, self.transaction, self._explicit = self.transaction, None, False
        if transaction is not None:
            transaction.unlock()
        if self._snapshot is not None:
            self.engine.release(self._snapshot)
            self._snapshot = None

    def savepoint(self, name: str) -> None:
        """Sets a savepoint in the transaction."""
        self._require()
        self._require_xa(_NO_XA, "ACTIVE")
        if self._several:
            self._own().savepoint(name)

    def rollback_to(self, name: str) -> None:
        """Undoes what came after a savepoint."""
        self._require()
        transaction = self._with_savepoint(name)
        self._require_xa(_NO_XA, "ACTIVE")
        transaction.rollback_to(name)

    def _with_savepoint(self, name: str) -> Transaction:
        if self.transaction is None or not self.transaction.has_savepoint(name):
            raise SqlError(1305, f"SAVEPOINT {name} does not exist")
        return self.transaction

    # -- XA -----------------------------------------------------------------------------------------------------------

    @property
    def _xa_state(self) -> str:
        """Returns the state of the session's XA transaction, as errors name it."""
        if self.transaction is None or self.transaction.xid is None:
            return _NO_XA
        return "IDLE" if self.transaction.xa_ended else "ACTIVE"

    def _require_xa(self, *states: str, alone: bool = False) -> None:
        """Raises SqlError 1399 unless the session's XA transaction is in one of these states. `alone`: also if another
        transaction is open."""
        if self._xa_state not in states or (alone and (self._explicit or self.transaction is not None)):
            text = f"The command cannot be executed when global transaction is in the  {self._xa_state} state"
            raise SqlError(1399, f"XAER_RMFAIL: {text}")

    def xa_start(self, xid: Xid | str) -> None:
        """Begins an XA transaction."""
        self._require()
        self._require_xa(_NO_XA)
        if self._explicit or self.transaction is not None:
            raise SqlError(1400, "XAER_OUTSIDE: Some work is done outside global transaction")
        name = as_xid(xid)
        if name in self.engine.prepared:
            raise SqlError(1440, "XAER_DUPID: The XID already exists")
        self._own().xid = name

    def _of(self, xid: Xid | str, state: str) -> Transaction:
        self._require_xa(state)
        assert self.transaction is not None
        if self.transaction.xid != as_xid(xid):
            raise SqlError(1397, "XAER_NOTA: Unknown XID")
        return self.transaction

    def xa_end(self, xid: Xid | str) -> None:
        """Ends the changes of an XA transaction."""
        self._require()
        self._of(xid, "ACTIVE").xa_ended = True

    def xa_prepare(self, xid: Xid | str) -> Committed | None:
        """Prepares an XA transaction; from then on it belongs to no session."""
        self._require()
        transaction = self._of(xid, "IDLE")
        self.transaction = None
        if not transaction.changes:
            self.engine.prepared[as_xid(xid)] = transaction
            return None
        return self.engine.prepare_xa(transaction, one_phase=False)

    def xa_commit(self, xid: Xid | str, *, one_phase: bool = False) -> Committed | None:
        """Commits a prepared XA transaction, or with `one_phase` the one that has ended."""
        self._require()
        transaction = self.transaction
        if self._xa_state == "IDLE" and transaction is not None and transaction.xid == as_xid(xid) and one_phase:
            made = self.engine.prepare_xa(transaction, one_phase=True) if transaction.changes else None
            self._end()
            return made
        self._require_xa(_NO_XA, alone=True)
        return self._decide(as_xid(xid), commit=True)

    def xa_rollback(self, xid: Xid | str) -> Committed | None:
        """Rolls an XA transaction back that has ended or is prepared."""
        self._require()
        if self._xa_state == "IDLE" and self.transaction is not None and self.transaction.xid == as_xid(xid):
            self._end()
            return None
        self._require_xa(_NO_XA, alone=True)
        return self._decide(as_xid(xid), commit=False)

    def _decide(self, xid: Xid, *, commit: bool) -> Committed | None:
        if xid not in self.engine.prepared:
            raise SqlError(1397, "XAER_NOTA: Unknown XID")
        if not self.engine.prepared[xid].changes:
            del self.engine.prepared[xid]
            return None
        return self.engine.decide_xa(xid, self.schema, self.thread, commit=commit)

    # -- rows, by methods ---------------------------------------------------------------------------------------------

    def _named(self, table: str) -> Table:
        schema, _, name = table.rpartition(".")
        return self.table(schema or self.schema, name, "SELECT")

    def insert(self, table: str, *rows: Mapping[str, Any] | Sequence[Any]) -> None:
        """Inserts rows, as dicts or as all values in order, by one statement."""
        known = self._named(table)
        definition = known.definition
        with self._changing(f"INSERT INTO {table}") as transaction:
            for one in rows:
                row = filled(known, _given(definition, one), self.now)
                key = definition.key_of(row) if definition.primary else (known.next_row,)
                known.next_row += not definition.primary
                transaction.add(known, None, (key, row))

    def columns(self, table: str) -> list[str]:
        """Returns the names of a table's columns."""
        return [column.name for column in self._named(table).definition.columns]

    def update(self, table: str, key: KeyValue, values: Mapping[str, Any]) -> int:
        """Changes the row with a key, or those with some values; returns how many differ afterwards."""
        known = self._named(table)
        definition, given = known.definition, _given(known.definition, values)
        count = 0
        with self._changing(f"UPDATE {table}", update=True) as transaction:
            for old, row in self._found(transaction, known, key):
                made = list(row)
                for number, value in given.items():
                    made[number] = taken(definition, number, value)
                after = tuple(made)
                if after != row:
                    new = definition.key_of(after) if definition.primary else old
                    transaction.add(known, (old, row), (new, after))
                    count += 1
        return count

    def delete(self, table: str, key: KeyValue) -> int:
        """Removes the row with a key, or those with some values; returns how many."""
        known = self._named(table)
        with self._changing(f"DELETE FROM {table}") as transaction:
            found = self._found(transaction, known, key)
            for old in found:
                transaction.add(known, old, None)
        return len(found)

    def _found(self, transaction: Transaction, table: Table, key: KeyValue) -> list[tuple[Key, Row]]:
        definition = table.definition
        if isinstance(key, Mapping):
            wanted = {number: taken(definition, number, value) for number, value in _given(definition, key).items()}
            view = View(table, dict(transaction.overlay.get(table, {})))
            return [pair for pair in view if all(pair[1][number] == value for number, value in wanted.items())]
        parts = definition.key_from(key if isinstance(key, tuple) else (key,))
        row = transaction.get(table, parts)
        return [] if row is None else [(parts, row)]

    def get(self, table: str, key: KeyValue) -> Row | None:
        """Returns the present row with a key."""
        known = self._named(table)
        parts = known.definition.key_from(key if isinstance(key, tuple) else (key,))
        return self.transaction.get(known, parts) if self.transaction else known.rows.get(parts)


def _given(definition: Definition, values: Mapping[str, Any] | Sequence[Any]) -> dict[int, Any]:
    """Returns values by the numbers of their columns."""
    if not isinstance(values, Mapping):
        return dict(enumerate(values))
    numbers = definition.numbers
    missing = next((name for name in values if name.lower() not in numbers), None)
    if missing is not None:
        raise no_column(missing)
    return {numbers[name.lower()]: value for name, value in values.items()}


def as_xid(xid: Xid | str) -> Xid:
    """Returns an xid; a text is its global part."""
    return (1, xid.encode(), b"") if isinstance(xid, str) else xid
