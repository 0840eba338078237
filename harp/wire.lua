-- Wireshark dissector of the HARP protocol, written from docs/inside/wire.md.
--
--   wireshark -X lua_script:harp/wire.lua -d udp.port==PORT,harp capture.pcap
--
-- or copy it to the folder of personal Lua plugins and choose HARP under "Decode As" for the port.
-- The CRC is checked; the tag is not, as its key is not in the capture.

local harp = Proto("harp", "HARP")

local HEADER_BYTES = 44
local JOINED_BYTES = 1024 -- of a datagram that brings several frames, at most
local VERSION = 3
local OFF_QUEUE = 1 -- flags of ACK
local TYPES = {
    [1] = "FIRST", [2] = "COOKIE", [3] = "ACCEPT", [4] = "DATA", [5] = "ACK", [6] = "PROBE",
    [7] = "CLOSE", [8] = "VERSION",
}
local REASONS = {
    [0] = "done",
    [1] = "the application closed with messages under way",
    [2] = "a message was longer than its posted buffer",
    [3] = "the other end broke this protocol",
    [4] = "out of memory",
    [5] = "version: none in common",
    [6] = "no path carries frames of a useful length",
    [7] = "nothing was heard from the other end for too long",
}

-- Where each field stands: name, kind, offset, bytes, and what its values are called.
local HEADER = {
    { "version", "uint8", 0, 1 }, { "type", "uint8", 1, 1, TYPES }, { "path", "uint8", 2, 1 },
    { "flags", "uint8", 3, 1 }, { "connection", "uint64", 4, 8 }, { "epoch", "uint16", 12, 2 },
    { "length", "uint16", 14, 2 }, { "packet", "uint32", 16, 4 }, { "message", "uint32", 20, 4 },
    { "offset", "uint32", 24, 4 }, { "size", "uint32", 28, 4 }, { "crc", "uint32", 32, 4 },
    { "tag", "uint64", 36, 8 },
}
local PARAMETERS = {
    { "own", "uint64", 0, 8 }, { "nonce", "bytes", 8, 16 }, { "own_epoch", "uint16", 24, 2 },
    { "segment", "uint16", 26, 2 }, { "paths", "uint16", 28, 2 }, { "options", "uint8", 30, 1 },
    { "traffic_class", "uint8", 31, 1 },
    { "posted", "uint32", 32, 4 }, { "lent", "uint32", 36, 4 }, { "first", "uint32", 40, 4 },
    { "cookie", "bytes", 44, 16 },
}
local ACK = {
    { "credit_messages", "uint64", 0, 8 }, { "credit_bytes", "uint64", 8, 8 },
    { "credit_frames", "uint64", 16, 8 }, { "delay_ns", "uint32", 24, 4 },
    { "marked", "uint32", 28, 4 }, { "sent_ns", "uint32", 32, 4 },
    { "bits", "uint16", 36, 2 },
}
local BODIES = {
    [1] = PARAMETERS,
    [2] = { { "cookie", "bytes", 0, 16 } },
    [3] = PARAMETERS,
    [5] = ACK,
    [7] = { { "reason", "uint32", 0, 4, REASONS } },
    [8] = { { "lowest", "uint8", 0, 1 }, { "highest", "uint8", 1, 1 } },
}
local HEXADECIMAL = { connection = true, own = true, crc = true, tag = true }

local fields = {}

local function declare(list)
    for _, entry in ipairs(list) do
        local name, kind, values = entry[1], entry[2], entry[5]
        if not fields[name] then
            local filter = "harp." .. name
            if kind == "bytes" then
                fields[name] = ProtoField.bytes(filter, name)
            else
                local format = HEXADECIMAL[name] and base.HEX or base.DEC
                fields[name] = ProtoField[kind](filter, name, format, values)
            end
        end
    end
end

declare(HEADER)
for _, list in pairs(BODIES) do
    declare(list)
end
fields.map = ProtoField.bytes("harp.map", "map")
fields.addresses = ProtoField.bytes("harp.addresses", "addresses")
fields.text = ProtoField.string("harp.text", "text", base.UNICODE)
fields.payload = ProtoField.bytes("harp.payload", "payload")
fields.missing = ProtoField.string("harp.missing", "not arrived")
fields.crc_holds = ProtoField.bool("harp.crc_holds", "crc holds")
local all = {}
for _, field in pairs(fields) do
    all[#all + 1] = field
end
harp.fields = all

local bad_crc = ProtoExpert.new("harp.bad_crc", "the payload's CRC32C does not hold",
    expert.group.CHECKSUM, expert.severity.ERROR)
local bad_length = ProtoExpert.new("harp.bad_length", "length is not what came",
    expert.group.MALFORMED, expert.severity.ERROR)
local other_version = ProtoExpert.new("harp.other_version", "another version of the protocol",
    expert.group.PROTOCOL, expert.severity.WARN)
harp.experts = { bad_crc, bad_length, other_version }

local crc_table = {}
for byte = 0, 255 do
    local state = byte
    for _ = 1, 8 do
        local low = bit.band(state, 1)
        state = bit.rshift(state, 1)
        if low == 1 then
            state = bit.bxor(state, 0x82F63B78)
        end
    end
    crc_table[byte] = state
end

local function crc32c(bytes)
    local state = -1
    for i = 0, bytes:len() - 1 do
        state = bit.bxor(bit.rshift(state, 8),
            crc_table[bit.band(bit.bxor(state, bytes:get_index(i)), 255)])
    end
    return bit.bnot(state) % 4294967296
end

local function add(tree, buffer, list)
    for _, entry in ipairs(list) do
        local range = buffer(entry[3], entry[4])
        if entry[2] == "bytes" then
            tree:add(fields[entry[1]], range)
        else
            tree:add_le(fields[entry[1]], range)
        end
    end
end

-- Packets within the map that have not arrived, at most a dozen by number.
local function missing(largest, map, bits)
    local numbers, more = {}, 0
    for i = 0, bits - 1 do
        local byte = map(math.floor(i / 8), 1):uint()
        if bit.band(bit.rshift(byte, i % 8), 1) == 0 then
            if #numbers < 12 then
                numbers[#numbers + 1] = string.format("%.0f", (largest - 1 - i) % 4294967296)
            else
                more = more + 1
            end
        end
    end
    return table.concat(numbers, " ") .. (more > 0 and " and " .. more .. " more" or "")
end

local function add_ack(tree, body, largest)
    local bits = body(36, 2):le_uint()
    local map_bytes = math.floor((bits + 7) / 8)
    if bits > 0 and body:len() >= 40 + map_bytes then
        local map = body(40, map_bytes)
        tree:add(fields.map, map)
        tree:add(fields.missing, map, missing(largest, map, bits))
    end
end

local function add_body(tree, kind, body, number)
    local list = BODIES[kind]
    local last = list and list[#list]
    if not last or body:len() < last[3] + last[4] then
        tree:add(fields.payload, body())
        return
    end
    add(tree, body, list)
    if kind == 5 then
        add_ack(tree, body, number)
    elseif list == PARAMETERS and body:len() > 60 then
        tree:add(fields.addresses, body(60))
    elseif kind == 7 and body:len() > 4 then
        tree:add_packet_field(fields.text, body(4), ENC_UTF_8)
    end
end

local function summary(buffer, kind)
    local text = TYPES[kind] or ("type " .. kind)
    text = text .. " path " .. buffer(2, 1):uint()
    if kind == 4 then
        text = string.format("%s packet %.0f message %.0f bytes %.0f+%.0f of %.0f", text,
            buffer(16, 4):le_uint(), buffer(20, 4):le_uint(), buffer(24, 4):le_uint(),
            buffer(14, 2):le_uint(), buffer(28, 4):le_uint())
        local fragments = buffer(3, 1):uint()
        if fragments > 0 then
            text = text .. " in fragments, " .. fragments .. " to a chunk"
        end
    elseif kind == 5 and buffer(3, 1):uint() == OFF_QUEUE then
        text = text .. " arrives on a wrong queue"
    end
    return text
end

-- How many of these bytes are the first frame: DATA and ACK may be followed by others.
local function first_frame(buffer, datagram_bytes)
    local bytes = buffer:len()
    local kind = bytes >= HEADER_BYTES and buffer(1, 1):uint()
    if bytes < 2 * HEADER_BYTES or datagram_bytes > JOINED_BYTES or buffer(0, 1):uint() ~= VERSION
        or (kind ~= 4 and kind ~= 5) then
        return bytes
    end
    local first = HEADER_BYTES + buffer(14, 2):le_uint()
    return first + HEADER_BYTES <= bytes and first or bytes
end

-- Returns what the column of information says of it.
local function dissect_frame(buffer, root)
    local version, kind = buffer(0, 1):uint(), buffer(1, 1):uint()
    local tree = root:add(harp, buffer())
    if version ~= VERSION and kind ~= 8 then
        -- Only what stays as it is in all versions.
        add(tree, buffer, { HEADER[1], HEADER[2], HEADER[5], HEADER[13] })
        tree:add_proto_expert_info(other_version)
        return "version " .. version
    end
    add(tree, buffer, HEADER)
    local length = buffer(14, 2):le_uint()
    if length ~= buffer:len() - HEADER_BYTES then
        tree:add_proto_expert_info(bad_length)
    elseif length > 0 then
        local body = buffer(HEADER_BYTES):tvb()
        add_body(tree, kind, body, buffer(16, 4):le_uint())
        local crc_at = buffer(32, 4)
        local holds = crc32c(body:bytes()) == crc_at:le_uint()
        tree:add(fields.crc_holds, crc_at, holds):set_generated()
        if not holds then
            tree:add_proto_expert_info(bad_crc)
        end
    end
    return summary(buffer, kind)
end

function harp.dissector(buffer, packet, root)
    if buffer:len() < HEADER_BYTES then
        return 0
    end
    packet.cols.protocol = "HARP"
    local at, said = 0, {}
    while buffer:len() - at >= HEADER_BYTES do
        local bytes = first_frame(buffer(at):tvb(), buffer:len())
        said[#said + 1] = dissect_frame(buffer(at, bytes):tvb(), root)
        at = at + bytes
    end
    packet.cols.info = table.concat(said, "; ")
    return buffer:len()
end

DissectorTable.get("udp.port"):add_for_decode_as(harp)
