/* Field values, and GPM: samples of a device and the metrics that two of them give. */

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "standin.h"

typedef struct {
    unsigned field, scope;
    long long stamp_us, latency_us;
    unsigned type;
    int code;
    union { double real; natural whole; } value;
} field_value;

/* nvmlValueType_t: how many bytes of the value are used. */
enum { DOUBLE = 0, SIGNED_INT = 5, UNSIGNED_INT = 1, UNSIGNED_SHORT = 6 };
static natural used_bits(natural type) {
    if (type == UNSIGNED_INT || type == SIGNED_INT) return 0xFFFFFFFFull;
    return type == UNSIGNED_SHORT ? 0xFFFFull : ~0ull;
}

/* An entry's answer is a code, or the type of the value and the value. */
static int fill(field_value *to, const struct answer *answer) {
    if (answer && answer->code && answer->whole) return answer->code;
    to->code = answer ? answer->code : NOT_SUPPORTED;
    to->stamp_us = 1790000000000000ll, to->latency_us = 7;
    to->type = UNSIGNED_INT, to->value.whole = GARBAGE;
    if (to->code) return SUCCESS;
    to->type = (unsigned)number_at(answer, 0);
    natural used = used_bits(to->type);
    to->value.whole = (GARBAGE & ~used) | (number_at(answer, 1) & used);
    if (to->type == DOUBLE && answer->count > 1) to->value.real = answer->numbers[1].real;
    return SUCCESS;
}

static int fields_into(nvmlDevice_t device, int count, field_value *to) {
    int code = device_state(device);
    for (int i = 0; i < count && !code; i++)
        code = fill(&to[i], look_entry(device->name, to[i].field, to[i].scope));
    return code;
}

int nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, field_value *to) {
    CALL(fields_into(device, count, to));
}

/* GPM ----------------------------------------------------------------------------------------- */

struct gpm_sample { char about[96]; unsigned long serial; };
typedef struct {
    unsigned metric;
    int code;
    double value;
    const char *names[3];
} gpm_metric;
typedef struct {
    unsigned version, count;
    struct gpm_sample *first, *second;
    gpm_metric metrics[];
} gpm_request;
typedef struct { unsigned version, supported; } gpm_support;

enum { GPM_VERSION = 1 };
static unsigned samples;
static unsigned long taken;

unsigned standin_samples(void) { return samples; }

static int support_into(nvmlDevice_t device, gpm_support *to) {
    if (to->version != GPM_VERSION) return ARGUMENT_VERSION_MISMATCH;
    const struct answer *answer;
    int code = answer_of(device, NONE, &answer);
    if (code == NOT_SUPPORTED) { to->supported = 0; return SUCCESS; }
    if (!code) to->supported = (unsigned)number_at(answer, 0);
    return code;
}

int nvmlGpmQueryDeviceSupport(nvmlDevice_t device, gpm_support *to) {
    CALL(support_into(device, to));
}

static int allocate(struct gpm_sample **sample) {
    int code = driver_state();
    if (code) return code;
    *sample = calloc(1, sizeof **sample);
    samples++;
    return SUCCESS;
}

/* Of the library's own memory: it can be given back when the driver is no more. */
static int release(struct gpm_sample *sample) {
    if (!sample) return INVALID_ARGUMENT;
    free(sample);
    samples--;
    return SUCCESS;
}

int nvmlGpmSampleAlloc(struct gpm_sample **sample) { CALL(allocate(sample)); }
int nvmlGpmSampleFree(struct gpm_sample *sample) { CALL(release(sample)); }

/* A sample is given unless the table has a code for it, under the function's own name. */
static int sample_into(nvmlDevice_t device, const char *about, struct gpm_sample *sample) {
    int code = device_state(device);
    if (code) return code;
    const struct answer *told = look(NULL, about, NONE);
    if (told && told->code) return told->code;
    strncpy(sample->about, about, sizeof sample->about - 1);
    sample->serial = ++taken;
    return SUCCESS;
}

int nvmlGpmSampleGet(nvmlDevice_t device, struct gpm_sample *sample) {
    CALL(sample_into(device, device ? device->name : "", sample));
}

static int mig_sample_into(nvmlDevice_t gpu, unsigned instance, struct gpm_sample *sample) {
    const struct mig_place *places;
    int code = device_state(gpu);
    if (code) return code;
    for (size_t i = 0, count = table_mig(&places); i < count; i++)
        if (!strcmp(places[i].gpu, gpu->name) && places[i].gpu_instance == instance)
            return sample_into(gpu, places[i].uuid, sample);
    return INVALID_ARGUMENT;
}

int nvmlGpmMigSampleGet(nvmlDevice_t gpu, unsigned instance, struct gpm_sample *sample) {
    CALL(mig_sample_into(gpu, instance, sample));
}

/* Both samples must be of one device, and the first the older one. */
static int metrics_into(gpm_request *request) {
    if (request->version != GPM_VERSION) return ARGUMENT_VERSION_MISMATCH;
    const struct gpm_sample *first = request->first, *second = request->second;
    if (!first || !second || !first->serial || first->serial >= second->serial ||
        strcmp(first->about, second->about) != 0)
        return INVALID_ARGUMENT;
    int code = driver_state();
    for (unsigned i = 0; i < request->count && !code; i++) {
        gpm_metric *to = &request->metrics[i];
        const struct answer *answer = look_entry(second->about, to->metric, 0);
        if (answer && answer->whole) code = answer->code;
        to->code = answer ? answer->code : NOT_SUPPORTED;
        to->value = to->code || !answer->count ? NAN : answer->numbers[0].real;
    }
    return code;
}

int nvmlGpmMetricsGet(gpm_request *request) { CALL(metrics_into(request)); }
