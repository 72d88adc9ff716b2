// Channels and devices in C++: objects that end themselves, exceptions of functions in devices, links.
#include "datapipes.hpp"

#include <cstdio>
#include <cstring>
#include <thread>

#include "check.hpp"

namespace dp = datapipes;
using namespace std::chrono_literals;

static constexpr dp::channel_shape SHAPE{.block_bytes = 4096, .credits = 4, .checked = 0};

static std::span<const std::byte> bytes_of(const char *text) {
    return std::as_bytes(std::span(text, std::strlen(text)));
}

static std::string text_of(std::span<const std::byte> bytes) {
    return {reinterpret_cast<const char *>(bytes.data()), bytes.size()};
}

template <class Work>
static dp_error_kind kind_of(Work &&work) {
    try {
        work();
    } catch (const dp::error &e) {
        return e.kind();
    }
    return DP_OK;
}

static void within_a_process() {
    auto [sender, receiver] = dp::channel_pair(SHAPE);
    std::jthread other([receiver = std::move(receiver)]() mutable {
        for (;;) {
            auto block = receiver.receive();
            if (block.head().end) {
                block.answer(DP_BLOCK_DONE, 42);
                return;
            }
            CHECK(text_of(block.bytes()) == "in place" && block.size() == 8);
            block.done();
        }
    });
    for (int i = 0; i < 100; i++) {
        auto memory = sender.grant();
        auto moved = std::move(memory);
        CHECK(memory.bytes().empty() && moved.bytes().size() == 4096);
        std::memcpy(moved.bytes().data(), "in place", 8);
        moved.send(8);
    }
    CHECK(sender.finish() == 42 && sender.outstanding() == 0);
}

// What is destroyed gives back what it had.
static void destroyed() {
    auto [sender, receiver] = dp::channel_pair({.block_bytes = 8, .credits = 1, .checked = 0});
    sender.set_patience(20ms);
    receiver.set_patience(0ms);
    { auto memory = sender.grant(); }
    CHECK(!receiver.poll() && kind_of([&, &r = receiver] { r.receive(); }) == DP_BUSY);
    sender.send(bytes_of("dropped"));
    CHECK(kind_of([&, &s = sender] { s.send(bytes_of("no credit")); }) == DP_OUT_OF_RANGE);
    CHECK(kind_of([&, &s = sender] { s.send(bytes_of("none")); }) == DP_BUSY);
    { auto block = receiver.poll(); }
    CHECK(kind_of([&, &s = sender] { s.drain(); }) == DP_DEVICE);
    CHECK(kind_of([&, &s = sender] { s.reply(); }) == DP_INVALID_INPUT);
    {
        auto [next, last] = dp::channel_pair(SHAPE);
        sender.send(bytes_of("on"), {.words = {1, 2, 3, 4}, .end = 0});
        auto block = receiver.poll();
        next.forward(*block, block->head());
        block->done();
        CHECK(kind_of([&] { block->done(); }) == DP_INVALID_INPUT);
        auto arrived = last.receive();
        std::array<std::byte, 2> copy{};
        arrived.copy_to(copy);
        CHECK(text_of(copy) == "on" && arrived.head().words[3] == 4);
    }
    receiver = dp::receiver();
    CHECK(kind_of([&, &s = sender] { s.grant().send(1); }) != DP_OK);
}

static const char *const UPPER = R"({"transform": {"function": "upper"}})";

static void through_a_device(const dp::fabric &fabric) {
    dp::device_graph graph(SHAPE);
    auto upper = graph.device("upper", UPPER);
    graph.connect(graph.application, upper);
    graph.connect(upper, graph.application, SHAPE, DP_TRUST_IN_PLACE);
    CHECK(kind_of([&] { graph.start(fabric, static_cast<dp_placement>(77)); }) == DP_INVALID_INPUT && graph);
    auto flow = graph.start(fabric, DP_PLACEMENT_DISTRIBUTED);
    CHECK(!graph && flow.device(upper) != 0 && flow.describe().starts_with("distributed"));
    auto sender = flow.sender();
    auto receiver = flow.receiver();
    sender.send(bytes_of("everything"));
    {
        auto block = receiver.receive();
        CHECK(text_of(block.bytes()) == "EVERYTHING");
        block.done();
    }
    sender.drain();
    // What the function throws is the failure of its block.
    sender.send(bytes_of("throw"));
    CHECK(kind_of([&] { sender.drain(); }) != DP_OK);
    CHECK(kind_of([&] { flow.report(upper, 60s); }) == DP_DEVICE);
    flow.close();
    CHECK(!flow);
}

static void capabilities(const dp::fabric &fabric) {
    auto all = fabric.channel(SHAPE);
    auto sends = fabric.delegate(all, 0, DP_RIGHT_SEND);
    fabric.activate(sends, "out", DP_RIGHT_SEND);
    fabric.activate(all, "in", DP_RIGHT_RECEIVE);
    auto sender = fabric.sender("out", 60s);
    auto receiver = fabric.receiver("in", 60s);
    sender.send(bytes_of("hello"));
    receiver.receive().done();
    CHECK(fabric.revoke(all) == 2);
    CHECK(kind_of([&] { sender.send(bytes_of("hello")); }) == DP_PERMISSION_DENIED);
}

static void memories(const dp::fabric &fabric) {
    auto all = fabric.memory(100);
    auto reads = fabric.delegate(all, 0, DP_RIGHT_READ);
    fabric.activate(all, "writes", DP_RIGHT_READ | DP_RIGHT_WRITE);
    fabric.activate(reads, "reads", DP_RIGHT_READ);
    auto writer = fabric.endpoint("writes", 60s);
    auto reader = fabric.endpoint("reads", 60s);
    CHECK(writer.length() == 100 && writer.is_writable() && !reader.is_writable());
    writer.write(95, bytes_of("hello"));
    std::array<std::byte, 5> copy{};
    reader.read(95, copy);
    CHECK(text_of(copy) == "hello");
    CHECK(kind_of([&] { reader.write(0, bytes_of("x")); }) == DP_PERMISSION_DENIED);
    fabric.revoke(all);
    CHECK(kind_of([&] { reader.read(0, copy); }) == DP_PERMISSION_DENIED);
}

static void any_of_several() {
    auto [one, takes_one] = dp::channel_pair(SHAPE);
    auto [two, takes_two] = dp::channel_pair(SHAPE);
    dp::receiver *const receivers[] = {&takes_one, &takes_two};
    two.send(bytes_of("two"));
    {
        auto [which, block] = dp::receive_any(receivers, 0, 60s);
        CHECK(which == 1 && text_of(block.bytes()) == "two");
        block.done();
    }
    CHECK(kind_of([&] { dp::receive_any(receivers, 0, 1ms); }) == DP_BUSY);
    one = dp::sender();
    std::size_t ended = 7;
    CHECK(kind_of([&] { dp::receive_any(receivers, 1, 60s, &ended); }) == DP_END_OF_FILE && ended == 0);
}

static void links(const dp::fabric &here) {
    dp::fabric there;
    std::array<std::uint8_t, 32> key{1, 2, 3};
    auto [offered, address] = here.offer({.side = DP_RIGHT_SEND, .shape = SHAPE, .address = "127.0.0.1:0", .key = key});
    auto joined = there.join({.side = DP_RIGHT_RECEIVE, .shape = SHAPE, .address = address, .key = key});
    there.joined(joined, 60s);
    here.joined(offered, 60s);
    dp::device_graph graph(SHAPE);
    auto upper = graph.device("upper", UPPER);
    graph.connect(graph.elsewhere(joined), upper);
    graph.connect(upper, graph.application);
    auto flow = graph.start(there, DP_PLACEMENT_DISTRIBUTED);
    here.activate(offered, "far", DP_RIGHT_SEND);
    auto sender = here.sender("far", 60s);
    sender.send(bytes_of("far"));
    auto receiver = flow.receiver();
    auto block = receiver.receive();
    CHECK(text_of(block.bytes()) == "FAR");
    block.done();
    CHECK(kind_of([&] { flow.capability(9); }) == DP_OUT_OF_RANGE);
}

int main() {
    const dp::device_function functions[] = {
        {"upper",
         [](std::span<const std::byte> input, std::span<std::byte> output, const char *) {
             if (text_of(input) == "throw") {
                 throw std::runtime_error("as it was told to");
             }
             std::ranges::transform(input, output.begin(), [](std::byte b) {
                 auto c = static_cast<char>(b);
                 return static_cast<std::byte>(c >= 'a' && c <= 'z' ? c - 32 : c);
             });
             return input.size();
         }},
    };
    if (auto code = dp::fabric::enter(functions)) {
        return *code;
    }
    within_a_process();
    destroyed();
    any_of_several();
    {
        dp::fabric fabric;
        through_a_device(fabric);
        capabilities(fabric);
        memories(fabric);
        links(fabric);
        CHECK(fabric.status().find("\"devices\":[]") != std::string::npos);
    }
    CHECK(dp_open_handles() == 0);
    std::puts("everything holds");
}
