"""The options of Debezium 3's connectors for MySQL and MariaDB: their counterparts here, or why they have none."""

from __future__ import annotations

from typing import Any

from headrace.moving.counterparts import Table, choice, flag, instead, milliseconds, none, same, several, whole

CONNECTORS = {
    "io.debezium.connector.mysql.MySqlConnector": "MySQL",
    "io.debezium.connector.mariadb.MariaDbConnector": "MariaDB",
}
TLS = {
    "disabled": "disabled",
    "disable": "disabled",
    "preferred": "preferred",
    "trust": "required",
    "required": "required",
    "verify_ca": "verified",
    "verify-ca": "verified",
    "verify_identity": "verified",
    "verify-full": "verified",
}
SNAPSHOTS = {
    "initial": "initial",
    "always": "initial",
    "when_needed": "when_needed",
    "no_data": "schema_only",
    "schema_only": "schema_only",
    "never": "never",
    "recovery": "schema_only_recovery",
    "schema_only_recovery": "schema_only_recovery",
}

_JKS = "Java's key stores: convert them to PEM, and give them as `tls_ca`, `tls_certificate`, `tls_key`"
_CONNECT = "Kafka Connect's own; there is none here"
_BUFFERS = "buffers are bounded by bytes: `[queue] bytes`, `[daemon] queue_bytes`"
_SNAPSHOT = "no lock is taken, and chunks have the size that takes `snapshot_chunk_seconds`"
_SIGNALS = "`headrace resync`, or a row in `headrace.signal`"
_JDBC = "there is no JDBC driver"
_STOPS = "what can't be read stops the destination, see guarantees.md"
_HISTORY = "the schema history is headrace's own, in the state store"
_NOT_YET = "there is no key for it"
_METRICS = "metrics have names of their own, see monitoring.md"
_GTIDS = "all GTIDs of the source count"
_SKIPPED = choice({"fail": "halt", "skip": "skip", "warn": "skip", "ignore": "skip"})


def _group(names: str, reason: str) -> dict[str, Any]:
    return {name: none(reason) for name in names.split()}


REQUIRED: Table = {
    "name": several("the file's name", "in lower case"),
    "connector.class": several("`[source]`", "the server says itself which it is"),
    "tasks.max": none("a destination is one stream"),
    "topic.prefix": several(
        "`[message.debezium] name`, `[route] topic`, `dynamic_topic`", "topics `prefix.database.table`"
    ),
    "database.hostname": same("source.host"),
    "database.port": same("source.port", whole),
    "database.user": same("source.user"),
    "database.password": several("`[source] password`", "a file of the folder `secrets`"),
    "database.server.id": none("the daemon derives another one, so that both can read at the same time"),
    "database.include.list": several("`[filter] include`"),
    "database.exclude.list": several("`[filter] exclude`"),
    "table.include.list": several("`[filter] include`"),
    "table.exclude.list": several("`[filter] exclude`"),
    "column.include.list": several("`[filter] include_columns`", "where the column's name is no pattern"),
    "column.exclude.list": several("`[filter] exclude_columns`", "where the column's name is no pattern"),
    "column.truncate.to.*": several("`[[filter.mask]]`", '`mask = "truncate"`'),
    "column.mask.with.*": several("`[[filter.mask]]`", '`mask = "fixed"`, as many asterisks'),
    "column.mask.hash.*": several("`[[filter.mask]]`", '`mask = "hash"`, whose values are others: HMAC-SHA-256'),
    "column.propagate.source.type": none("types are in the schema topic"),
    "datatype.propagate.source.type": none("types are in the schema topic"),
    "time.precision.mode": several(
        "`[message.debezium] time_precision`", "adaptive_time_microseconds, adaptive, connect"
    ),
    "decimal.handling.mode": same("message.debezium.decimal", str.lower),
    "bigint.unsigned.handling.mode": several("`[message.debezium] bigint_unsigned`", "`long` where it is missing"),
    "binary.handling.mode": same("message.debezium.binary", str.lower),
    "include.schema.changes": several("`[message.debezium] schema_topic`"),
    "include.schema.comments": none(_NOT_YET),
    "include.query": same("message.debezium.query", flag),
    "tombstones.on.delete": same("message.debezium.tombstones", flag),
    "message.key.columns": none(_NOT_YET),
    "skip.messages.without.change": same("filter.unchanged_updates", choice({"true": "skip", "false": "publish"})),
    "schema.name.adjustment.mode": none("names of schemas are as they are"),
    "field.name.adjustment.mode": none("names of columns are as they are"),
    "gtid.source.includes": none(_GTIDS),
    "gtid.source.excludes": none(_GTIDS),
    "gtid.source.filter.dml.events": none(_GTIDS),
    "gtid.ignore.on.recovery": none(_GTIDS),
    "connect.timeout.ms": same("source.connect_timeout", milliseconds),
    "event.deserialization.failure.handling.mode": none(_STOPS),
    "event.processing.failure.handling.mode": none(_STOPS),
    "event.converting.failure.handling.mode": none(_STOPS),
    "inconsistent.schema.handling.mode": same("filter.table_errors", _SKIPPED),
    "database.jdbc.driver": none(_JDBC),
    "database.protocol": none(_JDBC),
    "resolve.create.table.like.schema": none("CREATE TABLE ... LIKE is always resolved"),
}
"""The usual ones."""
ADVANCED: Table = {
    "skipped.operations": several("`[filter] operations`", "what is not skipped; TRUNCATE is a schema change"),
    "snapshot.mode": several("`[source] snapshot`", "`never` where an offset is carried over"),
    "snapshot.max.threads": same("source.snapshot_parallelism", whole),
    **_group("snapshot.max.threads.multiplier legacy.snapshot.max.threads snapshot.fetch.size", _SNAPSHOT),
    **_group("snapshot.locking.mode snapshot.locking.mode.custom.name snapshot.lock.timeout.ms", _SNAPSHOT),
    **_group("snapshot.delay.ms streaming.delay.ms", "pause the destination instead"),
    **_group("snapshot.include.collection.list", "`headrace resync` names tables"),
    **_group(
        "snapshot.select.statement.overrides snapshot.select.statement.overrides.*",
        "`headrace resync` takes a condition",
    ),
    **_group("snapshot.query.mode snapshot.query.mode.custom.name", _SNAPSHOT),
    **_group("snapshot.tables.order.by.row.count", _SNAPSHOT),
    **_group("snapshot.mode.custom.name snapshot.mode.configuration.based.*", _SNAPSHOT),
    **_group("min.row.count.to.stream.results", _SNAPSHOT),
    **_group("incremental.snapshot.*", "every snapshot is read while the stream goes on"),
    **_group("read.only", "without the right to write `[heartbeat]` is off"),
    "provide.transaction.metadata": several("`[message.debezium] transaction_topic`"),
    "topic.transaction": several("`[message.debezium] transaction_topic`"),
    "topic.delimiter": several("`[route] dynamic_topic`"),
    **_group(
        "topic.naming.strategy topic.cache.size topic.regex topic.replacement topic.key.*",
        "topics are as `[route] dynamic_topic` says",
    ),
    "topic.creation.default.partitions": several("`[route] partitions`, `partition_hash`"),
    "topic.creation.default.replication.factor": same("sink.topic_replication", whole),
    "topic.creation.*": none("topics are made by the brokers, or with `[sink] create_topics`"),
    **_group("topic.heartbeat.prefix topic.heartbeat.name heartbeat.topics.prefix", "there is no topic of heartbeats"),
    **_group(
        "heartbeat.interval.ms heartbeat.action.query", "`[heartbeat]` writes a row on the source, see running.md"
    ),
    "database.ssl.mode": several("`[source] tls`", "`preferred` where it is missing"),
    **_group(
        "database.ssl.keystore database.ssl.keystore.password database.ssl.truststore database.ssl.truststore.password",
        _JKS,
    ),
    **_group("database.initial.statements", "sessions are set up as reading needs it"),
    "database.query.timeout.ms": instead("`[source] connect_timeout`"),
    "connection.validation.timeout.ms": instead("`[source] connect_timeout`"),
    **_group("database.server.id.offset multi.partition.mode", "a destination is one stream"),
    **_group(
        "connect.keep.alive connect.keep.alive.interval.ms use.nongraceful.disconnect", "TCP's keepalive is always on"
    ),
    "binlog.net.write.timeout": instead("`[source] stall_after`"),
    "binlog.net.read.timeout": instead("`[source] stall_after`"),
    **_group("binlog.buffer.size", "rows after a SAVEPOINT wait on disk: `[source] max_spool`"),
    **_group("max.batch.size max.queue.size max.queue.size.in.bytes queue.provider.type query.fetch.size", _BUFFERS),
    "poll.interval.ms": instead("`[queue] linger`"),
    "poll.dispatch.interval.ms": instead("`[queue] linger`"),
    **_group(
        "errors.max.retries retriable.restart.connector.wait.ms executor.shutdown.timeout.ms", "retries have no end"
    ),
    **_group("errors.*", _CONNECT),
    "table.ignore.builtin": several("`[filter] exclude`", "the server's own databases"),
    **_group("enable.time.adjuster", "two digits of a year are stored as four already"),
    **_group("ddl.parser.type", "there is one parser of DDL"),
    **_group("converters post.processors", "there is no code of one's own"),
    **_group("unavailable.value.placeholder", "row images that lack columns: `[source] row_image`"),
    **_group("source.struct.version sourceinfo.struct.maker transaction.metadata.factory", "those of Debezium 3.6"),
    **_group("signal.*", _SIGNALS),
    **_group("notification.*", "`/health`, the API and the log tell it"),
    **_group("custom.metric.tags statistics.metrics.enabled advanced.metrics.enable", _METRICS),
    **_group("custom.sanitize.pattern", "secrets are shown nowhere"),
    **_group("extended.headers.enabled openlineage.*", "headers: see message-format.md"),
    **_group("guardrail.collections.max guardrail.collections.limit.action", "tables have no limit"),
    **_group("schema.history.internal", _HISTORY),
    "schema.history.internal.kafka.bootstrap.servers": several("`[sink] bootstrap_servers`", "without `--bootstrap`"),
    **_group("schema.history.internal.*", _HISTORY),
    **_group("driver.* database.*", _JDBC),
    "key.converter": several("JSON always", "a converter other than Kafka Connect's for JSON is refused"),
    "value.converter": several("JSON always", "a converter other than Kafka Connect's for JSON is refused"),
    "key.converter.schemas.enable": none("value.converter.schemas.enable decides for both"),
    "value.converter.schemas.enable": same("message.debezium.schemas", flag),
    **_group("key.converter.* value.converter.* header.converter header.converter.*", _CONNECT),
    **_group("transforms transforms.* predicates predicates.*", _NOT_YET),
    **_group(
        "producer.override.* consumer.override.* admin.override.* config.action.reload offsets.storage.topic", _CONNECT
    ),
    **_group(
        "exactly.once.support transaction.boundary transaction.boundary.interval.ms",
        '`[sink] delivery = "exactly_once"`',
    ),
    **_group(
        "log.position.check.enable snapshot.scan.all.columns.force offset.activity.monitor.interval.ms", "internal"
    ),
    **_group("custom.retriable.exception memory.management.* test.disable.global.locking", "internal"),
}
"""The others, also those of Kafka Connect itself."""
PROPERTIES: Table = {**REQUIRED, **ADVANCED}
