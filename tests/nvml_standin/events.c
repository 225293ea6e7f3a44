/* Events of the driver: sets, what they are registered for, and what waits in them. */

#include <stdlib.h>

#include "standin.h"

enum { MAX_REGISTERED = 64, MAX_WAITING = 1024 };

typedef struct {
    nvmlDevice_t device;
    natural type, data;
    unsigned gpu_instance, compute_instance;
} event_data;

struct event_set {
    struct { nvmlDevice_t device; natural types; } registered[MAX_REGISTERED];
    size_t registrations;
    event_data waiting[MAX_WAITING];
    size_t first, end;
    struct event_set *next;
};

static struct event_set *sets;
static size_t told; /* how many of the table's events were given to a set */

unsigned standin_event_sets(void) {
    unsigned count = 0;
    for (struct event_set *set = sets; set; set = set->next) count++;
    return count;
}

static struct event_set *is_set(struct event_set *set) {
    for (struct event_set *s = sets; s; s = s->next)
        if (s == set) return s;
    return NULL;
}

static int create(struct event_set **set) {
    int code = driver_state();
    if (code) return code;
    *set = calloc(1, sizeof **set);
    (*set)->next = sets;
    sets = *set;
    return SUCCESS;
}

int nvmlEventSetCreate(struct event_set **set) { CALL(create(set)); }

static int destroy(struct event_set *set) {
    for (struct event_set **link = &sets; *link; link = &(*link)->next) {
        if (*link != set) continue;
        *link = set->next;
        free(set);
        return SUCCESS;
    }
    return INVALID_ARGUMENT;
}

int nvmlEventSetFree(struct event_set *set) { CALL(destroy(set)); }

static int supported_types(nvmlDevice_t device, natural *types) {
    const struct answer *answer;
    int code = device_state(device);
    if (code) return code;
    answer = look("DeviceGetSupportedEventTypes", device->name, NONE);
    if (!answer || answer->code) return answer ? answer->code : NOT_SUPPORTED;
    *types = number_at(answer, 0);
    return SUCCESS;
}

int nvmlDeviceGetSupportedEventTypes(nvmlDevice_t device, natural *types) {
    CALL(supported_types(device, types));
}

static int register_in(nvmlDevice_t device, natural types, struct event_set *set) {
    natural supported;
    int code = supported_types(device, &supported);
    if (code) return code;
    if (types & ~supported) return NOT_SUPPORTED;
    if (!is_set(set) || set->registrations == MAX_REGISTERED) return INVALID_ARGUMENT;
    set->registered[set->registrations].device = device;
    set->registered[set->registrations++].types = types;
    return SUCCESS;
}

int nvmlDeviceRegisterEvents(nvmlDevice_t device, natural types, struct event_set *set) {
    CALL(register_in(device, types, set));
}

/* Whether a set takes an event: one that waits for nothing of this GPU never sees it. */
static int offer(struct event_set *set, const struct event *event) {
    for (size_t i = 0; i < set->registrations; i++) {
        nvmlDevice_t device = set->registered[i].device;
        if (device->gpu != event->gpu || !(set->registered[i].types & event->type)) continue;
        if (!device->alive || set->end == MAX_WAITING) return 0;
        set->waiting[set->end++] = (event_data){device, event->type, event->data,
                                                event->gpu_instance, event->compute_instance};
        return 1;
    }
    return 0;
}

/* A lost GPU stays in its sets, and says so when they are waited for. */
static int any_lost(const struct event_set *set) {
    for (size_t i = 0; i < set->registrations; i++)
        if (device_state(set->registered[i].device) == GPU_IS_LOST) return 1;
    return 0;
}

static int wait_for(struct event_set *set, event_data *data) {
    const struct event *events;
    int code = driver_state();
    if (code) return code;
    if (!is_set(set)) return INVALID_ARGUMENT;
    size_t count = table_events(&events);
    for (; told < count; told++) offer(set, &events[told]);
    if (set->first < set->end) {
        *data = set->waiting[set->first++];
        return SUCCESS;
    }
    set->first = set->end = 0;
    return any_lost(set) ? GPU_IS_LOST : TIMEOUT;
}

/* Nobody here waits longer than not at all. */
int nvmlEventSetWait_v2(struct event_set *set, event_data *data, unsigned timeout_ms) {
    CALL(timeout_ms ? INVALID_ARGUMENT : wait_for(set, data));
}

/* Let something happen; how many sets heard of it. */
int standin_event(int gpu, natural type, natural data, unsigned gpu_instance,
                  unsigned compute_instance) {
    struct event event = {gpu, type, data, gpu_instance, compute_instance};
    int heard = 0;
    hold();
    for (struct event_set *set = sets; set; set = set->next) heard += offer(set, &event);
    let_go();
    return heard;
}
