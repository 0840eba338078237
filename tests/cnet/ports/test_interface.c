/* The interface of a port, as it is found: one line, or the sentence that says why not.
 *
 * usage: test_interface INTERFACE LOCAL MTU      "-" for none, 0 for the interface's
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "ports/interface.h"

int main(int count, char **words)
{
    struct harp_port_config config = {0};
    struct harp_interface found;
    struct harp_address local;
    char why[HARP_WHY_BYTES] = "", text[64];
    CHECK(count == 4, "usage: %s INTERFACE LOCAL MTU", words[0]);
    if (strcmp(words[1], "-"))
        config.interface = words[1];
    if (strcmp(words[2], "-"))
        CHECK(harp_address_parse(words[2], &config.local), "%s is no address", words[2]);
    config.mtu = (uint32_t)atoi(words[3]);
    int failed = harp_interface_find(&found, "udp", &config, &local, why);
    if (failed) {
        printf("%d: %s\n", failed, why);
        return 0;
    }
    harp_address_format(&local, text, sizeof text);
    printf("%s %u %s mtu %u\n", found.name, found.index, text, found.mtu);
    return 0;
}
