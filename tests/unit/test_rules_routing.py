r"""Where a change goes: topics, numbers of partitions and keys, with all examples of Canal's documentation.

The examples are those of Canal's wiki page "Canal Kafka RocketMQ QuickStart" and of its instance.properties. In a
file of Java properties a backslash is written twice, so their `test\\.test` is `test\.test` here.
"""

from __future__ import annotations

import re
from typing import Any

import pytest

from headrace.rules.keys import KeyRule, parse_keys
from headrace.rules.topics import ANY_NAME, ROCKETMQ, TopicNotAllowed, TopicRules, parse_partitions

DEFAULT = None
"""The table goes to the default topic, or has a fixed partition."""
SHIPPED = r"mytest1.user,topic2:mytest2\..*,.*\..*"
TMS = (
    r"canal_tms_station_v1:tms\.tms_station,canal_tms_station_delivery_area_v1:tms\.tms_station_delivery_area,"
    r"canal_tms_delivery_order_v1:tms_0\.tms_delivery_order_\d+_q\d+"
)


@pytest.mark.parametrize(
    ("rules", "table", "topic"),
    [
        # the wiki's examples without a topic's name
        (r"test\.test", "test.test", "test_test"),
        (r"test\.test", "test.test2", DEFAULT),
        (r"test\.test", "atest.test", DEFAULT),
        (r".*\..*", "shop.orders", "shop_orders"),
        (r".*\..*", "test.test", "test_test"),
        ("test", "test.a", "test"),
        ("test", "test.b", "test"),
        ("test", "test2.a", DEFAULT),
        (r"test\..*", "test.a", "test_a"),
        (r"test\..*", "test2.a", DEFAULT),
        (r"test\.*", "test.a", DEFAULT),  # an older form of that example: it matches no table, in Canal neither
        (r"test,test1\.test1", "test.a", "test"),
        (r"test,test1\.test1", "test1.test1", "test1_test1"),
        (r"test,test1\.test1", "test1.test2", DEFAULT),
        # the wiki's examples with one
        (r"test:test\.test", "test.test", "test"),
        (r"test:test\.test", "test.test1", DEFAULT),
        (r"test:.*\..*", "shop.orders", "test"),
        ("test:test", "test.anything", "test"),
        ("test:test", "other.test", DEFAULT),
        (r"testA:test\..*", "test.a", "testA"),
        (r"testA:test\..*", "test1.a", DEFAULT),
        (r"test0:test,test1:test1\.test1", "test.x", "test0"),
        (r"test0:test,test1:test1\.test1", "test1.test1", "test1"),
        (r"test0:test,test1:test1\.test1", "test1.x", DEFAULT),
        # instance.properties, of the server and of the admin console
        (SHIPPED, "mytest1.user", "mytest1_user"),
        (SHIPPED, "mytest2.any", "topic2"),
        (SHIPPED, "mytest1.other", "mytest1_other"),
        (r"mytest1.user,mytest2\..*,.*\..*", "mytest2.a", "mytest2_a"),
        # what people run
        (r"trade:dy.*\.trades,trade_his:dy.*\.trades_his_xdaysago", "dy7.trades", "trade"),
        (r"trade:dy.*\.trades,trade_his:dy.*\.trades_his_xdaysago", "dy7.trades_his_xdaysago", "trade_his"),
        ("topic_A:A,topic_B:B,topic_C:C", "b.orders", "topic_B"),
        (TMS, "tms.tms_station", "canal_tms_station_v1"),
        (TMS, "tms_0.tms_delivery_order_3_q12", "canal_tms_delivery_order_v1"),
        (TMS, "tms_1.tms_delivery_order_3_q12", DEFAULT),
        (r"user_user_login_info:user\.user_login_info_\d+", "user.user_login_info_9", "user_user_login_info"),
        # order: rules for tables before rules for schemas, and within these the first
        (r"all:shop,one:shop\.orders", "shop.orders", "one"),
        (r"all:shop,one:shop\.orders", "shop.users", "all"),
        (r"a:shop\..*,b:shop\.orders", "shop.orders", "a"),
        ("a:sh.*,b:shop", "shop.orders", "a"),
        # a regex without \. is for schemas, a plain name for both
        (".*", "shop.orders", "shop"),
        ("all:.*", "shop.orders", "all"),
        ("test.*", "test_eu.orders", "test_eu"),
        ("[a-z]+[.]orders", "shop.orders", DEFAULT),
        ("shop.orders", "shop.orders", "shop_orders"),
        ("shop.orders", "shopxorders.t", DEFAULT),  # not a regex: the point is a point
        # letters' case, separators, spaces, brackets
        (r"SHOP\.Orders", "Shop.ORDERS", "shop_orders"),
        (r"Orders:shop\.orders", "SHOP.ORDERS", "Orders"),
        (r"a\.b;c\.d", "c.d", "c_d"),
        (r" x : a\.b , y : c ", "a.b", "x"),
        (r" x : a\.b , y : c ", "c.d", "y"),
        (r"sharded:shop\.orders_\d{1,2},rest:shop", "shop.orders_07", "sharded"),
        (r"sharded:shop\.orders_\d{1,2},rest:shop", "shop.orders_107", "rest"),
        (r"(?:shop|mall)\.orders", "mall.orders", "mall_orders"),
        (r"x:(shop|mall)\.(a,b|c;d)", "mall.c;d", "x"),
        (",;", "shop.orders", DEFAULT),
        ("", "shop.orders", DEFAULT),
        # placeholders, which Canal does not have
        (r"shop.{schema}.{table}:.*\..*", "eu.orders", "shop.eu.orders"),
        (r"cdc.{schema}:eu.*", "eu_1.orders", "cdc.eu_1"),
        (r"{table}:shard_\d+\.orders", "shard_12.orders", "orders"),
        (r"a.b:shop\..*", "shop.orders", "a.b"),  # a name that was given stays as it was given
    ],
)
def test_a_table_goes_to_its_topic(rules: str, table: str, topic: str | None) -> None:
    choice = TopicRules.parse(rules).choose(*table.split(".", 1))
    assert (choice[0] if choice else DEFAULT) == topic


def test_the_rule_that_applied_is_named_and_all_rules_can_be_listed() -> None:
    rules = TopicRules.parse(r"a:shop\.orders; {schema}:shop ,x")
    assert rules.rules == (r"a:shop\.orders", "{schema}:shop", "x")
    assert rules.choose("shop", "orders") == ("a", r"a:shop\.orders")
    assert rules.choose("SHOP", "users") == ("SHOP", "{schema}:shop")
    assert rules.choose("shop", "") is rules.choose("", "") is None  # CREATE DATABASE: the default topic, as in Canal


@pytest.mark.parametrize(
    ("rules", "problem"),
    [
        ("a\\.b,:x", "rule 2, from character 6, should have a topic before its colon"),
        ("topic:", "rule 1, from character 1, should have a schema or table after its colon"),
        ("a:b:c", r"rule 1, from character 1, has a second colon at character 4 (write `\:` within a regex)"),
        ("x,to pic:a", "the topic of rule 2, from character 3, is invalid: Kafka takes no topic 'to pic'"),
        ("x,主题:a", "the topic of rule 2, from character 3, is invalid: Kafka takes no topic"),
        ("..:a", "the topic of rule 1, from character 1, is invalid: Kafka takes no topic '..'"),
        ("a" * 250 + ":a", "at most 249"),
        ("{column}:a", "the topic of rule 1, from character 1, is invalid: {column} at character 1 is not known"),
        ("t:a(b", "rule 1 is invalid at character 6: missing )"),
        (r"x, t : shop\.(a", r"rule 2 is invalid at character 16: missing )"),
        (r"t:(a|aa)+\.x", "rule 1, from character 3, is invalid: on the name"),
    ],
)
def test_a_wrong_rule_of_topics_is_refused_with_its_place(rules: str, problem: str) -> None:
    with pytest.raises(ValueError, match=re.escape(problem)):
        TopicRules.parse(rules)


def test_a_topic_that_the_sink_does_not_take_is_not_made() -> None:
    rules = r".*\..*"
    with pytest.raises(
        TopicNotAllowed, match=r"'shop_订单': it should have letters a-z.* give the table a topic"
    ) as raised:
        TopicRules.parse(rules).choose("shop", "订单")
    assert not raised.value.retriable
    assert TopicRules.parse(rules, names=ANY_NAME).choose("shop", "订单") == ("shop_订单", rules)
    with pytest.raises(ValueError, match=r"RocketMQ takes no topic 'a\.b'"):
        TopicRules.parse("a.b:x", names=ROCKETMQ)


@pytest.mark.parametrize(
    ("rules", "topic", "partitions"),
    [
        # instance.properties
        ("test.*:4,mycanal:6", "test", 4),
        ("test.*:4,mycanal:6", "test_orders", 4),
        ("test.*:4,mycanal:6", "mycanal", 6),
        ("test.*:4,mycanal:6", "mycanal2", None),
        ("test.*:4,mycanal:6", "mytest", None),
        ("topic1:4,topic2:6", "topic2", 6),
        ("TOPIC1:4", "topic1", 4),
        ("a.b:4", "axb", None),
        (r"orders_\d{1,2}:8;orders.*:2", "orders_12", 8),
        (r"orders_\d{1,2}:8;orders.*:2", "orders_123", 2),
        ("", "a", None),
    ],
)
def test_a_topic_has_its_number_of_partitions(rules: str, topic: str, partitions: int | None) -> None:
    found = parse_partitions(rules).first(topic)
    assert (found.partitions if found else None) == partitions


@pytest.mark.parametrize("rule", ["a", "a:", ":4", "a:0", "a:-1", "a:x", "a:4 5", "a:1234567", "a:四"])
def test_a_wrong_number_of_partitions_is_refused(rule: str) -> None:
    with pytest.raises(ValueError, match=r"^rule 2, from character 6, should be a topic and its number of partitions"):
        parse_partitions(f"ok:1,{rule}")


def test_rules_of_partitions_can_be_listed() -> None:
    assert parse_partitions("a:1 , b.*:2").rules == ("a:1", "b.*:2")


COLUMNS, PK, TABLE = "columns", "primary_key", "table"


@pytest.mark.parametrize(
    ("rules", "table", "found"),
    [
        # the wiki's examples
        (r"test\.test:pk1^pk2", "test.test", (COLUMNS, ("pk1", "pk2"))),
        (r"test\.test:pk1^pk2", "test.test1", DEFAULT),
        (r".*\..*:id", "shop.orders", (COLUMNS, ("id",))),
        (r".*\..*:$pk$", "shop.orders", (PK, ())),
        ("", "shop.orders", DEFAULT),
        (r".*\..*", "shop.orders", (TABLE, ())),
        (r"test\.test:id,.*\..*", "test.test", (COLUMNS, ("id",))),
        (r"test\.test:id,.*\..*", "test.other", (TABLE, ())),
        # instance.properties
        (r"test.table:id^name,.*\..*", "test.table", (COLUMNS, ("id", "name"))),
        (r"test.table:id^name,.*\..*", "shop.orders", (TABLE, ())),
        (r"test.table:id^name,.*\..*", "testxtable.a", (TABLE, ())),
        # what people run
        (r".*\..*:tid", "dy1.trades", (COLUMNS, ("tid",))),
        # the first rule that matches counts
        (r"shop\..*:$pk$,shop\.orders:user_id", "shop.orders", (PK, ())),
        (r"shop\.orders:user_id,shop\..*:$pk$", "shop.orders", (COLUMNS, ("user_id",))),
        (r"a\.b:x;c\.d:y", "c.d", (COLUMNS, ("y",))),
        (r"shop\.orders_\d{1,2}:id", "shop.orders_07", (COLUMNS, ("id",))),
        (r"(?:shop|mall)\.orders", "mall.orders", (TABLE, ())),
        (r"(?:shop|mall)\.orders:id", "mall.orders", (COLUMNS, ("id",))),
        (r"SHOP\.orders:Id", "shop.ORDERS", (COLUMNS, ("Id",))),
        (r" shop\.orders : id ^ name ", "shop.orders", (COLUMNS, ("id", "name"))),
        (r".*\..*:$PK$", "shop.orders", (PK, ())),
        (".*", "shop.orders", (TABLE, ())),  # unlike with topics it is tried on schema.table
    ],
)
def test_a_table_is_spread_by_its_key(rules: str, table: str, found: tuple[Any, ...] | None) -> None:
    rule = parse_keys(rules).first(table)
    assert ((rule.kind, rule.columns) if rule else DEFAULT) == found


def test_the_rule_of_a_key_is_named_and_all_can_be_listed() -> None:
    rules = parse_keys(r" shop\.orders : id , .*\..* ")
    assert rules.rules == (r"shop\.orders : id", r".*\..*")
    assert rules.first("shop.orders") == KeyRule("columns", ("id",), r"shop\.orders : id")


@pytest.mark.parametrize(
    ("rules", "problem"),
    [
        ("a.b:", "rule 1, from character 1, should have columns after its colon, as in id^name, or $pk$"),
        ("x.y, a.b:id^", "rule 2, from character 6, should have columns after its colon"),
        ("a.b:id^name^ID", "rule 1, from character 1, names the column ID twice"),
        (":id", "rule 1, from character 1, should have a table before its colon"),
        ("a.b:c:id", "rule 1, from character 1, has a second colon at character 6"),
        ("test:id", r"rule 1, from character 1, should name a table, as in schema.test or test\..*"),
        ("a.b,c(:id", "rule 2 is invalid at character 10: missing )"),
    ],
)
def test_a_wrong_rule_of_keys_is_refused_with_its_place(rules: str, problem: str) -> None:
    with pytest.raises(ValueError, match=re.escape(problem)):
        parse_keys(rules)
