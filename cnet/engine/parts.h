/* The payload of a frame, from where it arrived to where it belongs.
 *
 * A packet of several buffers (jumbo frames by AF_XDP) is an arrival in parts:
 *
 *     part 0  | header | payload ...   |     the CRC goes on from part to part; nothing is put
 *     part 1  | ... payload ...        |     together before it is copied to its place
 *     part 2  | ... payload |
 *
 * Owner: the engine's thread; data path.
 */
#ifndef HARP_PARTS_H
#define HARP_PARTS_H

#include "ports/port.h"

/* Copy it, and whether its CRC holds, in one pass; what was written may be wrong if it does not. */
bool harp_parts_copy(const struct harp_arrival *arrival, uint8_t *to);

/* Copy it to memory that somebody polls: nothing is written unless the CRC holds, and then line by
 * line (copy_lines.h). */
bool harp_parts_copy_lines(const struct harp_arrival *arrival, uint8_t *to);

#endif
