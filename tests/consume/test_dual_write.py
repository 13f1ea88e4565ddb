"""What the consumer writes twice while an index is rebuilt, by the notes in a real Elasticsearch."""

from __future__ import annotations

import pytest

from devstack.servers.elasticsearch import ElasticsearchServer
from headrace_documents.elastic.cluster import Cluster
from headrace_documents.settings import ElasticsearchSettings
from headrace_spark.sink.dual_write import DualWriteWatch, Notes

pytestmark = pytest.mark.server


def test_nothing_is_written_twice_before_the_new_index_has_its_mappings(elastic_server: ElasticsearchServer) -> None:
    settings = ElasticsearchSettings(hosts=[elastic_server.url])
    watch = DualWriteWatch(settings)
    with Cluster(settings) as cluster:
        notes = Notes(cluster)
        try:
            assert notes.begin("doubled", {"into": "doubled-000002", "prepared": False})
            with watch.batch(1) as dual_writes:
                assert dual_writes == {}
            note = notes.get("doubled")
            assert note is not None
            assert "consumer" not in note
            notes.update("doubled", prepared=True)
            with watch.batch(2) as dual_writes:
                assert dual_writes == {"doubled": "doubled-000002"}
            note = notes.get("doubled")
            assert note is not None
            assert note["consumer"] == {"into": "doubled-000002", "since_batch": 2}
        finally:
            notes.remove("doubled")
    watch.close()
