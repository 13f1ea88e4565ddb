"""The documentation against the code: generated pages, commands, TOML, links and named tests."""

from __future__ import annotations

import ast
import functools
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from benchmarks import options as bench
from headrace.cli import main as headrace_cli
from headrace.mysql.events import event_types
from headrace_consume import cli as consume_cli
from headrace_consume import settings as consume_settings
from headrace_consume import status as consume_status
from headrace_spark import settings as spark_settings
from headrace_spark.cli import main as spark_cli
from sim import __main__ as simulation
from tests.chaos import __main__ as chaos
from tests.collected import collected
from tests.configured import load
from tests.suites import __main__ as suites

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[(?:[^\[\]]|\[[^\[\]]*\])*\]\(([^)\s]+)\)")
CODE = ("daemon", "common", "documents", "rabbitmq_consumer", "spark_consumer")
NAMES = {
    "headrace_common",
    "headrace_spark",
    "headrace_consume",
    "headrace_documents",
    "headrace_parked_message",
    "headrace_parking_owner",
    "headrace_deleted",
}
"""What is named like a metric and is none."""
CONSUMERS: dict[str, Callable[[Path], object]] = {
    "spark": spark_settings.load_settings,
    "rabbitmq": consume_settings.load_settings,
}
"""By a section that only its file has, how the configuration of a consumer is read."""
SPARK = {
    "kafka": '[kafka]\nbootstrap_servers = "127.0.0.1:9092"\ntopics = ["shop"]\ndead_letter_topic = "dead"\n',
    "elasticsearch": '[elasticsearch]\nhosts = ["http://127.0.0.1:9200"]\n',
    "spark": '[spark]\ncheckpoint = "var"\n',
}
"""What a part of the Spark consumer's file needs around it."""
GUARANTEES = [f"docs/guarantees{part}.md" for part in ("", "-availability", "-data", "-consumers")]
PROMISING = [*GUARANTEES, "docs/consume.md"]
"""Pages with promises, each with a name, and with a list of their proofs in the same section."""
CONSUMER_ROOMS = {
    "What both consumers share": ROOT / "documents/headrace_documents",
    "The Spark consumer, `": ROOT / "spark_consumer/headrace_spark",
}
"""Folders whose rooms a table of docs/architecture.md has, by a text before it."""
PROMISE = re.compile(r"^- \*\*(?P<name>[A-Z]\d+)\.\*\* (?P<text>.*\n(?:  .*\n)*)", re.MULTILINE)
PROOFS = re.compile(r"^- (?P<names>[A-Z]\d+(?:, [A-Z]\d+)*):(?P<proofs>.*\n(?:  .*\n)*)", re.MULTILINE)
WIDE_PAGES = [page for page in PAGES if page.name != "CHANGELOG.md"]
DESTINATION = """
[source]
host = "127.0.0.1"
user = "canal"
password = "p"
[route]
topic = "t"
[sink]
type = "null"
"""


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def read(page: str) -> str:
    return (ROOT / page).read_text()


def blocks(page: Path, *languages: str) -> list[str]:
    return [text for language, text in FENCE.findall(page.read_text()) if language in languages]


def commands(page: Path) -> list[list[str]]:
    """The words of every command line in the page's shell blocks."""
    lines = "".join(blocks(page, "sh")).replace("\\\n", " ").splitlines()
    return [words for line in lines if (words := shlex.split(line, comments=True))]


def anchors(page: Path) -> list[str]:
    """Those that a page's headings get, as GitHub makes them, and its own. A Chinese page has one before a section."""
    text = FENCE.sub("", page.read_text())
    if page.name.endswith(".zh.md"):
        made = re.findall(r'^<a id="(.+)"></a>\n\n##', text, re.MULTILINE)
        return made + re.findall(r'<a id="([^"]+)"></a>(?!\n\n##)', text)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    made = [re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings]
    return made + re.findall(r'<a id="(.+?)"></a>', text)


def test_the_configuration_page_is_what_the_models_say() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "scripts" / "config_docs.py", "--check"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_commands_exist_with_their_flags(page: Path) -> None:
    for words in commands(page):
        if "headrace" in words[1:] and words[0] in ("kubectl", "runuser"):  # a command of ours, run by another
            words = words[len(words) - words[::-1].index("headrace") - 1 :]
        program = Path(words[0]).name
        if words[0].startswith(("scripts/", "packaging/")):
            script = ROOT / words[0]
            assert script.is_file(), words
            assert script.stat().st_mode & 0o111, words
            if program == "chaos":
                chaos.make_parser().parse_args(words[1:])
                continue
            if words[:2] == ["scripts/test", "suites"]:
                suites.make_parser().parse_args(words[2:])
                continue
            if program == "bench":
                bench.parse(words[1:])
                continue
            if program == "sim":
                simulation.parse(words[1:])
                continue
            for word in words[1:]:
                # Read out of the script: running one would install things.
                assert (ROOT / word).exists() or word in script.read_text(), words
        elif program == "headrace":
            headrace_cli.make_parser(words[1:]).parse_args(words[1:])
        elif program == "headrace-spark":
            spark_cli.make_command_line().parser.parse_args(words[1:])
        elif program == "headrace-consume":
            consume_cli.make_command_line().parser.parse_args(words[1:])
        elif words[:3] == ["python", "-m", "tests.fuzz"]:
            assert words[3].isdigit(), words
        elif words[:3] == ["python", "-m", "devstack"]:
            from devstack.cli import build_parser, check_names

            check_names(build_parser().parse_args(words[3:]).names)
        elif words[0] == "cp":
            # docs/install.md copies units out of the wheel, which has them of that folder.
            assert all((ROOT / word).exists() or (ROOT / "systemd" / word).exists() for word in words[1:-1]), words
        elif words[0] in ("kubectl", "podman"):
            assert all((ROOT / word).exists() for word in words if word.startswith("packaging/")), words
        elif words[:4] == ["docker", "compose", "up", "-d"]:
            assert set(words[4:]) <= yaml.safe_load((ROOT / "compose.yaml").read_text())["services"].keys(), words
        else:
            known = {"pip", "python3.11", "curl", "export", "systemctl", "journalctl", "rabbitmqctl", "rabbitmqadmin"}
            known |= {"apt-get", "cd", "install", "tail", "systemd-sysusers", "systemd-tmpfiles"}
            # Those with spark-submit are run by tests/spark/test_cluster.py.
            assert program in known | {"mkdir", "tar", "spark-submit"}, words


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_inline_commands_exist(page: Path) -> None:
    text = FENCE.sub("", page.read_text())
    for program, command in re.findall(r"`(headrace|headrace-spark|headrace-consume) ([a-z-]+)\b[^`]*`", text):
        ours = headrace_cli.COMMANDS.keys()
        known = {
            "headrace": ours,
            "headrace-spark": {"run", "check", "init", "dead-letters", "status", "rebuild", "verify"},
            "headrace-consume": {"run", "check", "dead-letters", "status"},
        }[program]
        assert command in known, f"{program} {command}"
    for script in re.findall(r"`((?:scripts|packaging)/[\w.-]+)", text):
        assert (ROOT / script).exists(), script


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_toml_loads_with_the_real_settings(page: Path, tmp_path: Path) -> None:
    for text in blocks(page, "toml"):
        sections = tomllib.loads(text).keys()
        if sections & {*CONSUMERS, "index", "project"}:
            continue
        main, destination = ("", text) if "source" in sections else (text, DESTINATION)
        if "source" not in sections and sections & {"archive", "filter", "route"}:  # a part of a destination's file
            rest = DESTINATION.split("[route]")[0] + ("" if "route" in sections else '[route]\ntopic = "t"\n')
            main, destination = "", f'{rest}{text}\n[sink]\ntype = "kafka"\nbootstrap_servers = "k:9092"\n'
        (tmp_path / "headrace.toml").write_text(main)
        (tmp_path / "destinations").mkdir(exist_ok=True)
        # Files of certificates and secrets have to be there.
        (tmp_path / "some.pem").touch()
        (tmp_path / "secrets").mkdir(exist_ok=True)
        (tmp_path / "secrets/shop-password").touch()
        destination = re.sub(r'"/etc/headrace/[^"]+\.(pem|key)"', f'"{tmp_path / "some.pem"}"', destination)
        (tmp_path / "destinations" / "shop.toml").write_text(destination)
        assert load(tmp_path / "headrace.toml", {"SHOP_PASSWORD": "p", "SHOP_SALT": "s"}).destinations.keys() == {
            "shop"
        }


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_toml_of_a_consumer_loads_with_its_settings(page: Path, tmp_path: Path) -> None:
    for text in blocks(page, "toml"):
        known = tomllib.loads(text).keys()
        if known and known <= {"index", "kafka", "elasticsearch", "spark", "source", "http"}:
            text = "".join(one for name, one in SPARK.items() if name not in known) + text
        sections = tomllib.loads(text).keys() & CONSUMERS.keys()
        for section in sections:
            (tmp_path / "consumer.toml").write_text(text)
            CONSUMERS[section](tmp_path / "consumer.toml")


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_relative_links_lead_somewhere(page: Path) -> None:
    for link in LINK.findall(FENCE.sub("", page.read_text())):
        if link.startswith(("http://", "https://")):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        if anchor:
            assert anchor in anchors(target), link


def runs_of(proof: str) -> set[bool]:
    """Whether the tests that a page names, by file or by file::function, are long; empty when there are none."""
    whole = "::" in proof
    return {
        long
        for nodeid, long in collected().items()
        if (nodeid.partition("[")[0] if whole else nodeid.partition("::")[0]) == proof
    }


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_named_tests_exist(page: Path) -> None:
    for proof in re.findall(r"`(tests/[\w/]+\.py(?:::\w+)?)`", FENCE.sub("", page.read_text())):
        assert (ROOT / proof).is_file() or runs_of(proof), proof


@pytest.mark.parametrize("page", PROMISING)
def test_promises_say_of_each_proof_which_command_runs_it(page: str) -> None:
    proofs = re.findall(r"`(tests/[\w/]+\.py(?:::\w+)?)`(?:\s+\((long|partly\s+long)\))?", read(page))
    assert proofs
    for proof, said in proofs:
        wanted = {frozenset({True}): "long", frozenset({False}): ""}.get(frozenset(runs_of(proof)), "partly long")
        assert " ".join(said.split()) == wanted, proof


@pytest.mark.parametrize("pages", [GUARANTEES, ["docs/consume.md"]], ids=["guarantees", "consume"])
def test_every_promise_has_a_name_and_its_test_or_says_that_there_is_none(pages: list[str]) -> None:
    letters = []
    for section in re.split(r"^## ", "\n".join(map(read, pages)), flags=re.MULTILINE)[1:]:
        made = [*PROMISE.finditer(section)]
        proofs = [(one["names"].split(", "), one["proofs"]) for one in PROOFS.finditer(section)]
        assert section.count("tests/") == sum(proof.count("tests/") for _, proof in proofs)
        if not made:
            assert not proofs, section
            continue
        letters.append(made[0]["name"][0])
        assert [one["name"] for one in made] == [f"{letters[-1]}{number}" for number in range(1, len(made) + 1)]
        shown = [name for names, _ in proofs for name in names]
        assert sorted(shown) == sorted(one["name"] for one in made)
        for names, proof in proofs:
            assert "`tests/" in proof or proof.split() == ["no", "test"], names
    assert letters
    assert len(letters) == len(set(letters))


@pytest.mark.parametrize("page", WIDE_PAGES, ids=name)
def test_no_line_is_wider_than_a_hundred_characters(page: Path) -> None:
    """Of what can be broken: code is left as it is, a row of a table may have 120, and a single word any length."""
    for line in FENCE.sub("", page.read_text()).splitlines():
        row, word = line.startswith("|"), re.fullmatch(r"\s*(?:[-*] |\d+\. )?\S+", line)
        assert word or len(line) <= (120 if row else 100), line


def test_every_event_kind_that_stops_is_in_guarantees() -> None:
    text = read("docs/guarantees-data.md")
    for kind in (one.name for one in event_types.TABLE if one.stream is event_types.Does.REFUSE):
        words = kind.removeprefix("MariaDB ")
        assert words in text, kind


def test_sections_that_texts_of_the_code_refer_to_exist() -> None:
    found = [
        (file, page, anchor)
        for room in (*CODE, "config", "systemd")
        for file in (ROOT / room).rglob("*")
        if file.suffix in (".py", ".toml", ".service")
        for page, anchor in re.findall(r"\b(docs/[\w-]+\.md)#([\w-]+)", file.read_text())
    ]
    assert found
    assert not [one for one in found if one[2] not in anchors(ROOT / one[1])]


def test_documents_that_the_code_names_exist() -> None:
    named = {
        (str(source.relative_to(ROOT)), page)
        for room in CODE
        for source in (ROOT / room).rglob("*.py")
        for page in re.findall(r"\bdocs/[\w-]+\.md\b", source.read_text())
    }
    assert named
    assert not [(source, page) for source, page in sorted(named) if not (ROOT / page).is_file()]


def test_the_states_of_the_consumer_are_those_of_the_code() -> None:
    section = read("docs/consume.md").partition("| `state` |")[2].partition("\n\n")[0]
    rows = [row.split(" | ")[0] for row in section.splitlines() if row.startswith("| `")]
    reported = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert reported == set(consume_status.State)


def test_the_readme_stays_short_and_the_licence_is_whole() -> None:
    assert len(read("README.md").splitlines()) < 150
    licence = read("LICENSE")
    assert "Apache License\n                           Version 2.0, January 2004" in licence
    assert "END OF TERMS AND CONDITIONS" in licence


@functools.cache
def members() -> dict[str, set[str]]:
    """What each class of the code has, by its name: methods, and attributes of the class or of an object; with what
    its bases have. Classes of the same name count as one."""
    own: dict[str, set[str]] = {}
    bases: dict[str, set[str]] = {}
    for file in (file for room in CODE for file in (ROOT / room).rglob("*.py")):
        for made in (node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.ClassDef)):
            bases.setdefault(made.name, set()).update(node.id for node in made.bases if isinstance(node, ast.Name))
            found = own.setdefault(made.name, set())
            for node in ast.walk(made):
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                    found.add(node.name)
                elif isinstance(node, ast.Attribute | ast.Name) and isinstance(node.ctx, ast.Store):
                    found.add(node.attr if isinstance(node, ast.Attribute) else node.id)

    def whole(name: str) -> set[str]:
        return own.get(name, set()).union(*(whole(base) for base in bases.get(name, ())))

    return {name: whole(name) for name in own}


def not_there(text: str, known: dict[str, set[str]]) -> list[str]:
    """The members of our classes that a text names, as Class.member, and that there are not."""
    named = re.findall(r"(?<![\w.])([A-Z]\w+)\.(\w+)", text)
    return [f"{owner}.{member}" for owner, member in named if owner in known and member not in known[owner]]


def test_every_step_of_the_walks_is_a_file_and_a_function() -> None:
    page = read("docs/architecture.md")
    walks = page.partition("## The way of a row\n")[2].partition("\n## A run\n")[0]
    steps = re.findall(r"`([\w/]+\.py)`,\s+`(?:(\w+)\.)?(\w+)`", walks)
    assert len(steps) > 15
    for file, owner, function in steps:
        text = (ROOT / "daemon" / "headrace" / file).read_text()
        assert not owner or f"class {owner}" in text, (file, owner)
        assert re.search(rf"def {function}\(", text), (file, function)


@pytest.mark.parametrize("page", ["docs/architecture.md", "docs/internals.md", "CONTRIBUTING.md"])
def test_members_of_classes_that_a_page_names_exist(page: str) -> None:
    """Also without the file before it, which the steps of the walks have; and the class too."""
    known, named = members(), re.findall(r"`_?([A-Z]\w*[a-z]\w*)\.(\w+)`", read(page))
    assert named or page != "docs/architecture.md"
    assert not [f"{owner}.{member}" for owner, member in named if member not in known.get(owner, ())]


def test_members_of_classes_that_docstrings_name_exist() -> None:
    known = members()
    wrong = [
        (str(file.relative_to(ROOT)), name)
        for room in CODE
        for file in (ROOT / room).rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        for name in not_there(node.value.value, known)
    ]
    assert not wrong


def test_files_and_packages_that_the_architecture_names_exist() -> None:
    page = read("docs/architecture.md")
    folders = [ROOT / "daemon/headrace", *CONSUMER_ROOMS.values(), ROOT / "rabbitmq_consumer/headrace_consume"]
    for file in re.findall(r"`([a-z_]+(?:/[a-z_]+)*\.py)`", page + read("docs/internals.md")):
        if file.startswith("tests/"):  # see test_named_tests_exist
            continue
        beside = "cli" if file == "wiring.py" else "mysql"  # the room that the line is about
        assert any((folder / file).is_file() or (folder / beside / file).is_file() for folder in folders), file
    table = page.partition("## Packages of the daemon\n")[2].partition("\n## ")[0]
    assert rooms_of(table) == {one.name for one in modules(ROOT / "daemon/headrace")}
    for text, folder in CONSUMER_ROOMS.items():
        table = page.partition(text)[2].partition("\n\n|")[2].partition("\n\n")[0]
        assert rooms_of(table) == {one.stem for one in modules(folder)}, folder


def rooms_of(table: str) -> set[str]:
    rows = re.findall(r"^\| (`.+?) \|", table, re.MULTILINE)
    return {name for row in rows for name in re.findall(r"`([\w.]+)/?`", row)}


def modules(folder: Path) -> list[Path]:
    return [one for one in folder.iterdir() if one.name not in ("__init__.py", "__pycache__", "py.typed")]
