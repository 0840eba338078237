#include "fluid.h"
int fluid_version(void) { return 1; }
