/* Reverse queue: how long ACKs wait on the way back, measured with unsynchronised clocks.
 *
 *   here    sent ------ fabric + queue of ours ----->|                      came
 *   there                                            |== host ==| sent_ns --- fabric + queue -->|
 *
 * Each ACK carries the time when it was made, by its sender's clock. Its time on the way back,
 * `came - sent_ns`, is known up to the difference of the clocks, which hardly changes from one ACK
 * to the next. It is compared with the time of an empty way back by the same clocks, the base. Two
 * bounds on the base hold for every sample:
 *
 *   base <= came - sent_ns                        a queue is at least 0 long,
 *   base >= came - sent_ns - (rtt - least rtt)    and at most as long as both queues together
 *
 * The base stays while it lies between them, and moves onto the nearer one otherwise. The first is
 * tight whenever the way back is empty, the second whenever the way there is. So the base is found
 * again soon after a clock was set, and follows clocks that drift apart, even while one of the two
 * queues never empties. The rest of the round trip is between the least one and the whole, so even
 * with wrong clocks the result is no worse than counting both queues or none. (LEDBAT, RFC 6817,
 * takes a least one-way delay of the last minutes instead; a clock that runs slow by 100 ppm hides
 * 6 ms of queue a minute from that.)
 *
 * Bounds of this kind on the offset of two clocks are those of NTP's clock filter (RFC 5905,
 * section 10): an offset is known to half of what a round trip takes more than the least one. */
#ifndef HARP_REVERSE_H
#define HARP_REVERSE_H

#include <stdbool.h>
#include <stdint.h>

struct harp_reverse {
    uint32_t base_ns; /* time of an empty way back by both clocks; wraps */
    bool known;
};

/* The reverse queue of an ACK that took `took_ns` by both clocks, modulo 2^32, in a round trip of
 * `queues_ns` more than the least one. */
uint64_t harp_reverse_queue_ns(struct harp_reverse *reverse, uint32_t took_ns, uint64_t queues_ns);

#endif
