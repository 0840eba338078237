/* Answers of the kernel's links, addresses, routes and neighbours: one line a question.
 *
 * usage: test_netlink QUESTION...      link NAME, address INDEX, route FROM TO, neighbour INDEX IP,
 *                                      changes COMMAND NAME
 */
#define _GNU_SOURCE
#include "ports/netlink.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"

static struct harp_netlink netlink;

static struct harp_address address_of(const char *text)
{
    struct harp_address address;
    CHECK(harp_address_parse(text, &address), "%s is no address", text);
    return address;
}

static void print_mac(const uint8_t mac[6])
{
    for (int i = 0; i < 6; i++)
        printf("%s%02x", i ? ":" : "", mac[i]);
}

static int ask_link(const char *name)
{
    struct harp_link link, same;
    int failed = harp_netlink_link(&netlink, name, 0, &link);
    if (failed)
        return failed;
    CHECK(harp_netlink_link(&netlink, NULL, link.index, &same) == 0, "no link by its index");
    CHECK(strcmp(link.name, same.name) == 0 && link.mtu == same.mtu, "another link");
    printf("%s %s %u mtu %u %s ", link.name, link.kind, link.index, link.mtu,
           link.up ? "up" : "down");
    print_mac(link.mac);
    putchar('\n');
    return 0;
}

static int ask_address(uint32_t index)
{
    struct harp_address address;
    char text[64];
    int failed = harp_netlink_address(&netlink, index, &address);
    if (failed)
        return failed;
    harp_address_format(&address, text, sizeof text);
    puts(text);
    return 0;
}

static int ask_route(const char *from, const char *to)
{
    struct harp_address ends[2] = {address_of(from), address_of(to)};
    struct harp_route route;
    char text[64];
    int failed = harp_netlink_route(&netlink, &ends[0], &ends[1], &route);
    if (failed)
        return failed;
    harp_address_format(&route.next, text, sizeof text);
    printf("%u %s mtu %u%s\n", route.interface, text, route.mtu, route.to_self ? " self" : "");
    return 0;
}

static int ask_neighbour(uint32_t index, const char *text)
{
    struct harp_address address = address_of(text);
    uint8_t mac[6];
    bool stale;
    int failed = harp_netlink_neighbour(&netlink, index, &address, mac, &stale);
    if (failed)
        return failed;
    print_mac(mac);
    puts(stale ? " stale" : "");
    return 0;
}

/* Run a command, and print what is heard of the link until it is down. */
static int hear_changes(const char *command, const char *name)
{
    struct harp_change change;
    while (harp_netlink_change(&netlink, &change))
        ;
    CHECK(system(command) == 0, "%s", command);
    struct pollfd heard = {.fd = netlink.monitor, .events = POLLIN};
    while (poll(&heard, 1, 10000) == 1)
        while (harp_netlink_change(&netlink, &change))
            if (change.type == HARP_CHANGE_LINK && strcmp(change.link.name, name) == 0 &&
                !change.link.up) {
                puts("down");
                return 0;
            }
    return -ETIMEDOUT;
}

int main(int count, char **words)
{
    CHECK(count > 2 && harp_netlink_open(&netlink) == 0, "no netlink");
    int failed = -EINVAL;
    if (strcmp(words[1], "link") == 0)
        failed = ask_link(words[2]);
    else if (strcmp(words[1], "address") == 0)
        failed = ask_address((uint32_t)atoi(words[2]));
    else if (strcmp(words[1], "route") == 0 && count == 4)
        failed = ask_route(words[2], words[3]);
    else if (strcmp(words[1], "neighbour") == 0 && count == 4)
        failed = ask_neighbour((uint32_t)atoi(words[2]), words[3]);
    else if (strcmp(words[1], "changes") == 0 && count == 4)
        failed = hear_changes(words[2], words[3]);
    if (failed)
        puts(strerrorname_np(-failed));
    harp_netlink_close(&netlink);
    return 0;
}
