"""Compilations out of a trace of torch, with remedies against their guards."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("torch")

from harp.ttf.compiler.recompile_log import LIMIT, METRICS, read_lines, read_trace, remedy


def test_a_trace_that_ends_within_a_line_loses_that_line_alone():
    whole = ('x] {"compilation_metrics": {"compile_id": "0/0", "co_name": "f", '
             '"entire_frame_compile_time_s": 1.5}}')
    found = list(read_lines([whole, whole[:60]]))
    assert [(each.function, each.seconds) for each in found] == [("f", 1.5)]


@pytest.mark.parametrize(("guard", "words"), [
    ("k == 0.1", "float as a tensor"),
    ("n == 3", "integer as a tensor"),
    ("tensor 'x' size mismatch at index 1. expected 3, actual 4", "mark dimension 1"),
    ("tensor 'x' dtype mismatch. expected Float, actual Double", "cast before"),
    ("len(xs) == 3", "stacked or padded"),
    ("flag == True", "for each mode"),
    ("GLOBAL_STATE changed: grad_mode", "with gradients or without"),
    ("something new", "the same in each call")])
def test_a_guard_of_each_kind_has_a_remedy(guard, words):
    assert words in remedy(guard)


def line(**metrics):
    return "V0101 x] " + METRICS + json.dumps({"co_name": "f", "co_filename": "train.py",
                                               "co_firstlineno": 3, **metrics}) + "}"


def test_a_recompile_has_its_guard_the_line_that_asked_for_it_and_its_code(tmp_path):
    reason = ('0/0: mode == "a"  # return x + len(mode)\n'
              'File "outer.py", line 9, in outer\nFile "train.py", line 4, in f\n')
    (tmp_path / "rank0.log").write_text("\n".join([
        "a line of something else", line(compile_id="0/0", entire_frame_compile_time_s=0.5),
        line(compile_id="0/1", recompile_reason=reason)]))
    (tmp_path / "rank1.log").write_text(line(compile_id="1/0"))
    first, again, other = read_trace(tmp_path)
    assert (first.id, first.function, first.file, first.line) == ("0/0", "f", "train.py", 3)
    assert (first.seconds, first.guard, first.remedy) == (0.5, "", "")
    assert (again.guard, again.at) == ('mode == "a"', "train.py:4")
    assert again.code == "return x + len(mode)"
    assert "for each mode" in again.remedy
    assert other.id == "1/0"


def test_a_frame_that_torch_gave_up_has_the_name_of_those_before():
    gone = line(compile_id="0/8", fail_reason=f"{LIMIT}: 8\nand more", co_name=None)
    unknown = line(compile_id="5/8", fail_reason=LIMIT, co_name=None)
    found = list(read_lines([line(compile_id="0/0"), gone, unknown]))
    assert [(one.function, one.gave_up) for one in found] == [("f", ""), ("f", f"{LIMIT}: 8")]
