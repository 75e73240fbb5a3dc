/* Starts as NVIDIA's driver does: it listens at an abstract socket of sequenced packets, once, and
   answers 304 where it may not.
   Made with: cc -shared -fPIC -o libcuda.so.1 cuda_driver.c */

#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static int started = 0;

int cuInit(unsigned flags) {
    struct sockaddr_un own = {.sun_family = AF_UNIX};
    int listener, length;
    (void)flags;
    if (started) return 0;
    length = snprintf(own.sun_path + 1, sizeof own.sun_path - 1, "sealtrain-driver-%d", getpid());
    listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (listener < 0) return 304;
    if (bind(listener, (struct sockaddr *)&own, offsetof(struct sockaddr_un, sun_path) + 1 + length)
        || listen(listener, 16))
        return 304;
    started = 1;
    return 0;
}
