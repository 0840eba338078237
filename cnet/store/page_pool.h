/* Pages of memory: what parameters, gradients and the optimizer's states live in.
 *
 *   pool    one tier, capped: its pages are mapped to the exact size, all there from the start
 *   window  addresses without memory, in which a pool's pages are shown
 *
 *     window  | page 0 |  hidden | page 2 | page 3 | hidden ...    a tensor spans pages
 *                 |                  |         |
 *     pool    | slot 5 | slot 0 | slot 2 | ...                     a slot has one owner
 *
 * A tensor has its addresses in a window for good; its pages come and go, and lie in any slots. So
 * memory has no gaps, whatever the tensors' sizes. To touch what is hidden ends the process with
 * SIGSEGV: nothing is ever read from another place, or too late.
 *
 * The states of a slot, and the threads that may touch its bytes:
 *
 *   FREE    nobody
 *   HELD    its owner
 *   SHOWN   its owner, and readers of the window
 *   LENT    the kernel, which reads or writes a file (page_file.h)
 *
 *   FREE --take--> HELD --show--> SHOWN --hide--> HELD
 *                  HELD --lend--> LENT --return-> HELD --give--> FREE
 *
 * Every other step is a mistake of the caller and ends the process (assert). One thread at a time
 * changes states; bytes may be touched by any thread that owns them.
 */
#ifndef HARP_STORE_PAGE_POOL_H
#define HARP_STORE_PAGE_POOL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* cdef: begin */
#define HARP_STORE_WHY_BYTES 512
/* Pages are whole pages of the MMU, and whole sectors of a disk. */
#define HARP_STORE_ALIGN 4096

enum harp_page_state {
    HARP_PAGE_FREE,
    HARP_PAGE_HELD,
    HARP_PAGE_SHOWN,
    HARP_PAGE_LENT,
};

struct harp_page_pool;
struct harp_page_window;

/* Map `pages` of `page_bytes`. Returns NULL with a sentence in `why` if there is no such memory. */
struct harp_page_pool *harp_page_pool_open(size_t page_bytes, uint32_t pages, char *why);
/* No page may be shown or lent. */
void harp_page_pool_close(struct harp_page_pool *pool);

/* Reserve addresses. Returns NULL with a sentence in `why`. */
struct harp_page_window *harp_page_window_open(size_t bytes, char *why);
/* No page may be shown in it. */
void harp_page_window_close(struct harp_page_window *window);
void *harp_page_window_base(const struct harp_page_window *window);

void harp_page_take(struct harp_page_pool *pool, uint32_t slot);
void harp_page_give(struct harp_page_pool *pool, uint32_t slot);
void harp_page_lend(struct harp_page_pool *pool, uint32_t slot);
void harp_page_return(struct harp_page_pool *pool, uint32_t slot);

/* Show a slot at `offset` of a window, or hide it again. Returns 0 or -errno. */
int harp_page_show(struct harp_page_pool *pool, uint32_t slot, struct harp_page_window *window,
                   size_t offset);
int harp_page_hide(struct harp_page_pool *pool, uint32_t slot);

enum harp_page_state harp_page_state(const struct harp_page_pool *pool, uint32_t slot);
/* The bytes of a slot that is not free. They stay where they are while it is shown or hidden. */
uint8_t *harp_page_bytes(const struct harp_page_pool *pool, uint32_t slot);
/* Copy a page between pools of one page size: both slots are held. */
void harp_page_copy(struct harp_page_pool *to, uint32_t to_slot, struct harp_page_pool *from,
                    uint32_t from_slot);
/* cdef: end */

#endif
