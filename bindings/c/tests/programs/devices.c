/* Graphs of devices in all placements, functions of the program in devices, capabilities, revocation,
 * links, and what programs do wrong. This program is also its controller and its devices. */
#define _DEFAULT_SOURCE
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

enum { BLOCK = 4096, LONG = 60000 };

/* The call fails; which kind it has depends on what the devices do first. */
#define FAILS_SOMEHOW(call)            \
    do {                               \
        dp_error failed = (call);      \
        CHECK(failed.id != 0);         \
        dp_error_close(failed);        \
    } while (0)

static const dp_channel_shape SHAPE = {BLOCK, 4, 0};

static dp_fabric fabric;

/* Adds the number in the arguments to each byte. */
static dp_error adds(
    void *user, const char *arguments, const void *input, size_t len, void *output, size_t capacity, size_t *wrote) {
    dp_error none = {0};
    const unsigned char *from = input;
    unsigned char *to = output;
    size_t i;
    if (strcmp(arguments, "\"fail\"") == 0) {
        return dp_error_new(DP_NO_SPACE, "the program has no room");
    }
    if (strcmp(arguments, "\"overrun\"") == 0) {
        *wrote = capacity + 1;
        return none;
    }
    CHECK(user == &fabric && capacity >= len);
    for (i = 0; i < len; i++) {
        to[i] = (unsigned char)(from[i] + atoi(arguments));
    }
    *wrote = len;
    return none;
}

static dp_device_graph graph_of(uint32_t carrier) {
    dp_device_graph graph;
    OK(dp_device_graph_new(SHAPE, DP_TRUST_COPY, carrier, &graph));
    return graph;
}

/* program -> add 3 -> crc32 -> program */
static void through_devices(uint32_t placement, uint32_t carrier) {
    dp_device_graph graph = graph_of(carrier);
    dp_flow flow;
    dp_sender sender;
    dp_receiver receiver;
    dp_capability wire;
    uint32_t add, sum, party;
    dp_block_head head = {{5, 0, 0, 0}, 0};
    char text[8192];
    int i;
    OK(dp_device_graph_device(graph, "add", "{\"transform\": {\"function\": \"adds\", \"arguments\": 3}}", NULL, 0, &add));
    OK(dp_device_graph_device(graph, "sum", "{\"transform\": {\"function\": \"crc32\"}}", NULL, 0, &sum));
    OK(dp_device_graph_connect(graph, 0, add));
    OK(dp_device_graph_connect_with(graph, add, sum, SHAPE, DP_TRUST_IN_PLACE));
    OK(dp_device_graph_connect(graph, sum, 0));
    OK(dp_device_graph_start(graph, fabric, placement, &flow));
    FAILS(DP_INVALID_INPUT, dp_device_graph_close(graph));
    OK(dp_flow_describe(flow, text, sizeof text, NULL));
    CHECK(strstr(text, "->") != NULL);
    OK(dp_flow_device(flow, add, &party));
    CHECK(party != 0);
    FAILS(DP_INVALID_INPUT, dp_flow_device(flow, 0, &party));
    FAILS(DP_INVALID_INPUT, dp_flow_device(flow, 3, &party));
    FAILS(DP_OUT_OF_RANGE, dp_flow_capability(flow, 100, &wire));
    OK(dp_flow_capability(flow, 0, &wire));
    OK(dp_flow_sender(flow, 0, &sender));
    OK(dp_flow_receiver(flow, 0, &receiver));
    FAILS(DP_INVALID_INPUT, dp_flow_sender(flow, 0, &sender));
    FAILS(DP_INVALID_INPUT, dp_flow_receiver(flow, 1, &receiver));
    for (i = 0; i < 20; i++) {
        dp_block block;
        dp_block_head with;
        const void *bytes;
        size_t len;
        OK(dp_sender_send(sender, "abc", 3, head));
        OK(dp_receiver_receive(receiver, &block, &with, NULL));
        OK(dp_block_bytes(block, &bytes, &len));
        CHECK(len == 3 && memcmp(bytes, "def", 3) == 0 && with.words[0] == 5);
        OK(dp_block_answer(block, DP_BLOCK_DONE, 0));
    }
    OK(dp_sender_close(sender));
    FAILS(DP_INVALID_INPUT, dp_flow_report(flow, 3, 0, NULL, 0, NULL));
    OK(dp_receiver_close(receiver));
    OK(dp_flow_close(flow));
    FAILS(DP_INVALID_INPUT, dp_flow_close(flow));
    FAILS(DP_INVALID_INPUT, dp_flow_sender(flow, 0, &sender));
}

/* A file is read and written by devices; the program sees reports only. */
static void from_file_to_file(void) {
    enum { LEN = 100 * BLOCK + 17 };
    static char bytes[LEN], written[LEN + 1];
    dp_device_graph graph = graph_of(DP_CARRIER_SHARED_MEMORY);
    dp_flow flow;
    uint32_t source, sink;
    char report[1024];
    int from = open(in_folder("source"), O_RDWR | O_CREAT, 0600), to = open(in_folder("sink"), O_RDWR | O_CREAT, 0600);
    for (int i = 0; i < LEN; i++) {
        bytes[i] = (char)(i * 7);
    }
    CHECK(from >= 0 && to >= 0 && write(from, bytes, LEN) == LEN);
    OK(dp_device_graph_device(graph, "source", "{\"source\": {\"place\": {\"file\": {\"descriptor\": 0}}, \"sum\": true}}",
                              &from, 1, &source));
    OK(dp_device_graph_device(graph, "sink", "{\"sink\": {\"place\": {\"file\": {\"descriptor\": 0}}}}", &to, 1, &sink));
    OK(dp_device_graph_connect(graph, source, sink));
    OK(dp_device_graph_start(graph, fabric, DP_PLACEMENT_DISTRIBUTED, &flow));
    OK(dp_flow_report(flow, sink, LONG, report, sizeof report, NULL));
    CHECK(strstr(report, "\"bytes_in\":409617") != NULL);
    FAILS(DP_BUSY, dp_flow_report(flow, sink, 30, report, sizeof report, NULL));
    CHECK(pread(to, written, sizeof written, 0) == LEN && memcmp(bytes, written, LEN) == 0);
    OK(dp_flow_close(flow));
    close(from);
    close(to);
}

/* What a function of the program refuses is the failure of its block and of the stream. */
static void functions_that_fail(const char *role, const char *text) {
    dp_device_graph graph = graph_of(DP_CARRIER_SHARED_MEMORY);
    dp_flow flow;
    dp_sender sender;
    dp_receiver receiver;
    uint32_t device;
    dp_block_head head = {{0}, 0};
    dp_error told;
    OK(dp_device_graph_device(graph, "fails", role, NULL, 0, &device));
    OK(dp_device_graph_connect(graph, 0, device));
    OK(dp_device_graph_connect(graph, device, 0));
    OK(dp_device_graph_start(graph, fabric, DP_PLACEMENT_DISTRIBUTED, &flow));
    OK(dp_flow_sender(flow, 0, &sender));
    OK(dp_flow_receiver(flow, 0, &receiver));
    OK(dp_sender_send(sender, "x", 1, head));
    FAILS_SOMEHOW(dp_sender_drain(sender));
    told = dp_flow_report(flow, device, LONG, NULL, 0, NULL);
    CHECK(dp_error_kind_of(told) == DP_DEVICE && strstr(dp_error_message(told), text) != NULL);
    dp_error_close(told);
    OK(dp_sender_close(sender));
    OK(dp_receiver_close(receiver));
    OK(dp_flow_close(flow));
}

static void graphs_that_are_refused(void) {
    dp_device_graph graph;
    dp_flow flow;
    uint32_t node;
    int no_file = 1 << 20;
    dp_channel_shape wrong = {0, 1, 0};
    FAILS(DP_INVALID_INPUT, dp_device_graph_new(wrong, DP_TRUST_COPY, 0, &graph));
    FAILS(DP_INVALID_INPUT, dp_device_graph_new(SHAPE, 9, 0, &graph));
    FAILS(DP_INVALID_INPUT, dp_device_graph_new(SHAPE, DP_TRUST_COPY, 9, &graph));
    graph = graph_of(DP_CARRIER_SHARED_MEMORY);
    FAILS(DP_INVALID_INPUT, dp_device_graph_device(graph, "x", "{\"transform\"", NULL, 0, &node));
    FAILS(DP_INVALID_INPUT, dp_device_graph_device(graph, "x", "{\"teleport\": {}}", NULL, 0, &node));
    FAILS(DP_INVALID_INPUT, dp_device_graph_device(graph, NULL, "\"hub\"", NULL, 0, &node));
    FAILS_SOMEHOW(dp_device_graph_device(graph, "x", "\"hub\"", &no_file, 1, &node));
    FAILS(DP_INVALID_INPUT, dp_device_graph_connect(graph, 0, 1));
    FAILS(DP_INVALID_INPUT, dp_device_graph_connect(graph, 0, 0));
    FAILS(DP_INVALID_INPUT, dp_device_graph_start(graph, fabric, 9, &flow));
    FAILS(DP_INVALID_INPUT, dp_device_graph_start(graph, fabric, DP_PLACEMENT_AUTO, NULL));
    /* Refused arguments left it as it was; a start that fails closes it. */
    FAILS(DP_INVALID_INPUT, dp_device_graph_start(graph, fabric, DP_PLACEMENT_DISTRIBUTED, &flow));
    FAILS(DP_INVALID_INPUT, dp_device_graph_start(graph, fabric, DP_PLACEMENT_DISTRIBUTED, &flow));
    graph = graph_of(DP_CARRIER_SHARED_MEMORY);
    OK(dp_device_graph_device(graph, "x", "{\"transform\": {\"function\": \"no such function\"}}", NULL, 0, &node));
    OK(dp_device_graph_connect(graph, 0, node));
    FAILS_SOMEHOW(dp_device_graph_start(graph, fabric, DP_PLACEMENT_DISTRIBUTED, &flow));
    FAILS(DP_INVALID_INPUT, dp_device_graph_close(graph));
}

/* A channel of the controller's between two ports of this program. */
static void capabilities(uint32_t carrier) {
    dp_capability all, sends, receives, other;
    dp_sender sender;
    dp_receiver receiver;
    dp_block block;
    dp_block_head head = {{0}, 0};
    size_t removed = 0;
    OK(dp_fabric_channel(fabric, SHAPE, carrier, &all));
    FAILS(DP_INVALID_INPUT, dp_fabric_delegate(fabric, all, 0, 3 << 10, &sends));
    OK(dp_fabric_delegate(fabric, all, 0, DP_RIGHT_SEND, &sends));
    OK(dp_fabric_delegate(fabric, all, 0, DP_RIGHT_RECEIVE, &receives));
    FAILS(DP_PERMISSION_DENIED, dp_fabric_delegate(fabric, sends, 0, DP_RIGHT_SEND, &other));
    FAILS(DP_PERMISSION_DENIED, dp_fabric_activate(fabric, sends, "r", DP_RIGHT_RECEIVE, DP_TRUST_COPY));
    OK(dp_fabric_activate(fabric, sends, "s", DP_RIGHT_SEND, DP_TRUST_COPY));
    if (carrier == DP_CARRIER_SHARED_MEMORY) {
        FAILS(DP_BUSY, dp_fabric_sender(fabric, "s", 30, &sender)); /* A socket is there at once. */
    }
    OK(dp_fabric_activate(fabric, receives, "r", DP_RIGHT_RECEIVE, DP_TRUST_COPY));
    OK(dp_fabric_sender(fabric, "s", LONG, &sender));
    OK(dp_fabric_receiver(fabric, "r", LONG, &receiver));
    OK(dp_sender_send(sender, "hello", 5, head));
    OK(dp_receiver_receive(receiver, &block, NULL, NULL));
    OK(dp_block_answer(block, DP_BLOCK_DONE, 0));
    OK(dp_sender_send(sender, "hello", 5, head));
    OK(dp_fabric_revoke(fabric, all, &removed));
    CHECK(removed == 3);
    FAILS(DP_PERMISSION_DENIED, dp_sender_drain(sender));
    FAILS(DP_PERMISSION_DENIED, dp_receiver_receive(receiver, &block, NULL, NULL));
    FAILS(DP_NOT_FOUND, dp_fabric_revoke(fabric, all, NULL));
    FAILS(DP_NOT_FOUND, dp_fabric_revoke(fabric, sends, NULL));
    OK(dp_sender_close(sender));
    OK(dp_receiver_close(receiver));
}

/* Through bridges by UCX, where that is installed. */
static void by_ucx(void) {
    dp_capability channel;
    dp_error failed = dp_fabric_channel(fabric, SHAPE, DP_CARRIER_UCX, &channel);
    FAILS(DP_INVALID_INPUT, dp_fabric_channel(fabric, SHAPE, DP_CARRIER_UCX + 1, &channel));
    if (failed.id != 0) {
        printf("SKIPPED: by_ucx: %s\n", dp_error_message(failed));
        CHECK(dp_error_kind_of(failed) == DP_UNAVAILABLE);
        dp_error_close(failed);
        return;
    }
    OK(dp_fabric_revoke(fabric, channel, NULL));
    through_devices(DP_PLACEMENT_DISTRIBUTED, DP_CARRIER_UCX);
    capabilities(DP_CARRIER_UCX);
}

/* A revocation reaches a flow: its devices go on, its wire is cut. */
static void a_wire_is_cut(void) {
    dp_device_graph graph = graph_of(DP_CARRIER_SHARED_MEMORY);
    dp_flow flow;
    dp_sender sender;
    dp_receiver receiver;
    dp_capability wire;
    dp_block block;
    dp_block_head head = {{0}, 0};
    uint32_t device;
    OK(dp_device_graph_device(graph, "on", "{\"transform\": {\"function\": \"forward\"}}", NULL, 0, &device));
    OK(dp_device_graph_connect(graph, 0, device));
    OK(dp_device_graph_connect(graph, device, 0));
    OK(dp_device_graph_start(graph, fabric, DP_PLACEMENT_DISTRIBUTED, &flow));
    OK(dp_flow_sender(flow, 0, &sender));
    OK(dp_flow_receiver(flow, 0, &receiver));
    OK(dp_flow_capability(flow, 0, &wire));
    OK(dp_fabric_revoke(fabric, wire, NULL));
    FAILS(DP_PERMISSION_DENIED, dp_sender_send(sender, "x", 1, head));
    OK(dp_flow_close(flow));
    FAILS_SOMEHOW(dp_receiver_receive(receiver, &block, NULL, NULL));
    OK(dp_sender_close(sender));
    OK(dp_receiver_close(receiver));
}

/* Two controllers, each with half of a channel, as if on two machines. */
static void links(uint32_t unencrypted) {
    dp_fabric there;
    dp_device_graph graph;
    dp_flow flow;
    dp_link link;
    dp_capability here, elsewhere;
    dp_sender sender;
    dp_receiver receiver;
    dp_block block;
    dp_block_head head = {{0}, 0};
    char address[64];
    uint8_t key[32] = {1, 2, 3}, wrong[33] = {0};
    uint32_t node, far;
    memset(&link, 0, sizeof link);
    link.size = sizeof link;
    link.side = DP_RIGHT_SEND;
    link.unencrypted = unencrypted;
    link.shape = SHAPE;
    link.address = "127.0.0.1:0";
    link.key = wrong;
    link.key_len = sizeof wrong;
    FAILS(DP_INVALID_INPUT, dp_fabric_offer(fabric, NULL, &here, NULL, 0, NULL));
    FAILS(DP_INVALID_INPUT, dp_fabric_offer(fabric, &link, &here, NULL, 0, NULL));
    link.key = key;
    link.key_len = sizeof key;
    link.address = "127.0.0.1";
    FAILS(DP_INVALID_INPUT, dp_fabric_offer(fabric, &link, &here, NULL, 0, NULL));
    link.address = "127.0.0.1:0";
    link.side = DP_RIGHT_SEND | DP_RIGHT_RECEIVE;
    FAILS(DP_INVALID_INPUT, dp_fabric_offer(fabric, &link, &here, NULL, 0, NULL));
    link.side = DP_RIGHT_SEND;
    OK(dp_fabric_offer(fabric, &link, &here, address, sizeof address, NULL));
    FAILS(DP_BUSY, dp_fabric_joined(fabric, here, 30));

    OK(dp_fabric_start(NULL, &there));
    link.side = DP_RIGHT_RECEIVE;
    link.address = address;
    OK(dp_fabric_join(there, &link, &elsewhere));
    OK(dp_fabric_joined(there, elsewhere, LONG));
    OK(dp_fabric_joined(fabric, here, LONG));
    /* There, a device stands between the link and the program. */
    graph = graph_of(DP_CARRIER_SHARED_MEMORY);
    OK(dp_device_graph_elsewhere(graph, elsewhere, &far));
    OK(dp_device_graph_device(graph, "add", "{\"transform\": {\"function\": \"adds\", \"arguments\": 1}}", NULL, 0, &node));
    OK(dp_device_graph_connect_with(graph, far, node, SHAPE, DP_TRUST_COPY));
    OK(dp_device_graph_connect(graph, node, 0));
    OK(dp_device_graph_start(graph, there, DP_PLACEMENT_DISTRIBUTED, &flow));
    OK(dp_flow_receiver(flow, 0, &receiver));
    /* A fabric lives until its last flow is closed. */
    OK(dp_fabric_close(there));
    FAILS(DP_INVALID_INPUT, dp_fabric_joined(there, elsewhere, 0));
    OK(dp_fabric_activate(fabric, here, "far", DP_RIGHT_SEND, DP_TRUST_COPY));
    OK(dp_fabric_sender(fabric, "far", LONG, &sender));
    OK(dp_sender_send(sender, "HAL", 3, head));
    OK(dp_receiver_receive(receiver, &block, NULL, NULL));
    OK(dp_block_copy(block, address, sizeof address));
    CHECK(memcmp(address, "IBM", 3) == 0);
    OK(dp_block_answer(block, DP_BLOCK_DONE, 0));
    OK(dp_sender_drain(sender));
    OK(dp_receiver_close(receiver));
    OK(dp_flow_close(flow));
    OK(dp_sender_close(sender));
    OK(dp_fabric_revoke(fabric, here, NULL));
}

static void forked(void) {
    dp_device_graph graph = graph_of(DP_CARRIER_SHARED_MEMORY), other = graph_of(DP_CARRIER_SHARED_MEMORY);
    dp_capability channel;
    dp_flow flow;
    uint32_t device, party;
    int status;
    pid_t child;
    OK(dp_device_graph_device(graph, "on", "{\"transform\": {\"function\": \"forward\"}}", NULL, 0, &device));
    OK(dp_device_graph_connect(graph, 0, device));
    OK(dp_device_graph_start(graph, fabric, DP_PLACEMENT_DISTRIBUTED, &flow));
    child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        alarm(60);
        FAILS(DP_FORKED, dp_fabric_channel(fabric, SHAPE, 0, &channel));
        FAILS(DP_FORKED, dp_fabric_status(fabric, NULL, 0, NULL));
        FAILS(DP_FORKED, dp_flow_device(flow, device, &party));
        FAILS(DP_FORKED, dp_device_graph_connect(other, 0, 1));
        FAILS(DP_FORKED, dp_device_graph_start(other, fabric, DP_PLACEMENT_DISTRIBUTED, &flow));
        OK(dp_device_graph_close(other));
        OK(dp_flow_close(flow));
        OK(dp_fabric_close(fabric));
        _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    OK(dp_flow_device(flow, device, &party)); /* The parent's devices live. */
    OK(dp_device_graph_close(other));
    OK(dp_flow_close(flow));
}

/* Memory for which the controller decides who may read and write it. */
static void memories(void) {
    dp_capability all, reads;
    dp_endpoint writer, reader;
    uint64_t len = 0;
    uint32_t writable = 7;
    char bytes[8] = "";
    int status;
    pid_t child;
    FAILS(DP_INVALID_INPUT, dp_fabric_memory(fabric, 0, &all));
    FAILS(DP_OUT_OF_MEMORY, dp_fabric_memory(fabric, UINT64_MAX, &all));
    OK(dp_fabric_memory(fabric, 10000, &all));
    OK(dp_fabric_delegate(fabric, all, 0, DP_RIGHT_READ, &reads));
    FAILS(DP_PERMISSION_DENIED, dp_fabric_activate(fabric, reads, "no", DP_RIGHT_WRITE, DP_TRUST_COPY));
    OK(dp_fabric_activate(fabric, all, "writes", DP_RIGHT_READ | DP_RIGHT_WRITE, DP_TRUST_COPY));
    OK(dp_fabric_activate(fabric, reads, "reads", DP_RIGHT_READ, DP_TRUST_COPY));
    OK(dp_fabric_endpoint(fabric, "writes", 10000, &writer));
    OK(dp_fabric_endpoint(fabric, "reads", 10000, &reader));
    OK(dp_endpoint_facts(writer, &len, &writable));
    CHECK(len == 10000 && writable == 1);
    OK(dp_endpoint_facts(reader, NULL, &writable));
    CHECK(writable == 0);
    OK(dp_endpoint_write(writer, 9995, "hello", 5));
    OK(dp_endpoint_read(reader, 9994, bytes, 6));
    CHECK(memcmp(bytes, "\0hello", 6) == 0);
    FAILS(DP_PERMISSION_DENIED, dp_endpoint_write(reader, 0, "x", 1));
    FAILS(DP_OUT_OF_RANGE, dp_endpoint_read(reader, 9996, bytes, 5));
    FAILS(DP_OUT_OF_RANGE, dp_endpoint_read(reader, UINT64_MAX, bytes, 1));
    FAILS(DP_INVALID_INPUT, dp_endpoint_read(reader, 0, NULL, 1));
    child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        alarm(60);
        FAILS(DP_FORKED, dp_endpoint_read(reader, 0, bytes, 1));
        OK(dp_endpoint_close(reader));
        _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    OK(dp_fabric_revoke(fabric, reads, NULL));
    FAILS(DP_PERMISSION_DENIED, dp_endpoint_read(reader, 0, bytes, 1));
    OK(dp_endpoint_read(writer, 9995, bytes, 5));
    OK(dp_fabric_revoke(fabric, all, NULL));
    OK(dp_endpoint_close(writer));
    OK(dp_endpoint_close(reader));
    FAILS(DP_INVALID_INPUT, dp_endpoint_close(reader));
}

/* A body: sends each block twice, through both of its outlets in turn, until nobody sends any more. */
static dp_error doubles(void *user, const char *arguments, const dp_receiver *inlets, size_t inlet_count,
                        const dp_sender *outlets, size_t outlet_count) {
    size_t next = 0;
    CHECK(user == &fabric && inlet_count == 1 && strcmp(arguments, "{\"times\":2}") == 0);
    for (;;) {
        dp_block block;
        dp_block_head head;
        const void *bytes;
        size_t len;
        int i;
        dp_error error = dp_receiver_receive(inlets[0], &block, &head, NULL);
        if (error.id != 0) {
            return error; /* DP_END_OF_FILE is the orderly end. */
        }
        OK(dp_block_bytes(block, &bytes, &len));
        if (len == 4 && memcmp(bytes, "fail", 4) == 0) {
            OK(dp_block_answer(block, DP_BLOCK_DONE, 0));
            return dp_error_new(DP_CORRUPT, "the body does not like this block");
        }
        for (i = 0; i < 2; i++) {
            OK(dp_sender_send(outlets[next++ % outlet_count], bytes, len, head));
        }
        OK(dp_block_answer(block, DP_BLOCK_DONE, 0));
    }
}

static const char DOUBLES[] = "{\"custom\": {\"name\": \"doubles\", \"arguments\": {\"times\": 2}}}";

/* program -> a body -> program, by two channels. */
static void a_body_of_the_program(uint32_t carrier, int fails) {
    dp_device_graph graph = graph_of(carrier);
    dp_block_head head = {{0}, 0};
    dp_flow flow;
    dp_sender sender;
    dp_receiver receivers[2];
    uint32_t body, i;
    OK(dp_device_graph_device(graph, "doubles", DOUBLES, NULL, 0, &body));
    OK(dp_device_graph_connect(graph, 0, body));
    OK(dp_device_graph_connect(graph, body, 0));
    OK(dp_device_graph_connect(graph, body, 0));
    OK(dp_device_graph_start(graph, fabric, DP_PLACEMENT_DISTRIBUTED, &flow));
    OK(dp_flow_sender(flow, 0, &sender));
    OK(dp_flow_receiver(flow, 0, &receivers[0]));
    OK(dp_flow_receiver(flow, 1, &receivers[1]));
    for (i = 0; i < 30; i++) {
        uint32_t which;
        head.words[0] = i;
        OK(dp_sender_send(sender, "abc", 3, head));
        for (which = 0; which < 2; which++) {
            dp_block block;
            dp_block_head got;
            size_t len;
            const void *bytes;
            OK(dp_receiver_receive(receivers[which], &block, &got, NULL));
            OK(dp_block_bytes(block, &bytes, &len));
            CHECK(len == 3 && memcmp(bytes, "abc", 3) == 0 && got.words[0] == i);
            OK(dp_block_answer(block, DP_BLOCK_DONE, 0));
        }
    }
    if (fails) {
        char report[1024];
        dp_error error;
        OK(dp_sender_send(sender, "fail", 4, head));
        error = dp_flow_report(flow, body, LONG, report, sizeof report, NULL);
        CHECK(dp_error_kind_of(error) != DP_OK);
        CHECK(strstr(dp_error_message(error), "does not like this block") != NULL);
        dp_error_close(error);
    }
    OK(dp_sender_close(sender));
    for (i = 0; i < 2; i++) {
        dp_block block;
        dp_block_head got;
        if (!fails) {
            FAILS(DP_END_OF_FILE, dp_receiver_receive(receivers[i], &block, &got, NULL));
        }
        OK(dp_receiver_close(receivers[i]));
    }
    OK(dp_flow_close(flow));
}

/* Descriptors are for roles of the library. */
static void a_body_takes_no_descriptors(void) {
    dp_device_graph graph = graph_of(DP_CARRIER_SHARED_MEMORY);
    dp_flow flow;
    uint32_t body;
    int32_t given = 0;
    OK(dp_device_graph_device(graph, "doubles", DOUBLES, &given, 1, &body));
    OK(dp_device_graph_connect(graph, 0, body));
    FAILS_SOMEHOW(dp_device_graph_start(graph, fabric, DP_PLACEMENT_DISTRIBUTED, &flow));
}

int main(void) {
    dp_device_function functions[] = {{"adds", adds, &fabric}};
    dp_device_body bodies[] = {{"doubles", doubles, &fabric}}, no_body[] = {{"nothing", NULL, NULL}};
    dp_device_function wrong[] = {{"nothing", NULL, NULL}};
    int32_t code;
    char status[8192];
    OK(dp_fabric_enter_with(functions, 1, bodies, 1, &code));
    if (code >= 0) {
        return code;
    }
    FAILS(DP_INVALID_INPUT, dp_fabric_enter_with(functions, 1, no_body, 1, &code));
    FAILS(DP_INVALID_INPUT, dp_fabric_enter(wrong, 1, &code));
    FAILS(DP_INVALID_INPUT, dp_fabric_enter(NULL, 0, NULL));
    FAILS(DP_NOT_FOUND, dp_fabric_start("/no/such/program", &fabric));
    OK(dp_fabric_start(NULL, &fabric));
    for (uint32_t placement = DP_PLACEMENT_AUTO; placement <= DP_PLACEMENT_DISTRIBUTED; placement++) {
        through_devices(placement, DP_CARRIER_SHARED_MEMORY);
    }
    through_devices(DP_PLACEMENT_DISTRIBUTED, DP_CARRIER_UNIX_SOCKET);
    through_devices(DP_PLACEMENT_DISTRIBUTED, DP_CARRIER_TCP);
    from_file_to_file();
    a_body_of_the_program(DP_CARRIER_SHARED_MEMORY, 0);
    a_body_of_the_program(DP_CARRIER_UNIX_SOCKET, 0);
    a_body_of_the_program(DP_CARRIER_SHARED_MEMORY, 1);
    a_body_takes_no_descriptors();
    functions_that_fail("{\"transform\": {\"function\": \"adds\", \"arguments\": \"fail\"}}", "has no room");
    functions_that_fail("{\"transform\": {\"function\": \"adds\", \"arguments\": \"overrun\"}}", "says that it wrote 4097 bytes");
    graphs_that_are_refused();
    capabilities(DP_CARRIER_SHARED_MEMORY);
    capabilities(DP_CARRIER_UNIX_SOCKET);
    by_ucx();
    a_wire_is_cut();
    memories();
    links(0);
    links(1);
    forked();
    OK(dp_fabric_status(fabric, status, sizeof status, NULL));
    CHECK(strstr(status, "\"objects\":0") != NULL && strstr(status, "\"devices\":[]") != NULL);
    OK(dp_fabric_close(fabric));
    FAILS(DP_INVALID_INPUT, dp_fabric_close(fabric));
    FAILS(DP_INVALID_INPUT, dp_fabric_status(fabric, NULL, 0, NULL));
    CHECK(dp_open_handles() == 0);
    puts("everything holds");
    return 0;
}
