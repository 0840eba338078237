/* A capture of one link: every frame as it begins to leave, for Wireshark and tshark.
 *
 * Nanosecond pcap of Ethernet (draft-ietf-opsawg-pcap). Payload is zeros, for which CRC and tag are
 * made under a key of zeros; sessions here exchange headers and no keys. A congestion mark is the
 * CE of RFC 3168.
 */
#include <stdio.h>

#include "base/sequence.h"
#include "wire/seal.h"
#include "world.h"

#define PCAP_NANOSECONDS 0xa1b23c4d
#define LINKTYPE_ETHERNET 1
#define ETHERNET_BYTES 14
#define IPV4_BYTES 20
#define UDP_BYTES 8
#define LONGEST (1 << 17)

static void put_16(uint8_t *at, uint32_t value)
{
    at[0] = (uint8_t)(value >> 8);
    at[1] = (uint8_t)value;
}

static void put_32(uint8_t *at, uint32_t value)
{
    put_16(at, value >> 16);
    put_16(at + 2, value & 0xffff);
}

int32_t packet_capture(packet_world *w, int32_t link, const char *path, uint64_t most_bytes)
{
    FILE *file = fopen(path, "wb");
    if (!file)
        return -1;
    const uint32_t head[6] = {PCAP_NANOSECONDS, 2 | 4 << 16, 0, 0, LONGEST, LINKTYPE_ETHERNET};
    w->capture = (struct capture){.file = file, .link = (uint32_t)link, .left = most_bytes};
    return fwrite(head, sizeof head, 1, file) == 1 ? 0 : -1;
}

int32_t packet_end_capture(packet_world *w)
{
    FILE *file = w->capture.file;
    bool cut = w->capture.cut, failed = file && ferror(file);
    if (file && fclose(file))
        failed = true;
    w->capture = (struct capture){.file = NULL};
    return failed ? -1 : cut;
}

void packet_name_path(packet_world *w, int32_t channel, int32_t path, uint32_t from_ip,
                      uint32_t to_ip, uint16_t from_port, uint16_t to_port)
{
    struct end *ends = &w->ends[2 * w->channels[channel].connection];
    for (int side = 0; side < 2; side++)
        if (!ends[side].names)
            ends[side].names = zeroed_array(HARP_PATHS_MAX, sizeof *ends[side].names);
    ends[0].names[path] = (struct path_name){from_ip, to_ip, from_port, to_port};
    ends[1].names[path] = (struct path_name){to_ip, from_ip, to_port, from_port};
}

static uint16_t ip_checksum(const uint8_t *header)
{
    uint32_t sum = 0;
    for (int i = 0; i < IPV4_BYTES; i += 2)
        sum += (uint32_t)header[i] << 8 | header[i + 1];
    sum = (sum & 0xffff) + (sum >> 16);
    return (uint16_t)~(sum + (sum >> 16));
}

/* Ethernet, IPv4 and UDP headers before `bytes` of HARP. */
static void write_headers(uint8_t *at, const struct path_name *name, uint32_t bytes, bool marked)
{
    memset(at, 0, ETHERNET_BYTES + IPV4_BYTES + UDP_BYTES);
    at[0] = at[6] = 2; /* locally administered; the rest is the IP address */
    put_32(at + 2, name->to_ip);
    put_32(at + 8, name->from_ip);
    put_16(at + 12, 0x0800);
    uint8_t *ip = at + ETHERNET_BYTES;
    ip[0] = 0x45;
    ip[1] = marked ? 3 : 2;
    put_16(ip + 2, IPV4_BYTES + UDP_BYTES + bytes);
    ip[8] = 64;
    ip[9] = 17;
    put_32(ip + 12, name->from_ip);
    put_32(ip + 16, name->to_ip);
    put_16(ip + 10, ip_checksum(ip));
    put_16(ip + IPV4_BYTES, name->from_port);
    put_16(ip + IPV4_BYTES + 2, name->to_port);
    put_16(ip + IPV4_BYTES + 4, UDP_BYTES + bytes);
}

void capture_packet(struct packet_world *w, const struct packet *packet)
{
    static const struct path_name nobody = {0x0a000001, 0x0a000002, 4791, 4791};
    static const struct harp_key zeros = {0, 0};
    static uint8_t frame[LONGEST];
    const struct end *from = &w->ends[packet->end ^ 1];
    const uint32_t before = ETHERNET_BYTES + IPV4_BYTES + UDP_BYTES;
    const uint32_t harp = HARP_HEADER_BYTES + packet->header.length;
    if (w->capture.left < before + harp || before + harp > LONGEST) {
        w->capture.cut = true;
        return;
    }
    w->capture.left -= before + harp;
    write_headers(frame, from->names ? &from->names[packet->path] : &nobody, harp, packet->marked);
    uint8_t *header = frame + before, *body = header + HARP_HEADER_BYTES;
    memset(body, 0, packet->header.length);
    if (packet->body != NO_PACKET)
        memcpy(body, w->bodies[packet->body], packet->header.length);
    harp_header_encode(&packet->header, header);
    harp_seal(&zeros, header, 0, body, packet->header.length);
    const uint32_t record[4] = {(uint32_t)(w->now_ns / 1000000000),
                                (uint32_t)(w->now_ns % 1000000000), before + harp, before + harp};
    if (fwrite(record, sizeof record, 1, w->capture.file) == 1)
        fwrite(frame, before + harp, 1, w->capture.file);
}
