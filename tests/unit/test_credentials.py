"""`${credential:NAME}`: the service finds what systemd has loaded for it, and an operator's command the same files."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.errors import ConfigError
from headrace_common.references import Expander
from headrace_spark.settings import load_settings
from tests.configured import load

SHOP = """
[source]
host = "127.0.0.1"
user = "canal"
password = "${credential:shop-password}"
[route]
topic = "shop"
[sink]
type = "null"
"""
SPARK = """
[kafka]
bootstrap_servers = "127.0.0.1:9092"
topics = ["shop"]
dead_letter_topic = "dead"
[elasticsearch]
hosts = ["http://127.0.0.1:9200"]
user = "writer"
password = "${credential:search-password}"
[spark]
checkpoint = "var"
"""
Write = Callable[[str, str], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(name: str, text: str) -> Path:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
        return tmp_path / name

    return write


@pytest.fixture
def main(write: Write) -> Path:
    """A headrace.toml with one destination, whose password is a credential."""
    write("headrace/destinations/shop.toml", SHOP)
    return write("headrace/headrace.toml", "")


def password(main: Path, **env: str) -> str:
    return load(main, env).destinations["shop"].source.password.get_secret_value()


def problem(main: Path, **env: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load(main, env)
    (found,) = caught.value.problems
    return found


def test_a_command_without_systemd_finds_the_secret_next_to_headrace_toml(main: Path, write: Write) -> None:
    write("headrace/secrets/shop-password", "from-etc\n")
    assert password(main) == "from-etc"


def test_the_service_finds_each_file_of_the_folder_that_its_unit_loads(main: Path, write: Write) -> None:
    # systemd puts the id of LoadCredential= and an underscore before the names of a folder's files.
    loaded = write("run/credentials/headrace_shop-password", "from-systemd\n").parent
    assert password(main, CREDENTIALS_DIRECTORY=str(loaded)) == "from-systemd"


def test_a_credential_that_a_drop_in_loads_by_name_comes_first(main: Path, write: Write) -> None:
    write("headrace/secrets/shop-password", "from-etc\n")
    write("run/credentials/headrace_shop-password", "from-the-folder\n")
    loaded = write("run/credentials/shop-password", "by-name\n").parent
    assert password(main, CREDENTIALS_DIRECTORY=str(loaded)) == "by-name"


def test_a_command_of_a_unit_with_other_credentials_finds_the_secret_all_the_same(main: Path, write: Write) -> None:
    write("headrace/secrets/shop-password", "from-etc\n")
    loaded = write("run/credentials/backup-key", "another's\n").parent
    assert password(main, CREDENTIALS_DIRECTORY=str(loaded)) == "from-etc"


def test_a_missing_credential_is_reported_with_the_places_that_were_searched(main: Path, tmp_path: Path) -> None:
    secrets = main.parent / "secrets"
    assert problem(main) == (
        f"{main.parent}/destinations/shop.toml: source.password: there is no credential shop-password: "
        f"{secrets}/shop-password"
    )
    assert problem(main, CREDENTIALS_DIRECTORY="/run/c").endswith(
        f"no credential shop-password: /run/c/shop-password, /run/c/headrace_shop-password, {secrets}/shop-password"
    )


def test_a_credential_that_may_not_be_read_is_reported_and_no_other_is_taken(main: Path, write: Write) -> None:
    write("headrace/secrets/shop-password", "from-etc\n")
    loaded = write("run/credentials/shop-password/x", "").parent.parent
    reported = problem(main, CREDENTIALS_DIRECTORY=str(loaded))
    assert reported.endswith(f"source.password: {loaded}/shop-password is no regular file")


@pytest.mark.parametrize("name", ["../headrace.toml", "/etc/passwd", "", ".hidden", "a/b"])
def test_the_name_of_a_credential_leads_to_no_other_folder(name: str, main: Path) -> None:
    main.parent.joinpath("destinations/shop.toml").write_text(SHOP.replace("shop-password", name))
    assert "`${credential:...}` should hold a name" in problem(main)


def test_a_reference_outside_of_any_file_needs_what_systemd_has_loaded() -> None:
    reported: list[str] = []
    assert Expander({}, lambda _, sentence: reported.append(sentence)).expand("${credential:shop-password}") == ""
    assert reported == ["there is no credential shop-password: there is no CREDENTIALS_DIRECTORY"]


def test_all_files_of_the_consumer_share_the_folder_next_to_the_main_one(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CREDENTIALS_DIRECTORY", raising=False)
    write("headrace/secrets/search-password", "from-etc\n")
    write("headrace/secrets/index", "customers\n")
    write("headrace/indexes/one.toml", '[[index]]\nname = "${credential:index}"\ntables = ["shop.customers"]\n')
    settings = load_settings(write("headrace/spark.toml", SPARK))
    assert settings.elasticsearch.password.get_secret_value() == "from-etc"
    assert [one.name for one in settings.index] == ["customers"]


def test_the_daemon_and_a_command_read_the_same_secret_by_the_recipe_of_the_manual(main: Path, write: Write) -> None:
    """With the real program: once as systemd starts it, once as an operator does."""
    loaded = write("run/credentials/headrace_shop-password", "secret-4711").parent
    command = [Path(sys.executable).with_name("headrace"), "config", "check", "--config", main]

    def check(**env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)

    reported = check()
    assert (reported.returncode, "no credential shop-password" in reported.stderr) == (2, True)
    assert check(CREDENTIALS_DIRECTORY=str(loaded)).returncode == 0
    write("headrace/secrets/shop-password", "secret-4711")
    done = check()
    assert (done.returncode, done.stderr) == (0, "")
