/* One end in the simulation: a production session and the application and driver around it.
 *
 * The driver does beside the session what an engine does: keys, CRC, placing. The application posts
 * buffers and sends messages by a script drawn from the seed, and knows what the other end was
 * asked to send, so that everything that the session says can be checked at once. Buffers are
 * allocated per message, exactly as long as they must be, and freed as soon as the session gives
 * them back: a write or read too late is an error of the address sanitizer.
 */
#ifndef DST_END_H
#define DST_END_H

#include "link.h"

#define DST_MESSAGES 400
#define DST_FRAMES 8

struct dst_script {
    uint32_t n;
    uint32_t size[DST_MESSAGES];
    uint32_t ahead;                      /* buffers that the receiver keeps posted */
    uint32_t slack;                      /* how much longer than its message a buffer is */
    uint64_t stall_from_ns, stall_to_ns; /* the receiver's application sleeps */
};

struct dst_end {
    struct dst_link *link;
    struct dst_end *peer;
    uint8_t side; /* 0 connects, 1 listens */
    struct harp_session_config config;
    struct harp_session *session; /* NULL before FIRST has come, or while it is down */
    const struct dst_script *out; /* what this end sends */
    const struct dst_script *in;
    uint32_t calm;        /* of the listener */
    bool cheats;          /* its ACKs claim more than has arrived */
    int64_t clock_off_ns; /* its clock against true time */
    uint64_t random;
    uint64_t wake_ns;    /* when the session wants to be driven, in true time */
    uint32_t idle_turns; /* times in a row that it was driven without time going on */
    uint64_t driven_ns;
    uint64_t heard_bytes, answered_bytes; /* before the connection was made */
    bool connected, closed;
    uint32_t reason;
    uint32_t sent, reported_sent, posted, received;
    uint8_t *out_buffer[DST_MESSAGES];
    uint8_t *in_buffer[DST_MESSAGES];
    uint32_t placed[DST_MESSAGES]; /* bytes */
    uint8_t *placed_map[DST_MESSAGES];
    uint8_t *eager[HARP_EAGER];
};

/* Says what broke, how to see it again, and ends the program. */
_Noreturn void dst_fail(const char *what, uint64_t a, uint64_t b);

#define DST_CHECK(holds, what, a, b)                                                               \
    do {                                                                                           \
        if (!(holds))                                                                              \
            dst_fail(what, (uint64_t)(a), (uint64_t)(b));                                          \
    } while (0)

/* Begin this end's part; the connecting end gets its session at once. */
void dst_end_start(struct dst_end *end, uint64_t now_ns);

/* A frame arrives. */
void dst_end_receive(struct dst_end *end, uint64_t now_ns, const struct dst_flight *flight);

/* Let application and session do what they have to. */
void dst_end_drive(struct dst_end *end, uint64_t now_ns);

/* Whether all messages of both scripts are through, as seen from here. */
bool dst_end_done(const struct dst_end *end);

/* Drop the session and all that belongs to it. */
void dst_end_stop(struct dst_end *end);

#endif
