/* Memory of the packet network: whoever has none left ends here, as the answer would be wrong. */
#ifndef SIM_PACKET_MEMORY_H
#define SIM_PACKET_MEMORY_H

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static inline void *checked_memory(void *memory)
{
    if (!memory) {
        fputs("sim: the packet network has no memory left\n", stderr);
        abort();
    }
    return memory;
}

static inline void *zeroed_array(size_t n, size_t size)
{
    return checked_memory(calloc(n ? n : 1, size));
}

static inline void *copied_array(const void *from, size_t n, size_t size)
{
    void *copy = zeroed_array(n, size);
    if (n)
        memcpy(copy, from, n * size);
    return copy;
}

/* An array with room for one more entry than the `n` it has; new memory is not cleared. */
static inline void *grow_array(void *array, size_t n, size_t *room, size_t size)
{
    if (n < *room)
        return array;
    *room = *room ? 2 * *room : 64;
    return checked_memory(realloc(array, *room * size));
}

/* The same for an array `links` with the fields links_n and links_room beside it. */
#define GROW_ARRAY(array) ((array) = grow_array((array), array##_n, &array##_room, sizeof *(array)))

#endif
