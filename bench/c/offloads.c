/* Turn a NIC's segmentation and checksum offloads on or off, where there is no ethtool.
 *
 *   offloads eth0 off|on       prints what holds afterwards
 */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/ethtool.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

static const struct {
    const char *name;
    uint32_t get, set;
} OFFLOADS[] = {
    {"tso", ETHTOOL_GTSO, ETHTOOL_STSO},
    {"gso", ETHTOOL_GGSO, ETHTOOL_SGSO},
    {"gro", ETHTOOL_GGRO, ETHTOOL_SGRO},
};

static int ask_feature(int fd, const char *interface, uint32_t command, uint32_t *value)
{
    struct ethtool_value request = {.cmd = command, .data = *value};
    struct ifreq carrier = {.ifr_data = (char *)&request};
    strncpy(carrier.ifr_name, interface, IFNAMSIZ - 1);
    int rc = ioctl(fd, SIOCETHTOOL, &carrier);
    *value = request.data;
    return rc;
}

int main(int count, char **words)
{
    if (count != 3 || (strcmp(words[2], "on") && strcmp(words[2], "off"))) {
        fputs("usage: offloads INTERFACE on|off\n", stderr);
        return 2;
    }
    int fd = socket(AF_INET, SOCK_DGRAM, 0);
    for (unsigned i = 0; i < sizeof(OFFLOADS) / sizeof(OFFLOADS[0]); i++) {
        uint32_t value = strcmp(words[2], "on") == 0;
        if (ask_feature(fd, words[1], OFFLOADS[i].set, &value) < 0)
            fprintf(stderr, "offloads: %s of %s: %s\n", OFFLOADS[i].name, words[1],
                    strerror(errno));
        if (ask_feature(fd, words[1], OFFLOADS[i].get, &value) == 0)
            printf("%s %s %s\n", words[1], OFFLOADS[i].name, value ? "on" : "off");
    }
    return 0;
}
