/* LD_PRELOAD shim: adds SLOW_FSYNC_MICROSECONDS to every fsync and fdatasync, and counts them in the file named by
 * SLOW_FSYNC_COUNTER (8 bytes, shared by all processes). Compiled by slow_disk.py. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

static int (*real_fsync)(int);
static int (*real_fdatasync)(int);
static struct timespec delay;
static _Atomic unsigned long *counter;

__attribute__((constructor)) static void set_up(void) {
    real_fsync = dlsym(RTLD_NEXT, "fsync");
    real_fdatasync = dlsym(RTLD_NEXT, "fdatasync");
    const char *text = getenv("SLOW_FSYNC_MICROSECONDS");
    long microseconds = text ? atol(text) : 0;
    delay.tv_sec = microseconds / 1000000;
    delay.tv_nsec = microseconds % 1000000 * 1000;
    const char *path = getenv("SLOW_FSYNC_COUNTER");
    int file = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (file >= 0) {
        void *page = mmap(NULL, sizeof *counter, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        counter = page == MAP_FAILED ? NULL : page;
        close(file);
    }
}

static void linger(void) {
    if (counter)
        atomic_fetch_add(counter, 1);
    if (delay.tv_sec || delay.tv_nsec)
        nanosleep(&delay, NULL);
}

int fsync(int descriptor) {
    linger();
    return real_fsync(descriptor);
}

int fdatasync(int descriptor) {
    linger();
    return real_fdatasync(descriptor);
}
