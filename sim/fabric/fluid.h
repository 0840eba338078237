#ifndef SIM_FLUID_H
#define SIM_FLUID_H
/* cdef: begin */
int fluid_version(void);
/* cdef: end */
#endif
