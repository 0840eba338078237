"""Wrong input to commands: one sentence with the place, exit code 2, and no traceback."""

import gzip
import json
import struct

import pytest
from click.testing import CliRunner

from harp.cli.main import harp
from harp.reading import FileError, parse
from harp.wire import Harp
from tests.support.cluster_files import topology, write_job

ETHERNET = bytes(12) + b"\x08\x00"


def say(*words):
    done = CliRunner().invoke(harp, list(map(str, words)))
    assert not done.exception or isinstance(done.exception, SystemExit), done.exception
    return done


# ---- JSON


@pytest.mark.parametrize(("text", "sentence"), [
    ("", "line 1, column 1"), ("[" * 200_000, "nested too deeply"), ("NaN", "NaN is no number"),
    ("9" * 5000, "too many digits"), (b"\xff", "not UTF-8")])
def test_a_file_that_is_no_json_is_one_sentence(text, sentence):
    with pytest.raises(FileError, match=sentence):
        parse(text)


@pytest.mark.parametrize(("value", "read", "sentence"), [
    (4_000_000_000, lambda node: node.whole(0, 7), "a.b is 4000000000: a whole number from 0 to 7"),
    (True, lambda node: node.whole(0, 7), "a.b is true: a whole number"),
    (1.5, lambda node: node.whole(0, 7), "a.b is 1.5: a whole number"),
    ("1", lambda node: node.number(), 'a.b is "1": a number is possible'),
    ("10.0.0.1:99999", lambda node: node.address(), "an address of a host and a port"),
    ("10.0.0.1:0", lambda node: node.address(), "an address of a host and a port"),
    ("239.1.1.1:7000", lambda node: node.address(), "an address of a host and a port"),
    ("Simpel", lambda node: node.one_of("Simple", "LL"), "did you mean Simple"),
    ({"ranc": 1}, lambda node: node["rank"], "rank is missing in a.b; there is ranc"),
    ("x" * 1000, lambda node: node.each(), "xxx…: a list is possible"),
])
def test_a_wrong_value_is_named_with_its_place(value, read, sentence):
    with pytest.raises(FileError, match=sentence):
        read(parse(json.dumps({"a": {"b": value}}))["a"]["b"])


PLAN = {"format": "harp-plan-1", "fabric": "0", "settings": {}, "max_load": 1, "bound": 1,
        "ecmp_load": 1, "unrealised": 0,
        "ranks": [{"rank": 0, "host": "a", "listen": ["10.0.0.1:61000"]},
                  {"rank": 1, "host": "b", "listen": ["10.0.0.2:61000"]}],
        "flows": [{"from": 0, "to": 1, "source": "10.0.0.1:61256", "target": "10.0.0.2:61000",
                   "links": []}]}


def planned(tmp_path, change):
    plan = json.loads(json.dumps(PLAN))
    change(plan)
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    return say("env", "--plan", tmp_path / "plan.json")


def test_the_plan_itself_is_good(tmp_path):
    assert planned(tmp_path, lambda plan: None).exit_code == 0


@pytest.mark.parametrize(("change", "sentence"), [
    (lambda plan: plan["ranks"][0].update(listen=["10.0.0.1:99999"]), "ranks[0].listen[0] is"),
    (lambda plan: plan["ranks"][1].update(rank=0), "rank 0 is there 2 times"),
    (lambda plan: plan["ranks"][1].update(rank=4_000_000_000), "ranks[1].rank is 4000000000"),
    (lambda plan: plan["flows"][0].update({"to": 7}), "flows[0] is of rank 7, which is not there"),
    (lambda plan: plan.update(bound=float("nan")), "NaN is no number"),
    (lambda plan: plan.update(ranks={}), "ranks is {}: a list is possible"),
])
def test_a_wrong_plan_is_one_sentence(tmp_path, change, sentence):
    done = planned(tmp_path, change)
    assert (done.exit_code, sentence in done.stderr) == (2, True), done.stderr
    assert done.stdout == ""


def test_a_plan_that_is_nested_for_ever_is_one_sentence(tmp_path):
    (tmp_path / "plan.json").write_text('{"ranks":' * 200_000)
    done = say("env", "--plan", tmp_path / "plan.json")
    assert done.exit_code == 2
    assert "nested too deeply" in done.stderr


# ---- Captures


def capture(link=1, frames=2, order="<"):
    """A capture of IPv4 and UDP with a HARP frame in each packet."""
    file = struct.pack(f"{order}IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, link)
    for number in range(frames):
        frame = bytes(Harp(type="PROBE", connection=1, packet=number))
        udp = struct.pack(">HHHH", 7000, 7001, 8 + len(frame), 0) + frame
        ip = struct.pack(">BBHHHBBH4s4s", 0x45, 0, 20 + len(udp), 0, 0, 64, 17, 0,
                         bytes([10, 0, 0, 1]), bytes([10, 0, 0, 2])) + udp
        packet = ETHERNET + ip
        file += struct.pack(f"{order}IIII", 1, number, len(packet), len(packet)) + packet
    return file


def damaged(data):
    """The same with bytes in the middle that no compressor writes."""
    return data[:12] + b"\xff" * 30 + data[42:]


@pytest.mark.parametrize("order", ["<", ">"])
def test_a_whole_capture_is_listed(tmp_path, order):
    for name, data in (("plain", capture(order=order)), ("gz", gzip.compress(capture(), mtime=0))):
        (tmp_path / name).write_bytes(data)
        done = say("decode", tmp_path / name)
        assert done.exit_code == 0, done.output
        assert done.stdout.count("PROBE") >= 2


@pytest.mark.parametrize(("data", "listed", "sentence"), [
    (b"", 0, "it is empty"),
    (b"hello, I am a text file", 0, "it is no capture"),
    (capture()[:10], 0, "it ends amid its header"),
    (capture()[:-5], 1, "it ends amid packet 2: it was copied or written in part"),
    (capture()[:30], 0, "it ends amid packet 1"),
    (capture(link=127), 0, "its packets are of link type 127, in which no IP is looked for"),
    (capture(frames=1) + b"\xff" * 40, 1, "packet 2 is damaged: it states 4294967295 bytes"),
    (gzip.compress(capture(), mtime=0)[:-20], 0, "it is compressed and ends amid its content"),
    (damaged(gzip.compress(capture(), mtime=0)), 0, "it is compressed and damaged"),
    (struct.pack("<IIIHHqI", 0x0A0D0D0A, 28, 0x1A2B3C4D, 1, 0, -1, 28) + b"\x06\0\0\0", 0,
     "it ends amid block 2"),
])
def test_a_capture_that_is_not_whole_is_listed_as_far_as_it_goes(tmp_path, data, listed, sentence):
    (tmp_path / "capture").write_bytes(data)
    done = say("decode", tmp_path / "capture")
    assert (done.exit_code, sentence in done.stderr) == (2, True), done.output
    assert done.stdout.count(" PROBE ") >= listed
    assert "0 packets that are not" not in done.stdout or listed


@pytest.mark.parametrize(("name", "sentence"), [(".", "is a directory"),
                                                ("nothing", "no such file or directory")])
def test_an_unreadable_file_is_named(tmp_path, name, sentence):
    done = say("decode", tmp_path / name)
    assert (done.exit_code, sentence in done.stderr) == (2, True), done.output


# ---- Options


@pytest.mark.parametrize("export", ["127.0.0.1:1x", "[::1]:", "0.0.0.0:-1"])
def test_an_address_without_a_port_is_no_file(tmp_path, monkeypatch, export):
    monkeypatch.chdir(tmp_path)
    done = say("top", "--once", "--export", export)
    assert done.exit_code == 2
    assert "is no port: 0 to 65535 are possible" in done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("address", ["239.1.2.3", "0.0.0.0", "255.255.255.255"])
def test_an_address_of_no_host_is_refused(tmp_path, address):
    job = write_job(tmp_path, topology(hosts=2), addresses={"h-0/eth0": address,
                                                            "h-1/eth0": "10.0.0.2"})
    done = say("plan", job)
    assert (done.exit_code, f"{address} is the address of no host" in done.stderr) == (2, True), \
        done.stderr
