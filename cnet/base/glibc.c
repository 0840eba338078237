/* Compatibility of what is installed with older versions of glibc than the one it was built on.
 *
 * glibc 2.32 to 2.34 gave new versions to functions that had not changed. The linker turns cnet's
 * calls to them into calls to the ones here (--wrap, in meson.build), which ask for the first
 * version of each, there since the architecture is. Headers of 2.38 and newer make strtol and
 * sscanf names of their own, which also read binary numbers; cnet needs none. A test looks at the
 * symbols of what was built.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#if defined(__x86_64__)
#define FIRST "GLIBC_2.2.5"
#define FIRST_AFFINITY "GLIBC_2.3.4"
#define FIRST_SCANF "GLIBC_2.7"
#elif defined(__aarch64__)
#define FIRST "GLIBC_2.17"
#define FIRST_AFFINITY "GLIBC_2.17"
#define FIRST_SCANF "GLIBC_2.17"
#else
#error "the first glibc of this architecture is not known here"
#endif

/* The linker calls this when cnet calls the function without the prefix. */
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *),
                          void *argument);
int __wrap_pthread_join(pthread_t thread, void **result);
int __wrap_pthread_mutex_trylock(pthread_mutex_t *mutex);
int __wrap_pthread_once(pthread_once_t *once, void (*run)(void));
int __wrap_pthread_setaffinity_np(pthread_t thread, size_t bytes, const cpu_set_t *cpus);
int __wrap_pthread_sigmask(int how, const sigset_t *set, sigset_t *before);
int __wrap_fstat(int file, struct stat *out);
int __wrap_fstatat(int folder, const char *path, struct stat *out, int flags);

int __wrap_pthread_detach(pthread_t thread);

int first_create(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
int first_join(pthread_t, void **);
int first_detach(pthread_t);
int first_trylock(pthread_mutex_t *);
int first_once(pthread_once_t *, void (*)(void));
int first_setaffinity(pthread_t, size_t, const cpu_set_t *);
int first_sigmask(int, const sigset_t *, sigset_t *);
__asm__(".symver first_create, pthread_create@" FIRST);
__asm__(".symver first_join, pthread_join@" FIRST);
__asm__(".symver first_detach, pthread_detach@" FIRST);
__asm__(".symver first_trylock, pthread_mutex_trylock@" FIRST);
__asm__(".symver first_once, pthread_once@" FIRST);
__asm__(".symver first_setaffinity, pthread_setaffinity_np@" FIRST_AFFINITY);
__asm__(".symver first_sigmask, pthread_sigmask@" FIRST);

int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *),
                          void *argument)
{
    return first_create(thread, attributes, run, argument);
}

int __wrap_pthread_join(pthread_t thread, void **result)
{
    return first_join(thread, result);
}

int __wrap_pthread_detach(pthread_t thread)
{
    return first_detach(thread);
}

int __wrap_pthread_mutex_trylock(pthread_mutex_t *mutex)
{
    return first_trylock(mutex);
}

int __wrap_pthread_once(pthread_once_t *once, void (*run)(void))
{
    return first_once(once, run);
}

int __wrap_pthread_setaffinity_np(pthread_t thread, size_t bytes, const cpu_set_t *cpus)
{
    return first_setaffinity(thread, bytes, cpus);
}

int __wrap_pthread_sigmask(int how, const sigset_t *set, sigset_t *before)
{
    return first_sigmask(how, set, before);
}

/* Before 2.33 there were no such functions, only macros. The kernel's struct is the same. */
int __wrap_fstat(int file, struct stat *out)
{
    return (int)syscall(SYS_fstat, file, out);
}

int __wrap_fstatat(int folder, const char *path, struct stat *out, int flags)
{
    return (int)syscall(SYS_newfstatat, folder, path, out, flags);
}

/* Their names where _FILE_OFFSET_BITS is 64. */
int __wrap_fstat64(int file, struct stat *out) __attribute__((alias("__wrap_fstat")));
int __wrap_fstatat64(int folder, const char *path, struct stat *out, int flags)
    __attribute__((alias("__wrap_fstatat")));

/* ---- What headers of 2.38 and newer make of strtol, sscanf and the like ---- */

long __wrap___isoc23_strtol(const char *text, char **end, int base);
unsigned long __wrap___isoc23_strtoul(const char *text, char **end, int base);
unsigned long long __wrap___isoc23_strtoull(const char *text, char **end, int base);
int __wrap___isoc23_sscanf(const char *text, const char *format, ...);
int __wrap___isoc23_fscanf(FILE *file, const char *format, ...);

long first_strtol(const char *, char **, int);
unsigned long first_strtoul(const char *, char **, int);
unsigned long long first_strtoull(const char *, char **, int);
int first_vsscanf(const char *, const char *, va_list);
int first_vfscanf(FILE *, const char *, va_list);
__asm__(".symver first_strtol, strtol@" FIRST);
__asm__(".symver first_strtoul, strtoul@" FIRST);
__asm__(".symver first_strtoull, strtoull@" FIRST);
__asm__(".symver first_vsscanf, __isoc99_vsscanf@" FIRST_SCANF);
__asm__(".symver first_vfscanf, __isoc99_vfscanf@" FIRST_SCANF);

long __wrap___isoc23_strtol(const char *text, char **end, int base)
{
    return first_strtol(text, end, base);
}

unsigned long __wrap___isoc23_strtoul(const char *text, char **end, int base)
{
    return first_strtoul(text, end, base);
}

unsigned long long __wrap___isoc23_strtoull(const char *text, char **end, int base)
{
    return first_strtoull(text, end, base);
}

int __wrap___isoc23_sscanf(const char *text, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    int n = first_vsscanf(text, format, arguments);
    va_end(arguments);
    return n;
}

int __wrap___isoc23_fscanf(FILE *file, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    int n = first_vfscanf(file, format, arguments);
    va_end(arguments);
    return n;
}
