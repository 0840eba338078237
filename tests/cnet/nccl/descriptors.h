/* Open descriptors of a test's own process. */
#ifndef TEST_DESCRIPTORS_H
#define TEST_DESCRIPTORS_H

#include <dirent.h>

#include "check.h"

/* Count them, the one that reads the folder among them. */
static inline int count_descriptors(void)
{
    int n = 0;
    DIR *folder = opendir("/proc/self/fd");
    CHECK(folder, "there is no /proc/self/fd");
    while (readdir(folder))
        n++;
    closedir(folder);
    return n;
}

#endif
