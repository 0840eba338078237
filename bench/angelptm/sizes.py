"""Sizes of what AngelPTM's rows measure."""

PARAMETERS = 64_000_000
"""Of the optimizer's loop."""
PAGES, PAGE_BYTES = 128, 4 << 20
"""Of the file that is read and written."""
LAYERS, WIDTH, TOKENS = 8, 512, (4, 256)
"""Of the GPT, and its batch: the example's."""
DEVICE_BYTES, HOST_BYTES = 9 * LAYERS * 12 * WIDTH ** 2, 64 << 20
"""Caps of the step with moments on disk. Parameters and gradients, which take 8 of 16 bytes, have
room on the device."""
CAP_BYTES, CAP_WIDTH = 256 << 20, 384
"""Of the device, and as much of the host; of a layer, half a percent of the caps in 16 bits."""
