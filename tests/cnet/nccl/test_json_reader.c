/* A file of JSON as the reader sees it: prints what it is, or where it is wrong.
 *
 * usage: test_json_reader FILE [MEMBER]   with a member: the text or number of the object's member
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "nccl/json_reader.h"
#include "ports/port.h"

static char *text;

static int say_wrong(const struct json_reader *reader)
{
    printf("line %u: %s\n", json_line(reader, text), reader->wrong);
    free(text);
    return 0;
}

static bool print_value(struct json_reader *reader)
{
    char value[64];
    uint64_t number;
    struct json_reader before = *reader;
    if (json_text(reader, value, sizeof value)) {
        printf("text %s\n", value);
        return true;
    }
    *reader = before;
    if (!json_number(reader, UINT32_MAX, &number))
        return false;
    printf("number %" PRIu64 "\n", number);
    return true;
}

int main(int count, char **words)
{
    char why[HARP_WHY_BYTES], key[32];
    size_t length;
    CHECK(count > 1, "usage: %s FILE [MEMBER]", words[0]);
    text = json_file_read(words[1], &length, why);
    if (!text) {
        printf("%s\n", why);
        return 0;
    }
    struct json_reader reader = {.at = text, .end = text + length};
    if (count == 2) {
        json_skip(&reader);
    } else {
        json_take(&reader, '{');
        for (bool first = true; json_member(&reader, &first, key, sizeof key);)
            if (strcmp(key, words[2]) == 0)
                print_value(&reader);
            else
                json_skip(&reader);
    }
    if (!json_ends(&reader))
        return say_wrong(&reader);
    puts("good");
    free(text);
    return 0;
}
