// Pipes of a service in C++: SOCKET is where it serves. The test ends the service when this program
// says so.
#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include <poll.h>

#include "datapipes.hpp"

#include "check.hpp"

namespace dp = datapipes;

template <class Work>
static dp_error_kind kind_of(Work &&work) {
    try {
        work();
        return DP_OK;
    } catch (const dp::error &e) {
        CHECK(e.what()[0] != '\0');
        return e.kind();
    }
}

static void wait_for(const dp::pipe_fd &pipe) {
    pollfd ready{pipe.descriptor(), POLLIN, 0};
    CHECK(poll(&ready, 1, 60000) == 1);
}

int main() {
    constexpr std::uint64_t mib = 1 << 20;
    {
        dp::client client(std::getenv("SOCKET"));
        CHECK(client.status().find("\"clients\":") != std::string::npos);
        dp::shared_memory source(mib), target(mib);
        std::vector<std::byte> bytes(mib, std::byte{7}), back(mib);
        source.write(0, bytes);
        dp::ssd file(std::getenv("FOLDER"), DP_UNLINKED);
        auto down = client.connect_fd(source, file, 1);
        auto up = client.connect_fd(file, target.range(4096, mib - 4096), 2);
        CHECK(up.route().find("->") != std::string::npos);
        auto token = down.submit({0, 0, mib});
        wait_for(down);
        auto done = down.complete();
        CHECK(done && done->token == token && done->place == 1 && done->bytes == mib && !done->failed);
        up.submit({1, 0, mib - 4096});
        done = up.complete_wait();
        CHECK(done->place == 2 && !done->failed);
        target.read(0, back);
        CHECK(back[4095] == std::byte{0} && std::all_of(back.begin() + 4096, back.end(), [](std::byte byte) {
                  return byte == std::byte{7};
              }));
        dp::dram own(mib);
        CHECK(kind_of([&] { client.connect_fd(own, target); }) == DP_INVALID_INPUT);
        CHECK(kind_of([&] { target.lease(); }) == DP_UNSUPPORTED);
        CHECK(kind_of([&] { up.submit({0, mib, 1}); }) == DP_OUT_OF_RANGE);
        CHECK(kind_of([] { dp::client absent("/no/such/socket"); }) == DP_UNAVAILABLE);
        up.submit({mib, 0, 1});
        auto beyond = up.complete_wait();
        CHECK(kind_of([&] { std::rethrow_exception(beyond.failed); }) == DP_END_OF_FILE);
        std::puts("end it");
        CHECK(std::fflush(stdout) == 0 && std::getchar() == 'x');
        CHECK(kind_of([&] { client.status(); }) == DP_UNAVAILABLE);
        CHECK(kind_of([&] { up.complete_wait(); }) == DP_UNAVAILABLE);
    }
    CHECK(dp_open_handles() == 0);
    std::puts("everything holds");
}
