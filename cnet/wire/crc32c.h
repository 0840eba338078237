/* CRC32C: the Castagnoli polynomial, reflected 0x82F63B78, initial value and final exclusive-or
 * 0xFFFFFFFF (RFC 3720, appendix B.4). Every payload on the wire is covered by it.
 *
 * Six routines compute it, alone or in one pass with a copy; all give the same results.
 *
 *     table     eight tables of 256; any machine
 *     serial    the CPU's CRC32C instruction, 8 bytes at a time (SSE4.2; ARMv8)
 *     threeway  the instruction on three streams at once, since its latency is three cycles and
 *               its throughput one a cycle; a carry-less multiplication joins the streams
 *     fold      carry-less multiplications fold 4 x 16 bytes into the next (PCLMULQDQ)
 *     fold256   the same on 4 x 32 bytes (VPCLMULQDQ with AVX2, as AMD's Zen 3 has it); half of a
 *               long range that is not copied goes through threeway at the same time
 *     fold512   the same on 4 x 64 bytes (AVX-512 VPCLMULQDQ)
 *
 * The fastest one does not depend on the CPU's model alone: the instruction is slow under
 * emulation, wide vectors are on some hosts. So harp_crc32c_choose times those that the CPU offers,
 * and from then on the process uses the winner. Before that it uses the table.
 *
 * The choice is one word per process, read and written atomically; as all routines agree, a thread
 * that still uses the old one while it changes does no harm.
 */
#ifndef HARP_CRC32C_H
#define HARP_CRC32C_H

#include <stddef.h>
#include <stdint.h>

/* cdef: begin */
/* Time the routines that this CPU offers, two milliseconds long, and use the fastest from now
 * on. Returns its name. */
const char *harp_crc32c_choose(void);

/* CRC32C of `length` bytes; 0 if there are none. */
uint32_t harp_crc32c(const uint8_t *bytes, size_t length);

/* Copy `length` bytes and return their CRC32C. The two places do not overlap. */
uint32_t harp_crc32c_copy(uint8_t *to, const uint8_t *from, size_t length);

/* The same for a place that another core will read: long copies bypass this core's caches, since
 * the other one would have to fetch every line from them. Alignment of `to` to 64 helps. */
uint32_t harp_crc32c_copy_nontemporal(uint8_t *to, const uint8_t *from, size_t length);

/* The routines that this CPU offers, by index; names are NULL from the last on. harp_crc32c_use
 * makes one the process's, for tests and measurements. */
const char *harp_crc32c_name(size_t index);
void harp_crc32c_use(size_t index);
/* cdef: end */

#endif
