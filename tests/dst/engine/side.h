/* One end: a production engine on a simulated port, in MANUAL progress and virtual time, and an
 * application with a script. */
#ifndef DST_ENGINE_SIDE_H
#define DST_ENGINE_SIDE_H

#include "engine/engine_state.h"
#include "forge.h"
#include "port.h"
#include "script.h"

struct dst_lent {
    uint32_t message, offset, size, frame;
    const uint8_t *bytes;
};

struct dst_crowd;

/* The application at an end, while it has a script (app.c). */
struct dst_side_app {
    const struct dst_script *out, *in;
    bool connected, closed;
    uint32_t reason;
    uint32_t left; /* to be received after the end */
    uint32_t sent, reported_sent, posted, received;
    uint64_t chunk_bytes[DST_MESSAGES];
    uint8_t *chunk_map[DST_MESSAGES];
    uint8_t *out_buffer[DST_MESSAGES], *in_buffer[DST_MESSAGES];
    uint32_t looks; /* into buffers that are read early */
    struct dst_lent *lent;
    uint32_t lent_n;
    uint64_t return_ns;
    uint32_t *drafts;
    uint32_t drafts_n;
};

struct dst_side {
    uint8_t number;          /* 0 connects, 1 listens */
    bool over_tcp;           /* on the product's tcp port (tcp_kernel.h), not a simulated one */
    bool is_crowded;         /* many connections (crowd.h), not one with a script */
    struct dst_crowd *crowd; /* NULL: not begun, or none */
    struct dst_side *peer;
    struct dst_link *link;
    const uint64_t *true_ns;
    int64_t clock_off_ns;
    uint64_t random;
    struct dst_card card;
    bool trusts;     /* the other end keeps the protocol */
    uint32_t tamper; /* permille: frames changed before they are sealed */

    struct dst_port *port;
    struct harp_engine *engine; /* NULL: down */
    struct harp_engine_config config;
    struct harp_connection_config wanted;
    struct harp_listening *listening;
    struct harp_handle handle; /* of the listening end */
    struct harp_connection *connection;
    uint64_t wake_ns;
    /* Listening end, before the connection was made; [1]: of and to strangers, at any time. */
    uint64_t heard_bytes[2], answered_bytes[2];
    struct dst_side_app app;
};

void dst_side_open(struct dst_side *side);

/* Without ceremony, as a process that is killed. */
void dst_side_kill(struct dst_side *side);

/* Application and engine do what they have to at this time. */
void dst_side_drive(struct dst_side *side);

/* The application lets go of its connection; its memory is gone when this returns. */
void dst_side_let_go(struct dst_side *side);
void dst_side_stop_listening(struct dst_side *side);

bool dst_side_done(const struct dst_side *side);

/* Whether the engine has a connection that both ends agreed on. */
bool dst_side_established(const struct dst_side *side);

/* Hash of all that a frame could change. */
uint64_t dst_side_state(const struct dst_side *side);

/* Frames of the engine, changed and sealed again, if this end is malicious. */
void dst_side_spoil(struct dst_side *side, uint8_t *bytes, size_t bytes_n);

/* No frame is anybody's but the port's. */
void dst_side_check_frames(const struct dst_side *side);

/* The application's part (app.c). */
bool dst_app_work(struct dst_side *side, uint64_t *wake_ns);
void dst_app_forget(struct dst_side *side);

#endif
