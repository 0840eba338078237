/* Service time: how long a path takes per byte while any is in flight on it.
 *
 *   service time = time in which something was in flight / bytes that arrived in it
 *
 * That is the utilisation law of a queue (Denning and Buzen, ACM Computing Surveys 10(3), 1978). On
 * a full path it is the inverse of the rate. On a path with a frame now and then the round trip
 * counts in full. Both sums are halved every HARP_SERVICE_BYTES, so that what they say stays
 * recent.
 */
#ifndef HARP_SERVICE_H
#define HARP_SERVICE_H

#include <stdint.h>

#include "base/sequence.h"

#define HARP_SERVICE_BYTES (UINT64_C(4) << 20)
/* A path that has brought nothing for so long is no slower for that: it may be broken, and the
 * products below stay within 64 bits. */
#define HARP_SERVICE_MOST_NS UINT64_C(1000000000)

struct harp_service {
    uint64_t since_ns; /* the time that has not been counted yet begins here */
    uint64_t busy_ns;
    uint64_t bytes;
};

/* Something is in flight again. */
static inline void harp_service_begin(struct harp_service *service, uint64_t now_ns)
{
    service->since_ns = now_ns;
}

/* The peer has acknowledged `bytes`. */
static inline void harp_service_add(struct harp_service *service, uint64_t now_ns, uint64_t bytes)
{
    service->busy_ns += harp_min(now_ns - service->since_ns, HARP_SERVICE_MOST_NS);
    service->bytes += bytes;
    service->since_ns = now_ns;
    if (service->bytes >= HARP_SERVICE_BYTES) {
        service->bytes /= 2;
        service->busy_ns /= 2;
    }
}

/* Time that `bytes` take; 0 while nothing is known. */
static inline uint64_t harp_service_ns(const struct harp_service *service, uint64_t bytes)
{
    return service->bytes ? bytes * service->busy_ns / service->bytes : 0;
}

#endif
