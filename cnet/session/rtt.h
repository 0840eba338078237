/* Round-trip time of one path, in integers.
 *
 *   sent                                           acknowledged
 *    |---------- fabric ---------->|== host ==|-- fabric -->|
 *
 * The ACK says how long the far host kept the packet before it answered (`host`), so the time in
 * the network and the time in the far host are kept apart, as Swift needs them (Kumar et al.,
 * SIGCOMM 2020, section 3.2). Smoothing and the retransmission timeout follow RFC 6298, over the
 * fabric part: srtt += (sample - srtt) / 8, rttvar += (|sample - srtt| - rttvar) / 4, both kept
 * scaled so that nothing is lost to rounding.
 *
 * The least delay seen stands for the empty network. It is forgotten after 10 to 20 seconds, so
 * that a path that was moved gets a new one (swift_drain.c learns it sooner).
 */
#ifndef HARP_RTT_H
#define HARP_RTT_H

#include <stdbool.h>
#include <stdint.h>

#define HARP_RTT_MEMORY_NS UINT64_C(10000000000)

struct harp_rtt {
    uint64_t srtt_x8_ns; /* smoothed fabric delay times 8; 0 before the first sample */
    uint64_t var_x4_ns;
    uint64_t host_x8_ns; /* smoothed delay in the far host times 8 */
    uint64_t host_var_x4_ns;
    uint64_t latest_ns; /* fabric part of the latest sample */
    uint64_t latest_host_ns;
    uint64_t min_ns[2]; /* least fabric delay of this period and of the one before */
    uint64_t period_ns; /* when this period began */
};

void harp_rtt_init(struct harp_rtt *rtt);

/* One packet came back after `total_ns`, `host_ns` of them in the far host, by its own word. A host
 * that took all of that time or more is impossible (a clock was set, or two clocks differ): such a
 * sample is left out, and false returned; but the first is better than none, and counts as all
 * fabric. */
bool harp_rtt_sample(struct harp_rtt *rtt, uint64_t now_ns, uint64_t total_ns, uint64_t host_ns);

bool harp_rtt_known(const struct harp_rtt *rtt);

/* Smoothed fabric delay; 0 before the first sample. */
uint64_t harp_rtt_smoothed_ns(const struct harp_rtt *rtt);

/* Least fabric delay in memory; 0 before the first sample. */
uint64_t harp_rtt_least_ns(const struct harp_rtt *rtt);

/* The time that the far host may take to acknowledge: its smoothed delay and four times its
 * variation, which a busy host's scheduler makes large, on top of `ack_delay_ns`. */
uint64_t harp_rtt_host_ns(const struct harp_rtt *rtt, uint64_t ack_delay_ns);

/* Retransmission timeout without back-off: srtt + max(4 rttvar, srtt / 8) + harp_rtt_host_ns, not
 * below `floor_ns`; `initial_ns` before the first sample. The srtt / 8 keeps a path whose delay
 * never varies from timing out on its first hiccup. */
uint64_t harp_rtt_timeout_ns(const struct harp_rtt *rtt, uint64_t ack_delay_ns, uint64_t floor_ns,
                             uint64_t initial_ns);

#endif
