/* The queue that ACKs meet on the way back, from clocks that nobody has set.
 *
 *   here    sent ------ fabric + queue of ours ----->|                      came
 *   there                                            |== host ==| sent_ns --- fabric + queue -->|
 *
 * Each ACK says when it was made, by its sender's clock. What it took back, `came - sent_ns`, is
 * known but for the difference of the clocks, which stays much the same from one ACK to the next.
 * So it is compared with what an empty way back takes by these two clocks (the base), and all that
 * is known of that are two bounds, which hold for every sample:
 *
 *   base <= came - sent_ns                        no queue is shorter than nothing,
 *   base >= came - sent_ns - (rtt - least rtt)    nor longer than those of both ways together
 *
 * The base stays what it is while it lies between them, and is moved onto the nearer one otherwise.
 * The first holds it whenever the way back runs empty, the second whenever ours does: so both find
 * it again soon after a clock was set, however far, and follow clocks that run apart, even while
 * one of the two ways never runs empty. What is left of the round trip is never more than the whole
 * and never less than the least one, so with clocks as wrong as can be nothing is worse than round
 * trips that count both queues or none. (LEDBAT, RFC 6817, takes a least one-way delay of the last
 * minutes instead; a clock that runs slow by 100 ppm hides 6 ms of queue a minute from that.)
 *
 * Bounds of this kind on the offset of two clocks are those of NTP's clock filter (RFC 5905,
 * section 10): an offset is known to half of what a round trip takes more than the least one. */
#ifndef HARP_REVERSE_H
#define HARP_REVERSE_H

#include <stdbool.h>
#include <stdint.h>

struct harp_reverse {
    uint32_t base_ns; /* of an empty way back, in the difference of both clocks; wraps */
    bool known;
};

/* An ACK took `took_ns` by both clocks, modulo 2^32, and both ways had `queues_ns` more than the
 * least round trip takes: how much of this was on the way back. */
uint64_t harp_reverse_queue_ns(struct harp_reverse *reverse, uint32_t took_ns, uint64_t queues_ns);

#endif
