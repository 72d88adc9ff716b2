/* The two ends of a channel within a process: in order, in place, and what programs do wrong. */
#define _DEFAULT_SOURCE
#include <poll.h>
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

enum { BLOCK = 4096, CREDITS = 4, BLOCKS = 1000 };

static dp_channel_shape shape(uint64_t block_bytes, uint32_t credits) {
    dp_channel_shape made;
    made.block_bytes = block_bytes;
    made.credits = credits;
    made.checked = 0;
    return made;
}

static dp_block_head head(uint64_t word) {
    dp_block_head made = {{0}, 0};
    made.words[0] = word;
    return made;
}

static dp_sender sender;
static dp_receiver receiver;

static void make(uint32_t trust) {
    dp_channel_shape checked = shape(BLOCK, CREDITS);
    checked.checked = trust == DP_TRUST_IN_PLACE_CHECKED;
    OK(dp_channel_pair(checked, trust, &sender, &receiver));
}

/* Block n has n % BLOCK bytes, each of which is n. */
static void *takes_blocks(void *user) {
    uint64_t n;
    (void)user;
    for (n = 0;; n++) {
        dp_block block;
        dp_block_head with;
        const void *bytes;
        size_t len, again, i;
        OK(dp_receiver_receive(receiver, &block, &with, &len));
        if (with.end) {
            CHECK(n == BLOCKS && len == 0 && with.words[3] == 99);
            OK(dp_block_answer(block, DP_BLOCK_DONE, 7));
            return NULL;
        }
        OK(dp_block_bytes(block, &bytes, &again));
        CHECK(with.words[0] == n && len == n % BLOCK && again == len);
        for (i = 0; i < len; i++) {
            CHECK(((const unsigned char *)bytes)[i] == (unsigned char)n);
        }
        OK(dp_block_answer(block, DP_BLOCK_DONE, n));
        FAILS(DP_INVALID_INPUT, dp_block_answer(block, DP_BLOCK_DONE, n));
    }
}

static void blocks_arrive(uint32_t trust) {
    static unsigned char bytes[BLOCK];
    dp_block_head end = {{0, 0, 0, 99}, 0};
    pthread_t thread;
    uint64_t n, word = 0;
    make(trust);
    CHECK(pthread_create(&thread, NULL, takes_blocks, NULL) == 0);
    for (n = 0; n < BLOCKS; n++) {
        size_t len = n % BLOCK;
        if (n % 2 == 0) {
            memset(bytes, (int)n, len);
            OK(dp_sender_send(sender, bytes, len, head(n)));
        } else {
            void *granted;
            size_t has;
            OK(dp_sender_grant(sender, &granted, &has));
            CHECK(has == BLOCK);
            memset(granted, (int)n, len);
            OK(dp_sender_send_granted(sender, len, head(n)));
        }
    }
    OK(dp_sender_finish(sender, end, &word));
    CHECK(word == 7);
    CHECK(pthread_join(thread, NULL) == 0);
    OK(dp_sender_close(sender));
    FAILS(DP_END_OF_FILE, dp_receiver_receive(receiver, &(dp_block){0}, NULL, NULL));
    OK(dp_receiver_close(receiver));
}

static void arguments(void) {
    dp_sender s;
    dp_receiver r;
    FAILS(DP_INVALID_INPUT, dp_channel_pair(shape(0, 1), DP_TRUST_COPY, &s, &r));
    FAILS(DP_INVALID_INPUT, dp_channel_pair(shape(1, 0), DP_TRUST_COPY, &s, &r));
    FAILS(DP_INVALID_INPUT, dp_channel_pair(shape((uint64_t)1 << 31, 1), DP_TRUST_COPY, &s, &r));
    FAILS(DP_OUT_OF_MEMORY, dp_channel_pair(shape(UINT64_MAX, 1), DP_TRUST_COPY, &s, &r));
    FAILS(DP_INVALID_INPUT, dp_channel_pair(shape(1, 257), DP_TRUST_COPY, &s, &r));
    FAILS(DP_INVALID_INPUT, dp_channel_pair(shape(1, 1), 3, &s, &r));
    FAILS(DP_INVALID_INPUT, dp_channel_pair(shape(1, 1), DP_TRUST_COPY, NULL, &r));
    FAILS(DP_INVALID_INPUT, dp_channel_pair(shape(1, 1), DP_TRUST_COPY, &s, NULL));
    CHECK(dp_open_handles() == 0);
}

/* What a sender may not do, and what it learns of its blocks. */
static void sending(void) {
    static char bytes[BLOCK + 1];
    void *granted;
    size_t has;
    uint32_t under_way;
    dp_block block, first;
    dp_block_reply reply;
    make(DP_TRUST_COPY);
    OK(dp_sender_set_patience(sender, 20));
    OK(dp_receiver_set_patience(receiver, 20));
    FAILS(DP_OUT_OF_RANGE, dp_sender_send(sender, bytes, BLOCK + 1, head(0)));
    FAILS(DP_INVALID_INPUT, dp_sender_send(sender, NULL, 1, head(0)));
    FAILS(DP_INVALID_INPUT, dp_sender_send_granted(sender, 1, head(0)));
    FAILS(DP_INVALID_INPUT, dp_sender_give_back(sender));
    FAILS(DP_INVALID_INPUT, dp_sender_reply(sender, &reply));
    FAILS(DP_INVALID_INPUT, dp_sender_grant(sender, NULL, &has));
    OK(dp_sender_grant(sender, &granted, &has));
    FAILS(DP_BUSY, dp_sender_send(sender, bytes, 1, head(0)));
    FAILS(DP_BUSY, dp_sender_grant(sender, &granted, &has));
    FAILS(DP_BUSY, dp_sender_drain(sender));
    OK(dp_sender_give_back(sender));
    OK(dp_sender_grant(sender, &granted, &has));
    FAILS(DP_OUT_OF_RANGE, dp_sender_send_granted(sender, BLOCK + 1, head(0)));
    FAILS(DP_INVALID_INPUT, dp_sender_send_granted(sender, 1, head(0)));
    /* Nothing was sent by any of these, and no credit is lost. */
    OK(dp_receiver_poll(receiver, &block, NULL, NULL));
    CHECK(block.id == 0);
    FAILS(DP_BUSY, dp_receiver_receive(receiver, &block, NULL, NULL));
    for (int i = 0; i < CREDITS; i++) {
        OK(dp_sender_send(sender, "block", 5, head((uint64_t)i)));
    }
    FAILS(DP_BUSY, dp_sender_send(sender, "block", 5, head(9)));
    OK(dp_sender_outstanding(sender, &under_way));
    CHECK(under_way == CREDITS);
    OK(dp_receiver_poll(receiver, &first, NULL, NULL));
    FAILS(DP_INVALID_INPUT, dp_block_answer(first, 5, 0));
    FAILS(DP_OUT_OF_RANGE, dp_block_copy(first, bytes, 4));
    OK(dp_block_copy(first, bytes, sizeof bytes));
    CHECK(memcmp(bytes, "block", 5) == 0);
    OK(dp_block_answer(first, DP_BLOCK_DONE, 11));
    OK(dp_sender_reply(sender, &reply));
    CHECK(reply.sequence == 0 && reply.word == 11 && reply.outcome == DP_BLOCK_DONE && !reply.end);
    /* A block that is closed counts as dropped, and the sender is told once. */
    OK(dp_receiver_receive(receiver, &block, NULL, NULL));
    OK(dp_block_close(block));
    FAILS(DP_INVALID_INPUT, dp_block_close(block));
    FAILS(DP_INVALID_INPUT, dp_block_bytes(block, &(const void *){NULL}, &has));
    FAILS(DP_DEVICE, dp_sender_send(sender, "block", 5, head(4)));
    OK(dp_sender_send(sender, "block", 5, head(4)));
    OK(dp_receiver_receive(receiver, &block, NULL, NULL));
    OK(dp_block_answer(block, DP_BLOCK_NO_SPACE, 0));
    FAILS(DP_NO_SPACE, dp_sender_send(sender, "block", 5, head(5)));
    /* A block outlives the end that received it. */
    OK(dp_receiver_receive(receiver, &block, NULL, NULL));
    OK(dp_receiver_close(receiver));
    OK(dp_block_copy(block, bytes, sizeof bytes));
    OK(dp_block_answer(block, DP_BLOCK_DONE, 0));
    OK(dp_sender_close(sender));
    FAILS(DP_INVALID_INPUT, dp_sender_send(sender, "block", 5, head(6)));
    FAILS(DP_INVALID_INPUT, dp_sender_close(sender));
    FAILS(DP_INVALID_INPUT, dp_receiver_receive(receiver, &block, NULL, NULL));
    FAILS(DP_INVALID_INPUT, dp_receiver_close(receiver));
}

/* A block is sent on over another channel; a sender is closed with memory granted. */
static void forwarding(void) {
    dp_sender next;
    dp_receiver last;
    dp_block block, on;
    dp_block_head with;
    char bytes[5];
    void *granted;
    size_t len;
    make(DP_TRUST_COPY);
    OK(dp_channel_pair(shape(8, 1), DP_TRUST_COPY, &next, &last));
    OK(dp_sender_send(sender, "hello", 5, head(1)));
    OK(dp_receiver_receive(receiver, &block, NULL, NULL));
    OK(dp_sender_forward(next, block, head(2)));
    OK(dp_block_answer(block, DP_BLOCK_DONE, 0));
    FAILS(DP_INVALID_INPUT, dp_sender_forward(next, block, head(2)));
    OK(dp_receiver_receive(last, &on, &with, &len));
    OK(dp_block_copy(on, bytes, sizeof bytes));
    CHECK(len == 5 && with.words[0] == 2 && memcmp(bytes, "hello", 5) == 0);
    OK(dp_block_close(on));
    OK(dp_sender_grant(sender, &granted, &len));
    OK(dp_sender_close(sender));
    OK(dp_receiver_close(receiver));
    OK(dp_sender_close(next));
    OK(dp_receiver_close(last));
}

static void *waits(void *user) {
    dp_block block;
    (void)user;
    OK(dp_receiver_receive(receiver, &block, NULL, NULL));
    OK(dp_block_answer(block, DP_BLOCK_DONE, 0));
    return NULL;
}

/* While a thread waits with an end, another is refused. */
static void two_threads(void) {
    pthread_t thread;
    dp_error refused;
    make(DP_TRUST_COPY);
    CHECK(pthread_create(&thread, NULL, waits, NULL) == 0);
    do {
        refused = dp_receiver_set_patience(receiver, 10000);
        poll(NULL, 0, 1);
    } while (refused.id == 0);
    FAILS(DP_BUSY, refused);
    OK(dp_sender_send(sender, "x", 1, head(0)));
    CHECK(pthread_join(thread, NULL) == 0);
    OK(dp_sender_close(sender));
    OK(dp_receiver_close(receiver));
}

enum { CHANNELS = 3 };

static dp_sender senders[CHANNELS];

static void *sends_to_the_last(void *user) {
    (void)user;
    poll(NULL, 0, 20);
    OK(dp_sender_send(senders[CHANNELS - 1], "late", 4, head(9)));
    return NULL;
}

/* One thread waits for the next block of any of several channels. */
static void any_of_several(void) {
    dp_receiver receivers[CHANNELS + 1];
    dp_block block, blocks[CHANNELS];
    dp_block_head with;
    pthread_t thread;
    size_t which = 0, len, i;
    for (i = 0; i < CHANNELS; i++) {
        OK(dp_channel_pair(shape(BLOCK, CREDITS), DP_TRUST_COPY, &senders[i], &receivers[i]));
    }
    FAILS(DP_INVALID_INPUT, dp_receiver_receive_any(receivers, 0, 0, 0, &which, &block, NULL, NULL));
    FAILS(DP_INVALID_INPUT, dp_receiver_receive_any(NULL, 1, 0, 0, &which, &block, NULL, NULL));
    FAILS(DP_INVALID_INPUT, dp_receiver_receive_any(receivers, CHANNELS, 0, 0, NULL, &block, NULL, NULL));
    FAILS(DP_INVALID_INPUT, dp_receiver_receive_any(receivers, CHANNELS, 0, 0, &which, NULL, NULL, NULL));
    FAILS(DP_BUSY, dp_receiver_receive_any(receivers, CHANNELS, 0, 10, &which, &block, NULL, NULL));
    CHECK(which == SIZE_MAX);
    receivers[CHANNELS] = receivers[0];
    FAILS(DP_BUSY, dp_receiver_receive_any(receivers, CHANNELS + 1, 0, 10, &which, &block, NULL, NULL));
    receivers[CHANNELS].id = 0;
    FAILS(DP_INVALID_INPUT, dp_receiver_receive_any(receivers, CHANNELS + 1, 0, 10, &which, &block, NULL, NULL));
    /* All have a block: each comes in turn. */
    for (i = 0; i < CHANNELS; i++) {
        OK(dp_sender_send(senders[i], "block", 5, head(i)));
    }
    which = CHANNELS - 1;
    for (i = 0; i < CHANNELS; i++) {
        OK(dp_receiver_receive_any(receivers, CHANNELS, which, 10000, &which, &blocks[i], &with, &len));
        CHECK(which == i && with.words[0] == i && len == 5);
    }
    for (i = 0; i < CHANNELS; i++) {
        OK(dp_block_answer(blocks[i], DP_BLOCK_DONE, 0));
    }
    /* One that comes later wakes the thread. */
    CHECK(pthread_create(&thread, NULL, sends_to_the_last, NULL) == 0);
    OK(dp_receiver_receive_any(receivers, CHANNELS, 0, UINT64_MAX, &which, &block, &with, &len));
    CHECK(which == CHANNELS - 1 && with.words[0] == 9);
    OK(dp_block_answer(block, DP_BLOCK_DONE, 0));
    CHECK(pthread_join(thread, NULL) == 0);
    /* One channel ends: that is told with its index, and the others go on. */
    OK(dp_sender_close(senders[1]));
    FAILS(DP_END_OF_FILE, dp_receiver_receive_any(receivers, CHANNELS, 0, 10000, &which, &block, NULL, NULL));
    CHECK(which == 1);
    OK(dp_receiver_close(receivers[1]));
    receivers[1] = receivers[2];
    OK(dp_sender_send(senders[2], "block", 5, head(3)));
    OK(dp_receiver_receive_any(receivers, 2, 0, 10000, &which, &block, &with, NULL));
    CHECK(which == 1 && with.words[0] == 3);
    OK(dp_block_answer(block, DP_BLOCK_DONE, 0));
    OK(dp_receiver_poll(receivers[0], &block, NULL, NULL)); /* It is back at its handle. */
    CHECK(block.id == 0);
    OK(dp_receiver_close(receivers[0]));
    OK(dp_receiver_close(receivers[2]));
    OK(dp_sender_close(senders[0]));
    OK(dp_sender_close(senders[2]));
}

static void forked(void) {
    dp_block block;
    void *granted;
    size_t len;
    int status;
    pid_t child;
    make(DP_TRUST_COPY);
    OK(dp_sender_send(sender, "parent", 6, head(0)));
    OK(dp_receiver_receive(receiver, &block, NULL, NULL));
    OK(dp_sender_grant(sender, &granted, &len));
    child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        const void *bytes;
        alarm(60);
        FAILS(DP_FORKED, dp_sender_send(sender, "child", 5, head(0)));
        FAILS(DP_FORKED, dp_sender_send_granted(sender, 5, head(0)));
        FAILS(DP_FORKED, dp_receiver_receive(receiver, &block, NULL, NULL));
        FAILS(DP_FORKED, dp_block_bytes(block, &bytes, &len));
        FAILS(DP_FORKED, dp_block_answer(block, DP_BLOCK_DONE, 0));
        OK(dp_block_close(block));
        OK(dp_sender_close(sender));
        OK(dp_receiver_close(receiver));
        FAILS(DP_INVALID_INPUT, dp_sender_close(sender));
        _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    /* The child changed nothing for the parent. */
    OK(dp_sender_send_granted(sender, 5, head(0)));
    OK(dp_block_answer(block, DP_BLOCK_DONE, 0));
    OK(dp_receiver_receive(receiver, &block, NULL, NULL));
    OK(dp_block_answer(block, DP_BLOCK_DONE, 0));
    OK(dp_sender_drain(sender));
    OK(dp_sender_close(sender));
    OK(dp_receiver_close(receiver));
}

int main(void) {
    arguments();
    blocks_arrive(DP_TRUST_COPY);
    blocks_arrive(DP_TRUST_IN_PLACE);
    blocks_arrive(DP_TRUST_IN_PLACE_CHECKED);
    sending();
    forwarding();
    two_threads();
    any_of_several();
    forked();
    CHECK(dp_open_handles() == 0);
    puts("everything holds");
    return 0;
}
