/* Preloaded: uname(2) answers as the kernel of a Jetson does. The machine is told by SIMULATED_KERNEL. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>

int uname(struct utsname *answer)
{
    long failed = syscall(SYS_uname, answer);
    const char *kernel = getenv("SIMULATED_KERNEL");

    if (!failed && kernel) {
        snprintf(answer->machine, sizeof answer->machine, "%s", "aarch64");
        snprintf(answer->release, sizeof answer->release, "%s", kernel);
    }
    return (int)failed;
}
