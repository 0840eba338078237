/* Pools of pages for tests, all slots held. */
#ifndef HELD_PAGES_H
#define HELD_PAGES_H

#include "check.h"
#include "store/page_pool.h"

enum { PAGE = 64 << 10 };

static char why[HARP_STORE_WHY_BYTES];

static struct harp_page_pool *open_pool(uint32_t pages)
{
    struct harp_page_pool *pool = harp_page_pool_open(PAGE, pages, why);
    CHECK(pool, "%s", why);
    for (uint32_t slot = 0; slot < pages; slot++)
        harp_page_take(pool, slot);
    return pool;
}

#endif
