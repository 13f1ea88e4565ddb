"""Reads DDL as MySQL and MariaDB write it to the binlog; what is not understood completely is said to be so."""

from headrace.mysql.schema.ddl.actions import NotParsed, StatementInfo
from headrace.mysql.schema.ddl.classify import classify

__all__ = ["NotParsed", "StatementInfo", "classify"]
