#include "base/address.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>

/* A port behind a colon; false if it is not a port. */
static bool read_port(const char *text, uint16_t *port)
{
    char *end;
    long value = strtol(text, &end, 10);
    if (*text < '0' || *text > '9' || *end || value < 0 || value > UINT16_MAX)
        return false;
    *port = (uint16_t)value;
    return true;
}

bool harp_address_parse(const char *text, struct harp_address *address)
{
    char ip[64];
    *address = (struct harp_address){.family = HARP_INET};
    if (strlen(text) >= sizeof ip)
        return false;
    strcpy(ip, text);
    char *host = ip, *colon = strchr(ip, ':');
    if (ip[0] == '[') {
        char *close = strchr(ip, ']');
        if (!close || (close[1] && (close[1] != ':' || !read_port(close + 2, &address->port))))
            return false;
        *close = 0;
        host = ip + 1;
    } else if (colon && !strchr(colon + 1, ':')) {
        if (!read_port(colon + 1, &address->port))
            return false;
        *colon = 0;
    }
    if (inet_pton(AF_INET, host, address->ip + 12) == 1) {
        address->ip[10] = address->ip[11] = 0xff;
        return true;
    }
    return inet_pton(AF_INET6, host, address->ip) == 1;
}

void harp_address_format(const struct harp_address *address, char *out, size_t room)
{
    char ip[INET6_ADDRSTRLEN];
    if (address->family == HARP_MEM) {
        size_t n = (size_t)snprintf(out, room, "mem:");
        for (size_t i = 0; i < sizeof address->ip && n < room; i++)
            n += (size_t)snprintf(out + n, room - n, "%02x", address->ip[i]);
        return;
    }
    bool v4 = harp_address_is_ipv4(address);
    const void *bytes = v4 ? address->ip + 12 : address->ip;
    const char *kind = address->family == HARP_TCP ? "tcp:" : "";
    inet_ntop(v4 ? AF_INET : AF_INET6, bytes, ip, sizeof ip);
    if (address->port == 0)
        snprintf(out, room, "%s%s", kind, ip);
    else
        snprintf(out, room, v4 ? "%s%s:%u" : "%s[%s]:%u", kind, ip, address->port);
}
