"""``harp top --export``: what Prometheus' own parser reads, and Grafana's dashboard of that."""

import json
import re
import stat
import threading
import time
import urllib.error
import urllib.request
from urllib.parse import urlsplit

import pytest
from click.testing import CliRunner
from grafana_foundation_sdk.cog import plugins
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from harp._cnet import ffi
from harp.cli import prometheus
from harp.cli.prometheus import METRICS, exposition
from harp.cli.stats_files import snapshots
from harp.cli.top import top
from harp.net import Engine, Port
from tests.support import PATIENCE_S, ROOT

DASHBOARD = ROOT / "deploy" / "grafana" / "harp.json"


@pytest.fixture(scope="module")
def job():
    """Two engines and a message from one to the other."""
    place = Port("udp", address="127.0.0.1")
    with Engine(place, name="near") as near, Engine(place, name="far") as far:
        listener = far.listen()
        connection = near.connect(listener.handle, timeout=PATIENCE_S)
        peer = listener.accept(timeout=PATIENCE_S)
        post = peer.post(bytearray(1 << 16))
        connection.send(bytes(1 << 16)).wait(20)
        post.wait(20)
        yield near.stats_path.rpartition("/")[2]


def families(text):
    return {family.name: family for family in text_string_to_metric_families(text)}


def trips_of(found, job):
    return [sample.value for sample in found["harp_path_round_trip_seconds"].samples
            if sample.labels["file"] == job]


def test_prometheus_reads_every_metric(job):
    found, until = {}, time.monotonic() + 20
    while not found or not trips_of(found, job):  # an engine shows its rows once a millisecond
        assert time.monotonic() < until
        found = families(exposition(snapshots()))
    for metric in METRICS:
        family = found[metric.name.removesuffix("_total")]
        assert (family.type, family.documentation) == (metric.kind, metric.help)
        assert all(sample.name == metric.name for sample in family.samples)
        things = [tuple(sorted(sample.labels.items())) for sample in family.samples]
        assert len(things) == len(set(things)) > 0
    [sent] = [sample for sample in found["harp_engine_message_sent_bytes"].samples
              if sample.labels["file"] == job]
    assert (sent.value, sent.labels["engine"]) == (1 << 16, "near")
    [trip] = trips_of(found, job)
    assert 0 < trip < 5


def test_names_follow_the_conventions_of_prometheus():
    for metric in METRICS:
        assert re.fullmatch(r"harp_(engine|port|connection|path)(_[a-z]+)+", metric.name)
        assert metric.name.endswith("_total") == (metric.kind == "counter")
        assert metric.help.endswith(".")
        assert (metric.factor == prometheus.NS) == ("_seconds" in metric.name)
        assert not any(word in metric.name for word in ("_ns", "_ms", "_bits", "_kb"))
    assert len({metric.name for metric in METRICS}) == len(METRICS)


@given(st.text())
def test_any_label_is_read_back(name):
    text = f'harp_engine_up{{engine="{prometheus._escape(name)}"}} 1\n'
    [family] = text_string_to_metric_families(text)
    assert family.samples[0].labels["engine"] == name


def test_no_engine_is_no_metric():
    assert exposition([]) == ""


def test_a_file_is_replaced_whole(job, tmp_path):
    file = tmp_path / "harp.prom"
    file.write_text("old")
    done = CliRunner().invoke(top, ["--once", "--export", str(file)])
    assert (done.exit_code, done.output) == (0, "")
    assert "harp_path_up" in families(file.read_text())
    assert [path.name for path in tmp_path.iterdir()] == ["harp.prom"]
    assert stat.S_IMODE(file.stat().st_mode) == 0o644


@pytest.mark.parametrize(("export", "said"), [
    ("/no/such/folder/x.prom", "cannot write '/no/such/folder/x.prom': there is no directory"),
    ("99999", "a port is at most 65535")])
def test_impossible_requests_are_refused(export, said):
    done = CliRunner().invoke(top, ["--once", "--export", export])
    assert done.exit_code != 0
    assert said in done.output


def test_the_port_answers_prometheus(job):
    with prometheus.server("127.0.0.1", 0, snapshots) as made:
        thread = threading.Thread(target=made.serve_forever, args=(0.01,))
        thread.start()
        try:
            url = f"http://127.0.0.1:{made.server_port}"
            assert urlsplit(url).scheme == "http"
            with urllib.request.urlopen(f"{url}/metrics", timeout=PATIENCE_S) as answer:
                assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
                assert "harp_path_up" in families(answer.read().decode())
            with pytest.raises(urllib.error.HTTPError, match="404"):
                urllib.request.urlopen(f"{url}/", timeout=PATIENCE_S)
        finally:
            made.shutdown()
            thread.join()


def missing(ours, theirs, where=""):
    """Parts of a document that another one lacks or has otherwise."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        return [text for key, value in ours.items() for text in (
            missing(value, theirs[key], f"{where}.{key}") if key in theirs else [f"{where}.{key}"])]
    if isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        return [text for number, pair in enumerate(zip(ours, theirs, strict=True))
                for text in missing(*pair, f"{where}[{number}]")]
    return [] if ours == theirs else [where]


def through_the_sdk(document):
    """Read and write it by Grafana's own types: what they do not know is lost."""
    plugins.register_default_plugins()
    return json.loads(JSONEncoder().encode(Dashboard.from_json(document)))


def test_grafana_knows_each_field_of_the_dashboard():
    document = json.loads(DASHBOARD.read_text())
    assert missing(document, through_the_sdk(document)) == []
    document["panels"][0]["feildConfig"] = {}
    assert missing(document, through_the_sdk(document)) == [".panels[0].feildConfig"]


def test_the_dashboard_asks_for_metrics_that_exist():
    document = json.loads(DASHBOARD.read_text())
    queries = [target["expr"] for panel in document["panels"] for target in panel["targets"]]
    queries += [each["query"] for each in document["templating"]["list"]]
    asked = set(re.findall(r"harp_\w+", " ".join(queries)))
    assert asked <= {metric.name for metric in METRICS}
    assert len(asked) >= 15
    for query in queries:
        assert query.count("(") == query.count(")")
        rated = set(re.findall(r"rate\((\w+)", query))
        assert rated == {name for name in re.findall(r"harp_\w+", query)
                         if name.endswith("_total")}


def test_panels_do_not_overlap():
    places = [panel["gridPos"] for panel in json.loads(DASHBOARD.read_text())["panels"]]
    cells = [(x, y) for place in places for x in range(place["x"], place["x"] + place["w"])
             for y in range(place["y"], place["y"] + place["h"])]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24


def test_every_key_is_one_that_engines_publish():
    fields = {name for struct in (
        "struct harp_engine_counters", "struct harp_port_counters", "struct harp_session_counters",
        "struct harp_stats_connection", "struct harp_path_info")
        for name, _ in ffi.typeof(struct).fields} | {"alive"}
    assert {metric.key for metric in METRICS} <= fields
