#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "session/session.h"

static const char *cause_of(uint32_t reason)
{
    switch (reason) {
    case HARP_REASON_DONE:
        return "the connection was closed with all messages through";
    case HARP_REASON_UNDER_WAY:
        return "the connection was closed in the middle of its work";
    case HARP_REASON_TOO_LONG:
        return "a message was longer than the buffer that was posted for it";
    case HARP_REASON_PROTOCOL:
        return "a frame came that the protocol forbids";
    case HARP_REASON_MEMORY:
        return "memory ran out";
    case HARP_REASON_VERSION:
        return "the two ends have no version of the protocol in common";
    case HARP_REASON_MTU:
        return "no path carries packets of a useful length, though small ones pass: see where the "
               "network "
               "between drops them; an MTU of 1280 all along is enough";
    case HARP_REASON_UNHEARD:
        return "one end heard nothing from the other for too long, though the other lives: the "
               "network drops what goes one way, or that process was stopped";
    case HARP_REASON_SILENT:
        return "the other end has been silent for too long: its process or its host is gone, or "
               "the network between is";
    case HARP_REASON_NO_ANSWER:
        return "nobody answered the handshake: nothing listens there, the secret is another, or a "
               "firewall drops its UDP port";
    case HARP_REASON_REFUSED:
        return "no process at the other end has its port any more: it ended, or it was killed";
    default:
        return NULL;
    }
}

/* The peer's words, in quotes and without what could play tricks on a terminal. */
static void quote_peer(const struct harp_event *closed, char *out, size_t room)
{
    char text[HARP_CLOSE_TEXT + 1] = "";
    for (uint8_t i = 0; i < closed->text_bytes; i++) {
        unsigned char byte = (unsigned char)closed->text[i];
        text[i] = byte < 32 || byte == 127 ? '?' : (char)byte;
    }
    if (closed->text_bytes)
        snprintf(out, room, ", saying \"%s\"", text);
}

void harp_reason_explain(const struct harp_event *closed, char *out, size_t room)
{
    assert(room > 0 && closed->type == HARP_EVENT_CLOSED);
    assert(closed->text_bytes <= HARP_CLOSE_TEXT);
    char number[80], versions[80] = "", words[HARP_CLOSE_TEXT + 20] = "";
    const char *cause = cause_of(closed->reason);
    snprintf(number, sizeof number, "the connection ended for reason %u, which is not known here",
             closed->reason);
    if (closed->reason == HARP_REASON_VERSION && closed->by_peer)
        snprintf(versions, sizeof versions, ": it speaks %u to %u, this end speaks %u",
                 closed->lowest, closed->highest, HARP_VERSION);
    quote_peer(closed, words, sizeof words);
    snprintf(out, room, "%s%s; %s%s", cause ? cause : number, versions,
             closed->by_peer ? "the other end says so" : "this end says so", words);
}
