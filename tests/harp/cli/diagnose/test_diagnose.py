"""``harp diagnose``: files, hosts over a port with a token, what people and programs read."""

import json
import re

import pytest

from harp.cli.diagnose.snapshot import to_json
from tests.harp.cli.diagnose.faulty_job import faulty, invoke
from tests.support.diagnosis_cluster import all_to_all
from tests.support.html_pages import Page, check_chart, needs_chromium
from tests.support.levels import long


@pytest.fixture
def files(tmp_path):
    names = []
    for report in faulty():
        names.append(tmp_path / f"{report.host}.json")
        names[-1].write_text(to_json(report))
    return names


def test_people_read_who_it_is_and_why(files):
    done = invoke(*files)
    assert done.exit_code == 3
    lines = done.output.splitlines()
    assert lines[0] == "4 hosts, 48 directions of paths"
    assert lines[1] == "port eth0 (10.0.0.2) of h1: carries nothing (100% sure)"
    assert "of the last" in lines[2]


def test_programs_read_json(files):
    said = json.loads(invoke("--json", *files).output)
    assert (said["hosts"], said["missing"]) == (["h0", "h1", "h2", "h3"], [])
    [suspect] = said["suspects"]
    assert suspect["kind"] == "port"
    assert (suspect["host"], suspect["way"]) == ("h1", "both")
    assert 0.9 < suspect["confidence"] <= 1


def test_a_page_has_the_suspects_and_the_hosts(files, tmp_path):
    done = invoke("--html", tmp_path / "d.html", *files)
    assert done.exit_code == 3
    text = (tmp_path / "d.html").read_text()
    cells = Page(text).cells
    assert cells[1][0] == "port eth0 (10.0.0.2) of h1: carries nothing (100% sure)"
    assert [row[0] for row in cells[-4:]] == ["h0", "h1", "h2", "h3"]
    option = json.loads(re.search(r'id="data">(.*?)</script>', text, re.DOTALL)[1])["chart-0"]
    assert option["series"][0]["data"] == [pytest.approx(100, abs=0.5)]


@long
@needs_chromium
def test_a_browser_draws_the_suspects(files, tmp_path, chrome):
    invoke("--html", tmp_path / "d.html", *files)
    check_chart(chrome, tmp_path / "d.html")


def test_a_page_of_a_snapshot_or_of_another_ending_is_refused(files, tmp_path):
    for words in (["--snapshot", tmp_path / "s.json", "--html", tmp_path / "d.html"],
                  ["--html", tmp_path / "d.txt", *files]):
        done = invoke(*words)
        assert done.exit_code in (1, 2)
        assert "--html needs files" in done.output or "must end in" in done.output
        assert not list(tmp_path.glob("[sd].*"))


def test_a_healthy_job_ends_with_0(tmp_path):
    file = tmp_path / "h.json"
    file.write_text(to_json(all_to_all(3).reports()[0]))
    done = invoke(file)
    assert (done.exit_code, done.output.splitlines()[-1]) == (0, "nothing is suspect")


def test_a_host_without_a_running_job_is_no_healthy_one(tmp_path):
    file = tmp_path / "h.json"
    report = all_to_all(3).reports()[0]
    for moment in report.moments:
        moment.engines.clear()
    file.write_text(to_json(report))
    done = invoke(file)
    assert (done.exit_code, "no path of a running job was found" in done.output) == (1, True)


def test_a_file_that_is_no_snapshot_is_named_and_the_rest_is_used(files, tmp_path):
    bad = tmp_path / "bad.json"
    bad.write_text('{"format": "harp-snapshot-0"}')
    done = invoke(*files, bad)
    assert done.exit_code == 3
    assert f"no report: {bad}: it is no snapshot of format harp-snapshot-1" in done.output
    assert "port eth0" in done.output


@pytest.mark.parametrize(("words", "said"), [
    ((), "give one of these"),
    (("x.json",), "'x.json' is neither a file nor HOST:PORT"),
    (("a:70000",), "'a:70000' is neither a file nor HOST:PORT"),
    (("a:1",), "the network needs a token"),
    (("--serve", "9407"), "the network needs a token"),
    (("--serve", "9407", "--snapshot", "x"), "give one of these")])
def test_wrong_use_is_one_sentence(words, said):
    done = invoke(*words)
    assert done.exit_code == 2
    assert said in done.output


def test_two_reports_of_one_host_are_refused(files):
    done = invoke(files[0], files[0])
    assert done.exit_code == 2
    assert "two reports are of host h0" in done.output
