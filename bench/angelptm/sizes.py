"""Sizes of what AngelPTM's rows measure."""

PARAMETERS = 64_000_000
"""Of the optimizer's loop."""
PAGES, PAGE_BYTES, UNDER_WAY = 128, 4 << 20, 8
"""Of the file that is read and written, and how many are so at once."""
COPIED = 32
"""Pages that are copied beside computing: of more bytes than the caches."""
LAYERS, WIDTH, TOKENS = 8, 512, (4, 256)
"""Of the GPT, and its batch: the example's."""
QUARTER_BYTES = LAYERS * 12 * WIDTH ** 2
"""Of the device: a quarter of the GPT's parameters in float32."""
DEVICE_BYTES, HOST_BYTES = 9 * QUARTER_BYTES, 64 << 20
"""Caps of the step with moments on disk. Parameters and gradients, which take 8 of 16 bytes, have
room on the device."""
MICROBATCHES, COPY_BYTES, LINK_BYTES = 4, 64 << 20, 32 << 20
"""Of the pipeline's batch; of a copy and a message, many times the caches."""
CAP_BYTES, CAP_WIDTH = 256 << 20, 384
"""Of the device, and as much of the host; of a layer, half a percent of the caps in 16 bits."""
