#define _GNU_SOURCE
#include "text_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/engine.h"

#define FILE_MOST (UINT32_C(256) << 20) /* bytes: a flow of a plan takes some 200 */

char *text_file_read(const char *path, size_t *length, char *why)
{
    struct stat about;
    int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    ssize_t got = -1;
    char *text = NULL;
    if (file >= 0 && fstat(file, &about) == 0) {
        if (!S_ISREG(about.st_mode) || about.st_size > FILE_MOST)
            errno = S_ISREG(about.st_mode) ? EFBIG : EINVAL;
        else if ((text = malloc((size_t)about.st_size + 1)))
            got = read(file, text, (size_t)about.st_size);
    }
    if (got < 0)
        snprintf(why, HARP_WHY_BYTES, "it cannot be read: %s", strerror(errno));
    if (file >= 0)
        close(file);
    if (got >= 0)
        *length = (size_t)got;
    else
        free(text);
    return got >= 0 ? text : NULL;
}
