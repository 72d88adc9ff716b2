// The header of the C interface stands before those of the system, which may declare what it must
// not: any function of the machine's.
#include "datapipes.h"
// (The others come after it.)
#include <cmath>
#include <cstdio>
#include <iostream>
#include <thread>

#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

int main() {
    std::puts(dp_abi_version() == DP_ABI_VERSION ? "everything holds" : "another version");
}
