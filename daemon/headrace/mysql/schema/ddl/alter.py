"""ALTER TABLE: parses every part of it; those that change the table schema become specs."""

from __future__ import annotations

from headrace.model import DdlKind
from headrace.mysql.schema.ddl import actions
from headrace.mysql.schema.ddl.actions import TableName
from headrace.mysql.schema.ddl.columns import column_definition, constraint, default_value
from headrace.mysql.schema.ddl.create import Options, partitions, table_option
from headrace.mysql.schema.ddl.cursor import Cursor
from headrace.mysql.schema.ddl.types import charset_clause, collate_clause


def alter_table(c: Cursor) -> actions.AlterTable:
    """Parses all that follows ALTER [IGNORE] TABLE. Raises NotParsed."""
    return _Alter(c).parse()


class _Alter:
    """The parser of one ALTER TABLE."""

    def __init__(self, c: Cursor) -> None:
        self._c = c
        self._specs: list[actions.AlterSpec] = []
        self._others: list[TableName] = []
        self._unlogged = False
        self._kind = DdlKind.ALTER
        self._options = Options()

    def parse(self) -> actions.AlterTable:
        c = self._c
        ignores = any(token.upper == "IGNORE" for token in c.tokens[: c.i])
        if_exists = c.takes("IF", "EXISTS")
        name = c.table()
        wait(c)
        if not c.done:
            self._kind = _kind_of(c)
            self._part()
            while not c.done:
                # PARTITION BY and REMOVE PARTITIONING come without a comma, and so may table options.
                if not c.takes(",") and not c.sees("PARTITION", "BY") and not c.sees("REMOVE", "PARTITIONING"):
                    raise c.problem("a comma was expected")
                self._part()
        charset = self._options.final
        if charset is not None:
            self._specs.append(actions.TableCharset(charset))
        # Rows that do not fit a key, a check, a partition or a new type are deleted; the existing keys are not
        # considered.
        self._unlogged |= ignores
        return actions.AlterTable(name, tuple(self._specs), if_exists, tuple(self._others), self._kind, self._unlogged)

    def _part(self) -> None:
        c = self._c
        if c.takes("ADD"):
            self._add()
        elif c.takes("DROP"):
            self._drop()
        elif verb := c.takes_any("MODIFY", "CHANGE"):
            c.takes("COLUMN")
            if_exists = c.takes("IF", "EXISTS")
            old = c.column() if verb == "CHANGE" else ""
            column = column_definition(c)
            self._specs.append(actions.ChangeColumn(old or column.name, column, self._parse_position(), if_exists))
        elif c.takes("RENAME"):
            self._rename()
        elif c.takes("ALTER"):
            self._alter()
        elif c.takes("CONVERT"):
            self._convert()
        elif c.sees("WITH", "SYSTEM") or not self._without_effect():
            if not table_option(c, self._options):
                raise c.problem("a part of ALTER TABLE that is not known")
            while table_option(c, self._options):
                pass
        if self._options.versioned:
            self._options.versioned = False
            self._specs.append(actions.Versioning(True))

    def _parse_position(self) -> str | None:
        c = self._c
        if c.takes("FIRST"):
            return ""
        return c.column() if c.takes("AFTER") else None

    def _add(self) -> None:
        c = self._c
        if c.takes("PARTITION"):
            self._rest_of_partitions()
            return
        if c.takes("SYSTEM", "VERSIONING"):
            self._specs.append(actions.Versioning(True))
            return
        if c.takes("PERIOD", "FOR", "SYSTEM_TIME"):
            c.parens()
            return
        if c.sees("PERIOD"):
            raise c.problem("a period is added")
        explicit = c.takes("COLUMN")
        if not explicit and self._key():
            return
        if_not_exists = c.takes("IF", "NOT", "EXISTS")
        if c.takes("("):
            while True:
                if not self._key():
                    self._specs.append(actions.AddColumn(column_definition(c), None, if_not_exists))
                if not c.takes(","):
                    break
            c.expect(")")
            return
        self._specs.append(actions.AddColumn(column_definition(c), self._parse_position(), if_not_exists))

    def _key(self) -> bool:
        start = self._c.i
        key = constraint(self._c)
        if isinstance(key, actions.Index):
            texts = [token.upper for token in self._c.tokens[start : self._c.i]]
            self._specs.append(actions.AddIndex(key, if_not_exists="EXISTS" in texts))
        return bool(key)

    def _drop(self) -> None:
        c = self._c
        if c.takes("PRIMARY", "KEY"):
            self._specs.append(actions.DropIndex(actions.PRIMARY))
        elif c.takes("FOREIGN", "KEY") or c.takes("CHECK"):
            c.takes("IF", "EXISTS")
            c.name()
        elif c.takes_any("INDEX", "KEY", "CONSTRAINT"):
            c.takes("IF", "EXISTS")
            self._specs.append(actions.DropIndex(c.name()))
        elif c.takes("PARTITION"):
            self._rest_of_partitions()
        elif c.takes("SYSTEM", "VERSIONING"):
            self._specs.append(actions.Versioning(False))
        elif c.takes("PERIOD", "FOR"):
            c.name()
        else:
            c.takes("COLUMN")
            if_exists = c.takes("IF", "EXISTS")
            self._specs.append(actions.DropColumn(c.column(), if_exists))
            c.takes_any("RESTRICT", "CASCADE")

    def _rename(self) -> None:
        c = self._c
        if c.takes("COLUMN"):
            if_exists = c.takes("IF", "EXISTS")
            old = c.column()
            c.expect("TO")
            self._specs.append(actions.RenameColumn(old, c.column(), if_exists))
        elif c.takes_any("INDEX", "KEY"):
            c.takes("IF", "EXISTS")
            old = c.name()
            c.expect("TO")
            self._specs.append(actions.RenameIndex(old, c.name()))
        else:
            c.takes_any("TO", "AS", "=")
            self._specs.append(actions.RenameTo(c.table()))
            self._kind = DdlKind.RENAME

    def _alter(self) -> None:
        c = self._c
        if c.takes_any("INDEX", "KEY"):
            c.takes("IF", "EXISTS")
            c.name()
            if not (c.takes_any("VISIBLE", "INVISIBLE", "IGNORED") or c.takes("NOT", "IGNORED")):
                raise c.problem("VISIBLE or INVISIBLE was expected")
            return
        if c.takes_any("CHECK", "CONSTRAINT"):
            c.name()
            c.takes("NOT")
            c.expect("ENFORCED")
            return
        c.takes("COLUMN")
        if_exists = c.takes("IF", "EXISTS")
        name = c.column()
        if c.takes("SET", "DEFAULT"):
            self._specs.append(actions.AlterColumn(name, default_value(c), if_exists=if_exists))
        elif c.takes("DROP", "DEFAULT"):
            self._specs.append(actions.AlterColumn(name, drop_default=True, if_exists=if_exists))
        elif c.takes("SET", "VISIBLE"):
            self._specs.append(actions.AlterColumn(name, invisible=False))
        elif c.takes("SET", "INVISIBLE"):
            self._specs.append(actions.AlterColumn(name, invisible=True))
        else:
            raise c.problem("a change of a column that is not known")

    def _convert(self) -> None:
        c = self._c
        if c.takes("PARTITION"):
            c.name()
            c.expect("TO", "TABLE")
            self._specs.append(actions.ConvertPartition(c.table(), to_table=True))
            self._validation()
            return
        if c.takes("TABLE"):
            self._specs.append(actions.ConvertPartition(c.table(), to_table=False))
            c.expect("TO")
            self._rest_of_partitions()
            return
        c.expect("TO")
        charset = charset_clause(c)
        if c.sees("COLLATE"):
            charset = collate_clause(c) or charset
        self._specs.append(actions.TableCharset(charset, converts=True))

    def _without_effect(self) -> bool:
        c = self._c
        if c.sees("PARTITION", "BY"):
            partitions(c)
        elif c.takes("REMOVE", "PARTITIONING") or c.skips("ALGORITHM", "LOCK"):
            pass
        elif c.takes("ORDER", "BY"):
            self._order()
        elif c.takes_any("DISABLE", "ENABLE"):
            c.expect("KEYS")
        elif c.takes_any("DISCARD", "IMPORT"):
            self._unlogged = True
            if c.takes("PARTITION"):
                self._rest_of_partitions()
            else:
                c.expect("TABLESPACE")
        elif c.takes_any("SECONDARY_LOAD", "SECONDARY_UNLOAD", "FORCE"):
            pass
        elif c.takes_any("WITH", "WITHOUT"):
            c.expect("VALIDATION")
        elif c.takes("EXCHANGE", "PARTITION"):
            self._unlogged = True
            c.name()
            c.expect("WITH", "TABLE")
            self._others.append(c.table())
            self._validation()
        elif c.peek(1).upper == "PARTITION" and c.takes_any(
            "TRUNCATE", "COALESCE", "REORGANIZE", "ANALYZE", "CHECK", "OPTIMIZE", "REBUILD", "REPAIR"
        ):
            self._rest_of_partitions()
        else:
            return False
        return True

    def _validation(self) -> None:
        if self._c.takes_any("WITH", "WITHOUT"):
            self._c.expect("VALIDATION")

    def _rest_of_partitions(self) -> None:
        """Parses partition commands: each is alone, and none changes the table schema."""
        c = self._c
        while not c.done:
            if c.sees("("):
                c.parens()
            elif c.sees_any("ADD", "DROP", "MODIFY", "CHANGE", "CONVERT") or c.sees(")"):
                raise c.problem("a partition command that is not known")
            else:
                c.i += 1

    def _order(self) -> None:
        c = self._c
        c.column()
        c.takes_any("ASC", "DESC")
        # A comma may begin the next column or the next part: only a single name with ASC, DESC or an end is a column.
        while c.sees(",") and c.peek(1).kind in ("word", "name") and self._ends_column(2):
            c.i += 1
            c.column()
            c.takes_any("ASC", "DESC")

    def _ends_column(self, ahead: int) -> bool:
        token = self._c.peek(ahead)
        return token.kind == "end" or token.value == "," or token.upper in ("ASC", "DESC")


def _kind_of(c: Cursor) -> DdlKind:
    indexes = ("INDEX", "KEY", "UNIQUE", "FULLTEXT", "SPATIAL", "PRIMARY")
    second = c.peek(3 if c.sees("ADD", "CONSTRAINT") and c.peek(2).upper != "UNIQUE" else 1).upper
    if c.sees("ADD") and (second in indexes or c.sees("ADD", "CONSTRAINT", "UNIQUE")):
        return DdlKind.CREATE_INDEX
    return DdlKind.DROP_INDEX if c.sees("DROP") and second in ("INDEX", "KEY", "CONSTRAINT") else DdlKind.ALTER


def wait(c: Cursor) -> None:
    """Parses MariaDB's WAIT n and NOWAIT."""
    if c.dialect.mariadb and not c.takes("NOWAIT") and c.sees("WAIT"):
        c.i += 1
        c.number()
