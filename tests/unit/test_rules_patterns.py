"""Regexes for table names: Canal's grammar, and a bound on what one match may take."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
import regex
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.rules.columns import parse_columns
from headrace.rules.keys import parse_keys
from headrace.rules.patterns import MATCH_LIMIT, Pattern, PatternTooSlow, compile_filter, named_schemas
from headrace.rules.topics import TopicRules, parse_partitions
from tests.examples import examples

CATASTROPHIC = r"(a|aa)+$"


@pytest.mark.parametrize(
    ("text", "name", "matches"),
    [
        # Canal's AviaterFilterTest and AdminGuide
        (r"s1\..*,s2\..*", "s1.t1", True),
        (r"s1\..*,s2\..*", "s12.t1", False),
        (r"s1\..*,s2\..*", "s2.t2", True),
        (r"s1\..*,s2\..*", "s3.t2", False),
        (r"s1\..*,s2\..*", "S2.S1", True),
        (r"s1\..*,s2.t1", "s2.t1", True),
        ("foooo,f.*t", "fooooot", True),
        ("otter2.otter_stability1|otter1.otter_stability1|retl.xdual", "otter1.otter_stability1", True),
        (r"test\.order_\d{1,2}", "test.order_42", True),
        (r"test\.order_\d{1,2}", "test.order_123", False),
        (r"test\.order_\d{1,2},test\.user_\d+", "test.user_99", True),
        (r"test\.t_\d{2,}", "test.t_1", False),
        (r"u\..*,uvw\..*,uv\..*,a\.x,a\.xyz,a\.xy,ab\.x,ab\.xyz", "ab.xyz1", False),
        (r"u\..*,uvw\..*,uv\..*,a\.x,a\.xyz,a\.xy,ab\.x,ab\.xyz", "uv.xyz", True),
        (".*", "canal.a", True),
        (r"canal\.canal.*", "canal.canal_1", True),
        (r"canal\..*,mysql.test1,mysql.test2", "mysql.test2", True),
        (r"mysql\.slave_.*", "mysql.slave_master_info", True),
        # more
        (r"shop\.[[:alpha:]]+", "shop.orders", True),
        (r"shop\.\p{Han}+", "shop.订单", True),
        (r"shop\..*", "shop.a\nb", True),
        (r"shop\.\{x\}", "shop.{x}", True),
    ],
)
def test_a_filter_matches_as_in_canal(text: str, name: str, matches: bool) -> None:
    assert any(pattern.fullmatch(name) for pattern in compile_filter(text)) is matches


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("ok,a(b", r"regex 2 is invalid at character 7: missing \)"),
        ("ok, b*+*", "regex 2 is invalid at character 8: multiple repeat"),
        (r"ok,x{s}", r"regex 2 is invalid at character 5: a brace that is no repeat .* should be written as \\{"),
        ("x{e<=1}", "a brace that is no repeat"),
        ("x" * 20_001, "regex 1, from character 1, is invalid: it has more than 20,000 characters"),
        (r"ok,\L<words>", "regex 2"),
    ],
)
def test_a_wrong_regex_is_refused_with_its_place(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        compile_filter(text)


@pytest.mark.parametrize(
    "text",
    [
        CATASTROPHIC,
        r"shop\.(a|aa)+",
        r"(\w|\w\w)+\.t",
        r"(?:[a-z_]|[a-z]{2})+",
        r"shop\.(o|oo|or)+",
        r"(?R)",
        r"((a|b|ab)(b|ab|a)?)+[xy]",
    ],
)
def test_a_regex_that_could_blow_up_is_refused_when_it_is_loaded(text: str) -> None:
    begun = time.process_time()
    with pytest.raises(ValueError, match="it takes more than 50 ms; write it without repeats within repeats"):
        compile_filter(text)
    assert time.process_time() - begun < 1


@pytest.mark.parametrize(
    ("parse", "rule"),
    [
        (TopicRules.parse, f"topic:{CATASTROPHIC}"),
        (parse_keys, f"{CATASTROPHIC}:id"),
        (parse_columns, f"{CATASTROPHIC}:id/name"),
        (parse_partitions, f"{CATASTROPHIC}:4"),
    ],
)
def test_no_kind_of_rule_takes_such_a_regex(parse: Callable[[str], object], rule: str) -> None:
    with pytest.raises(ValueError, match="takes more than 50 ms"):
        parse(rule)


def slow_one() -> tuple[Pattern, str]:
    """A pattern that was taken because no name of the trial is slow for it, and a name that is."""
    text = r"shop\.x{3}(?:Ж|ЖЖ)+y"
    (pattern,) = compile_filter(text, "filter.include")
    return pattern, "shop.xxx" + "Ж" * 50


def test_a_match_holds_the_loop_for_50_ms_at_most() -> None:
    pattern, name = slow_one()
    with pytest.raises(TimeoutError):  # the name is slow indeed: 6 times the bound are not enough
        regex.compile(pattern.pattern, regex.IGNORECASE | regex.DOTALL).fullmatch(name, timeout=6 * MATCH_LIMIT)
    took = []
    for _ in range(3):
        begun = time.process_time()
        with pytest.raises(PatternTooSlow):
            pattern.fullmatch(name)
        took.append(time.process_time() - begun)
    assert min(took) < 0.08


def test_a_slow_match_is_an_error_that_names_pattern_and_key() -> None:
    pattern, name = slow_one()
    with pytest.raises(PatternTooSlow) as raised:
        pattern.fullmatch(name)
    assert not raised.value.retriable
    assert "of filter.include took more than 50 ms on the name 'shop.xxxЖЖ" in str(raised.value)
    assert "(?:Ж|ЖЖ)+y' of filter.include without repeats within repeats" in raised.value.remedy


RULES: list[Callable[[str], object]] = [
    compile_filter,
    TopicRules.parse,
    parse_keys,
    parse_columns,
    parse_partitions,
]


@settings(max_examples=examples(300), deadline=2000)
@given(
    st.text(alphabet=r"ab.*+?|(){}[]\\^$,;:/0123<>=!-_ ж#&R", max_size=40) | st.text(max_size=40),
    st.sampled_from(RULES),
)
def test_any_text_is_read_or_refused_with_a_sentence(text: str, parse: Callable[[str], object]) -> None:
    try:
        parse(text)
    except ValueError as error:
        refused = error
    else:
        return
    assert type(refused) is ValueError
    assert "rule" in str(refused) or "regex" in str(refused)


@pytest.mark.parametrize(
    ("text", "schemas"),
    [
        (r"shop\..*", ("shop",)),
        (r"shop\..*, crm_2\.(a|b),shop\.c", ("shop", "crm_2")),
        ("shop.orders", ("shop",)),
        (r"订单[.]x", ("订单",)),
        (r"shop\..*|crm\..*", ()),
        (r".*\..*", ()),
        ("shop.*", ()),
        (r"shop\..*,sh.p\..*", ()),
        (r"shop\\..*", ()),
    ],
)
def test_schemas_that_a_filter_names_are_known(text: str, schemas: tuple[str, ...]) -> None:
    assert named_schemas(text) == schemas
