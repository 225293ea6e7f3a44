/* Calls that fill a structure or a list. Structures with a version are filled only if it fits. */

#include <stdio.h>
#include <string.h>

#include "standin.h"

typedef struct { unsigned gpu, memory; } utilization;
typedef struct { unsigned version; natural total, reserved, free, used; } memory_v2;
typedef struct { natural total, free, used; } memory_v1;
typedef struct { unsigned version; int sensor, temperature; } temperature_v1;
typedef struct { unsigned version; int temperature; } margin_v1;
typedef struct { unsigned version, channel, tpc; } repair_v1;
typedef struct { unsigned version, unrepairable; } unrepairable_v1;
typedef struct { unsigned version, fan, speed; } fan_v1;
typedef struct { unsigned enabled; } c2c_v1;
typedef struct { unsigned environment, feature, tools; } confidential;
typedef struct { unsigned max, high, partial, low, none; } histogram;
typedef struct { unsigned version; natural counts[11]; unsigned exceeded; } sram_v1;
typedef struct { unsigned parts[8]; natural memory_mib; } attributes;
typedef struct {
    char legacy[16];
    unsigned domain, bus, device, id, subsystem;
    char bus_id[32];
} pci;
typedef struct {
    unsigned char cluster[16];
    int status;
    unsigned clique, state;
} fabric_v1;
typedef struct {
    unsigned version;
    unsigned char cluster[16];
    int status;
    unsigned clique, state, health_mask;
} fabric_v2;
typedef struct {
    unsigned version;
    unsigned char cluster[16];
    int status;
    unsigned clique, state, health_mask;
    unsigned char summary;
} fabric_v3;
typedef struct { unsigned version; unsigned char guid[16], name[16], places[5]; } platform;
typedef struct { unsigned pid; natural memory; unsigned gpu_instance, compute_instance; } process;
typedef struct { unsigned pid; natural stamp; unsigned sm, memory, encoder, decoder; } process_use;
typedef struct { unsigned instance; natural stamp, sm, memory, encoder, decoder; } vgpu_use;

int nvmlDeviceGetUtilizationRates(nvmlDevice_t device, utilization *to) {
    CALL(unsigneds(device, NONE, INTO(unsigned, &to->gpu, &to->memory)));
}

int nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, memory_v2 *to) {
    CALL(to->version != VERSION(*to, 2) ? ARGUMENT_VERSION_MISMATCH :
         naturals(device, NONE, INTO(natural, &to->total, &to->reserved, &to->free, &to->used)));
}

/* Of older drivers: what is reserved counts as used. */
static int old_memory_into(nvmlDevice_t device, memory_v1 *to) {
    natural reserved = 0;
    int code = naturals(device, NONE, INTO(natural, &to->total, &reserved, &to->free, &to->used));
    to->used += reserved;
    return code;
}

int nvmlDeviceGetMemoryInfo(nvmlDevice_t device, memory_v1 *to) {
    CALL(old_memory_into(device, to));
}

int nvmlDeviceGetBAR1MemoryInfo(nvmlDevice_t device, memory_v1 *to) {
    CALL(naturals(device, NONE, INTO(natural, &to->total, &to->free, &to->used)));
}

int nvmlDeviceGetConfComputeProtectedMemoryUsage(nvmlDevice_t device, memory_v1 *to) {
    CALL(naturals(device, NONE, INTO(natural, &to->total, &to->free, &to->used)));
}

int nvmlDeviceGetTemperatureV(nvmlDevice_t device, temperature_v1 *to) {
    CALL(to->version != VERSION(*to, 1) ? ARGUMENT_VERSION_MISMATCH :
         unsigneds(device, ARGUMENTS((unsigned)to->sensor),
                   INTO(unsigned, (unsigned *)&to->temperature)));
}

int nvmlDeviceGetMarginTemperature(nvmlDevice_t device, margin_v1 *to) {
    CALL(to->version != VERSION(*to, 1) ? ARGUMENT_VERSION_MISMATCH :
         unsigneds(device, NONE, INTO(unsigned, (unsigned *)&to->temperature)));
}

int nvmlDeviceGetRepairStatus(nvmlDevice_t device, repair_v1 *to) {
    CALL(to->version != VERSION(*to, 1) ? ARGUMENT_VERSION_MISMATCH :
         unsigneds(device, NONE, INTO(unsigned, &to->channel, &to->tpc)));
}

int nvmlDeviceGetUnrepairableMemoryFlag_v1(nvmlDevice_t device, unrepairable_v1 *to) {
    CALL(to->version != VERSION(*to, 1) ? ARGUMENT_VERSION_MISMATCH :
         unsigneds(device, NONE, INTO(unsigned, &to->unrepairable)));
}

int nvmlDeviceGetFanSpeedRPM(nvmlDevice_t device, fan_v1 *to) {
    CALL(to->version != VERSION(*to, 1) ? ARGUMENT_VERSION_MISMATCH :
         unsigneds(device, NONE, INTO(unsigned, &to->speed)));
}

int nvmlDeviceGetC2cModeInfoV(nvmlDevice_t device, c2c_v1 *to) {
    CALL(unsigneds(device, NONE, INTO(unsigned, &to->enabled)));
}

int nvmlDeviceGetRowRemapperHistogram(nvmlDevice_t device, histogram *to) {
    CALL(unsigneds(device, NONE,
                   INTO(unsigned, &to->max, &to->high, &to->partial, &to->low, &to->none)));
}

static int confidential_into(confidential *to) {
    const struct answer *answer;
    int code = answer_about("", &answer);
    if (code) return code;
    to->environment = (unsigned)number_at(answer, 0);
    to->feature = (unsigned)number_at(answer, 1);
    to->tools = (unsigned)number_at(answer, 2);
    return SUCCESS;
}

int nvmlSystemGetConfComputeState(confidential *to) { CALL(confidential_into(to)); }

static int sram_into(nvmlDevice_t device, sram_v1 *to) {
    const struct answer *answer;
    if (to->version != VERSION(*to, 1)) return ARGUMENT_VERSION_MISMATCH;
    int code = answer_of(device, NONE, &answer);
    for (size_t i = 0; i < 11 && !code; i++) to->counts[i] = number_at(answer, i);
    if (!code) to->exceeded = (unsigned)number_at(answer, 11);
    return code;
}

int nvmlDeviceGetSramEccErrorStatus(nvmlDevice_t device, sram_v1 *to) {
    CALL(sram_into(device, to));
}

static int attributes_into(nvmlDevice_t device, attributes *to) {
    const struct answer *answer;
    int code = answer_of(device, NONE, &answer);
    for (size_t i = 0; i < 8 && !code; i++) to->parts[i] = (unsigned)number_at(answer, i);
    if (!code) to->memory_mib = number_at(answer, 8);
    return code;
}

int nvmlDeviceGetAttributes_v2(nvmlDevice_t device, attributes *to) {
    CALL(attributes_into(device, to));
}

static int pci_into(nvmlDevice_t device, size_t count, const unsigned *arguments, pci *to) {
    const struct answer *answer;
    int code = answer_of(device, count, arguments, &answer);
    if (code) return code;
    unsigned *parts[] = {&to->domain, &to->bus, &to->device, &to->id, &to->subsystem};
    for (size_t i = 0; i < 5; i++) *parts[i] = (unsigned)number_at(answer, i);
    snprintf(to->legacy, sizeof to->legacy, "%04X:%02X:%02X.0", to->domain & 0xFFFF,
             to->bus & 0xFF, to->device & 0xFF);
    return text_into(to->bus_id, sizeof to->bus_id, answer);
}

int nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, pci *to) { CALL(pci_into(device, NONE, to)); }

int nvmlDeviceGetNvLinkRemotePciInfo_v2(nvmlDevice_t device, unsigned link, pci *to) {
    CALL(pci_into(device, ARGUMENTS(link), to));
}

/* A driver knows one version of this structure: the one that the table's first number tells. */
static int fabric_into(nvmlDevice_t device, fabric_v3 *to) {
    const struct answer *answer;
    int code = answer_of(device, NONE, &answer);
    if (code) return code;
    int newest = number_at(answer, 0) == 3;
    if (to->version != (newest ? VERSION(fabric_v3, 3) : VERSION(fabric_v2, 2)))
        return ARGUMENT_VERSION_MISMATCH;
    for (size_t i = 0; i < 16; i++) to->cluster[i] = (unsigned char)number_at(answer, 1 + i);
    to->status = (int)number_at(answer, 17);
    to->clique = (unsigned)number_at(answer, 18);
    to->state = (unsigned)number_at(answer, 19);
    to->health_mask = (unsigned)number_at(answer, 20);
    if (newest) to->summary = (unsigned char)number_at(answer, 21);
    return SUCCESS;
}

int nvmlDeviceGetGpuFabricInfoV(nvmlDevice_t device, fabric_v3 *to) {
    CALL(fabric_into(device, to));
}

/* The only one that driver 535 has: without a version, and without health. */
static int old_fabric_into(nvmlDevice_t device, fabric_v1 *to) {
    const struct answer *answer;
    int code = answer_of(device, NONE, &answer);
    if (code) return code;
    for (size_t i = 0; i < 16; i++) to->cluster[i] = (unsigned char)number_at(answer, 1 + i);
    to->status = (int)number_at(answer, 17);
    to->clique = (unsigned)number_at(answer, 18);
    to->state = (unsigned)number_at(answer, 19);
    return SUCCESS;
}

int nvmlDeviceGetGpuFabricInfo(nvmlDevice_t device, fabric_v1 *to) {
    CALL(old_fabric_into(device, to));
}

static int platform_into(nvmlDevice_t device, platform *to) {
    const struct answer *answer;
    int code = answer_of(device, NONE, &answer);
    if (code) return code;
    if (to->version != (sizeof *to | (unsigned)number_at(answer, 0) << 24))
        return ARGUMENT_VERSION_MISMATCH;
    for (size_t i = 0; i < 16; i++) to->guid[i] = (unsigned char)number_at(answer, 1 + i);
    for (size_t i = 0; i < 5; i++) to->places[i] = (unsigned char)number_at(answer, 17 + i);
    size_t length = strlen(answer->text);
    memcpy(to->name, answer->text, length < sizeof to->name ? length : sizeof to->name);
    return SUCCESS;
}

int nvmlDeviceGetPlatformInfo(nvmlDevice_t device, platform *to) {
    CALL(platform_into(device, to));
}

/* Lists: with too little room only their length is told ---------------------------------------- */

static int room_for(unsigned length, unsigned *count) {
    int code = *count < length ? INSUFFICIENT_SIZE : SUCCESS;
    *count = length;
    return code;
}

static int processes_into(nvmlDevice_t device, unsigned *count, process *to) {
    const struct answer *answer;
    int code = answer_of(device, NONE, &answer);
    if (code || (code = room_for((unsigned)answer->count / 4, count))) return code;
    for (unsigned i = 0; i < *count; i++)
        to[i] = (process){(unsigned)number_at(answer, 4 * i), number_at(answer, 4 * i + 1),
                          (unsigned)number_at(answer, 4 * i + 2),
                          (unsigned)number_at(answer, 4 * i + 3)};
    return SUCCESS;
}

#define PROCESSES(name) \
    int nvmlDeviceGet##name(nvmlDevice_t device, unsigned *count, process *to) { \
        CALL(processes_into(device, count, to)); \
    }
PROCESSES(ComputeRunningProcesses_v3)
PROCESSES(GraphicsRunningProcesses_v3)
PROCESSES(MPSComputeRunningProcesses_v3)

static int pages_into(nvmlDevice_t device, unsigned cause, unsigned *count, natural *to) {
    const struct answer *answer;
    int code = answer_of(device, ARGUMENTS(cause), &answer);
    if (code || (code = room_for((unsigned)answer->count, count))) return code;
    for (unsigned i = 0; i < *count; i++) to[i] = number_at(answer, i);
    return SUCCESS;
}

int nvmlDeviceGetRetiredPages(nvmlDevice_t device, unsigned cause, unsigned *count, natural *to) {
    CALL(pages_into(device, cause, count, to));
}

/* Samples newer than `since`; six numbers each, the second is its time. */
static unsigned newer(const struct answer *answer, natural since, size_t *places) {
    unsigned length = 0;
    for (size_t i = 0; i < answer->count / 6; i++)
        if (number_at(answer, 6 * i + 1) > since && length < 256) places[length++] = 6 * i;
    return length;
}

static int samples_of(nvmlDevice_t device, natural since, unsigned *count, size_t *places,
                      const struct answer **answer) {
    int code = answer_of(device, NONE, answer);
    if (code) return code;
    unsigned length = newer(*answer, since, places);
    if (!length && (*answer)->count) return NOT_FOUND;
    return room_for(length, count);
}

static int uses_into(nvmlDevice_t device, process_use *to, unsigned *count, natural since) {
    const struct answer *answer;
    size_t places[256];
    int code = samples_of(device, since, count, places, &answer);
    for (unsigned i = 0; i < *count && !code; i++) {
        unsigned uses[4];
        for (size_t k = 0; k < 4; k++) uses[k] = (unsigned)number_at(answer, places[i] + 2 + k);
        to[i] = (process_use){(unsigned)number_at(answer, places[i]),
                              number_at(answer, places[i] + 1), uses[0], uses[1], uses[2], uses[3]};
    }
    return code;
}

int nvmlDeviceGetProcessUtilization(nvmlDevice_t device, process_use *to, unsigned *count,
                                    natural since) {
    CALL(uses_into(device, to, count, since));
}

/* 32 bits of each value are used, the others are not. */
static natural value_at(const struct answer *answer, size_t position) {
    return (GARBAGE & ~0xFFFFFFFFull) | (unsigned)number_at(answer, position);
}

static int vgpu_uses_into(nvmlDevice_t device, natural since, int *type, unsigned *count,
                          vgpu_use *to) {
    const struct answer *answer;
    size_t places[256];
    int code = samples_of(device, since, count, places, &answer);
    *type = 1;
    for (unsigned i = 0; i < *count && !code; i++) {
        size_t at = places[i];
        to[i] = (vgpu_use){(unsigned)number_at(answer, at), number_at(answer, at + 1),
                           value_at(answer, at + 2), value_at(answer, at + 3),
                           value_at(answer, at + 4), value_at(answer, at + 5)};
    }
    return code;
}

int nvmlDeviceGetVgpuUtilization(nvmlDevice_t device, natural since, int *type, unsigned *count,
                                 vgpu_use *to) {
    CALL(vgpu_uses_into(device, since, type, count, to));
}

/* Samples that the driver took by itself: pairs of time and value. */
typedef struct { natural stamp; union { double real; natural whole; } value; } sample;

static int buffered_into(nvmlDevice_t device, unsigned kind, natural since, int *type,
                         unsigned *count, sample *to) {
    const struct answer *answer;
    int code = answer_of(device, ARGUMENTS(kind), &answer);
    if (code) return code;
    unsigned length = 0, first = (unsigned)answer->count / 2;
    for (unsigned i = (unsigned)answer->count / 2; i > 0; i--)
        if (number_at(answer, 2 * (i - 1)) > since) first = i - 1, length++;
    if (!length) return NOT_FOUND;
    *type = 1;
    if (!to) return *count = length, SUCCESS;
    if ((code = room_for(length, count))) return code;
    for (unsigned i = 0; i < length; i++)
        to[i] = (sample){number_at(answer, 2 * (first + i)),
                         {.whole = value_at(answer, 2 * (first + i) + 1)}};
    return SUCCESS;
}

int nvmlDeviceGetSamples(nvmlDevice_t device, unsigned kind, natural since, int *type,
                         unsigned *count, sample *to) {
    CALL(buffered_into(device, kind, since, type, count, to));
}
