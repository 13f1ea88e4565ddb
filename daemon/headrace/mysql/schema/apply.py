"""Applies each kind of DDL to the states of the schema history."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from headrace.model import Column, DdlKind, TableChange
from headrace.mysql.schema.ddl import actions
from headrace.mysql.schema.ddl.actions import TableName
from headrace.mysql.schema.ddl.definition import TableDefinition, altered, created, in_order
from headrace.mysql.schema.states import States
from headrace.mysql.sql.dialect import Dialect
from headrace.mysql.sql.tokens import NotParsed


class Applied:
    """One statement that is applied to the states; `changes` is what it did to tables."""

    def __init__(self, states: States, dialect: Dialect, kind: DdlKind) -> None:
        self._states, self._dialect, self._kind = states, dialect, kind
        self.changes: list[TableChange] = []

    def run(self, action: actions.Action, *, shown: bool) -> None:
        """Raises NotParsed if the statement does not fit what is known. `shown`: the server made its text."""
        if isinstance(action, actions.CreateTable):
            self._create(action, shown)
        elif isinstance(action, actions.AlterTable):
            self._alter(action)
        elif isinstance(action, actions.DropTables):
            for name in action.names:
                self._states.set(name, None)
                self._changed(name)
        elif isinstance(action, actions.RenameTables):
            for old, new in action.pairs:
                self._rename(old, new, action.if_exists)
        elif isinstance(action, actions.Truncate):
            self._changed(action.name)
        elif isinstance(action, actions.CreateDatabase):
            self._create_database(action)
        elif isinstance(action, actions.AlterDatabase):
            known = self._states.complete(action.schema)
            if action.charset:
                self._states.set_schema(action.schema, action.charset, complete=known)
        elif isinstance(action, actions.DropDatabase):
            for name in self._states.tables_in(action.schema):
                if self._states.schema_of(name) is not None:
                    self.changes.append(TableChange(DdlKind.ERASE, *name))
            self._states.drop_schema(action.schema)

    def doubt(self, names: Sequence[TableName] | None, why: str) -> None:
        """Handles a statement that was not understood: its tables become unknown, or all tables."""
        if names is None:
            self._states.doubt(why)
            return
        for name in names:
            self._states.set(name, why)
            self._changed(name)

    def _changed(self, name: TableName, renamed_from: TableName | None = None) -> None:
        name, after = self._states.key(name), self._states.schema_of(name)
        renamed_from = self._states.key(renamed_from) if renamed_from else None
        self.changes.append(TableChange(self._kind, *name, after=after, renamed_from=renamed_from))

    def _create(self, action: actions.CreateTable, shown: bool) -> None:
        states, name = self._states, action.name
        before = states.get(name)
        if action.if_not_exists:
            if isinstance(before, TableDefinition):
                return
            if isinstance(before, str):
                states.set(name, f"{before}; CREATE TABLE IF NOT EXISTS does not say whether it existed")
                self._changed(name)
                return
        if action.like is not None:
            like = states.get(action.like)
            if not isinstance(like, TableDefinition):
                states.set(name, f"it was made like {'.'.join(action.like)}, of which {like or 'nothing is known'}")
            else:
                states.set(name, replace(like, indexes=in_order(like.indexes, like.columns)))
        else:
            made = created(action, states.charset(name[0]), self._dialect)
            if shown and (action.atomic_select or self._dialect.mariadb):
                require_sound_labels(made.columns)
            states.set(name, made)
        self._changed(name)

    def _alter(self, action: actions.AlterTable) -> None:
        states, name = self._states, action.name
        before = states.get(name)
        for spec in action.specs:
            if isinstance(spec, actions.ConvertPartition):
                states.set(spec.name, before if spec.to_table else None)
                self._changed(spec.name)
        target = next((spec.name for spec in action.specs if isinstance(spec, actions.RenameTo)), None)
        if isinstance(before, TableDefinition):
            states.set(name, altered(before, action, states.charset(name[0]), self._dialect))
        elif before is None and not action.if_exists:
            raise NotParsed("the table is altered, and by the statements before it should not exist")
        if target is not None and states.key(target) != states.key(name):
            self._rename(name, target, if_exists=False)
        else:
            self._changed(name)

    def _rename(self, old: TableName, new: TableName, if_exists: bool) -> None:
        states = self._states
        state = states.get(old)
        if if_exists and not isinstance(state, TableDefinition):
            # It is unknown whether it existed, or it did not.
            if isinstance(state, str):
                states.set(new, f"it may have been renamed from {'.'.join(old)}, and {state}")
                self._changed(new, old)
            return
        states.set(old, None)
        if state is not None or states.get(new) is not None:
            states.set(new, state)
        self._changed(new, old)

    def _create_database(self, action: actions.CreateDatabase) -> None:
        exists = self._states.exists(action.schema)
        if action.if_not_exists and exists is not False:
            return  # it existed, or nothing is known of it: nothing is known afterwards either
        self._states.new_schema(action.schema, action.charset)


def require_sound_labels(columns: Iterable[Column]) -> None:
    """Checks the members: servers print them in three-byte UTF-8, where a character beyond becomes a question mark.
    Raises NotParsed."""
    wide = ("utf8mb4", "utf16", "utf16le", "utf32", "gb18030")
    if any("?" in label for column in columns if column.charset in wide for label in column.labels):
        raise NotParsed("a member of an ENUM or SET has a question mark, which may stand for another character")
