#define _GNU_SOURCE
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "plugin.h"

#define LINE_BYTES 900 /* NCCL cuts lines at 1024 with what it writes before them */

/* `device`: "", or "/" and a device's number, as NCCL's own lines about channels have it. */
static void write_line(enum nccl_log_level level, const char *device, const char *format,
                       va_list arguments)
{
    char line[LINE_BYTES];
    vsnprintf(line, sizeof line, format, arguments);
    for (char *at = line; (at = strchr(at, '\n'));)
        *at = ' ';
    if (plugin.logger)
        plugin.logger(level, NCCL_PART_INIT | NCCL_PART_NET, "harp", 0, "NET/HARP%s : %s", device,
                      line);
}

void plugin_info_of(const struct device *device, const char *format, ...)
{
    char number[16];
    va_list arguments;
    snprintf(number, sizeof number, "/%d", (int)(device - plugin.devices));
    va_start(arguments, format);
    write_line(NCCL_LOG_INFO, number, format, arguments);
    va_end(arguments);
}

void plugin_info(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    write_line(NCCL_LOG_INFO, "", format, arguments);
    va_end(arguments);
}

void plugin_warn(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    write_line(NCCL_LOG_WARN, "", format, arguments);
    va_end(arguments);
}

enum nccl_result plugin_fail(enum nccl_result result, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    write_line(NCCL_LOG_WARN, "", format, arguments);
    va_end(arguments);
    return result;
}

struct advice {
    uint32_t reason;
    enum nccl_result result;
    const char *text;
};

static const struct advice advices[] = {
    {HARP_REASON_DONE, NCCL_REMOTE_ERROR,
     "this rank still waits for more: that one ended or was aborted, or runs another program"},
    {HARP_REASON_UNDER_WAY, NCCL_REMOTE_ERROR, "that rank's log says so, and what came before it"},
    {HARP_REASON_TOO_LONG, NCCL_INVALID_USAGE,
     "ranks disagree about a size: run the same program with the same NCCL_ settings on all"},
    {HARP_REASON_PROTOCOL, NCCL_REMOTE_ERROR, "install the same version of HARP on all hosts"},
    {HARP_REASON_MEMORY, NCCL_SYSTEM_ERROR, "make memory free on that host"},
    {HARP_REASON_VERSION, NCCL_INVALID_USAGE, "install the same version of HARP on all hosts"},
    {HARP_REASON_MTU, NCCL_SYSTEM_ERROR,
     "set HARP_MTU to what all links and switches on the way carry"},
    {HARP_REASON_SILENT, NCCL_REMOTE_ERROR,
     "look whether that process and the network are well; HARP_TIMEOUT says how long to wait"},
    {HARP_REASON_UNHEARD, NCCL_REMOTE_ERROR,
     "look whether the network between passes packets both ways; HARP_TIMEOUT says how long to "
     "wait"},
    {HARP_REASON_NO_ANSWER, NCCL_REMOTE_ERROR,
     "let UDP, or TCP for HARP_PORT=tcp and auto, pass between the hosts (firewall, security "
     "group), or name the right interface in HARP_IFNAME"},
    {HARP_REASON_REFUSED, NCCL_REMOTE_ERROR,
     "look for the first error in that rank's log, or for the kernel's (out of memory)"},
};

enum nccl_result plugin_ended(const struct comm *comm, uint32_t reason)
{
    const struct advice *advice = &advices[0];
    for (size_t i = 0; i < sizeof advices / sizeof advices[0]; i++)
        if (advices[i].reason == reason)
            advice = &advices[i];
    struct harp_connection_info info;
    char peer[64], why[HARP_WHY_BYTES];
    harp_connection_info(comm->connection, &info);
    harp_address_format(&info.peer, peer, sizeof peer);
    harp_connection_why(comm->connection, why);
    return plugin_fail(advice->result, "%s %s on %s: %s; %s",
                       comm->kind == COMM_SENDING ? "sending to" : "receiving from", peer,
                       comm->device->name, why, advice->text);
}
