/* The schedule of a turn: the connections that it drives, as numbers, and their order.
 *
 *     timers (base/timer_heap.h)          those that wait for their deadline
 *        | due          ^ wait
 *        v              |
 *     queue  [a b c d] ---> served one after the other, each for its share of a turn
 *        ^ ^_______ again: more to send, behind all others
 *        |_________ blocked: found no room at its port, keeps its place before those
 *
 * So connections take turns at sending, whatever their message sizes and windows are. A connection
 * that had its share stands behind those that had none; one that found no room at its port is
 * served first when there is room. A turn that does not reach the queue's end puts these behind it,
 * so that the next turn gets there. A queue in which all are blocked is served again after
 * HARP_RETRY_NS.
 *
 * A turn costs what it does for the connections that are due, however many there are.
 *
 * Owner: one engine's driver. Only harp_schedule_open allocates. The order depends on calls and
 * times alone.
 */
#ifndef HARP_SCHEDULE_H
#define HARP_SCHEDULE_H

#include "base/index_queue.h"
#include "base/timer_heap.h"

#define HARP_RETRY_NS UINT64_C(20000) /* when a port had no room */

struct harp_schedule {
    struct harp_timers timers;
    struct harp_index_queue queue;
    struct harp_index_queue blocked; /* of this turn */
    uint32_t unserved;               /* of those that this turn began with */
    uint64_t queue_at_ns;            /* when the queue is to be served; 0: at once */
};

/* For numbers below `most`; false without memory. */
bool harp_schedule_open(struct harp_schedule *schedule, uint32_t most);
void harp_schedule_close(struct harp_schedule *schedule);

/* Number i is due at once. */
void harp_schedule_wake(struct harp_schedule *schedule, uint32_t i);

/* Begin a turn: how many are to be served, by as many calls of harp_schedule_next. Fewer are
 * allowed: the others keep their places. */
uint32_t harp_schedule_begin(struct harp_schedule *schedule, uint64_t now_ns);
uint32_t harp_schedule_next(struct harp_schedule *schedule);

/* Outcome of serving a connection: it waits until a deadline; it has more to send; it found no
 * room.
 */
void harp_schedule_wait(struct harp_schedule *schedule, uint32_t i, uint64_t at_ns);
void harp_schedule_again(struct harp_schedule *schedule, uint32_t i);
void harp_schedule_blocked(struct harp_schedule *schedule, uint32_t i);

void harp_schedule_end(struct harp_schedule *schedule, uint64_t now_ns);

/* When the next turn has somebody to serve; HARP_TIMER_NEVER: not by itself. */
uint64_t harp_schedule_deadline_ns(struct harp_schedule *schedule);

/* There is no such connection any more. */
void harp_schedule_forget(struct harp_schedule *schedule, uint32_t i);

#endif
