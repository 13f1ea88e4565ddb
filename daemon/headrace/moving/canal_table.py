"""The properties of Canal 1.1: their counterparts here, or why they have none."""

from __future__ import annotations

from typing import Any

from headrace.moving.counterparts import Table, choice, flag, instead, none, opposite, same, several, whole

MODES: dict[str, str] = {"tcp": "canal", "kafka": "kafka", "rocketmq": "rocketmq", "rabbitmq": "rabbitmq"}
"""Kinds of sinks by `canal.serverMode`."""
TLS = {
    "disabled": "disabled",
    "preferred": "preferred",
    "required": "required",
    "verify_ca": "verified",
    "verify_identity": "verified",
}

_JKS = "Java's key stores: convert them to PEM, and give them as `tls_ca`, `tls_certificate`, `tls_key`"
_ADMIN = "there is no Canal Admin: `headrace config`, the status page and the API serve for it"
_BUFFERS = "buffers are bounded by bytes: `[queue] bytes`, `[daemon] queue_bytes`"
_STANDBY = "the stored position is searched for on each address"
_HISTORY = "the schema history is always on, and needs no store of its own"
_ALIYUN = "binlogs out of Alibaba's object store are not read"
_NOT_YET = "there is no key for it"
_KERBEROS = "not offered; `sasl_mechanism` has PLAIN, SCRAM and OAUTHBEARER"
_PRODUCER = "the sink decides it: all copies confirm, in order and idempotent"
_POSITION = several("`[source] start`", "where no cursor is carried over")


def _group(names: str, reason: str) -> dict[str, Any]:
    return {name: none(reason) for name in names.split()}


COMMON: Table = {
    "canal.destinations": several("a file of `destinations/` each"),
    "canal.destinations.expr": none("write the names out in `canal.destinations`"),
    "canal.auto.scan": several("the folder is always watched", "`true` also reads folders that are not listed"),
    "canal.auto.scan.interval": instead("`[daemon] watch`"),
    **_group("canal.conf.dir", "`[daemon] destinations` is next to headrace.toml"),
    "canal.serverMode": several("`[sink] type`", "tcp, kafka, rocketMQ, rabbitMQ; there is no sink for Pulsar"),
    "canal.ip": several("`[sink] listen`", "for Canal's clients; 127.0.0.1 when it is empty"),
    "canal.port": several("`[sink] listen`", "for Canal's clients"),
    "canal.user": several("`[sink] user`", "for Canal's clients"),
    "canal.passwd": several("`[sink] password`", "for Canal's clients; a hash: write the password itself"),
    **_group("canal.id", "daemons are known by `[daemon] node`"),
    "canal.register.ip": several("`[sink] advertise`", "for Canal's clients, with `[zookeeper]`"),
    "canal.metrics.pull.port": instead("`[http] listen`"),
    **_group("canal.withoutNetty canal.socketChannel", "there is no such choice"),
    **_group("canal.admin.*", _ADMIN),
    "canal.zkServers": several(
        "`[zookeeper] hosts`, `[sink] zookeeper_path`",
        "daemons share the destinations by it, and Canal's clients find them",
    ),
    "canal.zookeeper.flush.period": instead("`[daemon] checkpoint_interval`"),
    "canal.file.flush.period": instead("`[daemon] checkpoint_interval`"),
    "canal.file.data.dir": instead("`[state] path`"),
    **_group("canal.instance.memory.*", _BUFFERS),
    **_group("canal.instance.detecting.*", "`[heartbeat]` writes a row on the source, see running.md"),
    **_group("canal.instance.transaction.size", "large transactions are not cut"),
    **_group("canal.instance.fallbackIntervalInSeconds", "a failover goes by GTIDs, never by the clock"),
    **_group("canal.instance.network.receiveBufferSize canal.instance.network.sendBufferSize", _BUFFERS),
    "canal.instance.network.soTimeout": instead("`[source] stall_after`"),
    "canal.instance.filter.druid.ddl": none("there is one parser of DDL"),
    "canal.instance.filter.query.ddl": same("filter.ddl", opposite, "the other way round"),
    "canal.instance.filter.query.dcl": same("filter.dcl", opposite, "the other way round"),
    "canal.instance.filter.query.dml": several(
        "`[filter] dml_queries`", "the other way round; not with hidden columns"
    ),
    "canal.instance.filter.table.error": same("filter.table_errors", choice({"true": "skip", "false": "halt"})),
    "canal.instance.filter.rows": same("filter.rows", opposite, "the other way round"),
    "canal.instance.filter.transaction.entry": several(
        "`[filter] transactions`", "the other way round, for a sink for Canal's clients; flat messages have none"
    ),
    **{
        f"canal.instance.filter.dml.{one}": several("`[filter] operations`", "what is not left out")
        for one in ("insert", "update", "delete")
    },
    "canal.instance.binlog.format": none("ROW alone: a change that was written as a statement stops the destination"),
    "canal.instance.binlog.image": several("`[source] row_image`", "`any` unless FULL is the only one"),
    **_group("canal.instance.get.ddl.isolation", "a schema change is always a message of its own"),
    **_group("canal.instance.parser.*", "several daemons use several cores (docs/running.md)"),
    **_group("canal.instance.tsdb.*", _HISTORY),
    "canal.auto.reset.latest.pos.mode": same(
        "source.on_position_lost", choice({"true": "latest", "false": "fail"}), "what is given up is counted and kept"
    ),
    "canal.instance.global.mode": several("one way", "`manager`: get the files from Canal Admin first"),
    "canal.instance.global.spring.xml": several("one way", "a group of several sources in one has no counterpart"),
    **_group("canal.instance.global.lazy canal.instance.global.manager.address", _ADMIN),
    "canal.mq.flatMessage": several("`[message] format`", "`canal-protobuf` for `false`"),
    "canal.mq.database.hash": same("route.canal_hash_database", flag, 'with `hash = "canal"`'),
    "canal.mq.canalBatchSize": instead("`[queue] linger`"),
    "canal.mq.canalGetTimeout": instead("`[queue] linger`"),
    **_group("canal.mq.send.thread.size canal.mq.build.thread.size", "one event loop, and native code"),
    **_group("canal.mq.accessChannel canal.aliyun.uid canal.aliyun.accesskey canal.aliyun.secretkey", _ALIYUN),
    "canal.aliyun.accessKey": several("`[sink] access_key`", "with rocketMQ"),
    "canal.aliyun.secretKey": several("`[sink] secret_key`", "with rocketMQ"),
    "kafka.bootstrap.servers": several("`[sink] bootstrap_servers`"),
    "kafka.compression.type": several("`[sink] compression`"),
    "kafka.security.protocol": several("`[sink] tls`"),
    "kafka.sasl.mechanism": several("`[sink] sasl_mechanism`"),
    "kafka.sasl.jaas.config": several("`[sink] user`, `password`"),
    **_group("kafka.kerberos.*", _KERBEROS),
    **_group("kafka.ssl.*", _JKS),
    "kafka.max.request.size": instead("`[sink] max_request_size`, by default what the topic takes,"),
    "kafka.batch.size": instead("`[sink] batch_bytes`"),
    "kafka.linger.ms": instead("`[queue] linger`"),
    "kafka.buffer.memory": instead("`[sink] max_in_flight_bytes`"),
    **_group("kafka.*", _PRODUCER),
    "rocketmq.namesrv.addr": several("`[sink] hosts`", "of the proxies, whose port is 8081 by default"),
    "rocketmq.namespace": several("`[sink] namespace`"),
    "rocketmq.tag": several("`[sink] tag`"),
    **_group("rocketmq.producer.group", "the proxy needs none"),
    "rocketmq.retry.times.when.send.failed": instead("`[sink] on_failure`"),
    **_group("rocketmq.*", _PRODUCER),
    "rabbitmq.host": several("`[sink] hosts`", "port 5672 when it has none"),
    "rabbitmq.virtual.host": several("`[sink] virtual_host`"),
    "rabbitmq.exchange": several("`[sink] exchange`"),
    "rabbitmq.username": several("`[sink] user`"),
    "rabbitmq.password": several("`[sink] password`"),
    "rabbitmq.queue": several("`[sink] queue`", "with `declare`, where routingKey is given too"),
    "rabbitmq.routingKey": several("`[sink] binding`", "messages go by the topic, as in Canal"),
    "rabbitmq.deliveryMode": several(
        "`[sink] exchange_type`", "Canal takes a word for that; messages are always persistent"
    ),
    **_group("rabbitmq.*", _ALIYUN),
    **_group("pulsarmq.*", "there is no sink for Pulsar"),
    "canal.mq.servers": several("`[sink]`: as the mode's own property", "until Canal 1.1.4"),
    "canal.mq.compressionType": several("`[sink] compression`", "until Canal 1.1.4"),
    "canal.mq.namespace": several("`[sink] namespace`", "until Canal 1.1.4"),
    "canal.mq.vhost": several("`[sink] virtual_host`", "until Canal 1.1.4"),
    "canal.mq.exchange": several("`[sink] exchange`", "until Canal 1.1.4"),
    "canal.mq.username": several("`[sink] user`", "until Canal 1.1.4"),
    "canal.mq.password": several("`[sink] password`", "until Canal 1.1.4"),
    **_group("canal.mq.kafka.kerberos.*", _KERBEROS),
    **_group(
        "canal.mq.retries canal.mq.batchSize canal.mq.maxRequestSize canal.mq.lingerMs canal.mq.bufferMemory "
        "canal.mq.acks canal.mq.transaction canal.mq.producerGroup canal.mq.parallelThreadSize "
        "canal.mq.enableMessageTrace canal.mq.customizedTraceTopic canal.mq.properties.* canal.mq.aliyunuid",
        f"until Canal 1.1.4; {_PRODUCER}",
    ),
}
"""Properties of canal.properties, which may also have any of an instance."""
INSTANCE: Table = {
    "canal.instance.destination": several("the file's name", "in lower case"),
    "canal.instance.mysql.slaveId": none("the daemon derives another one, so that both can read at the same time"),
    "canal.instance.gtidon": none("GTIDs are used wherever the source has them"),
    "canal.instance.rds.*": none(_ALIYUN),
    "canal.instance.multi.stream.on": none("PolarDB-X is not read"),
    "canal.instance.master.address": several("`[source] host`, `port`"),
    "canal.instance.master.journal.name": _POSITION,
    "canal.instance.master.position": _POSITION,
    "canal.instance.master.timestamp": _POSITION,
    "canal.instance.master.gtid": _POSITION,
    "canal.instance.master.sslMode": several("`[source] tls`", "`preferred` when it is missing"),
    "canal.instance.master.tlsVersions": none("TLS 1.2 or later"),
    "canal.instance.master.*": none(_JKS),
    **_group(
        "canal.instance.master[12].* canal.instance.standby[12].*", "make a destination of each source of the group"
    ),
    "canal.instance.standby.address": several("`[[source.standby]]`"),
    "canal.instance.standby.sslMode": none("each address is reached as `[source] tls` says"),
    **_group(
        "canal.instance.standby.journal.name canal.instance.standby.position canal.instance.standby.timestamp "
        "canal.instance.standby.gtid",
        _STANDBY,
    ),
    "canal.instance.standby.*": none(_JKS),
    "canal.instance.dbUsername": several("`[source] user`"),
    "canal.instance.dbPassword": several("`[source] password`", "a file of the folder `secrets`"),
    "canal.instance.enableDruid": several("`[source] password`", "an encrypted one can't be carried over"),
    "canal.instance.pwdPublicKey": none("write the password itself into the secret"),
    "canal.instance.defaultDatabaseName": none("tables are always named with their database"),
    "canal.instance.connectionCharset": none("texts are decoded by the column's own character set"),
    "canal.instance.filter.regex": same("filter.include"),
    "canal.instance.filter.black.regex": same("filter.exclude"),
    "canal.instance.filter.field": same("filter.include_columns"),
    "canal.instance.filter.black.field": same("filter.exclude_columns"),
    "canal.mq.topic": several("`[route] topic`", "the destination's name when it is empty"),
    "canal.mq.dynamicTopic": several("`[route] dynamic_topic`", "dots of a topic become `_`, as in Canal"),
    "canal.mq.partition": several("`[route] partition`", "0 where partitionHash counts, as in Canal"),
    "canal.mq.partitionsNum": same("route.partitions", whole),
    "canal.mq.dynamicTopicPartitionNum": same("route.dynamic_topic_partitions"),
    "canal.mq.partitionHash": several("`[route] partition_hash`", 'with `hash = "canal"`'),
    "canal.mq.enableDynamicQueuePartition": none("`[route] partitions` is written out"),
}
"""Properties of instance.properties."""
PROPERTIES: Table = {**COMMON, **INSTANCE}
