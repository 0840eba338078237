"""Keys of a connection, in C and in Python."""

from hypothesis import given
from hypothesis import strategies as st

from harp import wire_sums
from harp._cnet import ffi, lib
from lab.c_programs import build, library, run
from tests.support.wire_frames import KEYS, U16, U64, c_key, patient, py_key


def test_keys_depend_on_all_that_they_are_made_of(tmp_path):
    run(build(tmp_path / "keys", ["tests/cnet/wire/test_keys.c", str(library())]))


@patient
@given(KEYS, U64, st.tuples(U64, U16, KEYS), st.tuples(U64, U16, KEYS))
def test_keys_of_c_and_of_python_agree(secret, listener, one, two):
    ends = [wire_sums.End(*end) for end in (one, two)]
    c_ends = [ffi.new("struct harp_end *", end._asdict()) for end in ends]
    c_secret = c_key(secret)
    assert py_key(lib.harp_key_hello(c_secret, listener)) == wire_sums.key_hello(secret, listener)
    assert (py_key(lib.harp_key_accept(c_secret, listener, c_ends[0]))
            == wire_sums.key_accept(secret, listener, ends[0]))
    assert py_key(lib.harp_key_up(c_secret, *c_ends)) == wire_sums.key_up(secret, *ends)
    assert py_key(lib.harp_key_down(c_secret, *c_ends)) == wire_sums.key_down(secret, *ends)
