"""The server of [source], by MariaDB's driver for Java, which speaks to MySQL too."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from headrace_common.tls import tls_by_host
from headrace_documents.errors import ConsumerError
from headrace_spark.settings import SourceSettings
from headrace_spark.source.kafka import java_reason

PACKAGE = "org.mariadb.jdbc:mariadb-java-client:3.5.1"
"""The driver's Maven coordinates. Its licence is the LGPL."""
EXCLUDES = "com.github.waffle:waffle-jna"
"""Needed only for accounts of Windows."""
_DRIVER = "org.mariadb.jdbc.Driver"
_SESSION = "time_zone='+00:00',sql_mode='',lock_wait_timeout=5,net_write_timeout=600,wait_timeout=28800"
"""TIMESTAMP in UTC; a CHAR without the spaces at its end; a table that a statement has locked is an error."""
_NO_TLS = "ssl not enabled"


class SourceError(ConsumerError):
    """The source can't be read."""


Record = list[str | None]


class Source:
    """A connection for small queries, and the options for connections of Spark's readers."""

    def __init__(self, settings: SourceSettings, jvm: Any) -> None:
        """Connects. Raises SourceError."""
        self._settings, self._jvm = settings, jvm
        self._tls = self._tls_options()
        try:
            self._connection = self._connect()
        except SourceError as error:
            if self._security != "preferred" or _NO_TLS not in str(error):
                raise
            self._tls = {"sslMode": "disable"}
            self._connection = self._connect()
        # MySQL hides the primary keys that it generates; messages have them.
        with suppress(SourceError):
            self._run("SET SESSION show_gipk_in_create_table_and_information_schema = ON")

    @property
    def _security(self) -> str:
        return tls_by_host(self._settings.tls, self._settings.host)

    @property
    def _where(self) -> str:
        return f"{self._settings.host}:{self._settings.port}"

    @property
    def url(self) -> str:
        """Returns the URL with the scheme by which Spark knows MySQL's quotes."""
        return f"jdbc:mysql://{self._where}/?permitMysqlScheme"

    def options(self) -> dict[str, str]:
        """Returns the options for Spark's JDBC source, without a table."""
        return {"url": self.url, "driver": _DRIVER, "fetchsize": str(self._settings.fetch_size), **self._properties()}

    def query(self, sql: str) -> list[Record]:
        """Returns all rows of a small answer, as texts. Raises SourceError."""
        return self._run(sql)

    def close(self) -> None:
        """Closes the connection."""
        with suppress(Exception):
            self._connection.close()

    def _tls_options(self) -> dict[str, str]:
        if self._security == "disabled":
            return {"sslMode": "disable"}
        if self._settings.tls_ca is not None:
            return {"sslMode": "verify-full", "serverSslCert": str(self._settings.tls_ca.absolute())}
        return {"sslMode": "verify-full" if self._security == "verified" else "trust"}

    def _properties(self) -> dict[str, str]:
        settings = self._settings
        return {
            "user": settings.user,
            "password": settings.password.get_secret_value(),
            "connectTimeout": str(round(settings.connect_timeout * 1000)),
            "socketTimeout": str(round(settings.read_timeout * 1000)),
            "allowPublicKeyRetrieval": "true",
            "sessionVariables": _SESSION,
            **self._tls,
        }

    def _connect(self) -> Any:
        properties = self._jvm.java.util.Properties()
        for name, value in self._properties().items():
            properties.setProperty(name, value)
        try:
            return self._jvm.org.mariadb.jdbc.Driver().connect(self.url, properties)
        except Exception as error:
            raise SourceError(
                f"the source at {self._where} can't be used: {java_reason(error)}. Look at host, port, user, password "
                f'and tls in [source], which is "{self._security}" now: "verified" needs a certificate for the host by '
                'tls_ca or a CA that Java knows, "required" encrypts without a check, "disabled" does neither'
            ) from None

    def _run(self, sql: str) -> list[Record]:
        try:
            statement = self._connection.createStatement()
            try:
                if not statement.execute(sql):
                    return []
                found = statement.getResultSet()
                width, rows = found.getMetaData().getColumnCount(), []
                while found.next():
                    rows.append([found.getString(i + 1) for i in range(width)])
                return rows
            finally:
                statement.close()
        except Exception as error:
            raise SourceError(f"the source at {self._where} does not answer a question: {java_reason(error)}") from None
