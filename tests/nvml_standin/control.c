/* What a test may do to the stand-in, and what every call goes through: the driver's state. */

#define _GNU_SOURCE
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "standin.h"

enum { MAX_GPUS = 64, NS_PER_SECOND = 1000000000 };

/* The version this library was built for; it fits any driver where none is given. */
#ifndef STANDIN_VERSION
#define STANDIN_VERSION ""
#endif

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int failing[MAX_GPUS + 1]; /* the driver's first, then the GPUs' */
static unsigned starts, handles, attached;
static int torn; /* the driver that we had attached to is no more */
static struct counter *counters, *current;
static natural spent_ns, entered_ns, clock_ns;

static natural now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (natural)now.tv_sec * NS_PER_SECOND + (natural)now.tv_nsec;
}

/* What a look at the clock costs: one of the two around a call is outside of what they time. */
static natural cost_of_clock(void) {
    enum { LOOKS = 1000 };
    natural began_ns = now_ns();
    for (int i = 0; i < LOOKS; i++) now_ns();
    return (now_ns() - began_ns) / LOOKS;
}

/* The part of a function's name that stands in the table: without `nvml`, without `_v2`. */
static size_t key_length(const char *name) {
    size_t length = strlen(name);
    if (length > 3 && name[length - 3] == '_' && name[length - 2] == 'v') length -= 3;
    return length - strlen("nvml");
}

void hold(void) { pthread_mutex_lock(&lock); }
void let_go(void) { pthread_mutex_unlock(&lock); }

void enter(struct counter *counter) {
    natural began_ns = now_ns();
    hold();
    if (!clock_ns) clock_ns = cost_of_clock(), began_ns = now_ns();
    if (!counter->calls++) {
        counter->key_length = key_length(counter->name);
        counter->next = counters, counters = counter;
    }
    current = counter, entered_ns = began_ns;
}

int leave(int code) {
    spent_ns += now_ns() - entered_ns + clock_ns;
    let_go();
    return code;
}

const struct counter *entered(void) { return current; }

int driver_state(void) {
    if (!attached) return UNINITIALIZED;
    if (failing[0]) return failing[0];
    return torn ? DRIVER_NOT_LOADED : SUCCESS;
}

int device_state(nvmlDevice_t device) {
    int code = driver_state();
    if (code) return code;
    if (!device) return INVALID_ARGUMENT;
    if (failing[device->gpu + 1]) return failing[device->gpu + 1];
    if (device->alive) return SUCCESS;
    return device->is_mig ? INVALID_ARGUMENT : GPU_IS_LOST;
}

/* Start and end ------------------------------------------------------------------------------ */

static int start(void) {
    starts++;
    if (attached) { attached++; return SUCCESS; }
    const char *path = getenv("STANDIN_TABLE");
    if (!table_loaded() && path && load_table(path)) return DRIVER_NOT_LOADED;
    if (failing[0]) return failing[0];
    const struct answer *driver = look("SystemGetDriverVersion", "", NONE);
    if (*STANDIN_VERSION && driver && strcmp(driver->text, STANDIN_VERSION) != 0)
        return VERSION_MISMATCH;
    attached = 1, torn = 0;
    return SUCCESS;
}

static int stop(void) {
    if (!attached) return UNINITIALIZED;
    if (--attached == 0) retire_devices(-1);
    return SUCCESS;
}

int nvmlInitWithFlags(unsigned flags) { (void)flags; CALL(start()); }
int nvmlInit_v2(void) { CALL(start()); }
int nvmlShutdown(void) { CALL(stop()); }
const char *nvmlErrorString(int code) { (void)code; return "told by the stand-in"; }

static int count_into(unsigned *count) {
    const struct answer *answer;
    int code = answer_about("", &answer);
    if (!code) *count = (unsigned)number_at(answer, 0);
    return code;
}

int nvmlDeviceGetCount_v2(unsigned *count) { CALL(count_into(count)); }

/* Handles ------------------------------------------------------------------------------------ */

static struct device *devices;

static nvmlDevice_t known(int gpu, const char *uuid) {
    for (struct device *d = devices; d; d = d->next)
        if (d->alive && d->gpu == gpu && d->is_mig == !!uuid && (!uuid || !strcmp(d->name, uuid)))
            return d;
    return NULL;
}

static nvmlDevice_t made(int gpu, const char *name, const struct mig_place *place) {
    struct device *device = calloc(1, sizeof *device);
    strncpy(device->name, name, sizeof device->name - 1);
    device->gpu = gpu, device->alive = 1, device->is_mig = place != NULL;
    if (place) {
        device->gpu_instance = place->gpu_instance;
        device->compute_instance = place->compute_instance;
    }
    device->next = devices;
    return devices = device;
}

/* The handles of a GPU, or of all, are no longer good for anything. */
void retire_devices(int gpu) {
    for (struct device *d = devices; d; d = d->next)
        if (gpu < 0 || d->gpu == gpu) d->alive = 0;
}

static int handle_into(unsigned index, nvmlDevice_t *device) {
    int code = driver_state();
    if (code) return code;
    const struct answer *count = look("DeviceGetCount", "", NONE);
    if (!count || index >= number_at(count, 0) || index >= MAX_GPUS) return INVALID_ARGUMENT;
    if (failing[index + 1]) return failing[index + 1];
    handles++;
    char name[3] = {(char)('0' + index), '\0', '\0'};
    if (index > 9) name[0] = (char)('0' + index / 10), name[1] = (char)('0' + index % 10);
    nvmlDevice_t found = known((int)index, NULL);
    *device = found ? found : made((int)index, name, NULL);
    return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t *device) {
    CALL(handle_into(index, device));
}

static int mig_handle_into(nvmlDevice_t gpu, unsigned index, nvmlDevice_t *device) {
    const struct mig_place *places;
    int code = device_state(gpu);
    if (code) return code;
    for (size_t i = 0, count = table_mig(&places); i < count; i++) {
        if (strcmp(places[i].gpu, gpu->name) != 0 || places[i].index != index) continue;
        nvmlDevice_t found = known(gpu->gpu, places[i].uuid);
        *device = found ? found : made(gpu->gpu, places[i].uuid, &places[i]);
        return SUCCESS;
    }
    return NOT_FOUND;
}

int nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t gpu, unsigned index, nvmlDevice_t *device) {
    CALL(mig_handle_into(gpu, index, device));
}

/* Control ------------------------------------------------------------------------------------ */

static int still_there(const struct device *device) {
    const struct mig_place *places;
    for (size_t i = 0, count = table_mig(&places); i < count; i++)
        if (!strcmp(places[i].uuid, device->name) && places[i].gpu_instance == device->gpu_instance)
            return 1;
    return 0;
}

/* Read the table, anew if there was one: handles of MIG devices that are gone become stale. */
int standin_load(const char *path) {
    hold();
    int code = load_table(path);
    for (struct device *d = devices; d; d = d->next)
        if (d->is_mig && !still_there(d)) d->alive = 0;
    let_go();
    return code;
}

/* Make every call about a GPU, or about the driver (-1), return a code; 0 mends it. A GPU that was
 * lost has another handle afterwards, and a driver that was unloaded must be attached to anew. */
void standin_fail(int gpu, int code) {
    hold();
    failing[gpu + 1] = code;
    if (gpu < 0 && code == DRIVER_NOT_LOADED) torn = 1;
    if (code == DRIVER_NOT_LOADED || code == GPU_IS_LOST || code == RESET_REQUIRED)
        retire_devices(gpu);
    let_go();
}

unsigned standin_starts(void) { return starts; }
unsigned standin_attached(void) { return attached; }
unsigned standin_handles(void) { return handles; }
natural standin_nanoseconds(void) { return spent_ns; }

unsigned long standin_calls(const char *function) {
    unsigned long calls = 0;
    hold();
    for (struct counter *c = counters; c; c = c->next)
        if (!*function || !strcmp(c->name, function)) calls += c->calls;
    let_go();
    return calls;
}
