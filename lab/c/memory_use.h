/* What /proc/self/status says of this process's memory. */
#ifndef HARP_LAB_MEMORY_USE_H
#define HARP_LAB_MEMORY_USE_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"

/* KiB of a line: VmRSS, VmHWM. */
static inline long memory_use_kib(const char *name)
{
    char line[128];
    long kib = -1;
    FILE *from = fopen("/proc/self/status", "r");
    CHECK(from, "there is no /proc/self/status");
    while (kib < 0 && fgets(line, sizeof line, from))
        if (strncmp(line, name, strlen(name)) == 0)
            kib = atol(line + strlen(name) + 1);
    fclose(from);
    return kib;
}

#endif
