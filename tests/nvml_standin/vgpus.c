/* Virtual GPUs: which there are, and calls about one of them. */

#include <stdio.h>

#include "standin.h"

static int active_into(nvmlDevice_t device, unsigned *count, unsigned *to) {
    const struct answer *answer;
    int code = answer_of(device, NONE, &answer);
    if (code) return code;
    code = *count < answer->count ? INSUFFICIENT_SIZE : SUCCESS;
    *count = (unsigned)answer->count;
    for (unsigned i = 0; i < *count && !code; i++) to[i] = (unsigned)number_at(answer, i);
    return code;
}

int nvmlDeviceGetActiveVgpus(nvmlDevice_t device, unsigned *count, unsigned *to) {
    CALL(active_into(device, count, to));
}

static int told_of(unsigned instance, const struct answer **answer) {
    char about[16];
    snprintf(about, sizeof about, "%u", instance);
    return answer_about(about, answer);
}

static int natural_into(unsigned instance, natural *to) {
    const struct answer *answer;
    int code = told_of(instance, &answer);
    if (!code) *to = number_at(answer, 0);
    return code;
}

static int unsigned_into(unsigned instance, unsigned *to) {
    natural value = 0;
    int code = natural_into(instance, &value);
    if (!code) *to = (unsigned)value;
    return code;
}

static int words_into(unsigned instance, char *buffer, unsigned size, unsigned *type) {
    const struct answer *answer;
    int code = told_of(instance, &answer);
    if (!code && type) *type = (unsigned)number_at(answer, 0);
    return code ? code : text_into(buffer, size, answer);
}

int nvmlVgpuInstanceGetFbUsage(unsigned instance, natural *bytes) {
    CALL(natural_into(instance, bytes));
}

int nvmlVgpuInstanceGetType(unsigned instance, unsigned *type) {
    CALL(unsigned_into(instance, type));
}

int nvmlVgpuInstanceGetVmID(unsigned instance, char *buffer, unsigned size, unsigned *type) {
    CALL(words_into(instance, buffer, size, type));
}

int nvmlVgpuInstanceGetUUID(unsigned instance, char *buffer, unsigned size) {
    CALL(words_into(instance, buffer, size, NULL));
}

int nvmlVgpuTypeGetName(unsigned type, char *buffer, unsigned *size) {
    CALL(words_into(type, buffer, *size, NULL));
}
