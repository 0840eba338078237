/* draw_below(n): the chance of a test program, the same in every run. */
#ifndef DRAW_H
#define DRAW_H

#include "virtual/random.h"

/* A number from 0 to n - 1. */
static inline uint32_t draw_below(uint32_t n)
{
    static uint64_t state = 1;
    return (uint32_t)virtual_below(&state, n);
}

#endif
