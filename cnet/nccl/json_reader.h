/* A strict reader of JSON (RFC 8259) for files of settings. The caller says what it expects next.
 *
 *     struct json_reader reader = {.at = text, .end = text + length};
 *     json_take(&reader, '{');
 *     for (bool first = true; json_member(&reader, &first, key, sizeof key);)
 *         if (strcmp(key, "rank") == 0)
 *             json_number(&reader, UINT32_MAX, &rank);
 *         else
 *             json_skip(&reader);
 *
 * The first thing that is wrong stays in `wrong`, and from then on every call returns false. It
 * allocates nothing, and nesting is bounded.
 */
#ifndef HARP_NCCL_JSON_READER_H
#define HARP_NCCL_JSON_READER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct json_reader {
    const char *at, *end;
    const char *wrong; /* what was expected at `at`; NULL: nothing is wrong */
};

/* Pass over spaces and this character, which must come. */
bool json_take(struct json_reader *reader, char wanted);

/* Inside a list or object: whether a further member follows. Passes over the comma before it, or
 * over the end, `close`. `*first` is true before the first member. */
bool json_next(struct json_reader *reader, char close, bool *first);

/* The same inside an object. Passes over the member's key and the colon behind it, too. */
bool json_member(struct json_reader *reader, bool *first, char *key, size_t room);

/* Text without escapes, shorter than `room`. */
bool json_text(struct json_reader *reader, char *out, size_t room);

/* A whole number from 0 to `most`. */
bool json_number(struct json_reader *reader, uint64_t most, uint64_t *out);

/* Any value. */
bool json_skip(struct json_reader *reader);

/* Nothing but spaces is left. */
bool json_ends(struct json_reader *reader);

/* The line on which the reader stands, in what begins at `text`. */
uint32_t json_line(const struct json_reader *reader, const char *text);

/* The bytes of a regular file of at most 256 MiB, to be freed; or NULL, and one sentence in `why`
 * (HARP_WHY_BYTES). */
char *json_file_read(const char *path, size_t *length, char *why);

#endif
