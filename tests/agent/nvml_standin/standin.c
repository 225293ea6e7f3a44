/* A stand-in for libnvidia-ml.so.1 with two GPUs: the calls the agent makes, as nvml.h declares
 * them. `standin_fail` makes every call about one GPU, or about the driver (-1), return a code. */

#include <stdio.h>
#include <string.h>

enum { GPUS = 2, NOT_SUPPORTED = 3, INVALID = 2 };

typedef struct gpu *nvmlDevice_t;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } memory_v2;
typedef struct { unsigned gpu, memory; } utilization;
typedef struct { unsigned version; int sensor, temperature; } temperature_v1;
typedef struct { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; } pci;
typedef struct {
    unsigned field, scope;
    long long timestamp, latency;
    int type, code;
    union { double d; unsigned ui; unsigned long long ull; long long sll; } value;
} field_value;

static int failing[GPUS + 1];
static int starts, handles;

void standin_fail(int gpu, int code) { failing[gpu + 1] = code; }
int standin_starts(void) { return starts; }
int standin_handles(void) { return handles; }

static long of(nvmlDevice_t device) { return (long)device - 1; }
static int state(nvmlDevice_t device) { return failing[0] ? failing[0] : failing[of(device) + 1]; }

#define ANSWER(device, statement) \
    do { int code = state(device); if (!code) { statement; } return code; } while (0)

int nvmlInitWithFlags(unsigned flags) { (void)flags; starts++; return failing[0]; }
int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
int nvmlShutdown(void) { return 0; }
const char *nvmlErrorString(int code) { (void)code; return "stand-in error"; }

int nvmlSystemGetDriverVersion(char *text, unsigned size) {
    snprintf(text, size, "590.48.01");
    return failing[0];
}

int nvmlDeviceGetCount_v2(unsigned *count) { *count = GPUS; return failing[0]; }

int nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t *device) {
    if (failing[0]) return failing[0];
    if (index >= GPUS) return INVALID;
    handles++;
    *device = (nvmlDevice_t)(long)(index + 1);
    return failing[index + 1];
}

int nvmlDeviceGetUUID(nvmlDevice_t device, char *text, unsigned size) {
    ANSWER(device, snprintf(text, size, "GPU-%ld", of(device)));
}
int nvmlDeviceGetName(nvmlDevice_t device, char *text, unsigned size) {
    ANSWER(device, snprintf(text, size, "NVIDIA Stand-in"));
}
int nvmlDeviceGetSerial(nvmlDevice_t device, char *text, unsigned size) {
    ANSWER(device, snprintf(text, size, "165%ld", of(device)));
}
int nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, pci *info) {
    ANSWER(device, memset(info, 0, sizeof *info);
           snprintf(info->bus_id, sizeof info->bus_id, "00000000:%02lX:00.0", of(device) + 1));
}
int nvmlDeviceGetMinorNumber(nvmlDevice_t device, unsigned *minor) {
    ANSWER(device, *minor = (unsigned)of(device));
}
int nvmlDeviceGetArchitecture(nvmlDevice_t device, unsigned *architecture) {
    ANSWER(device, *architecture = 9);
}
int nvmlDeviceGetUtilizationRates(nvmlDevice_t device, utilization *rates) {
    ANSWER(device, rates->gpu = 37; rates->memory = 11);
}
int nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, memory_v2 *memory) {
    if (memory->version != (sizeof *memory | 2u << 24)) return 25;
    ANSWER(device, memory->total = 100; memory->reserved = 1; memory->free = 69; memory->used = 30);
}
int nvmlDeviceGetClockInfo(nvmlDevice_t device, int clock, unsigned *megahertz) {
    ANSWER(device, *megahertz = 1000u + (unsigned)clock);
}
int nvmlDeviceGetPowerUsage(nvmlDevice_t device, unsigned *milliwatts) {
    ANSWER(device, *milliwatts = 631950);
}
int nvmlDeviceGetTotalEnergyConsumption(nvmlDevice_t device, unsigned long long *millijoules) {
    ANSWER(device, *millijoules = 1ull << 60);
}
int nvmlDeviceGetTemperatureV(nvmlDevice_t device, temperature_v1 *temperature) {
    ANSWER(device, temperature->temperature = 59);
}
/* Only the older name of this one: the agent must fall back. */
int nvmlDeviceGetCurrentClocksThrottleReasons(nvmlDevice_t device, unsigned long long *reasons) {
    ANSWER(device, *reasons = 0x4);
}
int nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, field_value *values) {
    int code = state(device);
    for (int i = 0; i < count && !code; i++) {
        int temperature = values[i].field == 82, missing = values[i].field == 75;
        values[i].type = temperature ? 1 : 3;
        values[i].code = missing ? NOT_SUPPORTED : 0;
        if (temperature) values[i].value.ui = 54;
        else values[i].value.ull = 1000000000ull * values[i].field;
    }
    return code;
}
