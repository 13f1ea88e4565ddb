"""Which columns of a table are published, and templates of names."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.rules.columns import ColumnRule, parse_columns
from headrace.rules.templates import Template

SHIPPED = "test1.t_product:id/subject/keywords,test2.t_company:id/name/contact/ch"
"""canal.instance.filter.field of Canal's instance.properties."""
SHIPPED_BLACK = "test1.t_product:subject/product_image,test2.t_company:id/name/contact/ch"


@pytest.mark.parametrize(
    ("rules", "table", "columns"),
    [
        (SHIPPED, "test1.t_product", {"id", "subject", "keywords"}),
        (SHIPPED, "test2.t_company", {"id", "name", "contact", "ch"}),
        (SHIPPED, "test2.t_product", None),
        (SHIPPED, "TEST1.T_Product", {"id", "subject", "keywords"}),
        (SHIPPED_BLACK, "test1.t_product", {"subject", "product_image"}),
        (" shop.users : ID / Name ", "shop.users", {"id", "name"}),
        (r"shop\.users_\d{1,2}:id,shop\..*:name", "shop.users_7", {"id"}),
        (r"shop\.users_\d{1,2}:id,shop\..*:name", "shop.users_700", {"name"}),
        ("shop.users:订单/id", "shop.users", {"订单", "id"}),
        ("shop.users:id", "shopxusers.a", None),
        ("", "shop.users", None),
    ],
)
def test_a_table_has_its_columns(rules: str, table: str, columns: set[str] | None) -> None:
    found = parse_columns(rules).first(table)
    assert (found.columns if found else None) == columns


def test_the_matching_column_rule_is_returned_and_all_rules_are_listed() -> None:
    rules = parse_columns("a.b:ID, c.*:x")
    assert rules.rules == ("a.b:ID", "c.*:x")
    assert rules.first("A.B") == ColumnRule(frozenset({"id"}), "a.b:ID")
    assert rules.first("x.y") is None


@pytest.mark.parametrize(
    ("rules", "problem"),
    [
        ("a.b:id,c.d", 'rule 2, from character 8, should be a table and its columns, as in "shop.items:id/name"'),
        ("a.b:", "rule 1, from character 1, should be a table and its columns"),
        (":id", "rule 1, from character 1, should be a table and its columns"),
        ("a.b:id//name", "rule 1, from character 1, should be a table and its columns"),
        ("a.b:id:name", "rule 1, from character 1, should be a table and its columns"),
        ("users:id", r"rule 1, from character 1, should name a table, as in schema.users or users\..*"),
        ("a.b:id,A.B:name", "rule 2, from character 8, is a second one for A.B"),
        ("a.b:id,c.(d:name", "rule 2, from character 8"),
        ("a.b:id,c.d+*+:name", "rule 2 is invalid at character"),
    ],
)
def test_a_wrong_rule_is_refused_with_its_place(rules: str, problem: str) -> None:
    with pytest.raises(ValueError, match=re.escape(problem)):
        parse_columns(rules)


NAMES = ("schema", "table")


@pytest.mark.parametrize(
    ("text", "made"),
    [
        ("plain", "plain"),
        ("", ""),
        ("shop.{schema}.{table}", "shop.eu.orders"),
        ("{table}{table}", "ordersorders"),
        ("{{{schema}}}", "{eu}"),
        ("a}}b{{c", "a}b{c"),
    ],
)
def test_a_template_is_filled_in(text: str, made: str) -> None:
    template = Template.parse(text, NAMES)
    assert template.render(schema="eu", table="orders") == made
    assert template.text == text


def test_a_template_knows_its_placeholders_and_takes_values_as_they_are() -> None:
    template = Template.parse("{schema}.x", NAMES)
    assert template.names == {"schema"}
    assert template.render(schema="{table}", table="no") == "{table}.x"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a{b}", "{b} at character 2 is not known; known placeholders: {schema}, {table}"),
        ("{}", "{} at character 1 is not known"),
        ("{schema.__class__}", "{schema.__class__} at character 1 is not known"),
        ("a{schema", "`{` at character 2 has no closing `}`"),
        ("a}b", "`}` at character 2 should be `}}`, or close a placeholder"),
        ("x" * 1001, "should have at most 1000 characters"),
    ],
)
def test_a_wrong_template_is_refused_with_its_place(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=re.escape(problem)):
        Template.parse(text, NAMES)


@given(st.text(max_size=50))
def test_any_text_with_its_braces_doubled_is_itself(text: str) -> None:
    assert Template.parse(text.replace("{", "{{").replace("}", "}}"), ()).render() == text
