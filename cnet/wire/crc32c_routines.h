/* Inside of the routines of crc32c.h.
 *
 * They work on the bare register: the caller sets it to all ones and inverts the result. Seen as a
 * polynomial over GF(2), the register holds the remainder with the highest power in its lowest bit.
 *
 * Folding rests on one identity. A block of 128 bits is L x^64 + H, with L the eight bytes that
 * come first. A block that stands D bits ahead of another may be replaced by adding L (x^(D+64) mod
 * P) + H (x^D mod P) to that other one, and each product fits into 128 bits. In registers whose
 * bits are reflected a carry-less product comes out multiplied by x once more, and a 32-bit
 * constant in the low half of a 64-bit register stands for itself times x^32; so the constant to
 * multiply by x^n is K(n) = x^(n-33) mod P, its 32 bits reflected, that is K(D+64) for L and K(D)
 * for H.
 */
#ifndef HARP_CRC32C_ROUTINES_H
#define HARP_CRC32C_ROUTINES_H

#include <stddef.h>
#include <stdint.h>

struct harp_crc32c_routine {
    const char *name;
    uint32_t (*crc)(uint32_t state, const uint8_t *from, size_t length);
    uint32_t (*copy)(uint32_t state, uint8_t *to, const uint8_t *from, size_t length);
    /* Past the caches, to a place that is aligned to 64; ordered before later stores. NULL: copy.
     */
    uint32_t (*nontemporal)(uint32_t state, uint8_t *to, const uint8_t *from, size_t length);
};

enum { HARP_CRC32C_ROUTINES_MAX = 8 };

/* Add to `list` what this CPU offers and this file knows; returns how many. */
size_t harp_crc32c_machine(struct harp_crc32c_routine *list);

#endif
