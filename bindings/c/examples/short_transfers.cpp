// What a transfer of 64 bytes costs from C++. The input has a line for each round: a flavor and a number
// of calls. The answer is the wall time and the processor time of a call, in nanoseconds.
// short_transfers.rs compiles it, and asks it in turns with the same in Rust.
#include <datapipes.hpp>

#include <chrono>
#include <ctime>
#include <iostream>
#include <string>

namespace dp = datapipes;

static double processor_ns() {
    timespec used{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
    return static_cast<double>(used.tv_sec) * 1e9 + static_cast<double>(used.tv_nsec);
}

template <class Call>
static void round_of(unsigned long calls, Call &&call) {
    const auto begun = std::chrono::steady_clock::now();
    const auto used = processor_ns();
    for (unsigned long i = 0; i < calls; i++) {
        call();
    }
    const auto cpu = processor_ns() - used;
    const std::chrono::duration<double, std::nano> wall = std::chrono::steady_clock::now() - begun;
    const auto count = static_cast<double>(calls);
    std::cout << wall.count() / count << ' ' << cpu / count << std::endl;
}

int main() {
    const dp::machine machine;
    const dp::dram source(4096), target(4096);
    const dp::runtime runtime(machine);
    const auto blocking = machine.connect(source, target);
    const auto running = runtime.connect(source, target);
    volatile std::uint64_t length = 64; // The compiler does not know it, as in a program.
    std::string flavor;
    for (unsigned long calls = 0; std::cin >> flavor >> calls;) {
        if (flavor == "blocking") {
            round_of(calls, [&] { blocking.transfer({.source = 0, .target = 0, .length = length}); });
        } else if (flavor == "runtime") {
            round_of(calls, [&] { running.transfer({.source = 0, .target = 0, .length = length}).wait(); });
        } else {
            std::cerr << flavor << " is no flavor\n";
            return 1;
        }
    }
}
