/* A thread that others may cancel disables that around its calls, as the header says: then it is
 * cancelled between them, and what it used stays usable. */
#include <pthread.h>
#include <stdatomic.h>

#include "check.h"

static dp_machine machine;
static dp_log appended;
static atomic_int calls;

static void *appends(void *user) {
    int before;
    (void)user;
    for (;;) {
        CHECK(pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before) == 0);
        OK(dp_log_append_durable(appended, "record", 6, NULL));
        atomic_fetch_add(&calls, 1);
        CHECK(pthread_setcancelstate(before, NULL) == 0);
        pthread_testcancel();
    }
}

int main(void) {
    int round;
    OK(dp_machine_discover(&machine));
    OK(dp_log_open(machine, in_folder("log"), NULL, &appended));
    for (round = 0; round < 20; round++) {
        pthread_t thread;
        void *ended;
        int before = atomic_load(&calls);
        CHECK(pthread_create(&thread, NULL, appends, NULL) == 0);
        while (atomic_load(&calls) == before) {
        }
        CHECK(pthread_cancel(thread) == 0);
        CHECK(pthread_join(thread, &ended) == 0 && ended == PTHREAD_CANCELED);
    }
    OK(dp_log_append_durable(appended, "the last", 8, NULL));
    OK(dp_log_close(appended));
    OK(dp_machine_close(machine));
    CHECK(dp_open_handles() == 0);
    puts("everything holds");
    return 0;
}
