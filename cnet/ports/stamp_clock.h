/* Age of a packet, from the kernel's time stamp.
 *
 * The kernel stamps packets by CLOCK_REALTIME, which may be set at any moment, by hand or by NTP; a
 * packet that waits meanwhile would look too old or too young by the step. CLOCK_MONOTONIC is never
 * set, and runs at the same rate (it is slewed alike), so the difference between the two changes
 * when and only when the calendar is set. Stamps from before such a change are of no use.
 *
 * Owner: one port; no clock is read.
 */
#ifndef HARP_STAMP_CLOCK_H
#define HARP_STAMP_CLOCK_H

#include <stdint.h>

#define HARP_STAMP_STEP_NS 10000 /* two readings one after the other may differ by less */
#define HARP_STAMP_MOST_NS UINT64_C(4000000000)

struct harp_stamp_clock {
    uint64_t steady_ns; /* now, by CLOCK_MONOTONIC */
    uint64_t ahead_ns;  /* by so much CLOCK_REALTIME is ahead of it; wraps when it is behind */
    uint64_t set_ns;    /* steady time at which that was seen to have changed */
};

/* Both clocks have just been read, one after the other. */
static inline void harp_stamp_clock_read(struct harp_stamp_clock *clock, uint64_t steady_ns,
                                         uint64_t real_ns)
{
    uint64_t ahead_ns = real_ns - steady_ns;
    uint64_t changed_ns = ahead_ns - clock->ahead_ns + HARP_STAMP_STEP_NS;
    clock->steady_ns = steady_ns;
    if (changed_ns <= 2 * HARP_STAMP_STEP_NS)
        return;
    clock->ahead_ns = ahead_ns;
    clock->set_ns = steady_ns;
}

/* Time since the arrival of a packet that bears the stamp `real_ns`; 0 if that is unknown. */
static inline uint32_t harp_stamp_age_ns(const struct harp_stamp_clock *clock, uint64_t real_ns)
{
    uint64_t age_ns = clock->steady_ns - (real_ns - clock->ahead_ns);
    uint64_t known_ns = clock->steady_ns - clock->set_ns;
    return age_ns < known_ns && age_ns < HARP_STAMP_MOST_NS ? (uint32_t)age_ns : 0;
}

#endif
