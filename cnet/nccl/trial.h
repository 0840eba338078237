/* Trial of two ports before a connection is made: the faster one carries it.
 *
 *     connecting end                                    listening end
 *     connects by either port ---------------------->   accepts both; what comes first on a
 *     TAKE n, then n messages ---------------------->   connection, its opening, says what it is
 *     GIVE n  <------------------------- n messages
 *     the same by the other port; all that twice
 *     closes both, and connects by the faster port
 *     DATA ----------------------------------------->   NCCL gets this connection
 *
 * A port's time is that of n messages there and n back, the better of two. One that does not answer
 * when the other has, or does not bring its messages, has lost: a driver may bind with zero copy
 * and drop all that it gets. Zero copy is no promise of speed: on a cloud's
 * card a user measured it at a third of copy mode (docs/use/deploy.md).
 *
 * A rank with hundreds of peers tries a few hosts at a time (connect.c), and serves the trials of a
 * few: each has 4 MiB of messages for each of its connections, and those that run at once share the
 * NIC that they measure. A host that is not served yet waits with its first message.
 *
 * Openings are for handles that offer both kinds of ports, so other connections pay nothing. Both
 * ends work in slices of a millisecond, in whatever call NCCL makes next (serve_newcomers of
 * connect.c).
 */
#ifndef HARP_NCCL_TRIAL_H
#define HARP_NCCL_TRIAL_H

#include "engine/engine.h"

enum opening_kind { OPENING_DATA = 1, OPENING_TAKE, OPENING_GIVE };

/* Little-endian, as the wire is. */
struct opening {
    uint32_t kind;
    uint32_t messages; /* TAKE, GIVE */
};

#define TRIALS 4 /* at a time, at either end */

struct trial;

struct trial_result {
    uint8_t family;   /* enum harp_family of the port to take; 0: neither answered */
    uint32_t percent; /* its speed, 100: the other port's; 0: that one did not answer */
};

/* Whether a listener with this handle expects openings. */
bool trial_is_due(const struct harp_handle *handle);

/* Begin to try the ports of an engine that lead to this handle; NULL without memory. The config is
 * of the connection to be. trial_step goes on for up to a millisecond and says whether the trial is
 * over; trial_end closes its connections and frees it. */
struct trial *trial_begin(struct harp_engine *engine, const struct harp_handle *handle,
                          const struct harp_connection_config *config);
bool trial_step(struct trial *trial, struct trial_result *result);
void trial_end(struct trial *trial);

/* Whether the trial counts towards the bound: it measures, or may soon. A trial that waits for its
 * peer does not count, or ranks that wait for one another would wait for ever. */
bool trial_is_busy(const struct trial *trial);

/* Say on a new connection that it is no trial. Returns whether that was sent. */
bool trial_open_data(struct harp_connection *connection);

/* ---- The listening end ---- */

/* A connection whose opening is awaited, or that is a trial. */
struct newcomer;

struct newcomer *newcomer_new(struct harp_engine *engine, struct harp_connection *connection);
void newcomer_end(struct newcomer *newcomer); /* closes its connection, unless it was taken */

enum newcomer_state {
    NEWCOMER_WAITS, /* for its opening, or until other hosts' trials are over */
    NEWCOMER_RUNS,  /* a trial that is under way */
    NEWCOMER_OVER,  /* it ended, or broke the rules: end it */
    NEWCOMER_DATA,  /* NCCL may have it: newcomer_take, and end what is left */
};

/* Go on for up to a millisecond. */
enum newcomer_state newcomer_step(struct newcomer *newcomer);
struct harp_connection *newcomer_take(struct newcomer *newcomer);

#endif
