/* The application at one end: posts buffers and sends messages by a script drawn from the seed.
 *
 * It knows what the other end was asked to send, so that everything that the session says can be
 * checked at once. Buffers are allocated per message, exactly as long as they must be, and freed as
 * soon as the session gives them back: a write or read too late is an error of the address
 * sanitizer.
 */
#ifndef DST_APP_H
#define DST_APP_H

#include "script.h"
#include "session/session.h"

/* A frame that the application has. */
struct dst_lent {
    uint32_t message, offset;
    uint16_t length;
    uint8_t *bytes;
};

/* Memory that a message is sent from. */
struct dst_outgoing {
    uint8_t *buffer;        /* all of it, or: */
    const uint8_t **pieces; /* its chunks */
    uint32_t pieces_n;
};

struct dst_app {
    const struct dst_script *out; /* what this end sends */
    const struct dst_script *in;
    struct dst_app *peer;
    uint8_t side;
    bool payloads;
    bool trusts; /* the other end keeps the protocol: what it sends can be checked */
    bool connected, closed;
    uint32_t reason;
    uint32_t left; /* messages that came before the other end was done, to be received after it */
    uint32_t sent, reported_sent, posted, received;
    uint64_t random;
    uint16_t segment;
    uint64_t return_ns; /* when frames are given back; HARP_NEVER if there are none */
    struct dst_lent *lent;
    uint32_t lent_n;
    uint8_t *eager[HARP_EAGER];
    struct dst_outgoing out_buffer[DST_MESSAGES];
    uint8_t *in_buffer[DST_MESSAGES];
    uint32_t placed[DST_MESSAGES]; /* bytes */
    uint8_t *placed_map[DST_MESSAGES];
};

void dst_app_start(struct dst_app *app, uint16_t segment);
void dst_app_stop(struct dst_app *app);

/* Ghost knowledge: a frame of the other end's `message`-th message is about to be placed. */
void dst_app_write(struct dst_app *app, uint32_t message);

/* Ghost knowledge: the chunk of this header, of the other end's `message`-th message, counts. */
void dst_app_placed(struct dst_app *app, const struct harp_header *header, uint32_t message);

/* A frame is lent to the application, which gives it back when it likes. */
void dst_app_lend(struct dst_app *app, const struct harp_header *header, uint32_t message,
                  const uint8_t *payload, uint64_t now_ns);

/* Take in all events; whether there was any. */
bool dst_app_poll(struct dst_app *app, struct harp_session *session);

/* Post, give back and send what the script wants at `now_ns`; returns when it wants to go on. */
uint64_t dst_app_act(struct dst_app *app, struct harp_session *session, uint64_t now_ns);

/* Whether all messages of both scripts are through, as seen from here. */
bool dst_app_done(const struct dst_app *app);

#endif
