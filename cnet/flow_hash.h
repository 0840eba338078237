/* Hash functions that switches use to spread flows over equal-cost links.
 *
 * Placeholder manual; written in full with the module.
 */
#ifndef HARP_FLOW_HASH_H
#define HARP_FLOW_HASH_H

#include <stddef.h>
#include <stdint.h>

/* cdef: begin */
uint32_t harp_crc32(const uint8_t *bytes, size_t length, uint32_t seed);
/* cdef: end */

#endif
