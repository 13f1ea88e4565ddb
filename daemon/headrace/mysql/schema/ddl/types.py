"""Data types: parsed with all their synonyms, and turned into columns as information_schema shows them."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from headrace.model import Column
from headrace.mysql.schema.ddl.actions import ColumnDef, ColumnType
from headrace.mysql.schema.ddl.cursor import Cursor
from headrace.mysql.sql.dialect import CODECS, Dialect, charset_named, charset_of_collation
from headrace.mysql.sql.tokens import NotParsed, tokenize
from headrace.mysql.values.charsets import NO_CHARACTER, WIDTHS, codec_of, single_byte_characters
from headrace.mysql.values.column_types import java_type

INTS = {"TINYINT": "tinyint", "SMALLINT": "smallint", "MEDIUMINT": "mediumint", "INT": "int", "BIGINT": "bigint"}
INTS |= {"INTEGER": "int", "MIDDLEINT": "mediumint", "INT1": "tinyint", "INT2": "smallint", "INT3": "mediumint"}
INTS |= {"INT4": "int", "INT8": "bigint"}
_WIDTHS = {"tinyint": (4, 3), "smallint": (6, 5), "mediumint": (9, 8), "int": (11, 10), "bigint": (20, 20)}
"""The default display width as in int(11): signed, unsigned."""
SIGNED_WIDTHS = {kind: signed for kind, (signed, _) in _WIDTHS.items()}
_DECIMALS = frozenset({"DECIMAL", "DEC", "NUMERIC", "FIXED"})
_PLAIN = {"DATE": "date", "JSON": "json", "TINYBLOB": "tinyblob", "MEDIUMBLOB": "mediumblob", "LONGBLOB": "longblob"}
_PLAIN |= {"GEOMETRY": "geometry", "POINT": "point", "LINESTRING": "linestring", "POLYGON": "polygon"}
_PLAIN |= {"MULTIPOINT": "multipoint", "MULTILINESTRING": "multilinestring", "MULTIPOLYGON": "multipolygon"}
_PLAIN |= {"GEOMETRYCOLLECTION": "geomcollection", "GEOMCOLLECTION": "geomcollection"}
_PLAIN |= {"TINYTEXT": "tinytext", "MEDIUMTEXT": "mediumtext", "LONGTEXT": "longtext"}
_MARIADB = {"UUID": "uuid", "INET4": "inet4", "INET6": "inet6"}
_SIZED = {"BIT": 1, "TIME": 0, "TIMESTAMP": 0, "DATETIME": 0, "VECTOR": 2048}
"""Types with one number, and its default."""
_TYPES = 500
"""Parsed types that are kept: the tables of a source have few different ones."""
_STRINGS = frozenset({"char", "varchar", "tinytext", "text", "mediumtext", "longtext", "enum", "set"})
"""The types that have a character set."""
TEXT_BYTES = {"tiny": 255, "": 65535, "medium": 16777215, "long": 4294967295}
_BINARY = {"char": "binary", "varchar": "varbinary", "tinytext": "tinyblob", "text": "blob", "mediumtext": "mediumblob"}
_BINARY |= {"longtext": "longblob"}


def data_type(c: Cursor) -> ColumnType:
    """Parses the type with its length, members, sign and character set. Raises NotParsed."""
    if c.dialect.maxdb_mode:
        raise c.problem("the session's sql_mode gives types other meanings")
    made = (_oracle(c) if c.dialect.oracle_mode else None) or _base(c)
    if made.kind in _WIDTHS or made.kind in ("decimal", "float", "double"):
        return _signs(c, made)
    if made.kind in _STRINGS or made.kind in ("blob", "varbinary", "binary"):
        return charset_attributes(c, made)
    return made


def _oracle(c: Cursor) -> ColumnType | None:
    """Parses types that MariaDB's Oracle mode adds or gives another meaning; returns None for all others."""
    if c.sees("BLOB", "("):
        return None
    word = c.takes_any("DATE", "BLOB", "CLOB", "NUMBER", "RAW", "VARCHAR2")
    if word == "NUMBER":
        return _decimal(c) if c.sees("(") else ColumnType("double")
    if word in ("RAW", "VARCHAR2"):
        return _sized(c, "varbinary" if word == "RAW" else "varchar")
    return ColumnType({"DATE": "datetime", "BLOB": "longblob", "CLOB": "longtext"}[word]) if word else None


def _base(c: Cursor) -> ColumnType:
    token = c.peek()
    if token.kind != "word":
        raise c.problem("a type was expected")
    word = token.upper
    c.i += 1
    if word in INTS:
        return ColumnType(INTS[word], _length(c))
    if word in ("BOOL", "BOOLEAN"):
        return ColumnType("tinyint", 1)
    if word in _DECIMALS:
        return _decimal(c)
    if word in ("FLOAT", "FLOAT4"):
        return _float(c)
    if word in ("DOUBLE", "FLOAT8", "REAL"):
        if word == "DOUBLE":
            c.takes("PRECISION")
        length, scale = _precision(c)
        return ColumnType("float" if word == "REAL" and c.dialect.real_is_float else "double", length, scale)
    if word in _SIZED:
        return ColumnType(word.lower(), _length(c) or _SIZED[word])
    if word == "YEAR":
        return ColumnType("year", 2 if _length(c) == 2 and c.dialect.mariadb else 4)
    if word == "SERIAL":
        return ColumnType("serial")
    if word in ("ENUM", "SET"):
        return ColumnType(word.lower(), labels=_labels(c), client_charset=c.dialect.client_charset)
    if word in ("TEXT", "BLOB"):
        return ColumnType(word.lower(), _length(c))
    if word in _PLAIN and not (word == "GEOMCOLLECTION" and c.dialect.mariadb):
        return ColumnType(_PLAIN[word])
    if word in _MARIADB and c.dialect.mariadb:
        if c.sees("("):  # INET6(6): a length without effect
            c.parens()
        return ColumnType(_MARIADB[word])
    return _character(c, word)


def _character(c: Cursor, word: str) -> ColumnType:
    if word in ("CHAR", "CHARACTER"):
        return _sized(c, "varchar" if c.takes("VARYING") else "char")
    if word in ("VARCHAR", "VARCHARACTER"):
        return _sized(c, "varchar")
    if word in ("BINARY", "VARBINARY"):
        return _sized(c, "varbinary" if word == "VARBINARY" or c.takes("VARYING") else "binary")
    if word == "NATIONAL":
        word = c.takes_any("CHARACTER", "CHAR", "VARCHARACTER", "VARCHAR")
        varying = word.startswith("VAR") or c.takes("VARYING")
        if not word:
            raise c.problem("a type was expected")
        return replace(_sized(c, "varchar" if varying else "char"), charset="utf8mb3")
    if word == "NCHAR":
        varying = bool(c.takes_any("VARCHARACTER", "VARCHAR", "VARYING"))
        return replace(_sized(c, "varchar" if varying else "char"), charset="utf8mb3")
    if word == "NVARCHAR":
        return replace(_sized(c, "varchar"), charset="utf8mb3")
    if word == "LONG":
        if c.takes("VARBINARY"):
            return ColumnType("mediumblob")
        if c.takes_any("CHAR", "CHARACTER"):
            c.expect("VARYING")
        else:
            c.takes_any("VARCHARACTER", "VARCHAR")
        return ColumnType("mediumtext")
    c.i -= 1
    raise c.problem("a type that is not known")


def _sized(c: Cursor, kind: str) -> ColumnType:
    length = _length(c)
    if length is None and kind.startswith("var"):
        raise c.problem(f"{kind.upper()} without a length")
    return ColumnType(kind, 1 if length is None else length)


def _length(c: Cursor) -> int | None:
    if not c.takes("(") or c.takes(")"):
        return None
    number = c.number()
    c.expect(")")
    return number


def _precision(c: Cursor) -> tuple[int | None, int | None]:
    """Parses (M,D), or nothing; a single (M) is not allowed for these types."""
    if not c.takes("("):
        return None, None
    length = c.number()
    c.expect(",")
    scale = c.number()
    c.expect(")")
    return length, scale


def _decimal(c: Cursor) -> ColumnType:
    length, scale = 10, 0
    if c.takes("(") and not c.takes(")"):
        length = c.number() or 10
        if c.takes(","):
            scale = c.number()
        c.expect(")")
    return ColumnType("decimal", length, scale)


def _float(c: Cursor) -> ColumnType:
    if not c.takes("("):
        return ColumnType("float")
    length = c.number()
    if c.takes(","):
        made = ColumnType("float", length, c.number())
    else:
        made = ColumnType("float" if length <= 24 else "double")
    c.expect(")")
    return made


def _labels(c: Cursor) -> tuple[str | bytes, ...]:
    c.expect("(")
    labels = [c.member()]
    while c.takes(","):
        labels.append(c.member())
    c.expect(")")
    if any(isinstance(label, str) and NO_CHARACTER in label for label in labels):
        raise NotParsed("a member of an ENUM or SET is no text in the session's character set")
    return tuple(labels)


def _signs(c: Cursor, made: ColumnType) -> ColumnType:
    while word := c.takes_any("UNSIGNED", "SIGNED", "ZEROFILL"):
        if word != "SIGNED":
            made = replace(made, unsigned=True, zerofill=made.zerofill or word == "ZEROFILL")
    return made


def charset_attributes(c: Cursor, made: ColumnType) -> ColumnType:
    """Parses CHARACTER SET, ASCII, UNICODE, BYTE and BINARY after a type, in any order."""
    while True:
        if c.takes("BINARY"):
            continue  # the set's _bin collation
        if c.takes("ASCII"):
            made = replace(made, charset="latin1")
        elif c.takes("UNICODE"):
            made = replace(made, charset="ucs2")
        elif c.takes("BYTE"):
            made = replace(made, charset="binary")
        elif c.sees("CHARACTER", "SET") or c.sees("CHAR", "SET") or c.sees("CHARSET"):
            made = replace(made, charset=charset_clause(c))
        elif c.takes("COMPRESSED") and c.dialect.mariadb:
            if c.takes("="):
                c.skip_value()
            made = replace(made, compressed=True)
        else:
            return made


def charset_clause(c: Cursor) -> str:
    """Parses CHARACTER SET x or CHARSET x, with or without "="; returns "" for DEFAULT. Raises NotParsed for an unknown
    set."""
    if not c.takes("CHARSET"):
        c.takes_any("CHARACTER", "CHAR")
        c.expect("SET")
    c.takes("=")
    if c.takes("DEFAULT"):
        return ""
    name = charset_named(c.word_or_string())
    if name not in WIDTHS:
        raise NotParsed(f"character set {name} is not known")
    return name


def collate_clause(c: Cursor) -> str:
    """Parses COLLATE x, with or without "=", and returns its character set; "" for DEFAULT and names that fit
    several."""
    c.expect("COLLATE")
    c.takes("=")
    if c.takes("DEFAULT"):
        return ""
    name = c.word_or_string()
    charset = charset_of_collation(name)
    if not charset and not name.lower().startswith("uca1400"):
        raise NotParsed(f"collation {name} is not known")
    return charset


def make_column(column: ColumnDef, charset: str, dialect: Dialect) -> Column:
    """Returns the column as information_schema will show it in a table whose default character set is `charset`, "" if
    unknown. Raises NotParsed if a needed fact is unknown."""
    made, nullable = column.type, column.nullable
    auto_increment = column.auto_increment
    if made.kind == "serial":
        made, nullable, auto_increment = ColumnType("bigint", unsigned=True), False, True
    if nullable is None:
        nullable = made.kind != "timestamp" or dialect.timestamp_is_null
    nullable = nullable and not auto_increment
    charset = _charset(made, charset)
    made = _settle(made, charset, dialect)
    if made.kind not in _STRINGS:
        charset = "binary" if made.kind.endswith(("blob", "binary")) else ""
    if made.kind == "longtext" and column.type.kind == "json":
        charset = "utf8mb4"
    labels = _members(made, charset)
    made = replace(made, labels=labels)
    return Column(
        column.name,
        type_text(made, dialect),
        java_type(made.kind, unsigned=made.unsigned),
        made.unsigned,
        bool(nullable),
        charset,
        labels,
        _column_length(made),
        made.scale or 0 if made.kind == "decimal" else 0,
        column.default,
        column.comment,
        column.generated,
        column.invisible,
        auto_increment,
        column.virtual,
    )


def _charset(made: ColumnType, charset: str) -> str:
    if made.kind not in _STRINGS and made.kind != "blob":
        return ""
    if made.kind == "blob":
        return "binary"
    if made.charset or charset:
        return made.charset or charset
    raise NotParsed("the default character set of its table is not known")


def _settle(made: ColumnType, charset: str, dialect: Dialect) -> ColumnType:
    """Returns the type that the server really makes: binary character sets, texts by length, MariaDB's JSON."""
    if made.kind == "json" and dialect.mariadb:
        return replace(made, kind="longtext")
    if made.kind == "geomcollection" and (dialect.mariadb or dialect.version < 80000):
        return replace(made, kind="geometrycollection")
    if charset == "binary":
        made = replace(made, kind=_BINARY.get(made.kind, made.kind))
    size = (made.length or 0) * WIDTHS[charset or "binary"]
    if made.kind in ("text", "blob") and size:
        return replace(made, kind=by_bytes(made.kind, size), length=None)
    if made.kind in ("varchar", "varbinary") and size > 65535:  # a session that is not strict gets a TEXT
        return replace(made, kind=by_bytes("text" if made.kind == "varchar" else "blob", size), length=None)
    return made


def by_bytes(base: str, size: int) -> str:
    """Returns the smallest kind of "text" or "blob" that can store this many bytes."""
    return next((prefix for prefix, most in TEXT_BYTES.items() if size <= most), "long") + base


def _members(made: ColumnType, charset: str) -> tuple[str, ...]:
    """Returns the members of an ENUM or SET as the server stores them. Raises NotParsed."""
    labels = made.labels
    if charset == "binary":  # the server stores the statement's bytes, and shows them as UTF-8
        codec = CODECS.get(made.client_charset or "utf8mb4", "")
        try:
            return tuple(one.encode(codec).decode() if isinstance(one, str) else one.decode() for one in labels)
        except (LookupError, UnicodeError):
            raise NotParsed("members of an ENUM or SET are bytes that are no UTF-8") from None
    try:
        texts = [one if isinstance(one, str) else codec_of(charset).decode(one) for one in labels]
    except UnicodeDecodeError:
        raise NotParsed(f"members of an ENUM or SET are no text in {charset}") from None
    return _encoded(tuple(text.rstrip(" ") for text in texts), charset)


def _encoded(labels: tuple[str, ...], charset: str) -> tuple[str, ...]:
    """Returns the members, if the column's character set has all of their characters: else the server stores others."""
    if all(label.isascii() for label in labels):
        return labels
    codec, known = CODECS.get(charset), single_byte_characters(charset)
    try:
        if known is not None:
            if not set(known).issuperset("".join(labels)):
                raise NotParsed(f"members of an ENUM or SET have characters that {charset} does not have")
            return labels
        if codec is None:
            raise NotParsed(f"members of an ENUM or SET in character set {charset} are not checked")
        for label in labels:
            label.encode(codec)
        if charset in ("utf8mb3", "ucs2") and any(char > "\uffff" for label in labels for char in label):
            raise NotParsed(f"members of an ENUM or SET have characters that {charset} does not have")
    except UnicodeEncodeError:
        raise NotParsed(f"members of an ENUM or SET have characters that {charset} does not have") from None
    return labels


def _column_length(made: ColumnType) -> int:
    counts = made.kind.upper() in _SIZED or made.kind in ("char", "varchar", "binary", "varbinary", "decimal")
    return made.length or 0 if counts else 0


def type_text(made: ColumnType, dialect: Dialect) -> str:
    """Returns the type as information_schema.COLUMNS prints it in COLUMN_TYPE."""
    kind, length = made.kind, made.length
    text = kind
    if kind in _WIDTHS:
        text += _int_width(made, dialect)
    elif kind in ("decimal", "float", "double"):
        text += f"({length},{made.scale})" if length is not None else ""
    elif kind in ("char", "varchar", "binary", "varbinary", "bit", "vector"):
        text += f"({length})"
    elif kind in ("time", "timestamp", "datetime"):
        text += f"({length})" if length else ""
    elif kind == "year":
        text += f"({length})" if dialect.shows_widths else ""
    elif kind in ("enum", "set"):
        text += "(" + ",".join(f"'{quoted(str(label))}'" for label in made.labels) + ")"
    if made.unsigned:
        text += " unsigned"
    if made.zerofill:
        text += " zerofill"
    return text + (" /*M!100301 COMPRESSED*/" if made.compressed else "")


def _int_width(made: ColumnType, dialect: Dialect) -> str:
    if dialect.shows_widths:
        return f"({made.length if made.length is not None else _WIDTHS[made.kind][made.unsigned]})"
    if made.zerofill:
        return f"({made.length or _WIDTHS[made.kind][1]})"
    return "(1)" if made.kind == "tinyint" and made.length == 1 and not made.unsigned else ""


def quoted(label: str) -> str:
    """Returns a member as in COLUMN_TYPE, between its quotes."""
    for plain, escaped in (("\\", "\\\\"), ("\0", "\\0"), ("\n", "\\n"), ("\r", "\\r"), ("'", "''")):
        label = label.replace(plain, escaped)
    return label


def parse_type(text: str, dialect: Dialect) -> ColumnType:
    """Parses information_schema's COLUMN_TYPE. Raises NotParsed."""
    return _parsed(text, Dialect(dialect.mariadb, dialect.version))


@lru_cache(maxsize=_TYPES)
def _parsed(text: str, dialect: Dialect) -> ColumnType:
    c = Cursor(tokenize(text, dialect), dialect, "")
    made = data_type(c)
    if not c.done:
        raise c.problem("a type that is not known")
    return made
