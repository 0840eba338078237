#include "copies.h"

void copies_start(struct copies *copies)
{
    copies->free_n = COPIES;
    for (uint32_t i = 0; i < COPIES; i++)
        copies->free[i] = i;
}

uint8_t *copies_next(struct copies *copies)
{
    return copies->free_n ? copies->at[copies->free[copies->free_n - 1]] : NULL;
}

bool copies_send(struct copies *copies, struct harp_connection *to, uint32_t bytes)
{
    uint32_t number = copies->free[copies->free_n - 1];
    if (!harp_send(to, copies->at[number], bytes, COPY_CONTEXT | number))
        return false;
    copies->free_n--;
    return true;
}

void copies_sent(struct copies *copies, uint64_t context)
{
    copies->free[copies->free_n++] = (uint32_t)context;
}
