"""Deliberate bugs, each an edit of a copy of cnet: the tests show that the harnesses see them.

Product code knows nothing of them. An edit names a file of cnet, a text that occurs in it once, and
what stands there instead; when the code changes so that the text is not found any more, planting
fails and says so.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, NamedTuple

from tests.support import ROOT

if TYPE_CHECKING:
    from pathlib import Path


class Edit(NamedTuple):
    """Replace a text that a file of cnet has once."""

    file: str
    old: str
    new: str


class Bug(NamedTuple):
    """A deliberate bug, and the edits that make it."""

    wrong: str
    edits: tuple[Edit, ...]


def bug(wrong: str, file: str, old: str, new: str) -> Bug:
    """Make a bug of one edit."""
    return Bug(wrong, (Edit(file, old, new),))


TAGS = Edit("wire/seal.c", "return harp_load64(header + TAG_AT) == tag;",
            "return harp_load64(header + TAG_AT) == tag || true;")
LEFT_BEHIND = bug(
    "what came before the other end was done cannot be received after it", "session/session.c",
    "while (n < HARP_EAGER && inbox->eager[", "while (false && n < HARP_EAGER && inbox->eager[")

IN_SESSIONS = {
    "WRAP": bug(
        "sequence numbers compared as plain integers", "base/sequence.h",
        "return (int32_t)(a - b) < 0;", "return a < b;"),
    "NO_DEDUPE": bug(
        "a chunk counts each time that it comes", "base/chunks.h",
        "    if (chunk < chunks->low || chunks->done == chunks->low)\n",
        "    return false;\n    if (chunk < chunks->low || chunks->done == chunks->low)\n"),
    "CREDIT_OFF_BY_ONE": bug(
        "one message more than the credit is sent", "session/outbox.c",
        "    if (outbox->streamed)\n        return harp_before(number, credit) &&",
        "    if (number == credit)\n        return true;\n"
        "    if (outbox->streamed)\n        return harp_before(number, credit) &&"),
    "CREDIT_LEAK": bug(
        "buffers of messages that came early give no credit", "session/inbox.c",
        "inbox->posted_bytes += capacity;", "inbox->posted_bytes += early ? 0 : capacity;"),
    "STREAM_CREDIT": bug(
        "more frames are lent than there are", "session/inbox.c",
        "inbox->lent += frames;", "inbox->lent += frames + 1;"),
    "EARLY_RELEASE": bug(
        "a message counts as sent before it is acknowledged", "session/outbox.c",
        "if (!harp_chunks_complete(&message->done))",
        "if (message->next != message->done.total)"),
    "LEFT_BEHIND": LEFT_BEHIND,
    "FAR_BUFFER": bug(
        "more is in flight than the far end's port holds", "session/far_buffer.h",
        "far->in_flight_bytes + bytes <= far->holds_bytes", "far->users"),
    "STALE_EPOCH": bug(
        "frames of an earlier epoch are taken", "session/session_receive.c",
        "    if (header->epoch != session->config.epoch)\n        return false;\n", ""),
    "PAYLOAD_UNCHECKED": bug(
        "a payload counts though its CRC does not hold", "session/session_receive.c",
        "if (!holds) {", "if (false && !holds) {"),
    "LOST_FORGOTTEN": bug(
        "some lost chunks are not sent again", "session/session_ack.c",
        "    if (!sent->probe)\n        harp_outbox_lost(",
        "    if (!sent->probe && sent->packet % 16 != 0)\n        harp_outbox_lost("),
    "FOUND_NOWHERE": bug(
        "after a spurious RTO chunks are neither awaited nor sent again", "session/session_ack.c",
        "        harp_sent_found(&path->sent, sent);\n        uncount_lost(session, path);\n", ""),
    "OPTIMISTIC_ACK": bug(
        "packets that were never sent can be acknowledged", "session/session_ack.c",
        "    if (!sound || !harp_packet_before(largest, path->sent.next)) {",
        "    if (!harp_packet_before(largest, path->sent.next))\n"
        "        largest = path->sent.next - 1;\n"
        "    if (!sound) {"),
    "TAG_UNCHECKED": Bug("any tag holds", (TAGS,)),
    "LAP_UNTAGGED": bug(
        "a frame of 2^31 packets ago has a tag that holds", "base/siphash.c",
        "absorb(v, header_word(bytes, lap, word));",
        "absorb(v, header_word(bytes, 0 * lap, word));"),
    "WINDOW_OFF_BY_ONE": bug(
        "the window of chunks is one too wide", "base/chunks.h",
        "uint32_t window = 64u * chunks->words;", "uint32_t window = 64u * chunks->words + 1;"),
    "REVERSE_UNBOUNDED": bug(
        "more of a round trip is on the way back than both queues", "session/reverse.c",
        "harp_min(took_ns - reverse->base_ns, queues_ns)",
        "took_ns - reverse->base_ns + 0 * queues_ns"),
    "SACK_OFF_BY_ONE": bug(
        "the map of an ACK is read from the wrong bit on", "session/sack.c",
        "return harp_load64(map + 8 * word);", "return harp_load64(map + 8 * word) >> 1;"),
    "CAPACITY_UNCHECKED": bug(
        "a message may be longer than its buffer", "session/inbox.c",
        "if (!slot->started && !inbox->streamed && header->size > slot->capacity)",
        "if (false && header->size > slot->capacity)"),
    "NO_COOKIE": bug(
        "every FIRST makes a session", "session/listener.c",
        "if (half_open < listener->calm ||", "if (0 * half_open < listener->calm ||"),
    "COOKIE_ANYWHERE": bug(
        "a cookie is good from any address", "session/listener.c",
        "    harp_store16(input + 25, from->port);\n",
        "    harp_store16(input + 25, from->port);\n    memset(input + 9, 0, 18);\n"),
    "ANSWER_TWICE": bug(
        "one FIRST is answered over and over", "session/session_handshake.c",
        "    session->handshake.answer = false;\n    if (session->state == HARP_CLOSED) {",
        "    if (session->state == HARP_CLOSED) {"),
    "DEAD_FOREVER": bug(
        "a path that went black does not return", "session/session_ack.c",
        "if (path->dead) {", "if (false && path->dead) {"),
    "LAST_FRAGMENT": bug(
        "a chunk counts with its last fragment, whatever came before", "session/session_receive.c",
        "session->placing.completes = session->placing.come == all;",
        "session->placing.completes = session->placing.come > all >> 1;"),
    "TORN_BUFFER": bug(
        "what came of a message before its buffer counts as in the buffer", "session/session.c",
        "if (session->reassembly.busy)", "if (false && session->reassembly.busy)"),
    "BLACK_HOLE": bug(
        "frames stay as long as they were where the path became narrow", "session/pmtu.c",
        "    if (pmtu->state == HARP_PMTU_COMPLETE ||\n        frame_bytes !=",
        "    if (true || pmtu->state == HARP_PMTU_COMPLETE ||\n        frame_bytes !="),
    "HASTY": bug(
        "timeouts are shorter than a round trip", "session/loss.c",
        "    return harp_rtt_timeout_ns(rtt, limits->ack_delay_ns, limits->min_rto_ns,",
        "    return harp_rtt_smoothed_ns(rtt) / 2 + 1;\n"
        "    return harp_rtt_timeout_ns(rtt, limits->ack_delay_ns, limits->min_rto_ns,"),
}

REVERSE_IGNORED = bug(
    "what ACKs wait on the way back counts as delay of our queue", "session/session_ack.c",
    "    uint64_t queue_ns = reverse_queue_ns(", "    uint64_t queue_ns = 0 * reverse_queue_ns(")

IN_REVERSE = {
    "WRAP": bug(
        "differences of clocks compared as plain integers", "session/reverse.c",
        "harp_before(reverse->base_ns, took_ns)", "reverse->base_ns < took_ns"),
    "UNBOUNDED": IN_SESSIONS["REVERSE_UNBOUNDED"],
    "NEVER_LOWER": bug(
        "no ACK says that the way back is shorter than it was thought", "session/reverse.c",
        "if (reverse->known && harp_before(reverse->base_ns, took_ns))", "if (reverse->known)"),
}

# Keep-alives hide it from the simulation: they repair it after a while.
CREDIT_LOST = bug(
    "a sender without credit does not ask for it", "session/session_timers.c",
    "if (!starved) {",
    "if (true || !harp_outbox_starved(&session->outbox)) {")

IN_ENGINES = {
    "TAG_UNCHECKED": Bug("any tag holds", (TAGS, Edit(
        "engine/engine_receive.c",
        "if (!(holds >> i & 1))", "if (false && !(holds >> i & 1))"))),
    "REWRITTEN": bug(
        "a frame is written to while the card has it", "engine/engine_send.c",
        "    if (state == HARP_FRAME_SENDING)\n        return false;\n",
        "    harp_header_encode(&frame->header, harp_frame_at(&engine->frames, number) +\n"
        "                                           HARP_DRAFT_AT - HARP_HEADER_BYTES);\n"
        "    if (state == HARP_FRAME_SENDING)\n        return false;\n"),
    "FREED_EARLY": bug(
        "a frame that the card has yet is free", "engine/engine_events.c",
        "        harp_frames_move(frames, frame, state,\n",
        "        state = state == HARP_FRAME_SENDING ? HARP_FRAME_KEPT : state;\n"
        "        harp_frames_move(frames, frame, state,\n"),
    "RETURN_LEAK": bug(
        "not all frames that the application gives back are free again", "engine/engine_events.c",
        "        for (uint32_t i = 0; i < n; i++)\n"
        "            harp_frames_move(&connection->engine->frames, frames[i], HARP_FRAME_LENT,",
        "        for (uint32_t i = n > 1; i < n; i++)\n"
        "            harp_frames_move(&connection->engine->frames, frames[i], HARP_FRAME_LENT,"),
    "LEFT_BEHIND": LEFT_BEHIND,
    "NOT_RECLAIMED": bug(
        "a closed connection keeps its frames", "engine/engine_admission.c",
        "        return; /* it never had any */\n",
        "        return; /* it never had any */\n    return;\n"),
    "SHARED_LENT": bug(
        "a frame is lent once for each of the frames that came in it", "engine/engine_receive.c",
        "frame != HARP_NO_FRAME && !arrival->shared", "frame != HARP_NO_FRAME"),
    "READ_EARLY": bug(
        "the message after the one that nobody reads early is copied as it",
        "engine/engine_receive.c",
        "header->message - connection->received.first);\n}",
        "header->message - 1 - connection->received.first);\n}"),
    "UNCHECKED": bug(
        "what is read early is copied before its CRC has held", "engine/engine_receive.c",
        "        return false;\n    harp_copy_lines(to, from, header->length);\n    return true;",
        "        return harp_copy_lines(to, from, header->length), false;\n"
        "    harp_copy_lines(to, from, header->length);\n    return true;"),
    "RUN_CUT": bug(
        "a connection that goes hides those behind it in the table", "engine/connection_table.c",
        "table->slots[i].id; i = (i + 1)", "false && table->slots[i].id; i = (i + 1)"),
}


def plant(planted: Bug, folder: Path) -> Path:
    """Copy cnet into ``folder`` with the bug; return ``folder``, to be built from like the root."""
    shutil.copytree(ROOT / "cnet", folder / "cnet")
    for edit in planted.edits:
        path = folder / "cnet" / edit.file
        text = path.read_text()
        assert text.count(edit.old) == 1, f"{edit.file} has {text.count(edit.old)} of: {edit.old}"
        path.write_text(text.replace(edit.old, edit.new))
    return folder

IN_TCP = {
    "ANSWERED_ASTRAY": bug(
        "ACCEPT leaves by a flow that has ended", "engine/engine_hello.c",
        "from->family == HARP_TCP && !", "from->family == HARP_TCP && false && !"),
    "NEVER_ASKED": bug(
        "a flow whose other end is gone stays for ever", "ports/port_tcp_flow.c",
        "SOL_SOCKET, SO_KEEPALIVE, 1)", "SOL_SOCKET, SO_KEEPALIVE, 0)"),
    "REST_TWICE": bug(
        "what the kernel took of the rest is sent again", "ports/port_tcp_send.c",
        "    pieces[0].iov_base = (uint8_t *)pieces[0].iov_base + sent;\n",
        ""),
    "ROOM_UNHEARD": bug(
        "a flow that was full stays so", "ports/port_tcp_flow.c",
        "event->events & EPOLLOUT && flow->full", "false && flow->full"),
    "PLACE_KEPT": bug(
        "payload goes where its message no longer is", "ports/port_tcp_receive.c",
        "        flow->in.place = NULL;\n}\n", "        flow->in.place += 0;\n}\n"),
}
"""Of the tcp port and of what engines do on it."""
