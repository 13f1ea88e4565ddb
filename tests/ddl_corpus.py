"""DDL statements as data: each case runs in schemas of its own on the servers that it is for."""

# ruff: noqa: E501 - a statement is a line

from __future__ import annotations

from dataclasses import dataclass

BOTH, MYSQL, MARIADB = ("mysql", "mariadb"), ("mysql",), ("mariadb",)


@dataclass(frozen=True)
class Case:
    """`statements` run in order in a session whose default schema is {db}; {other} is a second schema. `mode` is the
    session's sql_mode, "" the server's default, `names` its character set. `unknown` lists tables that may be unknown
    at the end."""

    name: str
    statements: tuple[str, ...]
    servers: tuple[str, ...] = BOTH
    mode: str = ""
    names: str = "utf8mb4"
    unknown: tuple[str, ...] = ()
    since: int = 0
    """The version that has these statements."""


def case(name: str, *statements: str, servers: tuple[str, ...] = BOTH, **more: object) -> Case:
    return Case(name, statements, servers, **more)  # type: ignore[arg-type]


T = "CREATE TABLE t (id int NOT NULL PRIMARY KEY, a int NOT NULL DEFAULT 0, b int NOT NULL DEFAULT 0, c varchar(20))"

CASES = (
    case(
        "integers of every name and width",
        "CREATE TABLE t (a tinyint, b smallint unsigned, c mediumint(5), d int(10) zerofill, e bigint unsigned, f integer,"
        " g int1, h int2, i int3, j int4, k int8, l middleint, m bool, n boolean, o tinyint(1) unsigned,"
        " p tinyint zerofill, q serial, r smallint(3) unsigned zerofill, s int signed)",
    ),
    case(
        "decimals and floats by their synonyms",
        "CREATE TABLE t (a decimal, b decimal(5), c dec(6,2), d numeric(65,30) unsigned, e fixed(4,4), f float, g float(10),"
        " h float(25), i float(7,3), j double, k double precision, l double(10,2) unsigned, m real, n float4, o float8,"
        " p decimal(10,0) zerofill)",
    ),
    case("REAL as FLOAT", "CREATE TABLE t (id int, a real, b real(5,2))", mode="REAL_AS_FLOAT"),
    case(
        "texts by their synonyms",
        "CREATE TABLE t (a char, b char(5), c character(6), d varchar(7), e character varying(8), f char varying(9),"
        " g national char(3), h nchar(4), i national varchar(5), j nvarchar(6), k nchar varchar(7), l nchar varying(8),"
        " m national character varying(9), n long, o long varchar, p varcharacter(11), q tinytext, r text, s mediumtext,"
        " t longtext)",
    ),
    case(
        "binary strings",
        "CREATE TABLE t (a binary, b binary(5), c varbinary(300), d tinyblob, e blob, f mediumblob, g longblob, h long varbinary,"
        " i char(5) byte, j text byte, k varchar(9) character set binary, l text charset binary,"
        " m enum('a','b') character set binary, n blob(100), o blob(70000))",
    ),
    case(
        "texts sized by their length",
        "CREATE TABLE t (a text(10), b text(63), c text(64), d text(100) charset latin1, e text(20000), f text(16000),"
        " g text(5000000), h text(255) charset ascii) CHARSET utf8mb4",
    ),
    case(
        "character sets of columns",
        "CREATE TABLE t (a char(5) ascii, b char(5) unicode, c varchar(5) charset gbk, d varchar(5) collate latin2_bin,"
        " e text character set utf8 collate utf8_bin, f varchar(5) binary, g char(5) charset utf8mb4 binary,"
        " h enum('x') charset latin1, i varchar(9) collate utf8mb4_bin not null default 'é', j set('ä','ö') charset latin1)"
        " DEFAULT CHARSET = utf8mb3",
    ),
    case(
        "dates and times",
        "CREATE TABLE t (a date, b time, c time(3), d datetime, e datetime(6), f timestamp null, g timestamp(2) not null default"
        " current_timestamp(2) on update current_timestamp(2), h year, i year(4), j datetime default now(), k timestamp)",
    ),
    case("bits, sets and enums", r"CREATE TABLE t (a bit, b bit(64), c enum('x''y','a\\b','a,b',')','trail  '), d set('p','q','r'),"
         r" e enum('n\nl','(\'','ünï') charset utf8mb4, f enum('日本','中国') charset utf8mb4 not null default '日本')"),
    case(
        "an enum of 300 members and a set of 40",
        "CREATE TABLE t (e enum(" + ",".join(f"'m{i}'" for i in range(300)) + "), s set("
        + ",".join(f"'s{i}'" for i in range(40)) + "))",
    ),
    case(
        "geometries and JSON",
        "CREATE TABLE t (a geometry, b point not null, c linestring, d polygon, e multipoint, f multilinestring,"
        " g multipolygon, h geometrycollection, i json, j json not null, spatial index (b))",
    ),
    case("vectors and SRID", "CREATE TABLE t (a vector, b vector(5), c point srid 4326 not null)", servers=MYSQL),
    case(
        "MariaDB's own types",
        "CREATE TABLE t (a uuid, b inet4, c inet6 not null, d varchar(100) compressed, e text compressed=zlib, f blob compressed,"
        " g varbinary(50) compressed, h year(2), i point ref_system_id=4326) ENGINE=InnoDB",
        servers=MARIADB,
    ),
    case(
        "attributes in every order",
        "CREATE TABLE t (id int unsigned auto_increment key comment 'the ''key''', a int not null default 5 comment 'x',"
        " b varchar(5) default 'a''b' null unique, c int null default null, d bigint default -7 check (d < 5),"
        " e varchar(9) character set latin1 not null collate latin1_bin default \"q\", f decimal(5,2) default +1.50,"
        " g char(2) default 'x' not null, h bit(3) default b'101', i varbinary(3) default x'4142')",
    ),
    case(
        "defaults that are expressions",
        "CREATE TABLE t (a varchar(40) default (concat('x', 'y,)')), b int default (1 + (2 * 3)), c datetime default (now()),"
        " d json default (json_array()), e date default (curdate()))",
    ),
    case(
        "MariaDB's defaults without parentheses",
        "CREATE TABLE t (a varchar(40) default uuid(), b double default rand(), c date default curdate(), d int default -5,"
        " e varchar(9) default concat('a', 'b') not null)",
        servers=MARIADB,
    ),
    case(
        "generated and invisible columns",
        "CREATE TABLE t (a int, b int as (a + 1), c int generated always as (a * 2) stored, d varchar(9) as (concat('(', a)) virtual,"
        " e int invisible)",
        "ALTER TABLE t ADD f int GENERATED ALWAYS AS (a) VIRTUAL, MODIFY e bigint INVISIBLE",
    ),
    case("visibility altered", "CREATE TABLE t (a int, b int invisible)", "ALTER TABLE t ALTER COLUMN b SET VISIBLE",
         "ALTER TABLE t ALTER a SET INVISIBLE", "ALTER TABLE t ALTER COLUMN a SET DEFAULT 5, ALTER b DROP DEFAULT", servers=MYSQL),
    case(
        "keys of every kind",
        "CREATE TABLE p (id int, x int, PRIMARY KEY (id))",
        "CREATE TABLE t (a int, b varchar(30), c text, d point not null, p int, CONSTRAINT pk PRIMARY KEY USING BTREE (b(10), a DESC),"
        " UNIQUE KEY u (a), UNIQUE INDEX (b), KEY k USING BTREE (a, b), FULLTEXT KEY ft (c), SPATIAL INDEX sp (d),"
        " CONSTRAINT fk FOREIGN KEY (p) REFERENCES p (id) ON DELETE SET NULL ON UPDATE NO ACTION, CHECK (a > 0),"
        " CONSTRAINT ck CHECK (a < 100), INDEX (p) COMMENT 'it''s') ENGINE=InnoDB",
    ),
    case(
        "a unique key that stands in for a primary key",
        "CREATE TABLE t (n int DEFAULT 7 UNIQUE, a int NOT NULL, b int NOT NULL, c varchar(20) NOT NULL, UNIQUE KEY z (b, a), UNIQUE (a))",
        "ALTER TABLE t DROP INDEX z", "ALTER TABLE t ADD UNIQUE (c(5))", "ALTER TABLE t MODIFY n int NOT NULL", "ALTER TABLE t DROP KEY a",
        "ALTER TABLE t MODIFY c varchar(5) NOT NULL", "ALTER TABLE t DROP INDEX n", "CREATE UNIQUE INDEX u ON t (b, n)",
        "ALTER TABLE t DROP INDEX c", "ALTER TABLE t RENAME COLUMN b TO x", "TRUNCATE TABLE t", "ALTER TABLE t ADD UNIQUE w (a, x)",
        "ALTER TABLE t ADD PRIMARY KEY (c)", "ALTER TABLE t DROP PRIMARY KEY", "DROP INDEX u ON t", "ALTER TABLE t RENAME INDEX w TO v", "ALTER TABLE t DROP INDEX v",
        "CREATE TABLE u LIKE t", "ALTER TABLE u ADD id int NOT NULL UNIQUE FIRST", "ALTER TABLE u ADD CONSTRAINT k UNIQUE (x), ADD CONSTRAINT l UNIQUE m (a)",
        "ALTER TABLE u DROP INDEX id", "ALTER TABLE u MODIFY x int NULL DEFAULT 3", "ALTER TABLE u DROP INDEX m", "ALTER TABLE u MODIFY x bigint NOT NULL",
        "CREATE TABLE v (a int NOT NULL, b int NOT NULL, KEY (a, b), UNIQUE (a), UNIQUE (a, b))", "ALTER TABLE v DROP INDEX a", "ALTER TABLE v DROP INDEX a_2",
        "CREATE TABLE w (a serial, b text NOT NULL, UNIQUE (b(20)))", "ALTER TABLE w ADD x int NOT NULL UNIQUE KEY AFTER a, DROP INDEX a, MODIFY a int",
    ),
    case("a unique key on all of a tiny text or blob", "CREATE TABLE t (b tinyblob NOT NULL, c tinytext CHARACTER SET latin1 NOT NULL, d tinytext CHARACTER SET utf8mb4 NOT NULL, UNIQUE (d(63)), UNIQUE (c(255)), UNIQUE (b(255)))",
         "ALTER TABLE t DROP INDEX c", "ALTER TABLE t DROP INDEX b", since=50700),  # MySQL 5.6 crashes
    case("a unique key that is dropped and made again", "CREATE TABLE t (id int NOT NULL, b int NOT NULL, UNIQUE x (id), UNIQUE y (b))", "ALTER TABLE t DROP INDEX x, ADD UNIQUE x (id)",
         "ALTER TABLE t DROP INDEX x, DROP INDEX y, ADD UNIQUE y (b), ADD UNIQUE x (id)", "ALTER TABLE t DROP INDEX x, ADD UNIQUE x (id), ADD c int"),
    case("a unique key of a table with system versioning", "CREATE TABLE t (a int NOT NULL UNIQUE, b int NOT NULL) WITH SYSTEM VERSIONING", "ALTER TABLE t DROP SYSTEM VERSIONING",
         "CREATE TABLE u (a int NOT NULL, UNIQUE (a))", "ALTER TABLE u ADD SYSTEM VERSIONING", servers=MARIADB),
    case("a unique key on an expression", "CREATE TABLE t (a int NOT NULL, b int NOT NULL, UNIQUE ((a + b)), UNIQUE (b))", "ALTER TABLE t DROP INDEX functional_index",
         "CREATE TABLE u (a int NOT NULL, b int AS (a + 1) VIRTUAL NOT NULL, c int AS (a + 2) STORED NOT NULL, UNIQUE (b), UNIQUE (c))", "ALTER TABLE u DROP INDEX b", "ALTER TABLE u DROP INDEX c", "TRUNCATE TABLE u", "ALTER TABLE u ADD UNIQUE (b)",
         "CREATE TABLE v (a int NOT NULL, b int NOT NULL DEFAULT 1, UNIQUE (b, a))", "ALTER TABLE v DROP b", servers=MYSQL),
    case("a unique key that MariaDB replaces, or keeps out", "CREATE TABLE t (a int NOT NULL, b int NOT NULL, UNIQUE k (a))", "CREATE OR REPLACE UNIQUE INDEX k ON t (b)",
         "ALTER TABLE t ADD UNIQUE INDEX IF NOT EXISTS k (a, b)", "CREATE UNIQUE INDEX IF NOT EXISTS k ON t (a)", "ALTER TABLE t DROP INDEX IF EXISTS nothing, DROP INDEX IF EXISTS k",
         "CREATE TABLE u (a int NOT NULL, b text NOT NULL, UNIQUE (b(9)), UNIQUE (a))", "CREATE TABLE v (a int NOT NULL, b int AS (a + 1) VIRTUAL, c int AS (a + 2) STORED, UNIQUE (b), UNIQUE (c))", servers=MARIADB),
    case("unique keys that MariaDB leaves in their order", "CREATE TABLE t (n int DEFAULT 7, c varchar(20) NOT NULL, d int NOT NULL, UNIQUE (c(5)), UNIQUE (n))", "ALTER TABLE t MODIFY n int NOT NULL",
         "CREATE TABLE u LIKE t", "ALTER TABLE t ADD x int", "ALTER TABLE t ADD INDEX (d)", "ALTER TABLE t DROP INDEX d", "ALTER TABLE t MODIFY n int NULL DEFAULT 7", "ALTER TABLE t ADD PRIMARY KEY (d)", "ALTER TABLE t DROP PRIMARY KEY", servers=MARIADB),
    case("a functional index", "CREATE TABLE t (id int primary key, a int, b varchar(9), index f ((a + b)), index g ((lower(b)), a desc))",
         "ALTER TABLE t ADD INDEX h ((abs(a)))", "ALTER TABLE t DROP INDEX f, ADD c int", "CREATE INDEX i ON t ((upper(b)))", servers=MYSQL),
    case("columns added", T, "ALTER TABLE t ADD d int", "ALTER TABLE t ADD COLUMN e varchar(10) NOT NULL DEFAULT 'x' AFTER a",
         "ALTER TABLE t ADD f bigint FIRST", "ALTER TABLE t ADD COLUMN (g int, h text, KEY (g)), ADD i date"),
    case("columns dropped", T, "ALTER TABLE t DROP a", "ALTER TABLE t DROP COLUMN b, DROP COLUMN c"),
    case("columns modified", T, "ALTER TABLE t MODIFY a bigint unsigned NOT NULL", "ALTER TABLE t MODIFY COLUMN c varchar(300) FIRST",
         "ALTER TABLE t MODIFY b int AFTER c"),
    case("columns changed", T, "ALTER TABLE t CHANGE a aa int unsigned", "ALTER TABLE t CHANGE COLUMN b a bigint FIRST, CHANGE aa b int AFTER c"),
    case("columns renamed", T, "ALTER TABLE t RENAME COLUMN a TO x", "ALTER TABLE t RENAME COLUMN x TO b, RENAME COLUMN b TO x"),
    case("two columns of one type swapped", T, "ALTER TABLE t RENAME COLUMN a TO b, RENAME COLUMN b TO a",
         "ALTER TABLE t CHANGE a b int, CHANGE b a int"),
    case("several in one ALTER", T,
         "ALTER TABLE t DROP COLUMN b, ADD COLUMN b varchar(5) FIRST, MODIFY c text AFTER id, ADD d int AFTER c, CHANGE a e int unsigned,"
         " ADD INDEX (d), ENGINE = InnoDB, COMMENT 'x', ALGORITHM = COPY, LOCK = SHARED"),
    case("moves that hang on each other", T, "ALTER TABLE t ADD x int AFTER a, ADD y int AFTER x, ADD z int AFTER a, MODIFY id int FIRST, MODIFY c varchar(20) AFTER y"),
    case("a primary key changed", T, "ALTER TABLE t DROP PRIMARY KEY, ADD PRIMARY KEY (b, a)", "ALTER TABLE t DROP PRIMARY KEY",
         "ALTER TABLE t ADD COLUMN k int auto_increment PRIMARY KEY FIRST", "ALTER TABLE t CHANGE k kk bigint auto_increment"),
    case("a column of the primary key dropped", "CREATE TABLE t (a int, b int, c int, primary key (c, a))", "ALTER TABLE t RENAME COLUMN c TO d",
         "ALTER TABLE t DROP COLUMN d", "ALTER TABLE t MODIFY a int PRIMARY KEY, DROP PRIMARY KEY", servers=MYSQL),
    case("the primary key dropped as an index", T, "DROP INDEX `PRIMARY` ON t", "CREATE INDEX u ON t (a)"),
    case("a unique key is no primary key", "CREATE TABLE t (a int not null, b int, unique key (a))", "ALTER TABLE t ADD UNIQUE (b)"),
    case("MySQL drops constraints by name", T, "ALTER TABLE t ADD CONSTRAINT q UNIQUE (a), ADD CONSTRAINT w CHECK (b >= 0) NOT ENFORCED",
         "ALTER TABLE t DROP CONSTRAINT q, ALTER CHECK w ENFORCED", "ALTER TABLE t DROP CHECK w, DROP CONSTRAINT `PRIMARY`", servers=MYSQL),
    case("indexes only", T, "ALTER TABLE t ADD INDEX i (a), ADD UNIQUE KEY u (b), ADD FULLTEXT (c)", "ALTER TABLE t RENAME INDEX i TO j, DROP KEY u",
         "CREATE INDEX k ON t (a, b DESC) USING BTREE COMMENT 'x'", "DROP INDEX k ON t"),
    case("foreign keys", "CREATE TABLE p (id int primary key)", "CREATE TABLE t (id int primary key, p int, a int references p (id))",
         "ALTER TABLE t ADD CONSTRAINT f FOREIGN KEY fk (p) REFERENCES p (id) ON DELETE CASCADE, ADD b int", "ALTER TABLE t DROP FOREIGN KEY f"),
    case("IF EXISTS and IF NOT EXISTS in ALTER", T, "ALTER TABLE t ADD COLUMN IF NOT EXISTS a bigint", "ALTER TABLE t ADD COLUMN IF NOT EXISTS z bigint",
         "ALTER TABLE t DROP COLUMN IF EXISTS nope", "ALTER TABLE t MODIFY COLUMN IF EXISTS nope int, MODIFY IF EXISTS a bigint",
         "ALTER TABLE t CHANGE COLUMN IF EXISTS nope x int", "ALTER TABLE IF EXISTS nope ADD a int", "ALTER TABLE t RENAME COLUMN IF EXISTS nope TO n",
         "ALTER TABLE t ADD INDEX IF NOT EXISTS i (a), DROP INDEX IF EXISTS nope", "DROP INDEX IF EXISTS nope ON t", servers=MARIADB),
    case("a table renamed", T, "RENAME TABLE t TO u", "ALTER TABLE u RENAME TO v", "ALTER TABLE v RENAME AS w, ADD x int", "ALTER TABLE w RENAME t"),
    case("tables swapped by RENAME", T, "CREATE TABLE u (id int, z text)", "RENAME TABLE t TO tmp, u TO t, tmp TO u"),
    case("a table renamed into another schema", T, "RENAME TABLE {db}.t TO {other}.t2", "ALTER TABLE {other}.t2 RENAME TO {db}.t3, ADD q int FIRST"),
    case("CREATE LIKE", T, "CREATE TABLE l LIKE t", "CREATE TABLE IF NOT EXISTS l2 (LIKE t)", "CREATE TABLE {other}.l3 LIKE {db}.l", "ALTER TABLE l ADD x int",
         "CREATE TABLE IF NOT EXISTS l LIKE l2"),
    case("CREATE SELECT", T, "CREATE TABLE s AS SELECT * FROM t", "CREATE TABLE s2 (x int, PRIMARY KEY (id)) CHARSET latin1 SELECT id, c, 'abc' AS d, now() AS e FROM t",
         "CREATE TABLE IF NOT EXISTS s3 SELECT 1.5 AS a, 'é' AS b, NULL AS c, 2e0 AS d"),
    case("CREATE SELECT of an enum beyond three bytes", "CREATE TABLE t (e enum('😀','a') charset utf8mb4)", "CREATE TABLE s SELECT * FROM t", unknown=("s",)),
    case("dropped and made again", T, "DROP TABLE t", "CREATE TABLE t (c int, id varchar(5), PRIMARY KEY (id, c))", "DROP TABLE IF EXISTS t, nope", "CREATE TABLE IF NOT EXISTS t (x int)",
         "CREATE TABLE IF NOT EXISTS t (y int)"),
    case("OR REPLACE", T, "CREATE OR REPLACE TABLE t (x int, y text)", "CREATE OR REPLACE TABLE u (id int) AS SELECT 1 AS b", "CREATE OR REPLACE TABLE t LIKE u", servers=MARIADB),
    case("several dropped at once", T, "CREATE TABLE u (a int)", "CREATE TABLE {other}.v (a int)", "DROP TABLES t, {other}.v RESTRICT"),
    case("a DROP that failed in part", T, "!DROP TABLE t, nope", "CREATE TABLE IF NOT EXISTS t (b varchar(3))", servers=MARIADB),
    case("TRUNCATE", T, "TRUNCATE TABLE t", "TRUNCATE t"),
    case("the schema's character set", "ALTER DATABASE {db} CHARACTER SET latin1", "CREATE TABLE t (a varchar(10), b text, e enum('x'))", "ALTER SCHEMA {db} DEFAULT COLLATE utf8mb3_bin",
         "ALTER TABLE t ADD c varchar(10)", "CREATE TABLE u (a varchar(10))", "ALTER DATABASE CHARACTER SET gbk", "CREATE TABLE v (a varchar(10), b char(3) charset utf8mb4)",
         "ALTER TABLE v CONVERT TO CHARACTER SET DEFAULT"),
    case("the table's character set", "CREATE TABLE t (a varchar(10), b text) CHARSET latin1", "ALTER TABLE t DEFAULT CHARACTER SET utf8mb4, ADD c varchar(5)",
         "ALTER TABLE t COLLATE gbk_chinese_ci", "ALTER TABLE t ADD d char(3), MODIFY a varchar(10)", "ALTER TABLE t ADD e text, CHARSET = latin2, ADD f text charset ascii"),
    case("converted to another character set",
         "CREATE TABLE t (a tinytext, b text, c mediumtext, d longtext, e varchar(100), f char(10), g enum('x','y'), h blob, i text(10), j varchar(5) charset binary, k int) CHARSET latin1",
         "ALTER TABLE t CONVERT TO CHARACTER SET utf8mb4", "ALTER TABLE t CONVERT TO CHARSET latin1 COLLATE latin1_bin", "ALTER TABLE t CONVERT TO CHARACTER SET utf8mb3, ADD l text, ADD m varchar(5) charset latin1"),
    case("partitions", "CREATE TABLE t (id int, d int, PRIMARY KEY (id, d)) PARTITION BY RANGE (d) (PARTITION p0 VALUES LESS THAN (2000), PARTITION p1 VALUES LESS THAN MAXVALUE)",
         "ALTER TABLE t REORGANIZE PARTITION p1 INTO (PARTITION p1 VALUES LESS THAN (2010), PARTITION p2 VALUES LESS THAN MAXVALUE)", "ALTER TABLE t DROP PARTITION p0",
         "ALTER TABLE t TRUNCATE PARTITION p1", "ALTER TABLE t REMOVE PARTITIONING", "ALTER TABLE t ADD x int PARTITION BY HASH (id) PARTITIONS 3", "ALTER TABLE t COALESCE PARTITION 1",
         "ALTER TABLE t ADD PARTITION PARTITIONS 2", "ALTER TABLE t REBUILD PARTITION ALL"),
    case("a partition exchanged", "CREATE TABLE t (id int, a int) PARTITION BY HASH (id) PARTITIONS 2", "CREATE TABLE u (id int, a int)",
         "ALTER TABLE t EXCHANGE PARTITION p0 WITH TABLE u"),
    case("comments everywhere", "/* a */ CREATE /* b */ TABLE -- c\n t # d\n (id int /* e, f int */, a int -- ) x\n, b varchar(9) DEFAULT '/* no */' COMMENT '-- no # no') /* z */",
         "ALTER TABLE t /*! ADD x int, */ ADD /*!50000 COLUMN */ y int /*!99999 , ADD z int */", "ALTER TABLE/**/t/**/ADD/**/q/**/int"),
    case("executable comments for one server", "CREATE TABLE t (id int /*M! , m int */ /*!80016 , v8 int */ /*M!100300 , m3 int */ /*!50600 , old int */ /*!100100 , ten int */)"),
    case("quoted and multi-byte names", "CREATE TABLE `t x` (`id` int, `a,b` int, `名前` varchar(9), `select` int, `p``q` int, PRIMARY KEY (`a,b`))",
         "ALTER TABLE `t x` CHANGE `名前` `naïve` text, ADD `(` int AFTER `p``q`",
        "RENAME TABLE `t x` TO `表`", "CREATE TABLE 表二 (数 int, $d int, 1a int, _b int)",
         "RENAME TABLE `表` TO `a.b`", "ALTER TABLE {db}.`a.b` ADD `b` int"),
    case("backticks in a table's name", "CREATE TABLE `t ``x` (a int)", "ALTER TABLE `t ``x` RENAME TO `y``z`, ADD `b``` int", servers=MYSQL),
    case("names that are keywords", "CREATE TABLE t (`key` int, comment varchar(5) comment 'x', date date, time time, status int, type int, value int, first int, after int, engine int, data int, text text, enum enum('a'), bit bit, year year)",
         "ALTER TABLE t ADD position int AFTER after, ADD `index` int AFTER first, MODIFY first bigint FIRST", "ALTER TABLE t ADD no int, ADD visible int, DROP type, CHANGE value action int"),
    case("ANSI quotes", 'CREATE TABLE "t" ("id" int, "a b" varchar(5) DEFAULT \'x\', "c""d" int)', 'ALTER TABLE "t" ADD "e" int AFTER "a b", COMMENT = \'q"q\'', 'ALTER TABLE "t" RENAME COLUMN "e" TO "id2"', mode="ANSI_QUOTES"),
    case("several statements by a session in ANSI quotes", 'CREATE TABLE "t" ("id" int); ALTER TABLE "t" ADD "b" text; ALTER TABLE "t" RENAME COLUMN "b" TO "c"', mode="ANSI"),
    case("no backslash escapes", r"CREATE TABLE t (a int comment 'x\', b varchar(9) default '\', c enum('a\','b'))", mode="NO_BACKSLASH_ESCAPES"),
    case("escapes in strings", r"""CREATE TABLE t (a int comment 'it\'s \\ "q" \n', b varchar(20) default "d\"q''", c enum('x\'y', "p'q") comment '\0\Z')"""),
    case("an AUTO_INCREMENT that may be NULL, they say", "CREATE TABLE t (f int AUTO_INCREMENT NULL, KEY (f))", "ALTER TABLE t ADD b int", servers=MARIADB),
    case("hidden hashes of what is unique and long", "CREATE TABLE t (id int PRIMARY KEY, a text, UNIQUE (a))", "ALTER TABLE t ADD b blob UNIQUE", "ALTER TABLE t DROP INDEX a", "CREATE TABLE u (id int PRIMARY KEY, a varchar(4000) UNIQUE)", servers=MARIADB),
    case("keys over a period", "CREATE TABLE t (id int, s date, e date, PERIOD FOR p (s, e), PRIMARY KEY (id, p WITHOUT OVERLAPS))", "CREATE TABLE u (id int NOT NULL, s date, e date, PERIOD FOR p (s, e), UNIQUE (id, p WITHOUT OVERLAPS))", "ALTER TABLE t DROP PRIMARY KEY", "ALTER TABLE t ADD b int", servers=MARIADB),
    case("lengths of addresses", "CREATE TABLE t (a INET6(6), b INET4(4), c UUID(3))", servers=MARIADB),
    case("Oracle mode", "CREATE TABLE t (c0 VARCHAR2(10), c1 NUMBER(5), c2 NUMBER(5,2), c3 NUMBER, c4 CLOB, c5 RAW(20), c6 DATE, c7 BLOB, c8 DATE DEFAULT NULL, c9 INT, c11 BLOB(10), c12 CHAR(3), c13 FLOAT)", "ALTER TABLE t ADD k varchar2(5), ADD l number", servers=MARIADB, mode="ORACLE"),
    *(case(f"{mode} mode", "CREATE TABLE t (a int, d date, b blob, t timestamp NULL, v varchar(5), f float, r real, n numeric(5), x text(100), y year, z bool)", servers=MARIADB, mode=mode) for mode in ("POSTGRESQL", "DB2", "MSSQL")),
    case("members as hexadecimal and bit literals", "CREATE TABLE t (a enum(0x9353,0x9373) CHARACTER SET sjis, b enum(0x61,x'62') CHARACTER SET latin1, c enum(b'01100001'), d enum(0xe9) CHARACTER SET latin1)", "ALTER TABLE t ADD e set(x'82A0') CHARACTER SET sjis"),
    case("members in character sets of one byte", "CREATE TABLE t (a enum('å','ö') CHARACTER SET swe7, b set('é') CHARACTER SET dec8, c enum('é') CHARACTER SET hp8, d set('ა') CHARACTER SET geostd8, e enum('ա') CHARACTER SET armscii8, f set('č') CHARACTER SET keybcs2, g enum('ž') CHARACTER SET macce, h enum('é') CHARACTER SET macroman)"),
    case("members in binary", "CREATE TABLE t (id int, e enum('é','ü') CHARACTER SET binary)", "SET NAMES latin1", "CREATE TABLE u (id int, e enum('é','ü') CHARACTER SET binary)"),
    case("a definer without a name", "CREATE TABLE t (id int)", "CREATE DEFINER=``@`localhost` PROCEDURE p() SELECT 1", "CREATE DEFINER=''@localhost VIEW v AS SELECT 1", "CREATE DEFINER=``@localhost TRIGGER g BEFORE INSERT ON t FOR EACH ROW SET @x=1", "DROP TRIGGER g", "CREATE DEFINER=``@localhost EVENT e ON SCHEDULE EVERY 1 DAY DO SELECT 1", "CREATE DEFINER=``@localhost FUNCTION f() RETURNS INT DETERMINISTIC RETURN 1"),
    case("members with spaces at their ends", "CREATE TABLE t (a enum('a','a ') character set binary, b set('x ','x') character set binary, c enum('a ','b  '), d set('x ','y'))", "INSERT INTO t VALUES ('a ', 'x ', 'a', 'x')"),
    case("UTF-8 over a latin1 session, as old PHP sends it", "SET NAMES latin1", "CREATE TABLE `tÁ` (id int PRIMARY KEY, `号` int, e enum('Á','x') comment '号')", "ALTER TABLE `tÁ` ADD `Ð` int AFTER `号`"),
    case("spaces that are none in UTF-8", "CREATE TABLE a\u00a0b (id\u3000 int PRIMARY KEY, \u0085 int)", "ALTER TABLE a\u00a0b ADD \u2028 int"),
    case("spaces of a latin1 session", "CREATE\u00a0TABLE\u00a0n\u00a0(id\u00a0int\u00a0PRIMARY\u00a0KEY)", names="latin1"),
    case("statements in another character set", "CREATE TABLE `表名` (`列` int, e enum('是','否') charset gbk, v varchar(5) charset gbk comment '注释')", "ALTER TABLE `表名` ADD `许功盖` int AFTER `列`", names="gbk"),
    case("a session without a default schema", "CREATE TABLE {other}.t (id int)", "ALTER TABLE {other} . t ADD a int", "CREATE INDEX i ON {other}.t (a)"),
    case("a sound table option for every option", "CREATE TABLE t (id int) ENGINE InnoDB AUTO_INCREMENT=5 AVG_ROW_LENGTH 10, CHECKSUM=0 COMMENT='a,b' MAX_ROWS=5 MIN_ROWS 1 ROW_FORMAT=DYNAMIC STATS_PERSISTENT=DEFAULT KEY_BLOCK_SIZE=0 DEFAULT CHARSET=latin1 COLLATE latin1_bin PACK_KEYS=0",
         "ALTER TABLE t ROW_FORMAT=COMPACT, AUTO_INCREMENT 7", "ALTER TABLE t ENGINE=InnoDB, ADD a varchar(5)", "ALTER TABLE t FORCE", "ALTER TABLE t ORDER BY id", "ALTER TABLE t DISABLE KEYS"),
    case("gh-ost", T, "CREATE /* gh-ost */ TABLE `{db}`.`_t_ghc` (id bigint unsigned auto_increment, last_update timestamp not null DEFAULT CURRENT_TIMESTAMP ON UPDATE CURRENT_TIMESTAMP, hint varchar(64) charset ascii not null, value varchar(4096) charset ascii not null, primary key(id), unique key hint_uidx(hint)) auto_increment=256",
         "CREATE /* gh-ost */ TABLE `{db}`.`_t_gho` LIKE `{db}`.`t`", "ALTER /* gh-ost */ TABLE `{db}`.`_t_gho` ADD COLUMN d int AFTER a, DROP b",
         "CREATE /* gh-ost */ TABLE `{db}`.`_t_del` (id int auto_increment primary key) engine=InnoDB comment='ghost-cut-over-sentry'", "DROP /* gh-ost */ TABLE IF EXISTS `{db}`.`_t_del`",
         "RENAME /* gh-ost */ TABLE `{db}`.`t` TO `{db}`.`_t_del`, `{db}`.`_t_gho` TO `{db}`.`t`", "DROP /* gh-ost */ TABLE IF EXISTS `{db}`.`_t_ghc`", "DROP /* gh-ost */ TABLE IF EXISTS `{db}`.`_t_del`"),
    case("pt-online-schema-change", T, "CREATE TABLE `{db}`.`_t_new` (\n  `id` int NOT NULL,\n  `a` int DEFAULT NULL,\n  `b` int DEFAULT NULL,\n  `c` varchar(20) DEFAULT NULL,\n  PRIMARY KEY (`id`)\n) ENGINE=InnoDB",
         "ALTER TABLE `{db}`.`_t_new` DROP COLUMN a, ADD COLUMN z text", "CREATE TRIGGER `pt_osc_t_del` AFTER DELETE ON `{db}`.`t` FOR EACH ROW DELETE IGNORE FROM `{db}`.`_t_new` WHERE `{db}`.`_t_new`.`id` <=> OLD.`id`",
         "ANALYZE TABLE `{db}`.`_t_new` /* pt-online-schema-change */", "RENAME TABLE `{db}`.`t` TO `{db}`.`_t_old`, `{db}`.`_t_new` TO `{db}`.`t`", "DROP TABLE IF EXISTS `{db}`.`_t_old`", "DROP TRIGGER IF EXISTS `{db}`.`pt_osc_t_del`"),
    case("what changes no layout", T, "CREATE VIEW v AS SELECT * FROM t", "CREATE OR REPLACE ALGORITHM=MERGE DEFINER=`root`@`%` SQL SECURITY INVOKER VIEW v AS SELECT id FROM t", "ALTER VIEW v AS SELECT a FROM t", "DROP VIEW v",
         "CREATE PROCEDURE p() BEGIN DROP TABLE IF EXISTS t; ALTER TABLE t ADD zz int; END", "DROP PROCEDURE p", "CREATE FUNCTION f(x int) RETURNS int DETERMINISTIC RETURN x", "DROP FUNCTION f",
         "CREATE TRIGGER g BEFORE INSERT ON t FOR EACH ROW SET @x = 1", "DROP TRIGGER g", "CREATE EVENT e ON SCHEDULE EVERY 1 DAY DO DROP TABLE nope", "DROP EVENT e", "CREATE USER u1@localhost", "GRANT ALL ON {db}.* TO u1@localhost",
         "DROP USER u1@localhost", "FLUSH TABLES", "ANALYZE TABLE t", "OPTIMIZE TABLE t"),
    case("temporary tables", T, "CREATE TEMPORARY TABLE t (x int)", "ALTER TABLE t ADD y int", "DROP TEMPORARY TABLE t", "ALTER TABLE t ADD real_one int", "CREATE TEMPORARY TABLE tmp2 LIKE t", "CREATE TABLE made_like LIKE tmp2"),
    case("generated invisible primary keys", "SET sql_generate_invisible_primary_key = 1", "CREATE TABLE t (a int)", "CREATE TABLE u LIKE t", "CREATE TABLE v AS SELECT 1 AS x", "ALTER TABLE t ADD b int", "SET sql_generate_invisible_primary_key = 0", servers=MYSQL),
    case("databases dropped and made", "CREATE TABLE {other}.t (a int)", "DROP DATABASE {other}", "CREATE DATABASE {other} CHARACTER SET latin1", "CREATE TABLE {other}.t (b varchar(5))", "CREATE DATABASE IF NOT EXISTS {other} CHARSET gbk", "CREATE TABLE {other}.u (b varchar(5))"),
    case("system versioning", "CREATE TABLE t (a int) WITH SYSTEM VERSIONING", "ALTER TABLE t DROP SYSTEM VERSIONING", "ALTER TABLE t ADD b int", "ALTER TABLE t ADD SYSTEM VERSIONING", "CREATE TABLE k (a int PRIMARY KEY, b int) WITH SYSTEM VERSIONING", "CREATE TABLE k2 LIKE k", "ALTER TABLE k2 DROP SYSTEM VERSIONING",
         "CREATE TABLE u (a int PRIMARY KEY, s timestamp(6) GENERATED ALWAYS AS ROW START INVISIBLE, e timestamp(6) AS ROW END, PERIOD FOR SYSTEM_TIME (s, e)) WITH SYSTEM VERSIONING",
         "CREATE TABLE y (a int PRIMARY KEY, b timestamp(6) NULL, c timestamp(6) AS (b) STORED) WITH SYSTEM VERSIONING",
         "CREATE TABLE z (a int PRIMARY KEY, b timestamp(6) NULL, c timestamp(6) AS (b) VIRTUAL)", "ALTER TABLE z ADD SYSTEM VERSIONING", "ALTER TABLE z DROP SYSTEM VERSIONING",
         "CREATE TABLE x (a int, s timestamp(6) AS ROW START, e timestamp(6) AS ROW END, PERIOD FOR SYSTEM_TIME (s, e), PRIMARY KEY (E, a)) WITH SYSTEM VERSIONING",
         "CREATE TABLE w (a int, x int WITHOUT SYSTEM VERSIONING, s date, e date, PERIOD FOR p (s, e)) WITH SYSTEM VERSIONING", servers=MARIADB),
    case("system versioning as an option, and of columns", "CREATE TABLE t (a int PRIMARY KEY)", "ALTER TABLE t WITH SYSTEM VERSIONING", "ALTER TABLE t DROP SYSTEM VERSIONING", "ALTER TABLE t COMMENT 'x' WITH SYSTEM VERSIONING",
         "CREATE TABLE u (a int WITH SYSTEM VERSIONING, b int)", "CREATE TABLE v (a int, b int WITH SYSTEM VERSIONING NOT NULL) COMMENT 'y'", "CREATE TABLE w (a int PRIMARY KEY, b int WITH SYSTEM VERSIONING) WITH SYSTEM VERSIONING",
         "CREATE TABLE x (a int)", "!ALTER TABLE x ADD b int WITH SYSTEM VERSIONING", "!ALTER TABLE x MODIFY a int WITH SYSTEM VERSIONING",
         servers=MARIADB),
    case("a sequence", "CREATE SEQUENCE s START WITH 5 INCREMENT BY 2 CACHE 10", "ALTER SEQUENCE s RESTART 50", "CREATE OR REPLACE SEQUENCE s", "RENAME TABLE s TO s2", "DROP SEQUENCE s2", servers=MARIADB),
    case("a sequence of a type", T, "CREATE SEQUENCE s AS smallint unsigned START WITH 5", "CREATE OR REPLACE SEQUENCE s INCREMENT BY 2 AS mediumint", "ALTER SEQUENCE s AS int unsigned", "CREATE SEQUENCE u AS tinyint", "ALTER TABLE t ADD d int", servers=MARIADB, unknown=("s",), since=110500),
    case("partitions and tables converted", "CREATE TABLE t (id int, a int) PARTITION BY RANGE (id) (PARTITION p0 VALUES LESS THAN (10), PARTITION p1 VALUES LESS THAN (100))",
         "ALTER TABLE t CONVERT PARTITION p0 TO TABLE u", "ALTER TABLE u ADD b int", "ALTER TABLE u DROP b", servers=MARIADB),
    case("MariaDB's waits", T, "ALTER TABLE t WAIT 5 ADD d int", "DROP TABLE t NOWAIT", "CREATE TABLE t (a int, b int) PAGE_COMPRESSED=1 `encrypted`=no", "ALTER ONLINE TABLE t ADD c int", "RENAME TABLE IF EXISTS nope TO x, t TO u", "TRUNCATE TABLE u WAIT 3", servers=MARIADB),
    case("MySQL's instant and in place", T, "ALTER TABLE t ADD d int, ALGORITHM=INSTANT", "ALTER TABLE t DROP d, ALGORITHM=INSTANT, LOCK=DEFAULT", "ALTER TABLE t ADD x int COLUMN_FORMAT DYNAMIC STORAGE DISK, WITH VALIDATION", servers=MYSQL),
    case("a long table not in strict mode", "CREATE TABLE t (a varchar(70000), b varbinary(70000), c varchar(20000) charset utf8mb4)", mode="NO_ENGINE_SUBSTITUTION"),
    case("a table in the binary character set", "CREATE TABLE t (a varchar(10), b text, c char(4), d enum('x'), e text(300)) CHARSET binary", "ALTER TABLE t ADD f varchar(5), ADD g varchar(5) charset latin1"),
    case("pipes and modes", "CREATE TABLE t (a varchar(20) DEFAULT ('x' || 'y'), b int)", mode="PIPES_AS_CONCAT,ANSI_QUOTES"),
)  # fmt: skip
"""All cases. A statement that begins with "!" is expected to fail."""
