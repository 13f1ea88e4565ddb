"""`headrace-spark init` with a real Kafka, and what its file is good for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from headrace_spark.settings import load_settings
from tests.canal_messages import START, every_kind

from .conftest import ROOT, Done, Pipeline

pytestmark = pytest.mark.server


async def test_init_writes_a_config_for_the_tables_of_a_topic(
    pipeline: Pipeline, command: Callable[..., Done], tmp_path: Path
) -> None:
    messages = [text for table in ("serve_0", "serve_1", "shop.t") for text in every_kind(table)[0]]
    await pipeline.send([*messages, b"garbage"])
    output = tmp_path / "made" / "spark.toml"
    words = ["init", "--bootstrap-servers", pipeline.bootstrap, "--output", output]
    done = command(*words, "--topic", pipeline.topic, "--elasticsearch", pipeline.elastic_url)
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines()[0] == f"{output}: 3 tables in 2 indexes"
    text = output.read_text()
    assert f"# Of some {len(messages) + 1} messages in {pipeline.topic} it has read {len(messages) + 1}." in text
    assert f"#   {len(messages)} are Canal's JSON" in text
    assert "# shop.serve_0, shop.serve_1: rows seen: 18 inserted, 8 updated, 4 deleted." in text
    found = load_settings(output)
    assert [one.name for one in found.index] == ["shop.serve", "shop.shop.t"]
    # There is a file now, and no such topic.
    assert command(*words, "--topic", pipeline.topic).code == 1
    done = command(*words, "--topic", f"{pipeline.topic}.none", "--force")
    assert done.code == 1
    assert done.err.startswith(f"Kafka has no topic {pipeline.topic}.none: is its name right")
    assert output.read_text() == text


@pytest.mark.long
async def test_what_init_wrote_passes_check_and_runs(
    pipeline: Pipeline, command: Callable[..., Done], tmp_path: Path
) -> None:
    messages, state = every_kind("serve_0")
    await pipeline.send([*messages, *every_kind("serve_1")[0]])
    output = tmp_path / "made.toml"
    words = ["--topic", pipeline.topic, "--elasticsearch", pipeline.elastic_url, "--ivy", f"{ROOT}/.cache/ivy"]
    done = command("init", "--bootstrap-servers", pipeline.bootstrap, "--output", output, *words)
    assert done.code == 0, done.err
    text = output.read_text().replace('"var/spark', f'"{tmp_path}/var').replace('".cache/spark"', f'"{tmp_path}/s"')
    output.write_text(text.replace('"1g"', '"512m"'))
    done = command("check", "--config", output)
    assert done.code == 0, done.out
    pipeline.config = output
    pipeline.drain()
    documents = pipeline.documents("shop.serve")
    assert {name.partition(":")[2] for name in documents} == state.keys()
    assert len(documents) == 2 * len(state)
    assert documents["serve_0:1"][0] == START
