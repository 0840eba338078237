/* A whole file in memory, for files of settings that a reader then takes apart. */
#ifndef HARP_NCCL_TEXT_FILE_H
#define HARP_NCCL_TEXT_FILE_H

#include <stddef.h>

/* The bytes of a regular file of at most 256 MiB, to be freed; or NULL, and one sentence in `why`
 * (HARP_WHY_BYTES). */
char *text_file_read(const char *path, size_t *length, char *why);

#endif
