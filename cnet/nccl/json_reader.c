#define _GNU_SOURCE
#include "json_reader.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/engine.h"

#define DEPTH 16 /* of values that are passed over; our files have 4 levels */

static bool note_error(struct json_reader *reader, const char *expected)
{
    if (!reader->wrong)
        reader->wrong = expected;
    return false;
}

/* The next character that is no space, or 0 at the end. */
static char next_character(struct json_reader *reader)
{
    while (reader->at < reader->end && *reader->at && strchr(" \t\r\n", *reader->at))
        reader->at++;
    return reader->at < reader->end ? *reader->at : 0;
}

static const char *expectation_of(char wanted)
{
    return wanted == '{'   ? "{"
           : wanted == '[' ? "["
           : wanted == ':' ? ":"
           : wanted == '"' ? "text in quotes"
           : wanted == '}' ? "a comma or }"
                           : "a comma or ]";
}

bool json_take(struct json_reader *reader, char wanted)
{
    if (reader->wrong || next_character(reader) != wanted)
        return note_error(reader, expectation_of(wanted));
    reader->at++;
    return true;
}

bool json_next(struct json_reader *reader, char close, bool *first)
{
    if (reader->wrong)
        return false;
    bool was_first = *first;
    *first = false;
    if (next_character(reader) == close) {
        reader->at++;
        return false;
    }
    if (was_first)
        return true;
    if (next_character(reader) != ',')
        return note_error(reader, expectation_of(close));
    reader->at++;
    return true;
}

bool json_text(struct json_reader *reader, char *out, size_t room)
{
    if (!json_take(reader, '"'))
        return false;
    size_t n = 0;
    for (; reader->at < reader->end && *reader->at != '"'; reader->at++) {
        if (*reader->at == '\\' || (unsigned char)*reader->at < ' ' || n + 1 == room)
            return note_error(reader, "plain text, not so long");
        out[n++] = *reader->at;
    }
    out[n] = 0;
    return json_take(reader, '"');
}

bool json_member(struct json_reader *reader, bool *first, char *key, size_t room)
{
    return json_next(reader, '}', first) && json_text(reader, key, room) && json_take(reader, ':');
}

bool json_number(struct json_reader *reader, uint64_t most, uint64_t *out)
{
    uint64_t number = 0;
    char digit = reader->wrong ? 0 : next_character(reader);
    if (digit < '0' || digit > '9')
        return note_error(reader, "a whole number");
    for (; reader->at < reader->end && *reader->at >= '0' && *reader->at <= '9'; reader->at++) {
        uint64_t value = (uint64_t)(*reader->at - '0');
        if (number > (most - value) / 10 || value > most)
            return note_error(reader, "a smaller number");
        number = number * 10 + value;
    }
    if (reader->at < reader->end && strchr(".eE", *reader->at))
        return note_error(reader, "a whole number");
    *out = number;
    return true;
}

static bool skip_text(struct json_reader *reader)
{
    if (!json_take(reader, '"'))
        return false;
    for (; reader->at < reader->end && *reader->at != '"'; reader->at++)
        if (*reader->at == '\\' && ++reader->at == reader->end)
            break;
    return json_take(reader, '"');
}

/* A number, true, false or null, whose spelling nobody depends on. */
static bool skip_word(struct json_reader *reader)
{
    static const char letters[] = "+-.0123456789Eaeflnrstu";
    const char *start = reader->at;
    while (reader->at < reader->end && *reader->at && strchr(letters, *reader->at))
        reader->at++;
    return reader->at > start || note_error(reader, "a value");
}

static bool skip_value(struct json_reader *reader, int depth)
{
    char opening = reader->wrong ? 0 : next_character(reader), close = opening == '{' ? '}' : ']';
    if (opening == '"')
        return skip_text(reader);
    if (opening != '{' && opening != '[')
        return !reader->wrong && skip_word(reader);
    if (depth == DEPTH)
        return note_error(reader, "fewer levels");
    reader->at++;
    for (bool first = true; json_next(reader, close, &first);) {
        if (close == '}' && !(skip_text(reader) && json_take(reader, ':')))
            return false;
        if (!skip_value(reader, depth + 1))
            return false;
    }
    return !reader->wrong;
}

bool json_skip(struct json_reader *reader)
{
    return skip_value(reader, 0);
}

bool json_ends(struct json_reader *reader)
{
    return !reader->wrong && (next_character(reader) == 0 && reader->at == reader->end
                                  ? true
                                  : note_error(reader, "the end of the file"));
}

uint32_t json_line(const struct json_reader *reader, const char *text)
{
    uint32_t line = 1;
    for (const char *at = text; at < reader->at; at++)
        line += *at == '\n';
    return line;
}

/* ---- Files ---- */

#define FILE_MOST (UINT32_C(256) << 20) /* bytes: a flow of a plan takes some 200 */

char *json_file_read(const char *path, size_t *length, char *why)
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
