"""Messages between the laboratory and its hosts, through a pipe."""

from __future__ import annotations

import os
from io import BytesIO

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.network.lab.messages import Done, EdgeFlows, EdgeKey, Peers, Ready, read_message
from sim.network.lab.messages import send_message as send

MESSAGES = [EdgeKey(0, 1, 2, 3), EdgeFlows("10.0.0.1", "10.0.0.2", (20000, 20001)),
            Ready({"10.0.0.1": bytes(200)}), Peers({}), Done(7, 0.5, "no such host", {3: 0.25})]


@given(st.lists(st.sampled_from(MESSAGES) | st.binary(), max_size=8))
def test_messages_are_read_in_order_and_then_the_other_end_is_gone(messages):
    file = BytesIO()
    for message in messages:
        send(file, message)
    file.seek(0)
    for message in messages:
        got = read_message(file)
        assert (type(got), got) == (type(message), message)
    with pytest.raises(EOFError):
        read_message(file)


def test_a_message_is_there_as_soon_as_it_is_sent():
    """Nothing of it stays in the writer's buffer."""
    out, into = os.pipe()
    with os.fdopen(out, "rb") as reader, os.fdopen(into, "wb") as writer:
        send(writer, Ready({"10.0.0.1": b"handle"}))
        assert read_message(reader) == Ready({"10.0.0.1": b"handle"})
