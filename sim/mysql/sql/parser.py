"""Reads statements, except those about tables, into their syntax tree."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from sim.mysql.errors import SqlError, unknown_statement
from sim.mysql.sql.lexer import Token, tokenize
from sim.mysql.sql.tree import (
    Control,
    Delete,
    Explain,
    Expression,
    Insert,
    Item,
    Name,
    Select,
    Set,
    Show,
    Statement,
    Update,
)

_COMPARISONS = frozenset({"=", "<", ">", "<=", ">=", "<>", "!=", "<=>"})
_RESERVED = frozenset(
    (
        *("FROM", "WHERE", "ORDER", "LIMIT", "UNION", "FOR", "ON", "SET", "VALUES", "AND", "OR", "NOT", "IN", "IS"),
        *("LIKE", "BETWEEN", "AS", "GROUP", "USING", "ASC", "DESC"),
    )
)
_SHOWN = (
    "BINARY LOG STATUS",
    "BINARY LOGS",
    "REPLICAS",
    "REPLICA STATUS",
    "GLOBAL VARIABLES",
    "SESSION VARIABLES",
    "VARIABLES",
    "GLOBAL STATUS",
    "STATUS",
    "GRANTS",
    "INDEX",
    "CREATE TABLE",
    "DATABASES",
    "TABLES",
    "WARNINGS",
    "PROCESSLIST",
    "FULL PROCESSLIST",
)
"""Statements of MySQL 8.2 and later: it does not know SHOW MASTER STATUS and its kind any more."""


class Reader:
    """Steps over the tokens of one statement."""

    def __init__(self, sql: str) -> None:
        self.sql = sql
        self.tokens = tokenize(sql)
        self.at = 0

    @property
    def next(self) -> Token:
        return self.tokens[self.at]

    def fail(self) -> SqlError:
        """Returns error 1064 at the present token."""
        return unknown_statement(" ".join(token.text for token in self.tokens[self.at :]).strip())

    def take(self) -> Token:
        self.at += 1
        return self.tokens[self.at - 1]

    def has(self, *words: str) -> bool:
        """Skips these words or signs if they come next; returns whether they did."""
        for offset, word in enumerate(words):
            token = self.tokens[min(self.at + offset, len(self.tokens) - 1)]
            if token.kind not in ("word", "op") or token.value != word:
                return False
        self.at += len(words)
        return True

    def need(self, *words: str) -> None:
        if not self.has(*words):
            raise self.fail()

    def end(self) -> None:
        if self.next.kind != "end":
            raise self.fail()

    def name(self) -> str:
        token = self.next
        if token.kind not in ("word", "name"):
            raise self.fail()
        self.at += 1
        return str(token.text)

    def table(self) -> Name:
        first = self.name()
        return (first, self.name()) if self.has(".") else ("", first)

    def string(self) -> str:
        if self.next.kind != "string":
            raise self.fail()
        return str(self.take().value)

    def integer(self) -> int:
        if self.next.kind != "number" or not self.next.text.isdigit():
            raise self.fail()
        return int(self.take().text)

    # -- expressions --------------------------------------------------------------------------------------------------

    def expression(self) -> Expression:
        left = self._conjunction()
        while self.has("OR") or self.has("||"):
            left = ("op", "OR", left, self._conjunction())
        return left

    def _conjunction(self) -> Expression:
        left = self._negation()
        while self.has("AND") or self.has("&&"):
            left = ("op", "AND", left, self._negation())
        return left

    def _negation(self) -> Expression:
        if self.has("NOT") or self.has("!"):
            return ("not", self._negation())
        return self._comparison()

    def _comparison(self) -> Expression:
        left = self._sum()
        while True:
            if self.next.kind == "op" and self.next.value in _COMPARISONS:
                left = ("op", self.take().value, left, self._sum())
                continue
            negated = self.has("NOT")
            if self.has("IN"):
                self.need("(")
                left = ("in", left, tuple(self.list(self.expression)))
                self.need(")")
            elif self.has("BETWEEN"):
                low = self._sum()
                self.need("AND")
                left = ("between", left, low, self._sum())
            elif self.has("LIKE"):
                left = ("like", left, self._sum())
            elif self.has("IS"):
                if self.has("NOT"):
                    negated = True
                self.need("NULL")
                left = ("null", left)
            elif negated:
                raise self.fail()
            else:
                return left
            left = ("not", left) if negated else left

    def list(self, one: Any) -> list[Any]:
        """Returns what `one` reads, separated by commas."""
        found = [one()]
        while self.has(","):
            found.append(one())
        return found

    def _sum(self) -> Expression:
        left = self._product()
        while self.next.kind == "op" and self.next.value in "+-":
            left = ("op", self.take().value, left, self._product())
        return left

    def _product(self) -> Expression:
        left = self._unary()
        while self.next.kind == "op" and self.next.value in "*/%":
            left = ("op", self.take().value, left, self._unary())
        return left

    def _unary(self) -> Expression:
        if self.has("-"):
            return ("negative", self._unary())
        self.has("+")
        return self._primary()

    def _primary(self) -> Expression:
        token = self.next
        if self.has("("):
            inside = self.expression()
            self.need(")")
            return inside
        if token.kind in ("string", "bytes"):
            self.take()
            return ("literal", token.value)
        if token.kind == "param":
            self.take()
            return ("param", token.value)
        if token.kind == "number":
            self.take()
            return ("literal", _number(token.text))
        if token.kind == "variable":
            self.take()
            if token.text.startswith("@@"):
                scope, _, name = token.text[2:].rpartition(".")
                return ("system", scope.lower(), name.lower())
            return ("user", token.text[1:].lower())
        if token.kind == "word" and token.value in ("NULL", "TRUE", "FALSE", "DEFAULT", "ON", "OFF"):
            self.take()
            known = {"NULL": None, "TRUE": 1, "FALSE": 0, "ON": "ON", "OFF": "OFF"}
            return ("default",) if token.value == "DEFAULT" else ("literal", known[token.value])
        if token.kind not in ("word", "name") or (token.kind == "word" and token.value in _RESERVED - {"VALUES"}):
            raise self.fail()
        return self._named()

    def _named(self) -> Expression:
        token = self.take()
        if token.kind == "word" and self.has("("):
            return self._call(token.value)
        if token.kind == "word" and token.value in ("CURRENT_TIMESTAMP", "CURRENT_USER"):
            return ("call", token.value, ())
        parts = [str(token.text)]
        while self.has("."):
            parts.append(self.name())
        return ("column", parts[-1])

    def _call(self, function: str) -> Expression:
        if function == "CAST":
            value = self.expression()
            self.need("AS")
            kind = str(self.take().value)
            self.has("INTEGER")
            self.need(")")
            return ("cast", value, kind)
        if function == "CONVERT":
            value = self.expression()
            self.need("USING")
            charset = self.name().lower()
            self.need(")")
            return ("convert", value, charset)
        if self.has("*"):
            self.need(")")
            return ("call", function, (("star",),))
        arguments = [] if self.has(")") else self.list(self.expression)
        if arguments:
            self.need(")")
        return ("call", function, tuple(arguments))

    # -- rows ---------------------------------------------------------------------------------------------------------

    def select(self) -> Select:
        """Reads what follows SELECT."""
        items = tuple(self.list(self._item))
        table = where = None
        if self.has("FROM"):
            table = self.table()
            if self.has("AS") or (self.next.kind == "word" and self.next.value not in _RESERVED):
                self.name()
        if self.has("WHERE"):
            where = self.expression()
        order = self.order()
        offset, limit = 0, None
        if self.has("LIMIT"):
            limit = self.integer()
            if self.has(","):
                offset, limit = limit, self.integer()
            elif self.has("OFFSET"):
                offset = self.integer()
        locks = self.has("FOR", "UPDATE") or self.has("FOR", "SHARE")
        return Select(items, table, where, order, limit, offset, locks)

    def order(self) -> tuple[tuple[Expression, bool], ...]:
        if not self.has("ORDER", "BY"):
            return ()

        def one() -> tuple[Expression, bool]:
            expression = self.expression()
            descending = self.has("DESC")
            self.has("ASC")
            return expression, descending

        return tuple(self.list(one))

    def _item(self) -> Item:
        begin = self.at
        if self.has("*"):
            return Item(("star",), "*")
        expression = self.expression()
        if self.has("AS"):
            name = self.string() if self.next.kind == "string" else self.name()
        elif self.next.kind in ("word", "name") and self.next.value not in _RESERVED:
            name = self.name()
        elif expression[0] == "column":
            name = str(expression[1])
        else:
            name = self.sql[self.tokens[begin].begin : self.tokens[self.at - 1].end]
            if expression[0] == "literal" and isinstance(expression[1], str) and self.tokens[begin].text[0] in "'\"":
                name = expression[1]
        return Item(expression, name)

    def insert(self, *, replace: bool = False) -> Insert:
        ignore = self.has("IGNORE")
        self.has("INTO")
        table = self.table()
        columns: tuple[str, ...] = ()
        if self.has("("):
            columns = tuple(self.list(self.name))
            self.need(")")
        if not (self.has("VALUES") or self.has("VALUE")):
            raise self.fail()
        rows = tuple(self.list(self._values))
        update: tuple[tuple[str, Expression], ...] = ()
        if self.has("ON", "DUPLICATE", "KEY", "UPDATE"):
            update = tuple(self.list(self.assignment))
        return Insert(table, columns, rows, ignore, update, replace)

    def _values(self) -> tuple[Expression, ...]:
        self.need("(")
        if self.has(")"):
            return ()
        found = tuple(self.list(self.expression))
        self.need(")")
        return found

    def assignment(self) -> tuple[str, Expression]:
        name = self.table()[1]
        self.need("=")
        return name, self.expression()

    def update(self) -> Update:
        table = self.table()
        self.need("SET")
        values = tuple(self.list(self.assignment))
        where = self.expression() if self.has("WHERE") else None
        order = self.order()
        return Update(table, values, where, order, self.integer() if self.has("LIMIT") else None)

    def delete(self) -> Delete:
        self.need("FROM")
        table = self.table()
        where = self.expression() if self.has("WHERE") else None
        order = self.order()
        return Delete(table, where, order, self.integer() if self.has("LIMIT") else None)

    # -- others -------------------------------------------------------------------------------------------------------

    def set(self) -> Set | Control:
        if self.has("NAMES"):
            self.take()
            if self.has("COLLATE"):
                self.take()
            return Set(())
        if self.has("SESSION", "TRANSACTION") or self.has("TRANSACTION"):
            self.at = len(self.tokens) - 1
            return Control("SET TRANSACTION")
        return Set(tuple(self.list(self._setting)))

    def _setting(self) -> tuple[str, str, Expression]:
        token = self.next
        scope = "session"
        if token.kind == "variable":
            self.take()
            name = token.text.lstrip("@").lower()
            if token.text.startswith("@@"):
                scope, _, name = ("session." + name).rpartition(".")[0].rpartition(".")[2], ".", name.rpartition(".")[2]
            else:
                scope = "user"
        else:
            for word in ("GLOBAL", "PERSIST", "SESSION", "LOCAL"):
                if self.has(word):
                    scope = word.lower()
            name = self.name().lower()
        if not (self.has("=") or self.has(":=")):
            raise self.fail()
        value = self.expression()
        if value[0] == "column":  # a word is a value here, as in SET x = ON
            value = ("literal", value[1])
        return scope, name, value

    def show(self) -> Show:
        what = next((one for one in _SHOWN if self.has(*one.split())), None)
        if what is None:
            raise self.fail()
        table: Name | None = None
        if what in ("INDEX", "CREATE TABLE"):
            self.has("FROM")
            table = self.table()
            if self.has("FROM"):
                table = self.name(), table[1]
        if what == "TABLES" and (self.has("FROM") or self.has("IN")):
            table = self.name(), ""
        if self.has("LIKE"):
            return Show(what, self.string(), table=table)
        if self.has("WHERE"):
            self.name()
            if self.has("="):
                return Show(what, names=(self.string(),), table=table)
            self.need("IN", "(")
            names = tuple(self.list(self.string))
            self.need(")")
            return Show(what, names=names, table=table)
        return Show(what, table=table)

    def xid(self) -> tuple[int, bytes, bytes]:
        def part() -> bytes:
            token = self.take()
            if token.kind not in ("string", "bytes"):
                raise self.fail()
            return token.value if isinstance(token.value, bytes) else str(token.value).encode()

        gtrid = part()
        bqual = part() if self.has(",") else b""
        return (self.integer() if self.has(",") else 1), gtrid, bqual


def _number(text: str) -> Any:
    if "e" in text.lower():
        return float(text)
    return int(text) if text.isdigit() else Decimal(text)


_CONTROLS = (
    "START TRANSACTION WITH CONSISTENT SNAPSHOT",
    "START TRANSACTION READ ONLY",
    "START TRANSACTION",
    "BEGIN WORK",
    "BEGIN",
    "COMMIT WORK",
    "COMMIT",
    "ROLLBACK WORK",
    "FLUSH BINARY LOGS",
    "FLUSH LOGS",
    "RESET BINARY LOGS AND GTIDS",
)


def parse(sql: str) -> Statement | None:
    """Returns the syntax tree; None for a statement about databases or tables, which `definitions` reads. Raises
    SqlError 1064."""
    reader = Reader(sql)
    if reader.next.kind == "word" and reader.next.value in ("CREATE", "ALTER", "DROP", "RENAME", "TRUNCATE"):
        return None
    made = _statement(reader)
    reader.end()
    return made


def _statement(reader: Reader) -> Statement:
    if reader.next.value == "(" or reader.next.value == "SELECT":
        return _union(reader)
    if reader.has("INSERT"):
        return reader.insert()
    if reader.has("REPLACE"):
        return reader.insert(replace=True)
    if reader.has("UPDATE"):
        return reader.update()
    if reader.has("DELETE"):
        return reader.delete()
    if reader.has("SET"):
        return reader.set()
    if reader.has("SHOW"):
        return reader.show()
    if reader.has("EXPLAIN"):
        explained = _statement(reader)
        if not isinstance(explained, Select | Insert | Update | Delete):
            raise reader.fail()
        return Explain(explained)
    return _control(reader)


def _union(reader: Reader) -> Select:
    def one() -> Select:
        if reader.has("("):
            reader.need("SELECT")
            made = reader.select()
            reader.need(")")
            return made
        reader.need("SELECT")
        return reader.select()

    first, more = one(), list[Select]()
    while reader.has("UNION", "ALL"):
        more.append(one())
    if not more:
        return first
    return Select(
        first.items, first.table, first.where, first.order, first.limit, first.offset, first.locks, tuple(more)
    )


def _control(reader: Reader) -> Control:
    for words in _CONTROLS:
        if reader.has(*words.split()):
            return Control(words.removesuffix(" WORK"))
    if reader.has("SAVEPOINT"):
        return Control("SAVEPOINT", reader.name())
    if reader.has("RELEASE", "SAVEPOINT"):
        return Control("RELEASE", reader.name())
    if reader.has("ROLLBACK"):
        if reader.has("TO"):
            reader.has("SAVEPOINT")
            return Control("ROLLBACK TO", reader.name())
        return Control("ROLLBACK")
    if reader.has("PURGE", "BINARY", "LOGS", "TO"):
        return Control("PURGE", reader.string())
    if reader.has("KILL"):
        reader.has("CONNECTION")
        query = reader.has("QUERY")
        return Control("KILL QUERY" if query else "KILL", str(reader.integer()))
    if reader.has("USE"):
        return Control("USE", reader.name())
    if reader.has("XA"):
        word = str(reader.take().value)
        word = "START" if word == "BEGIN" else word
        if word == "RECOVER":
            return Control("XA RECOVER")
        if word not in ("START", "END", "PREPARE", "COMMIT", "ROLLBACK"):
            raise reader.fail()
        xid = reader.xid()
        phase = "ONE PHASE" if reader.has("ONE", "PHASE") else ""
        return Control(f"XA {word}", phase, xid)
    raise reader.fail()
