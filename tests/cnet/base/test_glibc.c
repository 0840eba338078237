/* Calls as the headers of glibc 2.38 and newer make them of strtol, sscanf and the like. */
#define _GNU_SOURCE
#include <assert.h>
#include <stdio.h>
#include <string.h>

long __isoc23_strtol(const char *text, char **end, int base);
unsigned long __isoc23_strtoul(const char *text, char **end, int base);
unsigned long long __isoc23_strtoull(const char *text, char **end, int base);
int __isoc23_sscanf(const char *text, const char *format, ...);
int __isoc23_fscanf(FILE *file, const char *format, ...);

int main(void)
{
    char *end, word[8], text[] = "77 seven";
    long number = 0;
    assert(__isoc23_strtol("-5x", &end, 10) == -5 && *end == 'x');
    assert(__isoc23_strtoul("ff", &end, 16) == 255 && !*end);
    assert(__isoc23_strtoull("18446744073709551615", &end, 10) == 18446744073709551615u);
    assert(__isoc23_sscanf(text, "%ld %7s", &number, word) == 2 && number == 77);
    assert(strcmp(word, "seven") == 0);
    FILE *file = fmemopen(text, sizeof text - 1, "r");
    assert(file && __isoc23_fscanf(file, "%ld", &number) == 1 && number == 77);
    fclose(file);
    return 0;
}
