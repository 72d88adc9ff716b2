// Sorts between functions of the program, in C++: what they throw is thrown by the sort.
#include <algorithm>
#include <cstring>
#include <iostream>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "check.hpp"
#include "datapipes.hpp"

namespace dp = datapipes;

int main() {
    std::vector<std::uint64_t> numbers(500'000), sorted;
    std::mt19937_64 random(7);
    std::generate(numbers.begin(), numbers.end(), random);
    {
        dp::machine machine;
        dp_sort_options options{};
        options.kind = DP_U64;
        std::size_t at = 0;
        auto read = [&](std::span<std::byte> into) {
            auto left = std::as_bytes(std::span(numbers)).subspan(at);
            auto len = std::min({left.size(), into.size(), std::size_t{65'537}});
            std::memcpy(into.data(), left.data(), len);
            at += len;
            return len;
        };
        std::vector<std::byte> bytes;
        auto write = [&](std::span<const std::byte> part) { bytes.insert(bytes.end(), part.begin(), part.end()); };
        auto report = machine.sort_streams(read, write, options);
        CHECK(report.find("\"records\":500000") != std::string::npos);
        sorted.resize(bytes.size() / 8);
        std::memcpy(sorted.data(), bytes.data(), bytes.size());
        std::sort(numbers.begin(), numbers.end());
        CHECK(sorted == numbers);
        // An exception of the program, and an error of the library, which stays what it is.
        std::string said;
        try {
            machine.sort_streams([](std::span<std::byte>) -> std::size_t { throw std::runtime_error("no more"); }, write, options);
        } catch (const dp::error &e) {
            said = e.what();
        }
        CHECK(said.find("no more") != std::string::npos);
        at = 0;
        auto full = [](std::span<const std::byte>) { dp::check(dp_error_new(DP_NO_SPACE, "full")); };
        try {
            machine.sort_streams(read, full, options);
            CHECK(!"the sink is full");
        } catch (const dp::error &e) {
            CHECK(e.kind() == DP_NO_SPACE);
        }
    }
    CHECK(dp_open_handles() == 0);
    std::cout << "everything holds" << std::endl;
    return 0;
}
