/* The listening end's answer to FIRST before there is a session.
 *
 *   FIRST --> a session of that peer exists? --yes--> harp_session_receive repeats its ACCEPT
 *                |no
 *                v
 *          fewer than `calm` sessions half open? --yes--> make one: harp_session_accept
 *                |no: a flood, or a big job that starts
 *                v
 *          brings our cookie of this minute or the last? --yes--> make one
 *                |no
 *                v
 *          answer COOKIE and keep nothing
 *
 * The cookie is a SipHash, under a key that only this listener has, of the sender's address, of its
 * parameters and of the minute. So only a host that can be reached at that address has it, it
 * cannot be used from elsewhere nor for another connection, and it expires. COOKIE is shorter than
 * FIRST, so a listener amplifies no attack.
 *
 * Tags come before all of this: FIRST without the listener's secret is dropped unseen.
 *
 * Owner: the control plane; any thread, the functions keep no state.
 */
#ifndef HARP_LISTENER_H
#define HARP_LISTENER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/siphash.h"
#include "session/session.h"
#include "wire/body.h"

struct harp_listener {
    struct harp_key key; /* random, of this process */
    uint64_t id;         /* to which FIRST goes */
    uint32_t calm;       /* half-open sessions up to which no cookie is asked for */
};

/* Where a FIRST came from: address (IPv4 as ::ffff:a.b.c.d) and port. */
struct harp_from {
    uint8_t address[16];
    uint16_t port;
};

enum harp_welcome {
    HARP_WELCOME_DROP,   /* not for this listener, or no parameters */
    HARP_WELCOME_MAKE,   /* make a session of *first */
    HARP_WELCOME_COOKIE, /* send *answer, keep nothing */
};

/* Judge a FIRST whose tag and CRC hold and that belongs to no session. `half_open` counts sessions
 * that are made but not confirmed. *answer is filled in for HARP_WELCOME_COOKIE. */
enum harp_welcome harp_listener_judge(const struct harp_listener *listener, uint64_t now_ns,
                                      const struct harp_from *from, uint32_t half_open,
                                      const struct harp_header *header, const uint8_t *body,
                                      struct harp_parameters *first, struct harp_frame *answer);

/* The answer to a frame for which harp_header_decode said HARP_WIRE_VERSION, and whose tag holds by
 * the key of FIRST: VERSION, if it is a FIRST for this listener. False if it deserves none. */
bool harp_listener_refuse(const struct harp_listener *listener, const struct harp_header *header,
                          const uint8_t *frame, size_t frame_bytes, struct harp_frame *answer);

#endif
